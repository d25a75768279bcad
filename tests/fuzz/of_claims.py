"""Parsers of dynamic resource allocation, an allocation from what they return, and how long selectors hold the loop."""

import time
from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

from berth_client import wire
from berth_client.wire import WireError
from berth_operator.binding.prebind import stored_claims
from berth_operator.core.claims.bounds.errors import AllocationError
from berth_operator.core.claims.objects import slices
from berth_operator.core.claims.objects.fields import FieldError
from berth_operator.core.claims.selectors import LIMITED_STEPS, MAX_EXPRESSION, Selector, SelectorError, StepsError
from tests.claims import objects
from tests.claims.objects import Object
from tests.fuzz import inputs
from tests.fuzz.target import Target

_POLICY: Final = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi", "step": "512Mi"}}
_DEVICE: Final = objects.device(
    "a",
    attributes={"model": {"string": "x"}, "gpu.io/numa": {"int": 1}, "v": {"version": "1.0.0"}},
    capacity={"memory": {"value": "4Gi", "requestPolicy": _POLICY}},
    allowMultipleAllocations=True,
    consumesCounters=[{"counterSet": "set", "counters": {"memory": {"value": "1"}}}],
    taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}],
    bindingConditions=["ready"],
)
_NODES: Final = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["west"]}]}]
}
_SLICE: Final = objects.slice_of(_DEVICE, count=2, nodeSelector=_NODES)
_COUNTERS: Final = objects.slice_of(
    name="slice-1", count=2, sharedCounters=[{"name": "set", "counters": {"memory": {"value": "4"}}}]
)
_REQUEST: Final = objects.exactly(
    where="device.driver == 'gpu.io'",
    tolerations=[{"key": "k", "operator": "Exists"}],
    capacity={"requests": {"memory": "1Gi"}},
)
_CLAIM: Final = objects.claim(
    objects.request(count=0, adminAccess=True),
    objects.first_available("one", _REQUEST),
    constraints=[{"matchAttribute": "gpu.io/model"}, {"distinctAttribute": "gpu.io/numa", "requests": ["one/sub-0"]}],
    config=[{"requests": ["gpu"], "opaque": {"driver": "gpu.io", "parameters": {"a": 1}}}],
)
_CLASS: Final = {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}


def _allocated(drawn: tuple[Object, Object, Object, Object]) -> Any:
    published, counters, claim, device_class = drawn
    got = objects.allocation([published, counters], claim, classes=[device_class], max_steps=1000)
    return None if got is None else [each.written() for each in got]


MAX_TURN: Final = 0.02
"""Seconds of processor time that a turn of the operator's loop may take for a selector: to compile it, and to evaluate
it for a device."""
NOMINAL: Final = 0.003
"""Seconds that `_reference` takes on the machine for which that is."""

_NUMBERS: Final = st.integers(1, 500).map(lambda count: f"[{','.join(['1'] * count)}]")
_LISTS: Final = st.one_of(
    _NUMBERS,
    st.sampled_from(("lists.range(9999)", "lists.range(300).map(x, string(x))", "[[1, 2], [3]]", "[1.5, 2.0]")),
)
_LEAVES: Final = st.one_of(
    st.sampled_from(("x == x", "x in [1, 2]", "1 + 1 == 2", "device.driver == 'gpu.io'", "dyn(x) != 'a'")),
    st.sampled_from(('device.attributes["gpu.io"].model == "x"', 'semver("1.0.0") < semver("2.0.0")', "!(x > 1)")),
    st.sampled_from(
        ('"a".matches("(.{1,30}){30}")', '"ab".matches("[^a]+b?c*")', 'quantity("1Gi").isLessThan(quantity("2"))')
    ),
    st.integers(1, 4000).map(lambda count: f'"{"ab" * count}".contains("{"ab" * (count // 2)}c")'),
    st.integers(1, 4000).map(lambda count: f'"{"a" * count}".lowerAscii().split("").size() == 1'),
)


def _grown(inner: Any) -> Any:
    return st.one_of(
        st.builds("{0}.all(x, {1})".format, _LISTS, inner),
        st.builds("{0}.map(x, {0}.exists(y, {1})).distinct().size() < 9".format, _LISTS, inner),
        st.builds("{0}.filter(x, {1}).sort() == {0}.reverse()".format, _LISTS, inner),
        st.builds("cel.bind(b, {0}.map(x, {0}), b == b && {1})".format, _LISTS, inner),
        st.builds(
            lambda text, count, by: by.join([text] * count),
            inner,
            st.integers(2, 400),
            st.sampled_from((" && ", " || ")),
        ),
    )


_EXPRESSIONS: Final = st.recursive(_LEAVES, _grown, max_leaves=4).map(lambda text: text[:MAX_EXPRESSION])


def _held(expression: str) -> None:
    """Compile and evaluate an expression as the loop does, as long as it does so itself."""
    allowed = MAX_TURN * max(1.0, _seconds(_reference) / NOMINAL)
    # The processor may be slow for a moment.
    taken = min(_seconds(lambda: _in_loop(expression)) for _ in range(3))
    assert taken <= allowed, f"{taken:.3f} s of {allowed:.3f} for {expression:.200}"


def _seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def _reference() -> int:
    return sum(number * number for number in range(50_000))


def _in_loop(expression: str) -> None:
    try:
        selector = Selector(expression, limited=True)
        assert selector.evaluate(_VIEW, LIMITED_STEPS).steps <= LIMITED_STEPS
    except StepsError:
        return  # the worker process evaluates it
    except SelectorError:
        return


_VIEW: Final = slices.read(objects.slice_of(_DEVICE)).devices[0].view
_held("[1].all(x, x == 1)")  # imports what is imported once

_METADATA: Final = wire.texts(1, ["c"]) + wire.texts(6, ["1"]) + wire.encoded(11, wire.texts(1, ["a"])) + b"\x38\x01"
_CONFIG: Final = wire.encoded(2, wire.encoded(1, wire.texts(1, ["gpu.io"]) + wire.encoded(2, wire.texts(1, ["{}"]))))
_STORED: Final = wire.MAGIC + wire.encoded(
    2, wire.encoded(1, _METADATA) + wire.encoded(2, wire.encoded(1, wire.encoded(3, _CONFIG))) + wire.encoded(3, b"")
)
_SHOWN: Final = {
    "metadata": {"resourceVersion": "2", "labels": {"a": "b"}, "finalizers": ["f"]},
    "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]},
}


def _merged(stored: bytes) -> Any:
    return stored_claims.configs_of_claim(stored), stored_claims.merged(stored, _SHOWN)


TARGETS: Final = (
    Target(name="selector in the loop", inputs=_EXPRESSIONS, parse=_held),
    Target(name="stored claim", inputs=inputs.damaged(st.just(_STORED)), parse=_merged, errors=(WireError,)),
    Target(
        name="resource claims",
        inputs=st.tuples(*(inputs.objects(each) for each in (_SLICE, _COUNTERS, _CLAIM, _CLASS))),
        parse=_allocated,
        errors=(FieldError, AllocationError),
    ),
)
