"""Advice names the fewest pods that suffice, no pod that must not be moved, and only places that are free."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.values.selectors import EVERYTHING, LabelSelector, Requirement
from berth_operator.core.advice import defragmentation
from berth_operator.core.advice.defragmentation import Advice, Tenant, advise
from berth_operator.core.decision.budgets import Budget, Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Affinity, Identity, Peers, Term
from berth_operator.core.values.request import Membership, PendingPod, PodRequest
from berth_operator.core.values.verdict import Change
from tests.objects.builders import GPU, NVIDIA, add, asks, cards, charge, grant, inventory, node_info, waiting
from tests.unit.core.decision.test_what_if import plain

ONE, TWO, FOUR, HALF, QUARTER = {NVIDIA: 1}, {NVIDIA: 2}, {NVIDIA: 4}, {GPU: 50}, {GPU: 25}
DEFAULT = {names.SCHEDULER: Policy()}


class Town:
    """A Fleet and the tenants of its cards."""

    def __init__(self, nodes: Mapping[str, int], **fields: Any) -> None:
        self.fleet = Fleet()
        for name, count in nodes.items():
            add(self.fleet, node_info(name, labels={"host": name}, **fields), inventory(*cards(count)))
        self.tenants: dict[str, Tenant] = {}

    def settle(
        self, name: str, node: str, wanted: PodRequest | Mapping[str, int], *minors: int, **fields: Any
    ) -> "Town":
        """Place a pod on these cards, in equal parts."""
        controlled, more = fields.pop("controlled", True), fields.pop("charged", {})
        request = wanted if isinstance(wanted, PodRequest) else asks(wanted)
        pod = waiting(name, replace(request, identity=replace(request.identity, namespace="ns")), **fields)
        each = dict(pod.request.devices.parts[0].amounts) if minors else {}
        parts = [grant(minor, core=each["gpu-core"], ratio=each["gpu-memory-ratio"]) for minor in minors]
        placed = Placement(pod=pod, node=node, grants=tuple(parts)).charge
        self.fleet.charge(replace(placed, **more))
        if controlled:
            self.tenants[pod.uid] = Tenant(pod=pod)
        return self

    def advise(self, pod: PendingPod, *budgets: Budget, **policies: Policy) -> Advice:
        some = Budgets({f"ns/{number}": each for number, each in enumerate(budgets)})
        return advise(self.fleet, pod, self.tenants, {**DEFAULT, **policies}, some)


def moved(advice: Advice) -> dict[str, str]:
    """Return each moved pod with its node before and after."""
    return {each.charge.pod[3:]: f"{each.charge.node} > {place(each.placement)}" for each in advice.moves}


def place(placement: Placement | Failure) -> str:
    assert isinstance(placement, Placement), placement
    return " ".join([placement.node, *(str(each.minor) for each in placement.grants)])


def scattered(nodes: int = 3, size: int = 2) -> Town:
    """Return nodes with a pod of one card on each."""
    town = Town({f"n{number}": size for number in range(nodes)})
    for number in range(nodes):
        town.settle(f"p{number}", f"n{number}", ONE, 0)
    return town


# --- pods to move -------------------------------------------------------------------------------------------------


X = Identity(namespace="ns", labels=(("x", ""),))


def apart(key: str) -> Affinity:
    """Return the anti-affinity to pods with the label x."""
    peers = Peers(selector=LabelSelector(requirements=(Requirement(key="x", operator="Exists"),)), namespaces=("ns",))
    return Affinity(required_anti_affinity=(Term(key=key, peers=peers),))


def test_pods_that_keep_others_away_are_moved_too() -> None:
    lonely = replace(asks(ONE), identity=X, affinity=apart("host"))
    town = Town({"a": 2, "b": 2}).settle("x", "a", lonely, 0).settle("y", "b", TWO, 0, 1)
    assert isinstance(town.advise(waiting("second", lonely)).result, Failure)
    town = Town({"a": 2, "b": 2, "c": 1}).settle("x", "a", lonely, 0).settle("y", "b", ONE, 0).settle("z", "b", ONE, 1)
    advice = town.advise(waiting("second", lonely))
    assert set(moved(advice)) == set()  # c is free
    town.settle("w", "c", ONE, 0)
    advice = town.advise(waiting("second", lonely))
    assert (place(advice.result), moved(advice)) == ("b 0", {"y": "b > a 1"})


@pytest.mark.parametrize("mutual", [True, False], ids=["the pod's anti-affinity", "theirs"])
def test_pods_that_keep_others_away_from_other_nodes_are_moved_too(*, mutual: bool) -> None:
    placed = replace(asks(ONE), identity=X, affinity=Affinity() if mutual else apart("zone"))
    town = Town({"a": 1, "b": 2, "c": 1, **{f"n{i}": 1 for i in range(40)}}).settle("x", "a", placed, 0)
    for i in range(40):
        town.settle(f"p{i}", f"n{i}", ONE, 0)
    for name, zone in (("a", "1"), ("b", "1"), ("c", "2")):
        town.fleet.put_node(node_info(name, labels={"zone": zone}))
    lonely = waiting("lonely", replace(asks(TWO), identity=X, affinity=apart("zone") if mutual else Affinity()))
    assert moved(town.advise(lonely)) == {"x": "a > c 0"}
    town.tenants.clear()
    assert "ns/x" in [each.pod for each, _ in town.advise(lonely).fixed]


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        pytest.param({"priority": -1}, ["small", "large"], id="of higher priority first"),
        pytest.param({"weight": -1}, ["small", "large"], id="then of higher weight"),
        pytest.param({}, ["large", "small"], id="then the larger"),
    ],
)
def test_moves_are_listed_in_the_order_in_which_they_are_decided(
    fields: Mapping[str, Any], order: Sequence[str]
) -> None:
    town = Town({"a": 2, "b": 2}).settle("large", "a", ONE, 0, **fields).settle("small", "a", HALF, 1)
    town.settle("stays", "b", QUARTER, 0, controlled=False)
    assert list(moved(town.advise(waiting("big", TWO)))) == order


def test_a_pod_that_fits_needs_no_moves() -> None:
    advice = scattered().advise(waiting("one", ONE))
    assert (place(advice.result), advice.moves, advice.tried) == ("n0 1", (), 0)


def test_an_invalid_pod_is_reported() -> None:
    advice = scattered().advise(waiting("wrong", error="no sense"))
    invalid = Failure(message="invalid request: no sense", condition="InvalidRequest", wakes_on=Change(0))
    assert advice == Advice(result=invalid)


def test_pods_that_already_terminate_need_no_move() -> None:
    town = Town({"a": 2}).settle("x", "a", ONE, 0, charged={"terminating": True})
    advice = town.advise(waiting("big", TWO))
    assert (place(advice.result), advice.moves) == ("a 0 1", ())
    town = Town({"a": 2}).settle("x", "a", ONE, 0)
    town.fleet.mark_leaving("uid-x")
    assert place(town.advise(waiting("big", TWO)).result) == "a 0 1"


# --- pods that may not be moved -------------------------------------------------------------------------------------

PROTECTING = Budget(namespace="ns", selector=EVERYTHING, allowed=0)


@pytest.mark.parametrize(
    ("fields", "budgets", "why"),
    [
        pytest.param({"controlled": False}, (), defragmentation.ORPHAN, id="no controller"),
        pytest.param({"scheduler": "other"}, (), defragmentation.FOREIGN, id="of another scheduler"),
        pytest.param({"priority": 6}, (), defragmentation.ABOVE, id="of higher priority"),
        pytest.param({"priority": 5, "weight": 1}, (), defragmentation.ABOVE, id="of higher weight"),
        pytest.param({"gang": Membership(group="ns/g")}, (), defragmentation.MEMBER, id="of a gang"),
        pytest.param({}, (PROTECTING,), defragmentation.PROTECTED, id="protected"),
        pytest.param({"error": "no sense"}, (), defragmentation.SENSELESS, id="not to be placed again"),
    ],
)
def test_some_pods_are_never_moved(fields: Mapping[str, Any], budgets: Sequence[Budget], why: str) -> None:
    town = Town({"a": 2, "b": 1}).settle("x", "a", ONE, 0, **fields)
    advice = town.advise(waiting("big", TWO, priority=5), *budgets)
    assert isinstance(advice.result, Failure)
    assert [(each.pod, reason) for each, reason in advice.fixed] == [("ns/x", why)]
    # Without that property, the advice is to move the pod.
    assert moved(Town({"a": 2, "b": 1}).settle("x", "a", ONE, 0, priority=5).advise(waiting("big", TWO, priority=5)))


def test_a_pod_that_nothing_is_known_of_stays() -> None:
    town = Town({"a": 2, "b": 1}).settle("x", "a", ONE, 0)
    town.tenants.clear()
    [(_, why)] = town.advise(waiting("big", TWO)).fixed
    assert why == defragmentation.ORPHAN


def test_only_pods_in_the_way_are_reported() -> None:
    town = Town({"a": 2, "b": 1}).settle("x", "a", ONE, 0, controlled=False)
    town.settle("y", "a", {"cpu": 1}, controlled=False)
    assert [each.pod for each, _ in town.advise(waiting("big", TWO)).fixed] == ["ns/x"]


@pytest.mark.parametrize(("allowed", "leaving", "fits"), [(2, 0, True), (1, 0, False), (2, 1, False), (3, 1, True)])
def test_no_more_are_moved_than_a_budget_allows(allowed: int, leaving: int, *, fits: bool) -> None:
    town = Town({"a": 2, "b": 1, "c": 1, "d": 1}).settle("x", "a", ONE, 0).settle("y", "a", ONE, 1)
    town.settle("z", "d", ONE, 0)
    if leaving:
        town.fleet.mark_leaving("uid-z")
    advice = town.advise(waiting("big", TWO), replace(PROTECTING, allowed=allowed))
    assert set(moved(advice)) == ({"x", "y"} if fits else set())


def test_disrupted_pods_violate_no_budget() -> None:
    town = Town({"a": 2, "b": 1}).settle("x", "a", ONE, 0)
    assert not moved(town.advise(waiting("big", TWO), PROTECTING))
    assert moved(town.advise(waiting("big", TWO), replace(PROTECTING, disrupted=frozenset({"x"}))))


def test_another_schedulers_pods_are_moved_by_its_own_policy() -> None:
    town = Town({"a": 2, "b": 1}).settle("x", "a", ONE, 0, scheduler="lax")
    town.fleet.put_node(node_info("b", cordoned=True))
    assert isinstance(town.advise(waiting("big", TWO), lax=Policy()).result, Failure)
    lax = Policy(switched_off=frozenset({"cordon"}))
    assert moved(town.advise(waiting("big", TWO), lax=lax)) == {"x": "a > b 0"}


def test_what_is_kept_for_a_pod_below_keeps_nothing_from_it() -> None:
    town = Town({"a": 2, "b": 1}).settle("x", "a", ONE, 0)
    town.fleet.nominate(charge("low", grant(1, core=100, ratio=100), node="a", priority=-1))
    assert moved(town.advise(waiting("big", TWO))) == {"x": "a > b 0"}
    town.settle("z", "a", {"cpu": 1000}, controlled=False)
    town.fleet.nominate(charge("low", node="a", resources=(("cpu", 62_000),), priority=-1))
    assert town.advise(waiting("big", {"cpu": 2000, **TWO})).fixed == ()
    town.fleet.nominate(charge("low", grant(1, core=100, ratio=100), node="a", priority=1))
    assert isinstance(town.advise(waiting("big", TWO)).result, Failure)


# --- where the search ends ----------------------------------------------------------------------------------------


def test_a_search_that_gives_up_says_so() -> None:
    town = Town({f"n{number}": 2 for number in range(15)})
    for number in range(15):
        town.settle(f"p{number}", f"n{number}", ONE, 0).settle(f"q{number}", f"n{number}", ONE, 1)
    advice = town.advise(waiting("big", TWO))
    assert isinstance(advice.result, Failure)
    assert advice.tried <= 2 * defragmentation.MAX_TRIALS * defragmentation.MAX_MOVES
    assert advice.limits


def test_among_many_one_pod_is_known_to_be_the_fewest() -> None:
    town = scattered(nodes=60)
    advice = town.advise(waiting("big", TWO))
    assert (len(advice.moves), advice.limits) == (1, ())


def chain_among_many() -> Town:
    """Return nodes where x fits nowhere else unless a small pod of b is moved, and many nodes that are full."""
    town = Town({"a": 4, "b": 3, "c": 1, **{f"n{number}": 2 for number in range(40)}})
    for number in range(40):
        town.settle(f"p{number}", f"n{number}", ONE, 0).settle(f"q{number}", f"n{number}", ONE, 1)
    return town.settle("x", "a", {NVIDIA: 3}, 0, 1, 2)


def test_chains_are_found_among_many() -> None:
    town = chain_among_many().settle("y", "b", ONE, 1)
    assert moved(town.advise(waiting("four", FOUR))) == {"x": "a > b 0 1 2", "y": "b > c 0"}


def test_chains_with_others_of_the_node_are_found_among_many() -> None:
    town = chain_among_many().settle("q", "a", QUARTER, 3).settle("y", "b", HALF, 1)
    advice = town.advise(waiting("four", FOUR))
    assert moved(advice) == {"x": "a > b 0 1 2", "y": "b > c 0", "q": "a > c 0"}
    # Other sets, across several nodes, might hold less.
    assert advice.limits


# --- laws ---------------------------------------------------------------------------------------------------------

WANTED = st.sampled_from([ONE, TWO, HALF, QUARTER, {"cpu": 2000}, {"cpu": 1000, **HALF}])


@st.composite
def towns(draw: st.DrawFn) -> Town:
    town = Town({f"n{number}": draw(st.integers(1, 2)) for number in range(draw(st.integers(1, 3)))}, cpu=4000)
    for number in range(draw(st.integers(0, 6))):
        wanted, node = draw(WANTED), draw(st.sampled_from(sorted(town.fleet.rows)))
        pod = waiting(f"p{number}", wanted, priority=draw(st.sampled_from([0, 0, 0, 2])))
        # On any free cards of the chosen node: such states come about over time.
        alone = town.fleet.copy()
        for other in set(alone.rows) - {node}:
            alone.remove_node(other)
        placement = decide(alone, pod, Policy(card_strategy=draw(st.sampled_from(["Fragmentation", "LeastAllocated"]))))
        if isinstance(placement, Placement):
            town.fleet.charge(placement.charge)
            if draw(st.sampled_from([True, True, True, False])):
                town.tenants[pod.uid] = Tenant(pod=pod)
    return town


def outcome(town: Town, pod: PendingPod, uids: Sequence[str]) -> list[Placement] | None:
    """Return the results for a pod and for those that are moved for it."""
    of, sizes = town.fleet.copy(), {uid: burden(town, uid) for uid in uids}
    for uid in uids:
        of.release(uid)
    movers = [town.tenants[uid].pod for uid in uids]
    movers.sort(key=lambda each: (-each.priority, [-size for size in sizes[each.uid]], each.uid))
    placed = []
    for each in (pod, *movers):
        placement = decide(of, each, Policy())
        if isinstance(placement, Failure):
            return None
        of.charge(placement.charge)
        placed.append(placement)
    return placed


def burden(town: Town, uid: str) -> list[int]:
    taken = town.fleet.charges[uid]
    return [sum(dict(each.amounts)["gpu-core"] for each in taken.grants), dict(taken.resources).get("cpu", 0), 0]


def burdens(town: Town, uids: Sequence[str]) -> list[int]:
    return [sum(burden(town, uid)[kind] for uid in uids) for kind in range(3)]


def brute_force(town: Town, pod: PendingPod) -> tuple[int, list[int]] | None:
    """Return the size and the burden of the smallest set of pods whose moving helps, by trying all sets."""
    allowed = [uid for uid, each in town.tenants.items() if each.pod.priority <= pod.priority]
    for size in range(len(allowed) + 1):
        helping = [uids for uids in combinations(allowed, size) if outcome(town, pod, uids) is not None]
        if helping:
            return size, min(burdens(town, uids) for uids in helping)
    return None


@settings(max_examples=60)
@given(towns(), WANTED)
def test_no_smaller_set_would_do_and_what_is_advised_does(town: Town, wanted: Mapping[str, int]) -> None:
    pod, was = waiting("asking", wanted), plain(town.fleet)
    advice = town.advise(pod)
    assert plain(town.fleet) == was
    assert advice.limits == ()
    uids = [each.charge.uid for each in advice.moves]
    best = brute_force(town, pod)
    if best is None:
        assert isinstance(advice.result, Failure)
        assert uids == []
        return
    assert (len(uids), burdens(town, uids)) == best
    # Moved pods may be moved, and their replacements fit where the advice places them; then the pod fits.
    assert all(town.tenants[uid].pod.priority <= 0 for uid in uids)
    assert outcome(town, pod, uids) == [advice.result, *(each.placement for each in advice.moves)]
    for move in advice.moves:
        town.fleet.release(move.charge.uid)
    for move in advice.moves:
        town.fleet.charge(move.placement.charge)
    assert isinstance(decide(town.fleet, pod, Policy()), Placement)


# --- acting on it -------------------------------------------------------------------------------------------------


def refusing(town: Town, *names: str) -> Town:
    for name in names:
        town.tenants[f"uid-{name}"] = replace(town.tenants[f"uid-{name}"], refuses="its owner says no")
    return town


def test_pods_whose_owner_refuses_stay() -> None:
    advice = refusing(scattered(), "p0").advise(waiting("big", TWO))
    assert moved(advice) == {"p1": "n1 > n0 1"}
    advice = refusing(scattered(), "p0", "p1", "p2").advise(waiting("big", TWO))
    assert (advice.moves, {why for _, why in advice.fixed}) == ((), {"its owner says no"})


def test_room_is_made_only_on_the_given_node() -> None:
    town = scattered()
    advice = advise(town.fleet, waiting("big", TWO), town.tenants, DEFAULT, Budgets(), node="n2")
    assert (place(advice.result), moved(advice)) == ("n2 0 1", {"p2": "n2 > n0 1"})
    refused = refusing(town, "p2")
    advice = advise(refused.fleet, waiting("big", TWO), refused.tenants, DEFAULT, Budgets(), node="n2")
    assert isinstance(advice.result, Failure)


def test_no_pod_is_moved_on_the_given_node_if_the_pod_fits_elsewhere() -> None:
    town = Town({"a": 2, "b": 2}).settle("x", "a", ONE, 0)
    advice = advise(town.fleet, waiting("big", TWO), town.tenants, DEFAULT, Budgets(), node="a")
    assert (place(advice.result), advice.moves) == ("b 0 1", ())


def chained(*, back: bool = False) -> Town:
    """Return nodes where x has to leave a for b, and y b for c; y would come `back` if it left first."""
    town = Town({"a": 4, "b": 3, "c": 1}).settle("x", "a", {NVIDIA: 3}, 0, 1, 2)
    return town.settle("y", "b", ONE if back else asks(ONE, selector={"host": "c"}), 1)


TWO_ON_A = Town({"a": 2, "b": 1, "c": 1}).settle("x", "a", ONE, 0).settle("y", "a", ONE, 1)


@pytest.mark.parametrize(
    ("town", "wanted", "most", "expected"),
    [
        pytest.param(scattered(), TWO, 1, ["p0"], id="the only one"),
        pytest.param(TWO_ON_A, TWO, 1, ["x"], id="as many as are allowed"),
        pytest.param(TWO_ON_A, TWO, 2, ["x", "y"], id="both, if two are allowed"),
        pytest.param(chained(), FOUR, 1, ["y"], id="the one that makes way for the other"),
        pytest.param(chained(), FOUR, 2, ["y", "x"], id="in the order in which they have room"),
        pytest.param(chained(back=True), FOUR, 1, [], id="not one that would come back"),
        pytest.param(chained(back=True), FOUR, 2, [], id="not two of which one would be homeless"),
    ],
)
def test_moves_come_first_whose_replacement_has_room(
    town: Town, wanted: Mapping[str, int], most: int, expected: Sequence[str]
) -> None:
    before = town.fleet.charges.copy()
    advice = town.advise(waiting("big", wanted))
    first = defragmentation.first_moves(town.fleet, advice, town.tenants, DEFAULT, most)
    assert [each.charge.pod[3:] for each in first] == expected
    assert town.fleet.charges == before


@pytest.mark.parametrize(("most", "expected"), [(1, set()), (2, {"x", "y"})])
def test_pods_that_change_places_move_together_or_not_at_all(most: int, expected: set[str]) -> None:
    # The pod fits only on a: x leaves it for what y leaves on b, and y takes what is then left on a.
    town = Town({"a": 2, "b": 2}).settle("x", "a", TWO, 0, 1).settle("y", "b", ONE, 0)
    advice = town.advise(waiting("one", asks(ONE, selector={"host": "a"})))
    assert moved(advice).keys() == {"x", "y"}
    first = defragmentation.first_moves(town.fleet, advice, town.tenants, DEFAULT, most)
    assert {each.charge.pod[3:] for each in first} == expected


def test_nothing_is_moved_first_where_nothing_helps() -> None:
    town = refusing(scattered(), "p0", "p1", "p2")
    advice = town.advise(waiting("big", TWO))
    assert defragmentation.first_moves(town.fleet, advice, town.tenants, DEFAULT, 4) == ()
