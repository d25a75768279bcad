"""Cached results of selectors, by an index, an evaluation or a worker process, within bounds of memory and work."""

from typing import Any

import pytest

from berth_operator.core.claims.bounds.errors import ClaimError, NodeError, NoWorkError
from berth_operator.core.claims.bounds.kept import PATIENCE, Kept
from berth_operator.core.claims.bounds.turns import HALVED, NamespaceTurns
from berth_operator.core.claims.matching.offload import BATCH, Offload
from berth_operator.core.claims.matching.selected import Selected, SelectorPair
from berth_operator.core.claims.objects import slices
from berth_operator.core.claims.objects.slices import Device
from berth_operator.core.claims.selectors import SelectorError, compile_selector
from tests.claims import objects

MODEL = 'device.attributes["gpu.io"].model'
SLOW = f"[{', '.join(['1'] * 95)}].all(x, [{', '.join(['1'] * 95)}].all(y, x == y))"
"""Takes 10 ms or more."""


def devices(*attributes: dict[str, Any], driver: str = "gpu.io", first: int = 0) -> tuple[Device, ...]:
    """Return devices with these attributes, of the API."""
    listed = [objects.device(f"gpu-{first + at}", attributes=each) for at, each in enumerate(attributes)]
    raw = objects.slice_of(*listed)
    raw["spec"]["driver"] = driver
    return slices.read(raw).devices


MIXED = devices(
    {"model": {"string": "a"}, "v": {"string": "1"}},
    {"model": {"string": "b"}, "v": {"int": 1}},
    {"model": {"string": ""}, "v": {"bool": True}},
    {"model": {"version": "1.0.0"}, "other.io/model": {"string": "a"}},
    {"v": {"string": "a"}},
    {},
    {"model": {"version": "none"}},
)


def of(chosen: Selected, expression: str) -> SelectorPair:
    return chosen.of(((), (expression,)))


def outcome(selection: SelectorPair, device: Device) -> bool | str:
    try:
        return selection.matches(device, "class", "claim")
    except (ClaimError, NodeError) as error:
        # Without the near name.
        return str(error).partition(" (did you mean")[0]


def evaluated(expression: str, device: Device) -> bool | str:
    """Return what an evaluation without an index gives."""
    if device.unsupported:
        return f"claim: selector #0 on device {device.id}: {device.unsupported}"
    try:
        return compile_selector(expression).matches(device.view)
    except SelectorError as error:
        return f"claim: selector #0 on device {device.id}: CEL runtime error: {error}"


def counting(*listed: Device, left: float = 1e9) -> Selected:
    made = Selected()
    made.work.refill(left)
    made.put(listed)
    return made


@pytest.mark.parametrize(
    "expression",
    [
        f'{MODEL} == "a"',
        f'{MODEL} == ""',
        f'{MODEL} == "nowhere"',
        'device.attributes["gpu.io"]["v"] == 1',
        'device.attributes["gpu.io"].v == true',
        'device.attributes["unknown.io"].v == "a"',
        'device.driver == "gpu.io"',
        'device.driver == "other.io"',
        f'{MODEL} == "a" && device.attributes["gpu.io"].v == "1"',
        f'device.attributes["gpu.io"].v == "1" && {MODEL} == "a" && device.driver == "other.io"',
        f'{MODEL} == "b" && device.attributes["other.io"].model == "a"',
        'device.attributes["gpu.io"].?model.orValue("") == "a"',
        'device.attributes["gpu.io"].?v.orValue(0) == 1',
        'device.driver == "gpu.io" && device.attributes["gpu.io"].?model.orValue("") == "b"',
        f'device.attributes["gpu.io"].?v.orValue("") == "1" && {MODEL} == "a"',
        f'{MODEL} == "a" && device.attributes["gpu.io"].?v.orValue("") == "1"',
        f'device.attributes["unknown.io"].?v.orValue("") == "1" && {MODEL} == "a"',
    ],
)
def test_an_index_gives_what_an_evaluation_gives_and_its_error(expression: str) -> None:
    chosen = counting(*MIXED)
    assert compile_selector(expression).equalities
    assert [outcome(of(chosen, expression), each) for each in MIXED] == [evaluated(expression, each) for each in MIXED]


@pytest.mark.parametrize(
    "expression",
    [
        f'"a" == {MODEL}',
        f'{MODEL} != "a"',
        f'{MODEL} == "a" || true',
        f"{MODEL} == 1.0",
        f'{MODEL} == "a" && true',
        'device.attributes["gpu.io"].?model.orValue("a") == "a"',
        'device.attributes["gpu.io"].?model.orValue(1.0) == "a"',
        'device.attributes["gpu.io"].?model.or(device.attributes["gpu.io"].?v).orValue("") == "a"',
        'device.attributes[?"gpu.io"].?model.orValue("") == "a"',
    ],
)
def test_other_expressions_are_evaluated(expression: str) -> None:
    assert not compile_selector(expression).equalities


def test_an_equality_takes_no_work_for_each_device() -> None:
    chosen = counting(*devices(*({"model": {"string": f"m-{at}"}} for at in range(1000))), left=1000)
    for at in range(3):
        assert sum(outcome(of(chosen, f'{MODEL} == "m-{at}"'), each) is True for each in chosen.devices.numbers) == 1
    assert chosen.work.left > 0


@pytest.mark.parametrize("expression", [f'{MODEL} == "a"', f'{MODEL} in ["a"]'])
def test_devices_that_come_and_go_are_looked_at_again(expression: str) -> None:
    old, new = (
        devices({"model": {"string": "a"}}, {"model": {"string": "b"}}),
        devices({"model": {"string": "b"}}, first=9),
    )
    chosen = counting(*old)
    assert [outcome(of(chosen, expression), each) for each in old] == [True, False]
    assert chosen.matching(old[0]) == 1
    chosen.forget(old)
    chosen.put(new)  # in the place of one of them
    assert chosen.matching(new[0]) == 0
    assert outcome(of(chosen, expression), new[0]) is False


def test_a_failure_is_kept() -> None:
    chosen = counting(*MIXED)
    expression, lacking = f'{MODEL}.startsWith("a")', MIXED[5]
    failed = outcome(of(chosen, expression), lacking)
    assert failed == f"claim: selector #0 on device {lacking.id}: CEL runtime error: no such key: model"
    chosen.work.refill(0)
    assert outcome(of(chosen, expression), lacking) == failed
    with pytest.raises(NoWorkError):
        of(chosen, expression).matches(MIXED[0], "class", "claim")
    assert chosen.work.goes_on


def test_kinds_at_the_bound_of_memory_are_finished_one_after_the_other() -> None:
    listed = devices(*({"model": {"string": f"m-{at}"}} for at in range(50)))
    chosen, finished, turns = Selected(memory=0, least=2), set[int](), 0
    chosen.put(listed)
    while len(finished) < 6:
        turns += 1
        for kind in {*range(6)} - finished:
            chosen.work.refill(60)  # the first few of the devices
            selection = of(chosen, f'{MODEL} in ["m-{kind}"]')
            if all(isinstance(outcome(selection, each), bool) for each in listed):
                finished.add(kind)
        assert turns < 50


def test_what_nobody_uses_any_more_gives_way() -> None:
    kept: Kept[str, str] = Kept(lambda _: True)
    assert kept.use("left behind", str, 1) == ""
    tries = [kept.use("new", str, 1) for _ in range(PATIENCE + 2)]
    assert (tries[0], tries[-1]) == (None, "")


# --- the worker process -----------------------------------------------------------------------------------------


def offloading(*listed: Device) -> tuple[Selected, Offload]:
    chosen = counting(*listed)
    chosen.offload = Offload(NamespaceTurns())
    return chosen, chosen.offload


@pytest.mark.parametrize(
    "expression", [SLOW, "true" + " " * 1024, f'{MODEL}.matches("[ab]{{100}}")', f"{MODEL}.matches({MODEL})"]
)
def test_what_takes_long_is_left_to_the_worker_and_its_answer_is_kept(expression: str) -> None:
    chosen, offload = offloading(*MIXED)
    with pytest.raises(NoWorkError):
        of(chosen, expression).matches(MIXED[0], "class", "claim")
    assert (chosen.work.waits, chosen.work.goes_on) == (True, False)
    job = offload.next_job()
    assert job is not None
    assert job.devices == MIXED[:6]  # without the one that no selector can see
    results: tuple[bool | str, ...] = (True, False, "it takes too long")
    for device, result in zip(job.devices, results, strict=False):
        chosen.learn(expression, device, result)
    offload.done()
    chosen.work.refill(0)
    assert [outcome(of(chosen, expression), each) for each in MIXED[:3]] == [
        True,
        False,
        f"claim: selector #0 on device {MIXED[2].id}: CEL runtime error: it takes too long",
    ]


def test_the_worker_finds_that_a_long_expression_does_not_compile() -> None:
    chosen, _ = offloading(*MIXED)
    expression = "unknown" + " " * 2000
    assert "worker" in str(outcome(of(chosen, expression), MIXED[0]))
    chosen.refuse(expression, "compilation failed: undeclared reference to 'unknown'")
    chosen.work.refill(1000)
    with pytest.raises(ClaimError, match="claim: selector #0: CEL compile error: compilation failed: undeclared"):
        of(chosen, expression).matches(MIXED[0], "class", "claim")


def test_the_jobs_of_a_namespace_with_many_wait_for_those_of_others() -> None:
    listed = devices(*({"model": {"string": "a"}} for _ in range(2 * BATCH)))
    chosen, offload = offloading(*listed)
    for number, namespace in enumerate(("heavy", "heavy", "light")):
        chosen.work.begin(namespace)
        assert "worker" in str(outcome(of(chosen, f"{SLOW} && {number} == {number}"), listed[0]))
    order = []
    while (job := offload.next_job()) is not None:
        assert len(job.devices) == BATCH
        order.append(job.namespace)
        offload.turns.take(job.namespace, 1.0, 0.0)
        offload.done()
    assert order == ["heavy", "light", "heavy"]


def test_what_was_taken_long_ago_counts_less() -> None:
    turns = NamespaceTurns()
    turns.take("a", 1.0, 0.0)
    turns.take("b", 1.0, 2 * HALVED)
    assert (turns.taken("a"), turns.taken("b"), turns.taken("c")) == (0.25, 1.0, 0.0)
