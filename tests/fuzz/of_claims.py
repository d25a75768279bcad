"""Parsers of dynamic resource allocation, and an allocation from what they return."""

from typing import Any, Final

from hypothesis import strategies as st

from berth_client import wire
from berth_client.wire import WireError
from berth_operator.binding.prebind import stored_claims
from berth_operator.core.claims.errors import AllocationError
from berth_operator.core.claims.fields import FieldError
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
    Target(name="stored claim", inputs=inputs.damaged(st.just(_STORED)), parse=_merged, errors=(WireError,)),
    Target(
        name="resource claims",
        inputs=st.tuples(*(inputs.objects(each) for each in (_SLICE, _COUNTERS, _CLAIM, _CLASS))),
        parse=_allocated,
        errors=(FieldError, AllocationError),
    ),
)
