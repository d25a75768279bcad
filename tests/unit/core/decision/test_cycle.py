"""Decisions: the node and the cards of a pod, or why it fits nowhere."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.request.model import of_pod
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.messages import MAX_MESSAGE
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest, Taint
from berth_operator.core.values.verdict import Change
from tests.objects.builders import (
    A100_BYTES,
    CORE,
    FPGA,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    T4,
    T4_BYTES,
    add,
    asks,
    card,
    cards,
    charge,
    fleet,
    grant,
    inventory,
    node_info,
    other_card,
    place,
    waiting,
)


def fails(on: Fleet, pod: Any) -> Failure:
    outcome = decide(on, pod, Policy())
    assert isinstance(outcome, Failure), outcome
    return outcome


def given_to(placement: Placement) -> dict[tuple[str, int], dict[str, int]]:
    return {(each.type, each.minor): dict(each.amounts) for each in placement.grants}


# --- what a pod gets --------------------------------------------------------------------------------------------


def part(ratio: int, *, core: int | None = None, memory: int | None = None) -> dict[str, int]:
    """Return amounts of a card; memory is by ratio unless given."""
    memory = ratio * A100_BYTES // 100 if memory is None else memory
    return {**({} if core is None else {"gpu-core": core}), "gpu-memory": memory, "gpu-memory-ratio": ratio}


WHOLE = part(100, core=100)


@pytest.mark.parametrize(
    ("amounts", "count", "each"),
    [
        pytest.param({}, 0, {}, id="nothing"),
        pytest.param({NVIDIA: 1}, 1, WHOLE, id="a card"),
        pytest.param({GPU: 300}, 3, WHOLE, id="three cards"),
        pytest.param({GPU: 50}, 1, part(50, core=50), id="half a card"),
        pytest.param({RATIO: 33}, 1, part(33), id="a ratio, no core"),
        pytest.param({MEMORY: 8 * GI}, 1, part(10, memory=8 * GI), id="memory, no core"),
        pytest.param({MEMORY: 1}, 1, part(0, memory=1), id="a byte"),
        pytest.param({CORE: 20, MEMORY: 8 * GI}, 1, part(10, core=20, memory=8 * GI), id="core and memory"),
        pytest.param({SHARED: 2, CORE: 60, RATIO: 80}, 2, part(40, core=30), id="shares of two cards"),
        pytest.param({SHARED: 3, MEMORY: 30 * GI}, 3, part(12, memory=10 * GI), id="memory of three cards"),
    ],
)
def test_a_pod_gets_exactly_what_it_asked_for(amounts: dict[str, int], count: int, each: dict[str, int]) -> None:
    placement = place(fleet({"node": cards(4)}), waiting("pod", amounts))
    assert given_to(placement) == {("gpu", minor): each for minor in range(count)}
    assert [each.id for each in placement.grants] == [f"GPU-{minor}" for minor in range(count)]


def test_each_of_two_unequal_cards_is_charged_by_its_own_memory() -> None:
    request = asks({SHARED: 2, RATIO: 100}, annotations={names.MIXED_GPUS: "true"})
    placement = place(fleet({"node": (card(0), card(1, memory=T4_BYTES, model=T4))}), waiting("pod", request))
    assert given_to(placement) == {
        ("gpu", 0): {"gpu-memory": A100_BYTES // 2, "gpu-memory-ratio": 50},
        ("gpu", 1): {"gpu-memory": T4_BYTES // 2, "gpu-memory-ratio": 50},
    }


def test_nics_and_fpgas_come_with_the_cards() -> None:
    node = (card(), other_card("rdma", 0), other_card("rdma", 1), other_card("fpga"))
    placement = place(fleet({"node": node}), waiting("pod", {NVIDIA: 1, RDMA: 200, FPGA: 30}))
    assert [(each.type, each.minor) for each in placement.grants] == [("gpu", 0), ("rdma", 0), ("rdma", 1), ("fpga", 0)]
    assert given_to(placement)["fpga", 0] == {"fpga": 30}


def test_a_share_goes_to_the_fullest_card_that_has_capacity() -> None:
    made = fleet({"node": cards(3)})
    made.charge(charge("a", grant(1, core=30, ratio=30)))
    made.charge(charge("b", grant(2, core=60, ratio=60)))
    assert place(made, waiting("pod", {GPU: 40})).grants[0].minor == 2
    assert place(made, waiting("next", {GPU: 40})).grants[0].minor == 1


def test_whole_cards_go_to_the_node_that_is_fullest() -> None:
    made = fleet({"a": cards(4), "b": cards(4)})
    made.charge(charge("pod", grant(0, core=100, ratio=100), node="b"))
    # Once pods with several cards are known, for which the other node is kept empty.
    made.pod_mix.see(waiting("whole", {GPU: 200}).request)
    assert place(made, waiting("whole", {GPU: 200})).node == "b"


def test_a_pod_without_devices_stays_away_from_them() -> None:
    made = fleet({"gpus": cards(4)})
    add(made, node_info("plain", cpu=8_000))
    made.charge(charge("pod", node="plain", resources=(("cpu", 4_000),)))
    assert place(made, waiting("pod2", {"cpu": 1_000})).node == "plain"


def test_a_pod_without_devices_goes_to_the_emptiest_node() -> None:
    made = Fleet()
    add(made, node_info("a"))
    add(made, node_info("b"))
    made.charge(charge("pod", node="a", resources=(("cpu", 4_000),)))
    assert place(made, waiting("pod2", {"cpu": 1_000})).node == "b"


def test_bytes_of_a_ratio_are_asked_for_as_bytes_again() -> None:
    made = fleet()
    place(made, waiting("ratio", {RATIO: 33}))
    rest = A100_BYTES - 33 * A100_BYTES // 100
    assert isinstance(decide(made, waiting("more", {MEMORY: rest + 1}), Policy()), Failure)
    assert given_to(place(made, waiting("rest", {MEMORY: rest})))["gpu", 0]["gpu-memory"] == rest


def test_the_model_chooses_the_card_of_a_mixed_node() -> None:
    made = fleet({"node": (card(0), card(1, memory=T4_BYTES, model=T4))})
    wanted = asks({GPU: 50}, model=of_pod({names.MODEL_EXACT: "tesla t4"}, {}))
    assert [each.minor for each in place(made, waiting("pod", wanted)).grants] == [1]


# --- the same fleet gives the same answer, and is left alone ----------------------------------------------------


def test_equal_nodes_are_taken_in_the_order_of_their_rows() -> None:
    made = fleet({name: cards(1) for name in ("b", "a", "c")})
    assert [place(made, waiting(name, {NVIDIA: 1})).node for name in "xyz"] == ["b", "a", "c"]


def test_weights_change_the_choice() -> None:
    made = fleet({"gpus": cards(1)})
    add(made, node_info("plain", cpu=8_000))
    made.charge(charge("pod", node="plain", resources=(("cpu", 7_000),)))
    pod = waiting("next", {"cpu": 500})
    spread = decide(made, pod, Policy(weights=(("least-allocated", 1.0), ("spare-devices", 0.0))))
    kept = decide(made, pod, Policy())
    assert isinstance(spread, Placement)
    assert isinstance(kept, Placement)
    assert (spread.node, kept.node) == ("gpus", "plain")


def test_a_placement_is_charged_as_it_was_decided() -> None:
    made = fleet()
    placement = decide(made, waiting("pod", {GPU: 50, "cpu": 1_000}), Policy())
    assert isinstance(placement, Placement)
    made.charge(placement.charge)
    (found,) = made.on_node("node")
    assert found == placement.charge
    assert dict(found.plugin_requests) == {GPU: 50}
    assert dict(found.resources) == {"cpu": 1_000, "pods": 1, GPU: 50}


# --- why none ---------------------------------------------------------------------------------------------------


def test_the_message_counts_the_nodes_by_reason_the_most_first() -> None:
    made = fleet({f"small-{i}": (card(memory=8 * GI),) for i in range(4)})
    for i in range(8):
        add(made, node_info(f"tainted-{i}", taints=[Taint(key="team", value="a")]), inventory(card()))
    failure = fails(made, waiting("pod", {MEMORY: 20 * GI}))
    assert failure.message == (
        "0/12 nodes are available: 4 node(s) have GPUs with too little memory (at most 8Gi of 20Gi), "
        "8 node(s) had untolerated taint(s)."
    )


def test_a_cluster_without_nodes_says_so() -> None:
    failure = fails(Fleet(), waiting())
    assert failure.message == "no nodes available to schedule pods"
    assert failure.wakes_on == Change.NODE_ADDED


def test_a_node_that_is_gone_does_not_count() -> None:
    made = fleet({"a": cards(1), "b": cards(1)})
    made.remove_node("a")
    assert fails(made, waiting("pod", {GPU: 200})).message.startswith("0/1 nodes are available: ")


def test_what_the_user_may_have_meant_is_suggested() -> None:
    failure = fails(fleet(), waiting("pod", {NVIDIA: 100}))
    assert failure.message.endswith(" did you mean kubernetes.io/gpu: 100?")


def test_an_invalid_request_is_reported_and_never_woken() -> None:
    failure = fails(fleet(), waiting("pod", PodRequest(), error="gpu: 150; allowed are …"))
    message = "invalid request: gpu: 150; allowed are …"
    assert failure == Failure(message=message, condition="InvalidRequest", wakes_on=Change(0))


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(waiting("pod", asks(unsupported=["x" * 5000])), id="reason"),
        pytest.param(waiting("pod", PodRequest(), error="x" * 5000), id="error"),
    ],
)
def test_a_long_message_is_cut_for_the_event(pod: Any) -> None:
    message = fails(fleet(), pod).message
    assert len(message) == MAX_MESSAGE
    assert message.endswith("x ...")


CARDS = st.lists(
    st.builds(card, st.integers(0, 20), memory=st.sampled_from([8 * GI, T4_BYTES, A100_BYTES]), healthy=st.booleans()),
    max_size=3,
    unique_by=lambda each: each.minor,
)
NODES = st.builds(
    node_info,
    st.just(""),
    labels=st.sampled_from([{}, {"zone": "x"}]),
    taints=st.sampled_from([(), (Taint(key="a"),), (Taint(key="a"), Taint(key="b"))]),
    cordoned=st.sampled_from([False, False, True]),
    ready=st.sampled_from([True, True, False]),
    cpu=st.sampled_from([500, 64_000]),
)
WORLD = st.lists(st.tuples(NODES, st.none() | CARDS, st.booleans(), st.sampled_from(["nvidia", "amd"])), max_size=6)
ASKS = st.sampled_from(
    [
        *({}, {"cpu": 1_000}, {NVIDIA: 1}, {NVIDIA: 2}, {"amd.com/gpu": 1}, {GPU: 50}, {GPU: 200}, {RATIO: 30}),
        *({MEMORY: 20 * GI}, {SHARED: 2, MEMORY: 10 * GI}, {RDMA: 50, GPU: 10}, {CORE: 10, RATIO: 100}),
    ]
)
WANTED = st.builds(
    asks,
    ASKS,
    selector=st.sampled_from([{}, {"zone": "x"}]),
    model=st.sampled_from([of_pod({}, {}), of_pod({names.MODEL_GLOBS: "*t4*"}, {})]),
    unsupported=st.sampled_from([(), (), ("hostPort",)]),
)


@settings(max_examples=80)
@given(WORLD, WANTED, st.integers(0, 5))
def test_the_reasons_count_every_node(world: Any, wanted: PodRequest, unknown_on: int) -> None:
    made = Fleet()
    for i, (node, found, fresh, vendor) in enumerate(world):
        name = f"node-{i}"
        info = node_info(name, labels=node.labels, taints=node.taints, cordoned=node.cordoned, ready=node.ready)
        devices = None if found is None else inventory(*found, vendor=vendor)
        add(made, info, devices, fresh=fresh)
    made.charge(charge("lost", node=f"node-{unknown_on}", unknown=("gpu",)))
    outcome = decide(made, waiting("pod", wanted), Policy())
    if isinstance(outcome, Failure):
        counts = dict(outcome.reasons)
        others = sum(count for reason, count in counts.items() if not reason.startswith(("Insufficient", "Too many")))
        # A node counts once for each insufficient resource, and otherwise for one reason.
        assert others <= len(world) <= sum(counts.values())
        assert all(count > 0 for _, count in outcome.reasons)


# --- nothing is given twice -------------------------------------------------------------------------------------

MEMORIES = st.lists(st.sampled_from([A100_BYTES, T4_BYTES, 24 * GI + 12345, 7]), min_size=1, max_size=4)
REQUESTS = st.one_of(
    st.integers(1, 100).map(lambda each: {GPU: each}),
    st.integers(1, 4).map(lambda each: {GPU: 100 * each}),
    st.integers(1, 100).map(lambda each: {RATIO: each}),
    st.integers(1, A100_BYTES + 1).map(lambda each: {MEMORY: each}),
    st.tuples(st.integers(1, 100), st.integers(1, A100_BYTES)).map(lambda each: {CORE: each[0], MEMORY: each[1]}),
    st.tuples(st.integers(1, 100), st.integers(1, 100)).map(lambda each: {CORE: each[0], RATIO: each[1]}),
    st.tuples(st.integers(1, 3), st.integers(1, 100)).map(lambda each: {SHARED: each[0], RATIO: each[0] * each[1]}),
    st.tuples(st.integers(1, 3), st.integers(3, A100_BYTES)).map(lambda each: {SHARED: each[0], MEMORY: each[1]}),
)


@settings(max_examples=80)
@given(MEMORIES, st.lists(st.tuples(REQUESTS, st.booleans()), max_size=25))
def test_no_card_is_ever_overbooked(memories: Sequence[int], steps: Sequence[tuple[dict[str, int], bool]]) -> None:
    node = tuple(card(minor, memory=memory) for minor, memory in enumerate(memories))
    made = fleet({"node": node})
    for i, (amounts, leaves) in enumerate(steps):
        outcome = decide(made, waiting(f"pod-{i}", amounts), Policy())
        if isinstance(outcome, Placement):
            made.charge(outcome.charge)
            # Nothing is added that the annotation would not record.
            assert made.charges[outcome.pod.uid].grants == outcome.grants
            if leaves:
                made.release(next(iter(made.charges)))
        check(made, node)


def check(made: Fleet, node: Sequence[CardInfo]) -> None:
    """Compare each card's usage with the sum of what every pod holds."""
    totals = {each.minor: dict(each.amounts) for each in node}
    used: Counter[tuple[int, str]] = Counter()
    holders: Counter[int] = Counter()
    whole: set[int] = set()
    for held in made.charges.values():
        for part in held.grants:
            holders[part.minor] += 1
            used.update({(part.minor, name): amount for name, amount in part.amounts})
            if dict(part.amounts).get("gpu-memory-ratio") == 100 and held.plugin_requests[0][0] not in (
                MEMORY,
                CORE,
                SHARED,
            ):
                whole.add(part.minor)
    assert all(amount <= totals[minor][name] for (minor, name), amount in used.items())
    assert all(holders[minor] == 1 for minor in whole)
