"""Every failure of a plug-in is one error that names the plug-in, and has no other effect."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from berth_api import request
from berth_api.allocation import Grant
from berth_api.request import Kinds
from berth_operator.core.advice.defragmentation import advise
from berth_operator.core.advice.simulate import simulate
from berth_operator.core.allocators import simple
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import nominated_fit, preempt
from berth_operator.core.filters import has_capacity
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.plugins import DevicePlugin, PluginFailedError
from berth_operator.core.plugins.containment import contained
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PendingPod, PodRequest
from tests.objects.builders import add, charge, gang, inventory, node_info, other_card, place, waiting
from tests.stand_ins.third_party import KIND, NPU, OWNER, fails, gives, plugins


def npu(minor: int = 0, *, healthy: bool = True) -> CardInfo:
    return other_card("npu", minor, healthy=healthy)


def strange(*cards: int, **own: Callable[..., Any]) -> tuple[Fleet, Policy]:
    """Return a Fleet with nodes `a`, `b` … with this many NPUs each and a broken one, and a policy."""
    made = Fleet(kinds=Kinds((KIND,)))
    for name, count in zip("abc", cards, strict=False):
        devices = [*(npu(minor) for minor in range(count)), npu(9, healthy=False)]
        add(made, node_info(name), inventory(*devices))
    return made, Policy(plugins=plugins(**own))


def wants(count: int = 1, name: str = "pod", **fields: Any) -> PendingPod:
    device_request = request.of_resources({NPU: count}, kinds=Kinds((KIND,)))
    return waiting(name, PodRequest(resources=(("pods", 1),), devices=device_request), **fields)


def part_of(minor: int, kind: str = "npu", amount: int = 100, counted: str = "npu", name: str = "") -> Grant:
    return Grant(type=kind, minor=minor, amounts=((counted, amount),), id=name)


def given(*minors: int, **fields: Any) -> Callable[..., Any]:
    return gives(tuple(part_of(minor, **fields) for minor in minors))


def test_a_device_that_is_given_by_its_minor_gets_its_id() -> None:
    made, policy = strange(2, choose=given(1, 0))
    assert [each.id for each in place(made, wants(2), policy).grants] == ["npu-1", "npu-0"]


def test_a_device_of_a_plugin_is_its_id() -> None:
    made, policy = strange(2, choose=given(0))
    place(made, wants(), policy)
    made.put_device("a", inventory(other_card("npu", 3), *(replace(npu(minor), minor=1 - minor) for minor in (0, 1))))
    assert {grant.minor for each in made.on_node("a") for grant in each.grants} == {1}


def test_one_that_does_nothing_wrong_is_as_if_there_were_no_wall() -> None:
    made, policy = strange(1, 2, score=lambda _fleet, _wanted, fits: np.arange(len(fits)))
    assert (place(made, wants(name="one"), policy).node, place(made, wants(name="two"), policy).node) == ("b", "b")
    assert place(made, wants(name="three"), policy).node == "a"
    failure = decide(made, wants(), policy)
    assert isinstance(failure, Failure)
    assert "node(s) have too few free NPUs" in failure.message


@pytest.mark.parametrize(
    ("call", "does", "message"),
    [
        pytest.param("passes", fails, "ZeroDivisionError: division by zero", id="passes raises"),
        pytest.param("passes", gives(None), "it returned None; allowed is a mask of shape (", id="no mask"),
        pytest.param("passes", gives(np.ones(1, np.bool_)), "allowed is a mask of shape", id="a mask of another shape"),
        pytest.param(
            "passes",
            lambda fleet, _wanted, _part, rows: fleet.present[rows].astype(int),
            "allowed is a mask of shape",
            id="a mask of numbers",
        ),
        pytest.param("choose", fails, "ZeroDivisionError: division by zero", id="choose raises"),
        pytest.param("choose", given(), "it returned []; requested: 2 different ones of npu", id="no device"),
        pytest.param("choose", given(0), "it returned [('npu', 0)]; requested: 2 different ones", id="too few"),
        pytest.param("choose", given(0, 1, 2), "requested: 2 different ones", id="too many"),
        pytest.param("choose", given(1, 1), "requested: 2 different ones", id="a device twice"),
        pytest.param("choose", given(0, 1, kind="gpu"), "it returned [('gpu', 0), ('gpu', 1)]", id="of another type"),
        pytest.param("choose", given(0, 7), "npu 7, but node a has no such healthy device", id="unknown"),
        pytest.param("choose", given(0, 9), "npu 9, but node a has no such healthy device", id="unhealthy"),
        pytest.param(
            "choose", given(0, 1, name="npu-7"), "id npu-7 for npu 0; on node a its id is npu-0", id="another id"
        ),
        pytest.param("choose", given(0, 2), "100 of npu of npu 2; it has 0 free", id="taken"),
        pytest.param("choose", given(0, 1, amount=0), "0 of npu of npu 0; it has 100 free", id="nothing of it"),
        pytest.param("choose", given(0, 1, counted="x"), "KeyError: 'x'", id="an unknown resource"),
        pytest.param("choose", gives(7), "TypeError: 'int' object is not iterable", id="no devices at all"),
        pytest.param("score", fails, "ZeroDivisionError: division by zero", id="score raises"),
        pytest.param("score", gives(np.ones(1)), "it returned scores of shape (1,); allowed is (", id="another shape"),
        pytest.param("score", gives("abc"), "ValueError: could not convert string to float", id="no scores"),
        pytest.param("score", lambda _fleet, _wanted, fits: fits * 101.0, "allowed are 0 to 100", id="too high"),
        pytest.param("score", lambda _fleet, _wanted, fits: fits * -1.0, "allowed are 0 to 100", id="below zero"),
        pytest.param("score", lambda _fleet, _wanted, fits: fits * np.nan, "allowed are 0 to 100", id="no number"),
    ],
)
def test_what_it_does_wrong_is_reported_with_its_name(call: str, does: Callable[..., Any], message: str) -> None:
    made, policy = strange(3, **{call: does})
    made.charge(charge("other", part_of(2), node="a"))
    with pytest.raises(PluginFailedError) as failed:
        decide(made, wants(2), policy)
    assert failed.value.device_type == "npu"
    assert str(failed.value).startswith(f"{OWNER} failed in {call}: ")
    assert message in str(failed.value)
    # Others are decided as ever.
    assert isinstance(decide(made, waiting(), policy), Placement)


@pytest.mark.parametrize("does", [fails, gives([("why", None)]), gives([7])])
def test_reasons_are_looked_at_as_well(does: Callable[..., Any]) -> None:
    made, policy = strange(1, reasons=does)
    with pytest.raises(PluginFailedError, match="failed in reasons"):
        decide(made, wants(2), policy)


@pytest.mark.parametrize("number", [np.nan, np.inf, -1.0, 1e9])
def test_a_score_may_be_anything_where_the_pod_does_not_fit(number: float) -> None:
    def score(_fleet: Fleet, _wanted: PodRequest, fits: Mask) -> Any:
        return np.where(fits, 50.0, number)

    made, policy = strange(0, 1, score=score)
    assert place(made, wants(), policy).node == "b"


def test_a_fleet_is_left_as_it_was_and_decides_once_it_fails_no_more() -> None:
    code: dict[str, Callable[..., Any]] = {}

    def passes(*arguments: Any) -> Any:
        return code.get("passes", simple.passes)(*arguments)

    made, policy = strange(2, passes=passes)
    made.nominate(charge("kept", part_of(0), node="a", priority=1))
    before = decide(made, wants(), policy)
    code["passes"] = fails
    for count in range(1, 4):
        made.charge(charge(f"other-{count}", node="a"))
        with pytest.raises(PluginFailedError):
            decide(made, wants(priority=2), policy)
        assert list(made.nominees) == ["uid-kept"]
    code.clear()
    assert decide(made, wants(), policy) == before


def test_nothing_is_kept_for_a_pod_where_it_fails_and_it_may_be_decided_anywhere() -> None:
    made, policy = strange(1, passes=fails)
    assert nominated_fit(made, wants(nominated_node="a"), policy, "a") is None
    assert has_capacity(policy.local, made, wants().request, 0)


def test_preemption_and_gangs_fail_alike() -> None:
    made, policy = strange(1, could_pass=fails)
    place(made, wants(name="low"), policy)
    with pytest.raises(PluginFailedError, match="could_pass"):
        preempt(made, wants(priority=1), policy, Budgets())
    empty, policy = strange(2, choose=fails)
    with pytest.raises(PluginFailedError, match="choose"):
        decide_gang(empty, gang(wants(name="a"), wants(name="b")), policy)
    assert not empty.charges


def test_simulation_and_advice_report_a_plug_in_failure_only_on_its_pods() -> None:
    made, policy = strange(3, choose=fails)
    policies = {"berth-scheduler": policy}
    simulation = simulate(made, [wants(name="a"), waiting("b"), gang(wants(name="c"), wants(name="d"))], policies)
    messages = {each.pod.name: each.result.message for each in simulation.outcomes if isinstance(each.result, Failure)}
    assert messages.keys() == {"a", "c", "d"}
    assert {each.partition(":")[0] for each in messages.values()} == {f"{OWNER} failed in choose"}
    advice = advise(made, wants(), {}, policies, Budgets())
    assert isinstance(advice.result, Failure)
    assert advice.result.message == f"{OWNER} failed in choose: ZeroDivisionError: division by zero"


def test_without_code_of_its_own_there_is_nothing_to_contain() -> None:
    assert contained(DevicePlugin(kind=KIND), OWNER).allocator is None
    assert contained(DevicePlugin(kind=KIND), OWNER).score is None
