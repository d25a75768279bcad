"""Gangs are placed close together, all members or none, and the Fleet stays unchanged."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_operator.core.decision import capacity
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide, feasible
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.gang_preemption import may_preempt, preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Affinity, Identity, Peers, Term
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import Change
from tests.objects.builders import (
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    add,
    asks,
    cards,
    charge,
    fleet,
    gang,
    grant,
    inventory,
    listens,
    node_info,
    waiting,
)
from tests.objects.volumes import claim, mounts, put, volume
from tests.unit.core.affinity_worlds import select
from tests.unit.core.fleet.test_fleet import arrays

HOST, CLIQUE, ZONE = "kubernetes.io/hostname", "nvidia.com/gpu.clique", "topology.kubernetes.io/zone"
ONE = {NVIDIA: 1}


def rack(nodes: Mapping[str, tuple[int, str, str]]) -> Fleet:
    """Return a fleet of nodes with the given numbers of cards, each in a clique and a zone; empty for no such label."""
    made = Fleet()
    for name, (count, clique, zone) in nodes.items():
        labels = {HOST: name, CLIQUE: clique, ZONE: zone}
        add(
            made,
            node_info(name, labels={key: value for key, value in labels.items() if value}),
            inventory(*cards(count)),
        )
    return made


def members(count: int, wanted: Mapping[str, int] | PodRequest | None = None, **fields: Any) -> list[PendingPod]:
    return [waiting(f"m{i}", ONE if wanted is None else wanted, **fields) for i in range(count)]


def nodes_of(outcome: Sequence[Placement] | Failure) -> dict[str, int]:
    assert not isinstance(outcome, Failure), outcome.message
    return dict(sorted(Counter(each.node for each in outcome).items()))


def refusal(outcome: Sequence[Placement] | Failure) -> Failure:
    assert isinstance(outcome, Failure)
    return outcome


# --- all or not at all --------------------------------------------------------------------------------------------


def test_one_card_too_few_places_no_member() -> None:
    made = fleet({"a": cards(2), "b": cards(1), "c": ()})
    failed = refusal(decide_gang(made, gang(*members(4)), Policy()))
    assert failed.message == (
        "PodGroup ns/g: 3 of the 4 required members fit; next member m3: 0/3 nodes are available: "
        "1 node(s) have too few healthy GPUs (1 requested), 2 node(s) were taken by other members of the pod group."
    )
    assert failed.reasons == (
        ("node(s) were taken by other members of the pod group", 2),
        ("node(s) have too few healthy GPUs (1 requested)", 1),
    )
    assert failed.wakes_on & Change.CAPACITY_FREED
    assert failed.wakes_on & Change.DEVICE
    assert failed.wakes_on & Change.NODE_ALLOCATABLE
    assert failed.wakes_on & Change.NODE_ADDED
    assert not made.charges


def test_the_minimum_is_enough_and_the_others_are_placed_where_they_fit() -> None:
    made = fleet({"a": cards(3)})
    assert nodes_of(decide_gang(made, gang(*members(5), minimum=2), Policy())) == {"a": 3}
    assert isinstance(decide_gang(made, gang(*members(5), minimum=4), Policy()), Failure)


def test_a_late_member_that_fits_nowhere_gets_the_reason_of_any_pod() -> None:
    made = fleet({"a": ()})
    (pod,) = members(1)
    alone = decide(made, pod, Policy())
    assert isinstance(alone, Failure)
    assert refusal(decide_gang(made, gang(pod, minimum=1, placed=1), Policy())).message == alone.message


def test_the_largest_is_placed_first_or_it_would_find_its_place_taken() -> None:
    made = fleet({"a": cards(2), "b": cards(1)})
    placed = decide_gang(made, gang(waiting("small", ONE), waiting("large", {NVIDIA: 2})), Policy())
    assert isinstance(placed, list)
    assert {each.pod.name: each.node for each in placed} == {"large": "a", "small": "b"}


def test_a_large_member_that_is_not_needed_does_not_take_the_place_of_those_that_are() -> None:
    pods = [waiting("large", {NVIDIA: 2}), *members(2)]
    placed = decide_gang(fleet({"a": cards(2)}), gang(*pods, minimum=2), Policy())
    assert isinstance(placed, list)
    assert sorted(each.pod.name for each in placed) == ["m0", "m1"]


def test_a_gang_of_two_kinds_is_placed_as_a_whole_or_not() -> None:
    made = fleet({"a": cards(2)})
    whole = gang(*members(2), waiting("driver", {"cpu": 1000}))
    assert nodes_of(decide_gang(made, whole, Policy())) == {"a": 3}
    greedy = gang(*members(2), waiting("driver", {"cpu": 65_000}))
    failed = refusal(decide_gang(made, greedy, Policy()))
    assert failed.message.startswith("PodGroup ns/g: 2 of the 3 required members fit; next member driver: 0/1 nodes")
    assert "Insufficient cpu" in failed.message


def test_the_members_that_fit_are_counted_and_the_first_that_does_not_is_explained() -> None:
    made = fleet({"a": cards(3)})
    # Each class fits by itself, both together do not.
    failed = refusal(decide_gang(made, gang(*members(2), waiting("large", {NVIDIA: 2})), Policy()))
    assert failed.message == (
        "PodGroup ns/g: 2 of the 3 required members fit; next member m1: 0/1 nodes are available: "
        "1 node(s) have too few free GPUs (1 requested with gpu-core 100 and gpu-memory-ratio 100)."
    )


def term_of(**labels: str) -> Term:
    """Return the term of pods with these labels on the same host."""
    return Term(key=HOST, peers=Peers(selector=select(**labels), namespaces=("ns",)))


def driver_and_worker() -> tuple[PendingPod, PendingPod]:
    """Return a pod, and a larger one with affinity to it, which is decided first although the other has no node."""
    driver = replace(asks({"cpu": 100}), identity=Identity(namespace="ns", labels=(("role", "driver"),)))
    near = Affinity(required_affinity=(term_of(role="driver"),))
    return waiting("d", driver), waiting("w", replace(asks({NVIDIA: 2}), affinity=near))


def test_a_member_with_affinity_to_another_is_placed_after_it() -> None:
    made = rack({"a": (2, "", ""), "b": (2, "", "")})
    placed = decide_gang(made, gang(*driver_and_worker()), Policy())
    assert isinstance(placed, list)
    assert [each.pod.name for each in placed] == ["d", "w"]
    assert len({each.node for each in placed}) == 1


def test_a_member_that_was_placed_later_is_not_the_reason() -> None:
    made = rack({"a": (2, "", "")})
    others = (waiting("x", {"cpu": 40_000}), waiting("y", {"cpu": 39_000}))
    failed = refusal(decide_gang(made, gang(*driver_and_worker(), *others), Policy()))
    assert failed.message == (
        "PodGroup ns/g: 3 of the 4 required members fit; next member y: 0/1 nodes are available: 1 Insufficient cpu."
    )


def test_members_that_must_lie_apart_lie_apart() -> None:
    made = rack(dict.fromkeys("abc", (8, "c", "z")))
    identity, apart = (
        Identity(namespace="ns", labels=(("app", "x"),)),
        Affinity(required_anti_affinity=(term_of(app="x"),)),
    )
    wanted = replace(asks(ONE), identity=identity, affinity=apart)
    assert nodes_of(decide_gang(made, gang(*members(3, wanted)), Policy())) == {"a": 1, "b": 1, "c": 1}
    failed = refusal(decide_gang(made, gang(*members(4, wanted)), Policy()))
    assert "3 of the 4 required members fit" in failed.message
    assert not made.charges


def test_the_same_gang_is_placed_the_same() -> None:
    made = rack({f"n{i}": (4, f"c{i // 2}", "z") for i in range(6)})
    outcomes = [decide_gang(made, gang(*order), Policy()) for order in (members(7), members(7)[::-1])]
    assert outcomes[0] == outcomes[1]


# --- claims that members share --------------------------------------------------------------------------------


def sharing(modes: str, **fields: Any) -> tuple[Fleet, list[PendingPod]]:
    """Return two nodes of one card each, and two members of one card each that share a claim."""
    made = put(rack({"a": (1, "", ""), "b": (1, "", "")}), claim(modes=frozenset({modes}), **fields))
    wanted = replace(asks(ONE), mounts=mounts("claim"))
    return made, members(2, wanted)


@pytest.mark.parametrize("modes", ["ReadWriteMany", "ReadOnlyMany"])
def test_a_volume_for_many_nodes_is_made_for_one_member_and_serves_the_others(modes: str) -> None:
    made, pods = sharing(modes, storage_class="made")
    before = arrays(made)
    placed = decide_gang(made, gang(*pods), Policy())
    assert nodes_of(placed) == {"a": 1, "b": 1}
    assert isinstance(placed, list)
    assert [each.volumes.provisions for each in placed] == [("ns/claim",), ()]
    assert made.volumes.selected_node(made.volumes.claims["ns/claim"]) is None
    assert all((one == other).all() for one, other in zip(arrays(made), before, strict=True))


def test_a_volume_for_one_node_keeps_its_pods_on_it() -> None:
    made, pods = sharing("ReadWriteOnce", storage_class="made")
    failed = refusal(decide_gang(made, gang(*pods), Policy()))
    assert "1 of the 2 required members fit" in failed.message
    assert "didn't find available persistent volumes to bind" in failed.message


def test_a_volume_that_is_being_made_for_a_node_keeps_its_pods_there_until_it_is() -> None:
    made, pods = sharing("ReadWriteMany", storage_class="made", selected_node="a")
    assert isinstance(decide_gang(made, gang(*pods), Policy()), Failure)


def test_members_take_a_volume_that_is_there_together() -> None:
    made, pods = sharing("ReadWriteMany")
    put(made, volume(modes=frozenset({"ReadWriteMany"})))
    placed = decide_gang(made, gang(*pods), Policy())
    assert isinstance(placed, list)
    assert [each.volumes.bindings for each in placed] == [(("ns/claim", "volume"),)] * 2


# --- close together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "count", "where"),
    [
        pytest.param({"a": (4, "c", "z"), "b": (8, "c", "z")}, 6, {"b": 6}, id="one node that holds all"),
        pytest.param({"a": (8, "", ""), "b": (4, "", ""), "c": (6, "", "")}, 4, {"b": 4}, id="the tightest node"),
        pytest.param(
            {"a": (8, "p", "z"), "b": (8, "q", "z"), "c": (8, "q", "z")},
            12,
            {"b": 6, "c": 6},
            id="one clique where no node holds all",
        ),
        pytest.param(
            {"a": (8, "p", "y"), "b": (8, "q", "z"), "c": (8, "r", "z")},
            16,
            {"b": 8, "c": 8},
            id="one zone where no clique holds all",
        ),
        pytest.param(
            {"a": (4, "p", "y"), "b": (4, "p", "y"), "c": (4, "q", "z")}, 12, {"a": 4, "b": 4, "c": 4}, id="anywhere"
        ),
        pytest.param(
            {"a": (2, "p", "z"), "b": (8, "p", "z"), "c": (4, "p", "z")}, 12, {"b": 8, "c": 4}, id="few nodes of many"
        ),
        pytest.param(
            {"a": (8, "p", "z"), "b": (8, "p", "z"), "c": (2, "p", "z")},
            10,
            {"a": 8, "c": 2},
            id="the rest where least is left over",
        ),
        pytest.param(
            {"a": (8, "", "y"), "b": (8, "", "z"), "c": (8, "p", "x"), "d": (8, "q", "x")},
            16,
            {"c": 8, "d": 8},
            id="no clique is not a clique",
        ),
        pytest.param(
            {"a": (4, "", ""), "b": (4, "", ""), "c": (4, "p", "y"), "d": (4, "p", "y"), "e": (2, "q", "z")},
            10,
            {"c": 4, "d": 4, "e": 2},
            id="what has labels before what has none",
        ),
    ],
)
def test_members_are_placed_close_together(
    rows: Mapping[str, tuple[int, str, str]], count: int, where: Mapping[str, int]
) -> None:
    nodes = nodes_of(decide_gang(rack(rows), gang(*members(count)), Policy()))
    if where == {"b": 6, "c": 6}:  # any split within the clique
        assert set(nodes) == {"b", "c"}
    else:
        assert nodes == where


def test_the_keys_are_those_of_the_policy() -> None:
    made = rack({"a": (8, "p", "y"), "b": (4, "q", "z"), "c": (4, "q", "z")})
    by_clique = replace(Policy(), gang_topology_keys=(CLIQUE,))
    tightest = nodes_of(decide_gang(made, gang(*members(8)), by_clique))
    assert sum(tightest.values()) == 8
    assert len({made.labels[made.rows[name]][CLIQUE] for name in tightest}) == 1
    assert nodes_of(decide_gang(made, gang(*members(8)), replace(Policy(), gang_topology_keys=()))) is not None


@pytest.mark.parametrize(
    ("mates", "count", "where"),
    [
        pytest.param(("c",), 1, {"c": 1}, id="the node of the others"),
        pytest.param(("a", "c", "c"), 1, {"c": 1}, id="the node of most others"),
        pytest.param(("c",), 5, {"c": 4, "d": 1}, id="the clique where their node is too small"),
        pytest.param(("full",), 2, {"d": 2}, id="the clique where their node is full"),
        pytest.param(("nowhere",), 4, {"a": 4}, id="as if there were none, where their node is gone"),
    ],
)
def test_a_new_member_is_drawn_to_the_others(mates: tuple[str, ...], count: int, where: dict[str, int]) -> None:
    made = rack({"a": (4, "p", "y"), "b": (8, "p", "y"), "c": (4, "q", "z"), "d": (2, "q", "z"), "full": (0, "q", "z")})
    unit = gang(*members(count), minimum=count + len(mates), placed=len(mates), nodes=mates)
    assert nodes_of(decide_gang(made, unit, Policy())) == where


def test_new_members_go_where_the_others_are_even_if_elsewhere_all_of_them_fit_on_one_node() -> None:
    made = rack({"c": (1, "q", "z"), "d": (1, "q", "z"), "e": (8, "r", "z"), "f": (3, "s", "y")})
    unit = gang(*members(3), minimum=4, placed=1, nodes=("c",))
    assert nodes_of(decide_gang(made, unit, Policy())) == {"c": 1, "d": 1, "e": 1}


def test_the_zone_is_chosen_before_the_clique_and_the_clique_before_the_node() -> None:
    # No zone holds all: the zone with the most capacity comes first, though the largest clique and node are in another.
    made = rack({"a": (6, "p", "y"), "b": (4, "q", "z"), "c": (4, "r", "z"), "d": (3, "r", "z")})
    assert nodes_of(decide_gang(made, gang(*members(12)), Policy())) == {"a": 1, "b": 4, "c": 4, "d": 3}


def test_preferences_decide_where_closeness_does_not() -> None:
    made = rack({"a": (8, "", ""), "b": (8, "", "")})
    made.charge(charge("other", node="a", resources=(("cpu", 60_000),)))
    spread = replace(Policy(), weights=(("least-allocated", 1.0),), gang_topology_keys=(ZONE,))
    assert nodes_of(decide_gang(made, gang(*members(1, {"cpu": 1000})), spread)) == {"b": 1}


# --- members that must be in one domain of a label ----------------------------------------------------------------

RACK = "rack"


def racks(**nodes: tuple[str, int]) -> Fleet:
    """Return a fleet of nodes, each in a rack (none if empty) with a number of cards."""
    made = Fleet()
    for name, (where, count) in nodes.items():
        add(made, node_info(name, labels={RACK: where} if where else {}), inventory(*cards(count)))
    return made


def test_all_members_are_in_one_domain_although_nodes_outside_have_more() -> None:
    made = racks(a1=("a", 1), a2=("a", 2), b1=("b", 2), c=("", 8))
    assert nodes_of(decide_gang(made, gang(*members(3), topology_key=RACK), Policy())) == {"a1": 1, "a2": 2}


def test_no_domain_holds_them() -> None:
    made = racks(a1=("a", 2), b1=("b", 2))
    failed = refusal(decide_gang(made, gang(*members(3), topology_key=RACK), Policy()))
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
    assert nodes_of(decide_gang(made, gang(*members(5), minimum=1, topology_key=RACK), Policy())) == {"b1": 3}


def test_the_domain_of_the_placed_members_is_the_only_one() -> None:
    made = racks(a1=("a", 1), b1=("b", 8))
    more = gang(*members(1), minimum=0, placed=1, nodes=("a1",), topology_key=RACK)
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
    more = gang(*members(1), minimum=0, placed=2, nodes=nodes, topology_key=RACK)
    failed = refusal(decide_gang(made, more, Policy()))
    assert failed.condition == "SchedulerError"
    assert failed.message == f"PodGroup ns/g: cannot determine domain for already scheduled pods: {why}"
    assert preempt_gang(made, more, Policy(), Budgets()) is None


def test_victims_are_of_one_domain() -> None:
    made = racks(a1=("a", 2), b1=("b", 1), b2=("b", 1))
    for name, node, minor, priority in (("w", "a1", 0, 5), ("x", "a1", 1, 1), ("y", "b1", 0, 1), ("z", "b2", 0, 2)):
        made.charge(charge(name, grant(minor, core=100, ratio=100), node=node, priority=priority))
    wanted = gang(*members(2, priority=9), topology_key=RACK)
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


# --- how many fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(asks(), 110, id="pods"),
        pytest.param(asks({"cpu": 3000}), 21, id="cpu"),
        pytest.param(asks(ONE), 4, id="whole cards"),
        pytest.param(asks({NVIDIA: 3}), 1, id="several cards"),
        pytest.param(asks({GPU: 50}), 8, id="halves of cards"),
        pytest.param(asks({GPU: 30}), 12, id="thirds of cards"),
        pytest.param(asks({MEMORY: 30 * GI}), 8, id="memory of cards"),
        pytest.param(asks({RATIO: 200}), 2, id="two cards by ratio"),
        pytest.param(asks(ports=[listens()]), 1, id="a host port"),
        pytest.param(asks({"cpu": 65_000}), 0, id="nothing fits"),
        pytest.param(asks(selector={"zone": "z"}), 0, id="another filter rejects it"),
    ],
)
def test_the_capacity_of_a_node(wanted: PodRequest, expected: int) -> None:
    made = fleet({"node": cards(4)})
    capacities = capacity.of_class(made, wanted, feasible(made, wanted))
    assert int(capacities[made.rows["node"]]) == expected
    assert capacities.sum() == expected


WANTED = st.sampled_from([asks(each) for each in ({}, ONE, {NVIDIA: 2}, {GPU: 50}, {GPU: 30}, {"cpu": 20_000})])
NODES = st.tuples(st.integers(0, 4), st.sampled_from(["p", "q", ""]), st.sampled_from(["y", "z"]))
FLEETS = st.lists(NODES, max_size=5)


def built(rows: Sequence[tuple[int, str, str]], held: Sequence[int]) -> Fleet:
    made = rack({f"n{i}": row for i, row in enumerate(rows)})
    for i, cpu in enumerate(held):
        if rows:
            made.charge(charge(f"held{i}", node=f"n{cpu % len(rows)}", resources=(("cpu", cpu * 100), ("pods", 1))))
    return made


@settings(max_examples=60)
@given(FLEETS, WANTED, st.lists(st.integers(0, 200), max_size=3))
def test_the_capacity_is_never_estimated_too_low(
    rows: list[tuple[int, str, str]], wanted: PodRequest, held: list[int]
) -> None:
    made = built(rows, held)
    estimated = int(capacity.of_class(made, wanted, feasible(made, wanted)).sum())
    count = 0
    while count <= estimated and isinstance(outcome := decide(made, waiting(f"p{count}", wanted), Policy()), Placement):
        made.charge(outcome.charge)
        count += 1
    assert count <= estimated


@settings(max_examples=80)
@given(
    FLEETS,
    st.lists(WANTED, min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(0, 2),
    st.lists(st.integers(0, 200), max_size=3),
)
def test_a_gang_is_placed_all_or_not_at_all_and_the_fleet_stays_as_it_was(
    rows: list[tuple[int, str, str]], wanted: list[PodRequest], minimum: int, placed: int, held: list[int]
) -> None:
    made = built(rows, held)
    before, charges = arrays(made), dict(made.charges)
    unit: Gang = gang(
        *(waiting(f"m{i}", each) for i, each in enumerate(wanted)),
        minimum=minimum,
        placed=placed,
        nodes=("n0",) * placed,
    )
    outcome = decide_gang(made, unit, Policy())
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(made), strict=True))
    assert made.charges == charges
    if len(wanted) < unit.needed:
        assert "waiting for members" in refusal(outcome).message
        return
    if isinstance(outcome, Failure):
        assert sum(count for _, count in outcome.reasons) >= int(made.present.sum())
        return
    assert unit.needed <= len(outcome) <= len(wanted)
    assert len({each.pod.uid for each in outcome}) == len(outcome)
    # Assumed one after the other, as the caller does, each member still fits on its node.
    for each in outcome:
        row = made.rows[each.node]
        assert feasible(made, each.pod.request)[row]
        made.charge(each.charge)
    assert all((columns.used <= columns.total).all() for columns in made.cards.values())
    assert (made.requested <= made.allocatable)[:, made.present].all()
