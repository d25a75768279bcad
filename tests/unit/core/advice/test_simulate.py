"""A simulation gives the decisions that a queue would make, and changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.request.model import of_pod
from berth_api.values.selectors import LabelSelector, Requirement
from berth_operator.core.advice.free_report import Left, by_model
from berth_operator.core.advice.simulate import Simulation, simulate
from berth_operator.core.advice.simulated_queue import SimulatedQueue
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.promise import NO_PLACES_LEFT
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import ending
from berth_operator.core.values.affinity import Affinity, Identity, Peers, Term
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership, PendingPod
from tests.objects.builders import (
    A100,
    A100_BYTES,
    GI,
    GPU,
    NVIDIA,
    T4,
    T4_BYTES,
    add,
    asks,
    card,
    cards,
    charge,
    fleet,
    gang,
    grant,
    instance,
    inventory,
    node_info,
    other_card,
    waiting,
)
from tests.unit.core.decision.test_what_if import CHANGES, change, made, plain

DEFAULT = {names.SCHEDULER: Policy()}
ONE, TWO, HALF = {NVIDIA: 1}, {NVIDIA: 2}, {GPU: 50}


def texts_of(simulation: Simulation) -> dict[str, str]:
    """Return for each pod its node and minors, or its message."""
    return {each.pod.name: text_of(each.result) for each in simulation.outcomes}


def text_of(result: Placement | Failure) -> str:
    if isinstance(result, Failure):
        # Why evictions would not help either is the subject of other tests.
        return result.message.partition(" preemption: 0/")[0]
    return " ".join([result.node, *(str(each.minor) for each in result.grants)])


def affinity_to(name: str) -> Affinity:
    """Return an affinity to pods with a label on the same node."""
    selector = LabelSelector(requirements=(Requirement(key=name, operator="Exists"),))
    return Affinity(required_affinity=(Term(key="host", peers=Peers(selector=selector, namespaces=("ns",))),))


def labelled(name: str, **fields: Any) -> PendingPod:
    request = replace(asks(ONE), identity=Identity(namespace="ns", labels=((name, ""),)))
    return waiting(name, request, **fields)


# --- placements ---------------------------------------------------------------------------------------------------

NO_CARD = (
    "0/1 nodes are available: 1 node(s) have too few free GPUs ({} requested with gpu-core {} and gpu-memory-ratio {})."
)
OLD, OF_H100 = waiting("a", TWO), waiting("a", asks(ONE, model=of_pod({names.MODEL_GLOBS: "*H100*"}, {})))
NO_H100 = f"0/1 nodes are available: 1 node(s) have too few healthy GPUs of model *H100* (1 requested; models: {A100})."
NO_HALF, NO_TWO = NO_CARD.format(1, 50, 50), NO_CARD.format(2, 100, 100)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        pytest.param([waiting("a", ONE), waiting("b", ONE)], {"a": "n 0", "b": "n 1"}, id="all fit"),
        pytest.param([waiting("a", TWO), waiting("b", HALF)], {"a": "n 0 1", "b": NO_HALF}, id="some fit"),
        pytest.param([waiting("a", HALF), waiting("b", HALF)], {"a": "n 0", "b": "n 0"}, id="shares pack"),
        pytest.param([OF_H100], {"a": NO_H100}, id="none fits"),
        pytest.param([OLD, waiting("b", TWO, priority=1)], {"b": "n 0 1", "a": NO_TWO}, id="priority first"),
        pytest.param([OLD, waiting("b", TWO, weight=1)], {"b": "n 0 1", "a": NO_TWO}, id="then weight"),
        pytest.param([waiting("b", TWO, created="2026-02-01T00:00:00Z"), OLD], {"a": "n 0 1", "b": NO_TWO}, id="age"),
        pytest.param([waiting("a", error="no sense")], {"a": "invalid request: no sense"}, id="one that means nothing"),
        pytest.param(
            [waiting("a", replace(asks(ONE), affinity=affinity_to("b")), priority=1), labelled("b")],
            {"b": "n 0", "a": "n 1"},
            id="one that waits for another",
        ),
        pytest.param(
            [
                *(waiting(f"a{i}", replace(asks(TWO), affinity=affinity_to("b")), priority=1) for i in range(2)),
                labelled("b", priority=1, created="9"),
            ],
            {"b": "n 0", "a0": NO_TWO, "a1": NO_TWO},
            id="equal ones that wait for another, and then for its device",
        ),
        pytest.param([], {}, id="no units"),
    ],
)
def test_pods_are_placed_as_a_queue_would_place_them(
    units: Sequence[PendingPod | Gang], expected: Mapping[str, str]
) -> None:
    of = Fleet()
    add(of, node_info("n", labels={"host": "n"}), inventory(*cards(2)))
    texts = texts_of(simulate(of, units, DEFAULT))
    assert texts == expected
    assert list(texts) == list(expected)


def test_members_of_a_gang_that_has_too_few_have_no_place() -> None:
    unit = gang(waiting("m0", ONE), minimum=3, placed=1, nodes=("a",))
    assert [each.fits for each in simulate(fleet({"a": cards(2)}), [unit], DEFAULT).outcomes] == [False]


def test_each_pod_is_decided_by_its_own_policy() -> None:
    of = Fleet()
    add(of, node_info("n", cordoned=True), inventory(*cards(2)))
    policies = {"strict": Policy(), "lax": Policy(switched_off=frozenset({"cordon"}))}
    simulation = simulate(of, [waiting(name, ONE, scheduler=name) for name in policies], policies)
    assert texts_of(simulation) == {"lax": "n 0", "strict": "0/1 nodes are available: 1 node(s) were unschedulable."}


def test_a_pod_that_would_clear_a_node_names_the_victims() -> None:
    of = fleet()
    of.charge(charge("low", grant(0, core=100, ratio=100)))
    high = waiting("high", ONE, priority=5)
    texts = texts_of(simulate(of, [high], DEFAULT))
    assert texts["high"].endswith(" preemption: ns/low would be evicted from node node.")
    [peaceful] = simulate(of, [high], {names.SCHEDULER: Policy(preemption=False)}).outcomes
    assert "preemption" not in text_of(peaceful.result)


def test_the_capacity_of_a_pod_that_preempts_others_is_kept_for_it() -> None:
    of = fleet({"n": cards(2)})
    of.charge(charge("low", grant(0, core=100, ratio=100), node="n"))
    units = [waiting("high", TWO, priority=5), waiting("other", ONE)]
    simulation = simulate(of, units, DEFAULT)
    texts = texts_of(simulation)
    assert texts["high"].endswith(" preemption: ns/low would be evicted from node n.")
    assert not any(each.fits for each in simulation.outcomes)
    assert [each.uid for each in simulation.evicted] == ["uid-low"]
    assert not of.leaving
    assert not of.nominees


def test_a_node_reservation_is_kept_as_a_new_leader_keeps_it() -> None:
    of = fleet({"n": cards(2)})
    of.charge(charge("low", grant(0, core=100, ratio=100), node="n", ends=ending.UNKNOWN))
    since = "2026-01-01T00:00:00Z"
    units = [waiting("large", TWO, created="1", unschedulable_since=since), waiting("small", ONE, created="2")]
    reserved = {units[0].uid: "n"}
    policies = {names.SCHEDULER: Policy(reserve_after=60.0)}
    start = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert texts_of(simulate(of, units, policies, now=start + 30, reserved=reserved))["small"] == "n 1"
    outcomes = simulate(of, units, policies, now=start + 60, reserved=reserved).outcomes
    texts = {each.pod.name: each.result.message for each in outcomes if isinstance(each.result, Failure)}
    assert texts["small"].endswith(" 1 node(s) would fit, but are reserved for pods that have waited longer.")
    assert texts["large"].endswith(" reserved on n: 1 of 2 GPUs are free, the rest is held by pod low.")


def test_pods_that_would_have_to_leave_for_a_gang_are_named() -> None:
    made = fleet({"node": cards(2)})
    for minor in (0, 1):
        one = grant(minor, core=100, ratio=100, memory=A100_BYTES)
        made.charge(charge(f"low-{minor}", one, node="node"))
    texts = texts_of(simulate(made, [gang(*(waiting(f"m{i}", ONE, priority=5) for i in range(2)))], DEFAULT))
    assert texts["m0"].endswith(" preemption: ns/low-0 on node, ns/low-1 on node would be evicted for all members.")
    # Three members would not fit even then.
    texts = texts_of(simulate(made, [gang(*(waiting(f"m{i}", ONE, priority=5) for i in range(3)))], DEFAULT))
    assert texts["m0"].endswith(" preemption: No preemption victims found for incoming preemptor.")


def test_places_that_are_kept_for_a_gang_are_kept() -> None:
    made = fleet({"node": cards(2)})
    members = (waiting(f"m{i}", ONE, nominated_node="node", created="2") for i in range(2))
    other = waiting("other", ONE, created="1")
    texts = texts_of(simulate(made, [other, gang(*members, created="2")], DEFAULT))
    assert texts["m0"].startswith("node")
    assert texts["other"].startswith("0/1 nodes are available")


def with_later(count: int, **fields: Any) -> Gang:
    """Return a gang of one pod, after which a controller creates others."""
    of = Membership(group="ns/g", controller="LeaderWorkerSet group")
    later = (waiting(f"later{number}", ONE, gang=of, workload=of.key, **fields) for number in range(count))
    leader = waiting("leader", ONE, gang=of, **fields)
    return gang(leader, membership=of, minimum=1, expected=tuple(later), created="1")


def test_places_of_pods_that_come_later_are_kept() -> None:
    made, others = fleet({"n": cards(4)}), [waiting(f"other{number}", ONE, created="2") for number in range(2)]
    texts = texts_of(simulate(made, [with_later(2), *others], DEFAULT))
    assert {name for name, text in texts.items() if text.startswith("n ")} == {"leader", "other0"}
    assert not made.nominees


def test_places_of_pods_that_come_later_are_kept_while_victims_leave() -> None:
    made = fleet({"n": cards(3)})
    made.charge(charge("low", grant(0, core=100, ratio=100), node="n"))
    others = [waiting("other", ONE, priority=5, created="2"), waiting("high", ONE, priority=9, created="2")]
    texts = texts_of(simulate(made, [with_later(2, priority=5), others[0]], DEFAULT))
    assert texts["leader"].endswith(" preemption: ns/low on n would be evicted for all members.")
    assert texts["other"].startswith("0/1 nodes are available")
    # A pod of higher priority takes a place of it.
    assert texts_of(simulate(made, [with_later(2, priority=5), *others], DEFAULT))["high"].startswith("n ")


def test_no_pods_leave_for_more_later_pods_than_may_have_places() -> None:
    made = fleet({"n": cards(3)})
    made.charge(charge("low", grant(0, core=100, ratio=100), node="n"))
    simulation = simulate(made, [with_later(251, priority=5)], DEFAULT)
    assert texts_of(simulation)["leader"].endswith(f" preemption: {NO_PLACES_LEFT}")


def test_pods_that_no_object_confirms_get_places_on_a_part_of_the_cards() -> None:
    made = fleet({f"n{number}": cards(8) for number in range(6)})
    first = replace(with_later(20), is_confirmed=False)
    of = Membership(group="ns/h", controller="LeaderWorkerSet group")
    members = tuple(replace(pod, uid=f"second-{pod.uid}", gang=of) for pod in first.members)
    expected = tuple(replace(pod, uid=f"second-{pod.uid}", gang=of, workload=of.key) for pod in first.expected)
    second = replace(first, membership=of, members=members, expected=expected[:9])
    last = [waiting(f"other{number}", ONE, created="2") for number in range(40)]
    simulation = simulate(made, [first, second, *last], DEFAULT)
    assert sum(each.fits for each in simulation.outcomes) == 2 + 48 - 2 - 12


def test_released_places_of_later_pods_no_longer_count() -> None:
    first, second = with_later(1), Membership(group="ns/h", controller="LeaderWorkerSet group")
    queue = SimulatedQueue(fleet({"n": cards(3)}), [first])
    kept = queue.may_keep(replace(first, membership=second))
    queue.keep_later(first, [charge("later0", node="n")])
    assert queue.may_keep(replace(first, membership=second)) == kept - 1
    queue.withdraw_unit(first.uid)
    assert queue.may_keep(replace(first, membership=second)) == kept


def test_a_place_that_others_leave_for_a_pod_is_kept_for_it() -> None:
    of = fleet({"n": cards(2)})
    of.charge(charge("low", grant(0, core=100, ratio=100), node="n"))
    of.leaving.add("uid-low")
    units = [waiting("high", TWO, priority=5, nominated_node="n"), waiting("other", ONE)]
    assert not any(each.fits for each in simulate(of, units, DEFAULT).outcomes)
    of.release("uid-low")
    assert texts_of(simulate(of, units, DEFAULT))["high"] == "n 0 1"


def test_members_beyond_those_that_fit_get_their_reason() -> None:
    units = [gang(*(waiting(f"m{i}", ONE) for i in range(3)), minimum=2)]
    assert texts_of(simulate(fleet({"n": cards(2)}), units, DEFAULT))["m2"].startswith("0/1 nodes are available")


# --- what is left -------------------------------------------------------------------------------------------------


def left(cards: int, idle: int, core: int, memory: int, ratio: int) -> Left:
    free = (("gpu-core", core), ("gpu-memory", memory), ("gpu-memory-ratio", ratio))
    return Left(cards=cards, idle=idle, free=free)


def test_what_is_left_is_reported_by_model_and_node() -> None:
    small = card(1, memory=T4_BYTES, model=T4)
    of = fleet({"a": (card(0), small), "b": (card(0), card(1, healthy=False))})
    simulation = simulate(
        of, [waiting("half", HALF), waiting("one", asks(ONE, model=of_pod({names.MODEL_GLOBS: T4}, {})))], DEFAULT
    )
    assert texts_of(simulation) == {"half": "a 0", "one": "a 1"}
    assert simulation.before == {
        ("a", "gpu", A100): left(1, 1, 100, A100_BYTES, 100),
        ("a", "gpu", T4): left(1, 1, 100, T4_BYTES, 100),
        ("b", "gpu", A100): left(1, 1, 100, A100_BYTES, 100),
    }
    assert simulation.after == {
        ("a", "gpu", A100): left(1, 0, 50, A100_BYTES // 2, 50),
        ("a", "gpu", T4): left(1, 0, 0, 0, 0),
        ("b", "gpu", A100): left(1, 1, 100, A100_BYTES, 100),
    }
    assert by_model(simulation.after) == {
        ("gpu", A100): left(2, 1, 150, A100_BYTES + A100_BYTES // 2, 150),
        ("gpu", T4): left(1, 0, 0, 0, 0),
    }


@pytest.mark.parametrize("kind", ["rdma", "fpga"])
def test_devices_of_other_types_are_left_too(kind: str) -> None:
    of = fleet({"n": (other_card(kind, 0), other_card(kind, 1))})
    simulation = simulate(of, [waiting("pod", {f"kubernetes.io/{kind}": 30})], DEFAULT)
    assert simulation.before == {("n", kind, ""): Left(cards=2, idle=2, free=((kind, 200),))}
    assert simulation.after == {("n", kind, ""): Left(cards=2, idle=1, free=((kind, 170),))}


def test_of_a_card_in_mig_mode_its_instances_are_left() -> None:
    piece = "nvidia.com/mig-1g.10gb"
    instances = tuple((f"MIG-0-{number}", piece) for number in range(7))
    of = fleet({"n": (card(0, healthy=False, more={piece: 7}, instances=instances), card(1, healthy=False))})
    of.charge(charge("pod", instance(0, 3), node="n"))
    assert simulate(of, [], DEFAULT).before == {("n", "gpu", A100): Left(cards=1, idle=0, free=((piece, 6),))}


def test_cards_that_no_pod_could_get_are_not_left() -> None:
    of = fleet({"silent": cards(1), "gone": cards(1), "there": cards(1)})
    of.set_fresh("silent", fresh=False)
    of.remove_node("gone")
    assert set(simulate(of, [], DEFAULT).before) == {("there", "gpu", A100)}


def test_a_card_with_more_charged_than_it_has_has_nothing_left() -> None:
    of = fleet()
    for name in "ab":
        of.charge(charge(name, grant(0, core=80, ratio=80, memory=60 * GI)))
    assert simulate(of, [], DEFAULT).before == {("node", "gpu", A100): left(1, 0, 0, 0, 0)}


def test_nodes_that_are_no_longer_used_are_reported() -> None:
    of = fleet({"idle": cards(1), "held": cards(2), "freed": cards(1), "unknown": cards(1)})
    add(of, node_info("cardless"))
    of.charge(charge("stays", grant(0, core=100), node="held"))
    of.charge(charge("ends", grant(1, core=100), node="held"))
    of.charge(charge("ends too", grant(0, core=100), node="freed"))
    of.charge(charge("any", node="unknown", unknown=("gpu",)))
    simulation = simulate(of, [], DEFAULT, gone=["uid-ends", "uid-ends too", "uid-unknown"])
    assert (simulation.unused, simulation.emptied) == (frozenset({"idle", "freed"}), frozenset({"freed"}))
    # A pod that takes the place of those that ended leaves no node empty.
    simulation = simulate(
        of, [waiting("pod", TWO), *(waiting(f"p{i}", ONE) for i in range(2))], DEFAULT, gone=["uid-ends too"]
    )
    assert (simulation.unused, simulation.emptied) == (frozenset(), frozenset())


# --- laws ---------------------------------------------------------------------------------------------------------

PODS = st.lists(
    st.builds(
        lambda number, wanted, priority, affinity: waiting(
            f"w{number}", replace(asks(wanted), affinity=affinity), priority=priority, created=str(number)
        ),
        st.integers(0, 1000),
        st.sampled_from([ONE, TWO, HALF, {"cpu": 1500}, {"cpu": 9000}]),
        st.integers(-1, 1),
        st.sampled_from([Affinity(), affinity_to("x")]),
    ),
    max_size=6,
    unique_by=lambda each: each.uid,
)


@settings(max_examples=40)
@given(CHANGES, PODS, st.lists(st.sampled_from("pqrstu"), max_size=2))
def test_the_fleet_is_left_as_it_was_and_every_result_is_a_decision(
    before: list[Charge | str], pods: list[PendingPod], gone: list[str]
) -> None:
    of = made()
    for each in before:
        change(of, each)
    uids, was = [f"uid-{name}" for name in gone], plain(of)
    # Without preemption, which keeps capacity that a decision alone would use.
    peaceful = Policy(preemption=False)
    simulation = simulate(of, pods, {names.SCHEDULER: peaceful}, gone=uids)
    assert plain(of) == was
    assert {each.pod.uid for each in simulation.outcomes} == {each.uid for each in pods}
    for uid in uids:
        of.release(uid)
    for simulated in simulation.outcomes:
        outcome = decide(of, simulated.pod, peaceful)
        if isinstance(outcome, Placement):
            assert outcome == simulated.result
            of.charge(outcome.charge)
        else:
            assert not simulated.fits


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_of_a_gang_enough_are_placed_or_none(nodes: list[int], size: int, minimum: int, others: int) -> None:
    of = fleet({f"n{number}": cards(count) for number, count in enumerate(nodes)})
    units: list[PendingPod | Gang] = [
        gang(*(waiting(f"m{i}", ONE) for i in range(size)), minimum=min(minimum, size)),
        *(waiting(f"o{i}", ONE) for i in range(others)),
    ]
    simulation = simulate(of, units, DEFAULT)
    placed = [each.pod.name for each in simulation.outcomes if each.fits]
    members = sum(name.startswith("m") for name in placed)
    assert members == 0 or members >= min(minimum, size)
    assert len(placed) <= sum(nodes)
    if members or sum(nodes) < min(minimum, size):
        assert len(placed) == min(sum(nodes), size * bool(members) + others)
