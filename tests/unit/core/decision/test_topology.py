"""Groups whose members must be in one domain of a node label."""

from typing import Any

import pytest

from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.gang_preemption import may_preempt, preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod
from tests.builders import add, cards, charge, gang, grant, inventory, node_info
from tests.builders import waiting as waits
from tests.unit.core.decision.test_gang import ONE, nodes_of, refusal

KEY = "rack"


def members(count: int, **fields: Any) -> list[PendingPod]:
    return [waits(f"m{number}", ONE, **fields) for number in range(count)]


def racks(**nodes: tuple[str, int]) -> Fleet:
    """Return a fleet of nodes, each in a rack (none if empty) with a number of cards."""
    made = Fleet()
    for name, (rack, count) in nodes.items():
        add(made, node_info(name, labels={KEY: rack} if rack else {}), inventory(*cards(count)))
    return made


def test_all_members_are_in_one_domain_although_nodes_outside_have_more() -> None:
    made = racks(a1=("a", 1), a2=("a", 2), b1=("b", 2), c=("", 8))
    assert nodes_of(decide_gang(made, gang(*members(3), topology_key=KEY), Policy())) == {"a1": 1, "a2": 2}


def test_no_domain_holds_them() -> None:
    made = racks(a1=("a", 2), b1=("b", 2))
    failed = refusal(decide_gang(made, gang(*members(3), topology_key=KEY), Policy()))
    assert failed.message == (
        "PodGroup ns/g: 2 of the 3 required members fit in rack=a (0/2 placements are available); next member m2: "
        "0/2 nodes are available: 1 node(s) have too few free GPUs (1 requested with gpu-core 100 and gpu-memory-ratio "
        "100)."
    )
    assert not failed.filters
    failed = refusal(decide_gang(made, gang(*members(3), topology_key="zone"), Policy()))
    assert failed.message.startswith("PodGroup ns/g: 0 of the 3 required members fit (0/0 placements are available)")


def test_the_members_that_fit_stay_in_one_domain() -> None:
    made = racks(a1=("a", 2), b1=("b", 3))
    assert nodes_of(decide_gang(made, gang(*members(5), minimum=1, topology_key=KEY), Policy())) == {"b1": 3}


def test_the_domain_of_the_placed_members_is_the_only_one() -> None:
    made = racks(a1=("a", 1), b1=("b", 8))
    more = gang(*members(1), minimum=0, placed=1, nodes=("a1",), topology_key=KEY)
    assert nodes_of(decide_gang(made, more, Policy())) == {"a1": 1}
    assert isinstance(decide_gang(racks(a1=("a", 0), b1=("b", 8)), more, Policy()), Failure)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        pytest.param(("a1", "b1"), "more than 1 domain found for pod group: a, b", id="two"),
        pytest.param(("a1", "c"), "no topology domain found for pod", id="none"),
    ],
)
def test_placed_members_are_in_no_single_domain(nodes: tuple[str, ...], why: str) -> None:
    made = racks(a1=("a", 1), b1=("b", 8), c=("", 8))
    more = gang(*members(1), minimum=0, placed=2, nodes=nodes, topology_key=KEY)
    failed = refusal(decide_gang(made, more, Policy()))
    assert failed.condition == "SchedulerError"
    assert failed.message == f"PodGroup ns/g: cannot determine domain for already scheduled pods: {why}"
    assert preempt_gang(made, more, Policy(), Budgets()) is None


def test_victims_are_of_one_domain() -> None:
    made = racks(a1=("a", 2), b1=("b", 1), b2=("b", 1))
    for name, node, minor, priority in (("w", "a1", 0, 5), ("x", "a1", 1, 1), ("y", "b1", 0, 1), ("z", "b2", 0, 2)):
        made.charge(charge(name, grant(minor, core=100, ratio=100), node=node, priority=priority))
    wanted = gang(*members(2, priority=9), topology_key=KEY)
    found = preempt_gang(made, wanted, Policy(), Budgets())
    assert found is not None
    assert sorted(each.uid for each in found.victims) == ["uid-y", "uid-z"]
    assert {each.node for each in found.nominees} == {"b1", "b2"}


def test_members_beyond_the_minimum_evict_one_after_the_other() -> None:
    made = racks(a1=("a", 2))
    for minor in range(2):
        made.charge(charge(f"v{minor}", grant(minor, core=100, ratio=100), node="a1"))
    more = gang(*members(2, priority=9), minimum=1, placed=1)
    assert not may_preempt(made, more, Policy())
    more = gang(*members(2, priority=9), minimum=1, placed=1, further_preempt=True)
    found = preempt_gang(made, more, Policy(), Budgets())
    assert found is not None
    assert len(found.victims) == len(found.nominees) == 1
