"""Preemption for a gang: no victims unless all needed members then fit, none unnecessary, none of its priority."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.allocation import Grant
from berth_api.values.selectors import LabelSelector, Requirement
from berth_operator.core.claims.bounds.errors import NoWorkError
from berth_operator.core.decision.budgets import Budget, Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.gang_evictions import AT_ONCE, GangPreemption
from berth_operator.core.decision.gang_preemption import preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import WithoutLowerPriority
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Affinity, Identity
from berth_operator.core.values.request import PendingPod, PodRequest
from tests.objects.builders import (
    A100_BYTES,
    NVIDIA,
    add,
    asks,
    cards,
    charge,
    gang,
    grant,
    inventory,
    node_info,
    waiting,
)
from tests.unit.core.decision.test_gang import term_of
from tests.unit.core.fleet.test_fleet import arrays

HOST, CLIQUE = "kubernetes.io/hostname", "nvidia.com/gpu.clique"
ABOVE = 10


def whole(*minors: int) -> list[Grant]:
    return [grant(minor, core=100, ratio=100, memory=A100_BYTES) for minor in minors]


def racks(*sizes: int) -> Fleet:
    """Return nodes n0, n1, … with the given numbers of cards."""
    made = Fleet()
    for number, count in enumerate(sizes):
        name = f"n{number}"
        add(made, node_info(name, labels={HOST: name}), inventory(*cards(count)))
    return made


def hold(made: Fleet, node: int, *minors: int, priority: int = 0, name: str = "", app: str = "", **fields: Any) -> str:
    """Place a pod on cards of a node; return its UID."""
    name = name or f"p{node}-{'-'.join(map(str, minors))}"
    identity = Identity(namespace="ns", labels=(("app", app),) if app else ())
    held = charge(name, *whole(*minors), node=f"n{node}", priority=priority, identity=identity, **fields)
    made.charge(held)
    return held.uid


def full(*sizes: int, priority: int = 0) -> Fleet:
    """Return nodes whose cards are all held, each by its own pod."""
    made = racks(*sizes)
    for node, count in enumerate(sizes):
        for minor in range(count):
            hold(made, node, minor, priority=priority)
    return made


def labelled(*groups: tuple[str, int], key: str = "size", only: str = "", priority: int = 0) -> Fleet:
    """Return nodes with a label and a number of cards, all of which are held; `only` has a label of its own."""
    made = Fleet()
    for number, (value, count) in enumerate(groups):
        name = f"n{number}"
        labels = {HOST: name, key: value, **({"only": "yes"} if name == only else {})}
        add(made, node_info(name, labels=labels), inventory(*cards(count)))
        for minor in range(count):
            hold(made, number, minor, priority=priority)
    return made


def together() -> PodRequest:
    """Return the request for a card of a pod that must be in one clique with pods like it."""
    near = Affinity(required_affinity=(replace(term_of(app="gang"), key=CLIQUE),))
    own = Identity(namespace="ns", labels=(("app", "gang"),))
    return replace(asks({NVIDIA: 1}), identity=own, affinity=near)


def some(
    count: int, wanted: dict[str, int] | PodRequest | None = None, name: str = "m", **fields: Any
) -> list[PendingPod]:
    fields = {"priority": ABOVE, **fields}
    return [waiting(f"{name}{i}", wanted or {NVIDIA: 1}, **fields) for i in range(count)]


def preempted(made: Fleet, unit: Gang, budgets: Budgets | None = None, policy: Policy | None = None) -> GangPreemption:
    preemption = preempt_gang(made, unit, policy or Policy(), budgets or Budgets())
    assert preemption is not None
    return preemption


def victims(preemption: GangPreemption) -> list[str]:
    return sorted(each.pod.removeprefix("ns/") for each in preemption.victims)


def nodes(preemption: GangPreemption) -> dict[str, int]:
    return dict(Counter(each.node for each in preemption.nominees))


def after(made: Fleet, unit: Gang, preemption: GangPreemption) -> list[Placement] | Failure:
    """Decide the gang once the victims and the leaving pods of lower priority are gone."""
    left = made.copy()
    going = [each for each in made.charges.values() if made.is_leaving(each) and each.priority < unit.lowest]
    for victim in {each.uid: each for each in (*preemption.victims, *going)}.values():
        left.release(victim.uid)
    at = {each.uid: each.node for each in preemption.nominees}
    members = tuple(replace(each, nominated_node=at.get(each.uid, "")) for each in unit.members)
    return decide_gang(left, replace(unit, members=members), Policy())


# --- all or none ----------------------------------------------------------------------------------------------------


def test_only_as_many_as_it_needs_are_helped() -> None:
    made = full(4)
    assert len(preempted(made, gang(*some(4), minimum=2)).victims) == 2
    assert len(preempted(made, gang(*some(2), minimum=3, placed=2)).victims) == 1
    assert preempt_gang(made, gang(*some(2), minimum=2, placed=2), Policy(), Budgets()) is None


@pytest.mark.parametrize(
    ("members", "policy"),
    [
        pytest.param(some(2, priority=0), Policy(), id="no pod below"),
        pytest.param([*some(1), *some(1, name="low", priority=0)], Policy(), id="no pod below all of them"),
        pytest.param([*some(1), *some(1, name="never", preempts=False)], Policy(), id="one never preempts"),
        pytest.param(some(2), replace(Policy(), preemption=False), id="switched off"),
    ],
)
def test_which_pods_may_not_preempt(members: Sequence[PendingPod], policy: Policy) -> None:
    assert preempt_gang(full(2), gang(*members), policy, Budgets()) is None


def test_no_pod_is_evicted_for_a_gang_with_a_member_that_never_preempts() -> None:
    made = full(2)
    made.release("uid-p0-0")
    never = waiting("never", {NVIDIA: 1}, priority=ABOVE, preempts=False, created="1")
    assert preempt_gang(made, gang(*some(1, created="2"), never), Policy(), Budgets()) is None


def test_a_pod_that_is_not_certainly_bound_is_no_victim() -> None:
    made = full(2)
    assert preempt_gang(made, gang(*some(2)), Policy(), Budgets(), {"uid-p0-0"}) is None
    preemption = preempt_gang(made, gang(*some(1)), Policy(), Budgets(), {"uid-p0-0"})
    assert preemption is not None
    assert victims(preemption) == ["p0-1"]


# --- the fewest and the lowest --------------------------------------------------------------------------------------


def test_the_lowest_leave() -> None:
    made = racks(2, 2)
    for node, minor, priority in ((0, 0, 5), (0, 1, 1), (1, 0, 2), (1, 1, 3)):
        hold(made, node, minor, priority=priority)
    assert victims(preempted(made, gang(*some(2)))) == ["p0-1", "p1-0"]
    assert victims(preempted(made, gang(*some(3)))) == ["p0-1", "p1-0", "p1-1"]


def test_only_the_pod_whose_capacity_is_enough_is_evicted() -> None:
    made = racks(1, 2, 1)
    for node, minors in ((0, [0]), (1, [0, 1]), (2, [0])):
        hold(made, node, *minors)
    assert victims(preempted(made, gang(*some(2)))) == ["p1-0-1"]


def test_the_largest_member_is_helped_first() -> None:
    made = full(2, 1)
    preemption = preempted(
        made, gang(waiting("small", {NVIDIA: 1}, priority=9), waiting("large", {NVIDIA: 2}, priority=9))
    )
    assert {each.uid: each.node for each in preemption.nominees} == {"uid-large": "n0", "uid-small": "n1"}


def test_members_that_could_be_helped_stand_in_for_others_of_the_gang() -> None:
    made = full(2)
    preemption = preempted(made, gang(*some(1, {NVIDIA: 3}, name="huge"), *some(2), minimum=2))
    assert [each.uid for each in preemption.nominees] == ["uid-m0", "uid-m1"]


def test_members_share_nodes_where_that_costs_no_more() -> None:
    made = racks(4, 4, 4)
    for number, (minor, node) in enumerate((minor, node) for minor in range(4) for node in range(3)):
        # By the victims' age alone the members would alternate between nodes.
        hold(made, node, minor, started=100 - number)
    assert sorted(nodes(preempted(made, gang(*some(8)))).values()) == [4, 4]


def test_members_stay_together_when_the_cheapest_places_are_gone() -> None:
    made = racks(3, 3)
    for node in range(2):
        hold(made, node, 0, started=9 - node)
        for minor in (1, 2):
            # By the victims' age alone the next members would go back to the first node.
            hold(made, node, minor, priority=5, started=9 - node)
    assert sorted(nodes(preempted(made, gang(*some(4)))).values()) == [1, 3]


def test_more_members_than_places_are_compared_at_once() -> None:
    made = full(*[1] * (2 * AT_ONCE + 4))
    for node in range(2 * AT_ONCE):
        hold(made, node, 0, priority=5)
    preemption = preempted(made, gang(*some(2 * AT_ONCE + 4)))
    assert len(preemption.victims) == 2 * AT_ONCE + 4
    cheap = preempted(made, gang(*some(4)))
    assert {each.priority for each in cheap.victims} == {0}


def test_pods_that_already_terminate_cost_nothing() -> None:
    made = full(1, 1, 1)
    made.leaving.add("uid-p1-0")
    hold(made, 2, 0, terminating=True)
    preemption = preempted(made, gang(*some(2)))
    assert preemption.victims == ()
    assert nodes(preemption) == {"n1": 1, "n2": 1}
    assert len(preempted(made, gang(*some(3))).victims) == 1


# --- budgets --------------------------------------------------------------------------------------------------------


def budget(app: str, allowed: int) -> Budgets:
    selector = LabelSelector(requirements=(Requirement(key="app", values=(app,)),))
    return Budgets({"ns/b": Budget(namespace="ns", selector=selector, allowed=allowed)})


def test_a_budget_is_respected_while_others_will_do() -> None:
    made = racks(1, 1, 1, 1)
    for node in range(2):
        hold(made, node, 0, app="protected")
    for node in range(2, 4):
        hold(made, node, 0, priority=5)
    assert victims(preempted(made, gang(*some(2)), budget("protected", 0))) == ["p2-0", "p3-0"]
    # One may be evicted, and the first member's victim counts for the next member.
    assert victims(preempted(made, gang(*some(2)), budget("protected", 1)))[1:] == ["p2-0"]
    assert len(preempted(made, gang(*some(4)), budget("protected", 0)).victims) == 4


# --- places that are kept -------------------------------------------------------------------------------------------


def test_a_place_that_is_kept_for_another_pod_is_not_taken_unless_it_is_below() -> None:
    made = full(1, 1)
    made.release("uid-p0-0")
    kept = charge("other", *whole(0), node="n0", priority=ABOVE)
    made.nominate(kept)
    assert preempt_gang(made, gang(*some(2)), Policy(), Budgets()) is None
    made.nominate(replace(kept, priority=ABOVE - 1))
    assert victims(preempted(made, gang(*some(2)))) == ["p1-0"]


def test_the_places_of_its_own_members_do_not_stand_in_its_way() -> None:
    made = full(1, 1)
    unit = gang(*some(2))
    for nominee in preempted(made, unit).nominees:
        made.nominate(nominee)
    made.release("uid-p0-0")
    made.release("uid-p1-0")
    assert isinstance(decide(made, waiting("thief", {NVIDIA: 1}, priority=ABOVE), Policy()), Failure)
    placed = decide_gang(made, unit, Policy())
    assert isinstance(placed, list)
    assert len(made.nominees) == 2
    assert isinstance(decide_gang(made, gang(*some(1, name="other")), Policy()), Failure)
    assert isinstance(decide_gang(made, gang(*some(1, name="above", priority=ABOVE + 1)), Policy()), list)


def test_a_gang_may_find_victims_once_one_has_gone_that_it_could_not_evict() -> None:
    made = racks(2, 1)
    hold(made, 0, 0)
    gone = charge("equal", *whole(1), node="n0", priority=ABOVE)
    assert WithoutLowerPriority(made, "n0").may_take(gang(*some(2)), gone, Policy().local)
    assert not WithoutLowerPriority(made, "n0").may_take(gang(*some(2)), replace(gone, priority=0), Policy().local)
    assert not WithoutLowerPriority(made, "n0").may_take(gang(*some(2, {NVIDIA: 3})), gone, Policy().local)


# --- pods of other nodes matter -------------------------------------------------------------------------------------


def test_members_that_must_lie_apart_are_helped_on_different_nodes() -> None:
    made = full(2, 2, 2)
    own, apart = Identity(namespace="ns", labels=(("g", "x"),)), Affinity(required_anti_affinity=(term_of(g="x"),))
    wanted = replace(asks({NVIDIA: 1}), identity=own, affinity=apart)
    assert nodes(preempted(made, gang(*some(3, wanted)))) == {"n0": 1, "n1": 1, "n2": 1}
    assert preempt_gang(made, gang(*some(4, wanted)), Policy(), Budgets()) is None


@pytest.mark.parametrize("created", ["01", "10"])
@pytest.mark.parametrize(
    ("free", "evicted"),
    [
        pytest.param((), ["p0-0", "p1-0"], id="none is free"),
        pytest.param(("p0-0",), ["p1-0"], id="the node that one of them needs is free"),
        pytest.param(("p1-0",), ["p0-0"], id="the other node is free"),
    ],
)
@pytest.mark.parametrize("crowd", [0, 20])
def test_a_member_leaves_the_only_node_of_another_one(
    created: str, free: Sequence[str], evicted: list[str], crowd: int
) -> None:
    made = labelled(*[("small", 1)] * 2, *[("large", 8)] * crowd, only="n0")
    for name in free:
        made.release(f"uid-{name}")
    anywhere, only = asks({NVIDIA: 1}, selector={"size": "small"}), asks({NVIDIA: 1}, selector={"only": "yes"})
    members = [
        waiting(f"m{number}", request, priority=ABOVE, created=created[number])
        for number, request in enumerate((anywhere, only))
    ]
    # With many pods on nodes that a further member may get, not all sets of victims are compared.
    members += some(1, asks({NVIDIA: 8}, selector={"size": "large"}), name="further") if crowd else []
    preemption = preempted(made, gang(*members))
    at = {nominee.uid: nominee.node for nominee in preemption.nominees}
    assert (at["uid-m0"], at["uid-m1"]) == ("n1", "n0")
    assert [name for name in victims(preemption) if name in ("p0-0", "p1-0")] == evicted
    assert len(preemption.victims) == len(evicted) + (8 if crowd else 0)
    assert isinstance(after(made, gang(*members), preemption), list)


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("crowd", [0, 20])
def test_members_that_must_be_in_one_clique_leave_a_clique_that_is_too_small(*, is_free: bool, crowd: int) -> None:
    made = labelled(("x", 1), ("y", 1), ("y", 1), *[("z", 8)] * crowd, key=CLIQUE, priority=9)
    for number, priority in ((0, -1), (1, 5), (2, 5)):
        made.release(f"uid-p{number}-0")
        if number or not is_free:
            hold(made, number, 0, priority=priority)
    preemption = preempted(made, gang(*some(2, together())))
    assert nodes(preemption) == {"n1": 1, "n2": 1}
    assert victims(preemption) == ["p1-0", "p2-0"]


def test_in_a_clique_with_placed_pods_the_members_join_them() -> None:
    made = labelled(("x", 1), ("y", 2), ("y", 1), key=CLIQUE)
    made.release("uid-p1-0")
    made.charge(charge("placed", *whole(0), node="n1", priority=ABOVE, identity=together().identity))
    assert nodes(preempted(made, gang(*some(2, together()), minimum=3, placed=1, held=("uid-placed",)))) == {
        "n1": 1,
        "n2": 1,
    }
    assert preempt_gang(made, gang(*some(3, together()), minimum=4, placed=1), Policy(), Budgets()) is None


def test_the_clique_with_the_cheapest_victims_is_chosen() -> None:
    made = labelled(*[("x", 1)] * 3, *[("y", 1)] * 2, key=CLIQUE, priority=5)
    for number in (3, 4):
        made.release(f"uid-p{number}-0")
        hold(made, number, 0, priority=4)
    assert victims(preempted(made, gang(*some(2, together())))) == ["p3-0", "p4-0"]


def test_one_victim_for_two_members_is_better_than_two_victims() -> None:
    made = racks(1, 1, 2)
    for node, minors in ((0, [0]), (1, [0]), (2, [0, 1])):
        # By the victims' age alone the first member would go to the first node.
        hold(made, node, *minors, started=9 - node)
    assert victims(preempted(made, gang(*some(2)))) == ["p2-0-1"]


@pytest.mark.parametrize("cards_of_node", [2, 12])
def test_a_search_that_ended_at_its_bound_does_not_conclude_that_evictions_do_not_help(cards_of_node: int) -> None:
    made = labelled(*((clique, cards_of_node) for clique in "xyzxyz"), key=CLIQUE)
    apart = Affinity(required_anti_affinity=(replace(term_of(app="gang"), key=CLIQUE),))
    with pytest.raises(NoWorkError, match="The search for preemption victims ended at its bound"):
        preempt_gang(made, gang(*some(4, replace(together(), affinity=apart))), Policy(), Budgets())
    assert len(preempted(made, gang(*some(3, replace(together(), affinity=apart)))).victims) == 3


def test_pods_on_nodes_that_could_take_no_member_are_not_counted() -> None:
    made = full(1, 1)
    for number in range(10):
        name = f"cpu{number}"
        add(made, node_info(name, labels={HOST: name}))
        for pod in range(20):
            made.charge(charge(f"{name}-{pod}", node=name))
    assert victims(preempted(made, gang(*some(2)))) == ["p0-0", "p1-0"]


# --- laws -----------------------------------------------------------------------------------------------------------


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Fleet, Gang, Budgets]:
    """Return a crowded fleet, and a gang that may not fit."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    made = racks(*sizes)
    for node, count in enumerate(sizes):
        minor = 0
        while minor < count:
            taken = range(minor, min(count, minor + draw(st.integers(1, 2))))
            if draw(st.integers(0, 4)):
                fields: dict[str, Any] = {
                    "priority": draw(st.integers(0, 3)),
                    "started": draw(st.integers(0, 9)),
                    "app": draw(st.sampled_from(["", "x"])),
                    "terminating": draw(st.integers(0, 5)) == 0,
                }
                hold(made, node, *taken, **fields)
            minor = taken.stop
    wanted = draw(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=4))
    priorities = draw(st.sampled_from([(2, 2), (3, 3), (2, 3)]))
    members = [
        waiting(f"m{i}", {NVIDIA: each}, priority=priorities[i % 2], created=str(i)) for i, each in enumerate(wanted)
    ]
    minimum = draw(st.integers(1, len(members)))
    return made, gang(*members, minimum=minimum), budget("x", draw(st.integers(0, 2)))


@settings(max_examples=60)
@given(scenes())
def test_the_gang_fits_without_its_victims_and_not_with_any_of_them(scene: tuple[Fleet, Gang, Budgets]) -> None:
    made, unit, budgets = scene
    if isinstance(decide_gang(made, unit, Policy()), list):
        return
    before, leaving = arrays(made), set(made.leaving)
    preemption = preempt_gang(made, unit, Policy(), budgets)
    assert all((one == other).all() for one, other in zip(arrays(made), before, strict=True))
    assert (made.leaving, made.nominees) == (leaving, {})
    if preemption is None:
        return
    assert len(preemption.nominees) == unit.needed
    assert all(each.priority < unit.lowest and not each.terminating for each in preemption.victims)
    assert isinstance(after(made, unit, preemption), list)
    for victim in preemption.victims:
        fewer = replace(preemption, victims=tuple(other for other in preemption.victims if other is not victim))
        assert isinstance(after(made, unit, fewer), Failure)


@settings(max_examples=40)
@given(scenes())
def test_a_gang_of_equal_members_is_helped_whenever_that_is_possible(scene: tuple[Fleet, Gang, Budgets]) -> None:
    made, unit, budgets = scene
    equal = tuple(replace(each, request=unit.members[0].request) for each in unit.members)
    unit = replace(unit, members=equal)
    if isinstance(decide_gang(made, unit, Policy()), list):
        return
    everybody = tuple(each for each in made.charges.values() if each.priority < unit.lowest)
    possible = isinstance(after(made, unit, GangPreemption(nominees=(), victims=everybody)), list)
    assert (preempt_gang(made, unit, Policy(), budgets) is not None) == possible
