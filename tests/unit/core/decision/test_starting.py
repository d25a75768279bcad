"""A pod that may fit on a starting node is not `Unschedulable`, so that no other node is added for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from berth_api.request.model import of_pod
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import NodeTerm, PendingPod, Taint, Toleration
from tests.objects.builders import (
    GPU,
    NVIDIA,
    add,
    asks,
    cards,
    charge,
    gang,
    grant,
    inventory,
    label,
    node_info,
    waiting,
)

STARTUP = Taint(key="berth.dev/agent-not-ready", effect="NoSchedule")
DEDICATED = Taint(key="team", value="a", effect="NoSchedule")
TWO = {NVIDIA: 2}


def starting(count: int | None = None, *, is_new: bool = True, **node: Any) -> Fleet:
    """Return a fleet of one starting node; `count` is the number of cards in its Device, None if there is none."""
    fleet = Fleet()
    add(fleet, node_info(**{"offered": {}, **node}), None if count is None else inventory(*cards(count)))
    fleet.set_starting("node", starting=is_new)
    return fleet


def condition(fleet: Fleet, unit: PendingPod | Gang) -> str:
    outcome = decide_gang(fleet, unit, Policy()) if isinstance(unit, Gang) else decide(fleet, unit, Policy())
    assert isinstance(outcome, Failure), outcome
    return outcome.condition


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param({}, "NodeStarting", id="no Device"),
        pytest.param({"is_new": False}, "Unschedulable", id="no Device, for too long"),
        pytest.param({"ready": False}, "NodeStarting", id="kubelet not ready"),
        pytest.param({"unreachable": True}, "NodeStarting", id="kubelet has not reported"),
        pytest.param({"taints": [STARTUP]}, "NodeStarting", id="startup taint"),
        pytest.param({"count": 8, "taints": [STARTUP]}, "NodeStarting", id="Device there, startup taint"),
        pytest.param({"count": 8}, "NodeStarting", id="Device there, no device plugin yet"),
        pytest.param({"count": 0}, "NodeStarting", id="Device there, no driver yet"),
        pytest.param({"count": 1}, "Unschedulable", id="too few cards in the Device"),
        pytest.param({"offered": {NVIDIA: 1}}, "Unschedulable", id="device plugin offers too little"),
        pytest.param({"taints": [STARTUP, DEDICATED]}, "Unschedulable", id="a taint that stays"),
        pytest.param({"cordoned": True}, "Unschedulable", id="cordoned"),
        pytest.param({"cpu": 500}, "Unschedulable", id="too little cpu"),
    ],
)
def test_a_pod_waits_for_a_starting_node_that_may_take_it(node: Mapping[str, Any], expected: str) -> None:
    assert condition(starting(**node), waiting("a", {**TWO, "cpu": 1000})) == expected


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(waiting("a", {GPU: 50}), "NodeStarting", id="a share"),
        pytest.param(
            waiting("a", asks(TWO, model=of_pod({"berth.dev/gpu-model": "*T4*"}, {}))), "NodeStarting", id="a model"
        ),
        pytest.param(waiting("a", asks(TWO, selector={"zone": "b"})), "Unschedulable", id="another zone"),
        pytest.param(waiting("a", {"cpu": 1000}), "Unschedulable", id="no devices"),
        pytest.param(
            waiting("a", asks(TWO, tolerations=[Toleration(operator="Exists")])), "NodeStarting", id="tolerates all"
        ),
    ],
)
def test_which_pods_wait_for_it(pod: PendingPod, expected: str) -> None:
    assert condition(starting(taints=[STARTUP]), pod) == expected


def test_an_old_node_that_is_full_is_no_reason_to_wait() -> None:
    fleet = starting(1, offered={NVIDIA: 1})
    fleet.charge(charge("b", grant(0, core=100, ratio=100), resources=((NVIDIA, 1),)))
    assert condition(fleet, waiting("a", {NVIDIA: 1})) == "Unschedulable"


def test_the_message_says_what_it_waits_for() -> None:
    outcome = decide(starting(), waiting("a", TWO), Policy())
    assert isinstance(outcome, Failure)
    assert outcome.message == (
        "0/1 nodes are available: 1 node(s) have no Device. 1 node(s) that may take the pod are starting."
    )


@pytest.mark.parametrize(
    ("minimum", "expected"),
    [pytest.param(4, "NodeStarting", id="all wait"), pytest.param(5, "PodGroupNotReady", id="too few members")],
)
def test_a_gang_waits_for_a_starting_node(minimum: int, expected: str) -> None:
    unit = gang(*(waiting(name, TWO) for name in "abcd"), minimum=minimum)
    fleet = starting()
    add(fleet, node_info("ready"), inventory(*cards(4)))
    assert condition(fleet, unit) == expected


UP: Mapping[str, Any] = {"count": 1, "offered": {NVIDIA: 1}}


@pytest.mark.parametrize(
    ("nodes", "members", "expected"),
    [
        pytest.param([UP, UP], 3, "Unschedulable", id="its members take both"),
        pytest.param([{"count": 1}, {"count": 1}], 3, "Unschedulable", id="they will take both"),
        pytest.param([{"count": 1}] * 3, 3, "NodeStarting", id="enough cards are coming"),
        pytest.param([UP, UP, {}], 3, "NodeStarting", id="another one is coming"),
        pytest.param([{}, {}], 3, "NodeStarting", id="number of cards not known yet"),
        pytest.param([{**UP, "labels": {"zone": each}} for each in "ab"], 2, "Unschedulable", id="in another domain"),
    ],
)
def test_nodes_that_a_gangs_own_members_take_are_no_reason_to_wait(
    nodes: Sequence[Mapping[str, Any]], members: int, expected: str
) -> None:
    fleet = Fleet()
    for name, fields in zip("xyz", nodes, strict=False):
        own = {"offered": {}, "count": None, **fields}
        count = own.pop("count")
        add(fleet, node_info(name, **own), None if count is None else inventory(*cards(count)))
        fleet.set_starting(name, starting=True)
    key = "zone" if "labels" in nodes[0] else ""
    unit = gang(*(waiting(name, {NVIDIA: 1}) for name in "abc"[:members]), topology_key=key)
    assert condition(fleet, unit) == expected


@pytest.mark.parametrize(
    ("node", "used", "expected"),
    [
        pytest.param({"ready": False}, True, "Unschedulable", id="not ready again"),
        pytest.param({"taints": [STARTUP]}, True, "Unschedulable", id="tainted again"),
        pytest.param({"count": 8}, True, "NodeStarting", id="shares are used, no device plugin yet"),
        pytest.param({"count": 8}, False, "NodeStarting", id="no device plugin yet"),
    ],
)
def test_a_node_whose_devices_pods_have_held_has_started(node: Mapping[str, Any], expected: str, *, used: bool) -> None:
    fleet = starting(**{"count": 8, **node})
    fleet.set_starting("node", starting=True, used=used)
    assert condition(fleet, waiting("a", {NVIDIA: 1})) == expected


def test_a_device_plugin_that_pods_have_used_is_not_coming() -> None:
    fleet = starting(2, offered={NVIDIA: 0})
    fleet.charge(charge("b", grant(0, core=100, ratio=100), resources=((NVIDIA, 1),)))
    assert condition(fleet, waiting("a", {NVIDIA: 1})) == "Unschedulable"


# --- models that no node has --------------------------------------------------------------------------------------

B200 = of_pod({"berth.dev/gpu-model": "*B200*"}, {})
ANY_A100 = of_pod({"berth.dev/gpu-model": "*A100*"}, {})


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(waiting("a", asks(TWO, model=B200)), "UnknownModel", id="no such model"),
        pytest.param(waiting("a", asks(TWO, model=ANY_A100)), "Unschedulable", id="of this model, but too few"),
        pytest.param(waiting("a", asks(TWO, model=B200, selector={"pool": "b"})), "Unschedulable", id="node selector"),
        pytest.param(
            waiting("a", asks(TWO, model=B200, affinity=[NodeTerm(labels=(label("pool", "Exists"),))])),
            "Unschedulable",
            id="node affinity",
        ),
    ],
)
def test_no_node_is_asked_for_a_model_that_autoscalers_cannot_see(pod: PendingPod, expected: str) -> None:
    assert condition(starting(1, is_new=False), pod) == expected
    assert condition(starting(1), pod) == expected


def test_without_any_gpu_the_model_is_unknown_too() -> None:
    assert condition(Fleet(), waiting("a", asks(TWO, model=ANY_A100))) == "UnknownModel"
