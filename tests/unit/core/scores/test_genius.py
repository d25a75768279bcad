"""Genius' score: its formula, its normalization, and its values without measurements."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import CARD_STRATEGIES, Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores.genius import (
    BUILT_IN,
    DEFAULT_WEIGHTS,
    DynamicWeights,
    Genius,
    GeniusWeights,
    StaticWeights,
)
from berth_operator.core.values.gpu_metrics import UNKNOWN, Quantity, Values
from berth_operator.core.values.inventory import CardFacts, CardInfo
from tests.objects.builders import (
    GI,
    GPU,
    NVIDIA,
    add,
    asks,
    card,
    cards,
    charge,
    grant,
    inventory,
    node_info,
    place,
    waiting,
)

IDLE: Values = (80.0 * GI, 0.0, 0.0, 0.0, 50.0, 400.0)
HOT: Values = (8.0 * GI, 1.0, 0.0, 0.0, 390.0, 400.0)
NOTHING: Values = (UNKNOWN,) * len(Quantity)
A_CARD = asks({NVIDIA: 1})
MEMORY = 80 * GI
ONLY_GENIUS = Policy(weights=(("genius", 10.0),))


def fleet_of(*nodes: Sequence[CardInfo]) -> Fleet:
    made = Fleet()
    for number, listed in enumerate(nodes):
        add(made, node_info(f"node-{number}"), inventory(*listed))
    return made


def measure(fleet: Fleet, measured: dict[tuple[str, int], Values], at: float = 1.0) -> None:
    """Set what was measured of cards, by node and minor."""
    for (node, minor), values in measured.items():
        row = fleet.rows[node]
        slot = fleet.cards["gpu"].slot_of_card(row, f"GPU-{minor}")
        assert slot is not None
        fleet.measure(row, slot, (*values, *NOTHING[len(values) :]), at)
    fleet.measured()


def points(fleet: Fleet, score: Genius = BUILT_IN) -> dict[str, float]:
    values = score.score(fleet, A_CARD, fleet.present)
    assert values is not None
    return {name: round(float(values[row]), 6) for name, row in fleet.rows.items()}


# --- the formula ------------------------------------------------------------------------------------------------


def test_a_pod_without_gpus_has_no_points() -> None:
    assert BUILT_IN.score(fleet_of(cards(1)), asks({"cpu": 1}), Fleet().present) is None


def test_the_larger_and_faster_node_is_better() -> None:
    small = CardFacts(multiprocessors=54, memory_bandwidth=10**12, encoders=0, decoders=1)
    large = CardFacts(multiprocessors=108, memory_bandwidth=2 * 10**12, encoders=2, decoders=4)
    fleet = fleet_of([card(facts=small)], [card(facts=large)])
    # Half of the multiprocessors (2) and of the bandwidth (2), no encoder (1), a quarter of the decoders (1).
    assert points(fleet) == {"node-0": 100 * (2 + 1 + 1 + 0 + 0.25 + 4) / 20, "node-1": 100 * (8 + 4) / 20}


def test_a_fleet_that_is_wholly_busy_or_off_has_points_without_a_division_by_zero() -> None:
    fleet = fleet_of([card(memory=MEMORY)], [card(memory=MEMORY)])
    full = (0.0, 1.0, 1.0, 1.0, 400.0, 400.0)
    measure(fleet, {("node-0", 0): full, ("node-1", 0): full})
    assert points(fleet) == {"node-0": 10.0, "node-1": 10.0}
    off = (80.0 * GI, 0.0, 0.0, 0.0, 0.0, 0.0)
    measure(fleet, {("node-0", 0): off, ("node-1", 0): off})
    assert points(fleet) == {"node-0": 70.0, "node-1": 70.0}
    weightless = GeniusWeights(static=StaticWeights(weight=0), dynamic=DynamicWeights(weight=0))
    assert points(fleet, Genius(weightless)) == {"node-0": 0.0, "node-1": 0.0}


# --- changes ----------------------------------------------------------------------------------------------------


def test_a_placement_counts_before_the_next_refresh() -> None:
    fleet = fleet_of([card(memory=MEMORY)], [card(memory=MEMORY)])
    measure(fleet, {("node-0", 0): IDLE, ("node-1", 0): IDLE})
    before = points(fleet)
    fleet.charge(charge("pod", grant(core=50, ratio=50, memory=40 * GI), node="node-0"))
    after = points(fleet)
    assert before["node-0"] - after["node-0"] == pytest.approx(100 * 4 / 20 / 2)
    assert before["node-1"] == after["node-1"]
    # What the pod then uses of its share is charged already.
    measure(fleet, {("node-0", 0): (40.0 * GI, *IDLE[1:])})
    assert points(fleet) == after
    fleet.release("uid-pod")
    assert points(fleet) == before


def test_measurements_expire_and_go_with_the_device() -> None:
    fleet = fleet_of([card(memory=MEMORY)], [card(memory=MEMORY)])
    never = points(fleet)
    measure(fleet, {("node-0", 0): HOT}, at=10.0)
    measure(fleet, {("node-1", 0): IDLE}, at=20.0)
    measured = points(fleet)
    assert measured["node-0"] < measured["node-1"]
    assert fleet.expire_measurements(before=15.0) == ["node-0"]
    fleet.measured()
    assert fleet.expire_measurements(before=15.0) == []
    assert points(fleet) != measured
    fleet.put_device("node-1", inventory(card(memory=MEMORY), card(1, memory=MEMORY)))
    fleet.put_device("node-1", inventory(card(memory=MEMORY)))
    assert points(fleet) == never


def test_nodes_that_were_measured_differently_stay_different_when_they_fill_up_alike() -> None:
    fleet = fleet_of([card(memory=MEMORY)], [card(memory=MEMORY)])
    measure(fleet, {("node-0", 0): HOT, ("node-1", 0): IDLE})
    points(fleet)
    for name in fleet.rows:
        fleet.charge(charge(name, grant(core=50, ratio=50, memory=40 * GI), node=name))
        assert points(fleet) == points(fleet.copy())


def test_points_follow_charges_after_aliases_have_changed() -> None:
    fleet = fleet_of([card(memory=MEMORY)])
    for number in range(3):
        fleet.charge(charge(f"{number}", grant(core=10, ratio=10, memory=8 * GI), node="node-0"))
        points(fleet)
    fleet.set_model_aliases({"a": ("*",)})
    fleet.charge(charge("next", grant(core=10, ratio=10, memory=8 * GI), node="node-0"))
    assert points(fleet) == points(fleet.copy())


def test_a_device_that_goes_is_no_measure_for_the_others() -> None:
    fleet = fleet_of(cards(1, memory=MEMORY), cards(2, memory=MEMORY))
    before = points(fleet)["node-0"]
    fleet.remove_device("node-1")
    assert points(fleet)["node-0"] == pytest.approx(before + 100 * 1 / 20)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((math.inf, math.inf, -math.inf, math.nan, math.inf, math.inf), id="no numbers"),
        pytest.param((1e18, 2.0, -1.0, 1e6, 1e9, -400.0), id="out of range"),
    ],
)
def test_what_cannot_be_is_not_used(values: Values) -> None:
    fleet = fleet_of([card(memory=MEMORY)], [card(memory=MEMORY)])
    never = points(fleet)
    measure(fleet, {("node-0", 0): values, ("node-1", 0): values})
    assert points(fleet) == never


def test_a_little_out_of_range_is_the_end_of_it() -> None:
    fleet = fleet_of([card(memory=MEMORY)])
    measure(fleet, {("node-0", 0): (1.01 * MEMORY, 1.02, -0.01, 0.0, 100.0, 400.0)})
    measured = fleet.cards["gpu"].measured[: Quantity.USED_MEMORY, fleet.rows["node-0"], 0]
    assert measured.tolist() == [MEMORY, 1.0, 0.0, 0.0, 100.0, 400.0]


def test_used_memory_stands_in_for_free_memory() -> None:
    fleet = fleet_of([card(memory=MEMORY)], [card(memory=MEMORY)])
    used = (UNKNOWN, 0.0, 0.0, 0.0, 50.0, 400.0, 60.0 * GI)
    measure(fleet, {("node-0", 0): used, ("node-1", 0): (20.0 * GI, *IDLE[1:], 0.0)})
    assert points(fleet)["node-0"] == points(fleet)["node-1"]


# --- decisions --------------------------------------------------------------------------------------------------


def test_a_hot_node_is_left_for_an_idle_one() -> None:
    fleet = fleet_of(cards(1, memory=MEMORY), cards(1, memory=MEMORY))
    hot, idle = sorted(fleet.rows, key=fleet.rows.__getitem__)  # without the score the first row wins
    measure(fleet, {(hot, 0): HOT, (idle, 0): IDLE})
    for policy, expected in ((Policy(), hot), (ONLY_GENIUS, idle)):
        outcome = decide(fleet, waiting("pod", {NVIDIA: 1}), policy)
        assert isinstance(outcome, Placement)
        assert outcome.node == expected


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("strategy", CARD_STRATEGIES)
@pytest.mark.parametrize("wanted", [{NVIDIA: 1}, {GPU: 50}])
def test_of_equal_cards_the_cooler_one_is_taken(strategy: str, wanted: dict[str, int], *, linked: bool) -> None:
    numa, pcie = (0, "a") if linked else (-1, "")
    listed = [card(minor, memory=MEMORY, numa=numa, pcie=pcie) for minor in range(3)]
    fleet = fleet_of(listed)
    measure(fleet, {("node-0", 0): HOT, ("node-0", 1): HOT, ("node-0", 2): IDLE})
    weights = {**CARD_STRATEGIES[strategy], "genius": 10.0}
    by_genius = Policy(weights=tuple(weights.items()), card_strategy=strategy)
    without = Policy(weights=tuple(CARD_STRATEGIES[strategy].items()), card_strategy=strategy)
    for policy, minor in ((without, 0), (by_genius, 2)):
        outcome = decide(fleet, waiting("pod", wanted), policy)
        assert isinstance(outcome, Placement)
        assert [each.minor for each in outcome.grants] == [minor]
    measure(fleet, {("node-0", 2): HOT, ("node-0", 1): IDLE}, at=2.0)
    assert [each.minor for each in place(fleet, waiting("next", wanted), by_genius).grants] == [1]


def test_a_load_that_a_pod_explains_goes_with_the_pod() -> None:
    fleet = fleet_of(cards(2, memory=MEMORY))
    fleet.charge(charge("pod", grant(0, core=100, ratio=100, memory=MEMORY), node="node-0"))
    # The pod keeps its card busy; a process outside Kubernetes uses the other one a little.
    measure(fleet, {("node-0", 0): HOT, ("node-0", 1): (*IDLE[:4], 200.0, 400.0)})
    other = place(fleet, waiting("other", {NVIDIA: 1}), ONLY_GENIUS)
    assert [each.minor for each in other.grants] == [1]
    for uid in ("uid-pod", other.pod.uid):
        fleet.release(uid)
    assert [each.minor for each in place(fleet, waiting("next", {NVIDIA: 1}), ONLY_GENIUS).grants] == [0]


def test_pods_of_a_burst_do_not_all_go_to_the_idlest_node() -> None:
    fleet = fleet_of(*[cards(4, memory=MEMORY)] * 3)
    measure(fleet, {(f"node-{node}", minor): IDLE for node in range(3) for minor in range(4)})
    nodes = [place(fleet, waiting(f"pod-{number}", {GPU: 50}), ONLY_GENIUS).node for number in range(6)]
    assert sorted(nodes) == ["node-0", "node-0", "node-1", "node-1", "node-2", "node-2"]


@pytest.mark.parametrize("linked", [False, True])
def test_a_charge_of_a_card_that_the_device_does_not_list_changes_nothing(*, linked: bool) -> None:
    fleet = fleet_of([card(0, memory=MEMORY, numa=0 if linked else -1)])
    measure(fleet, {("node-0", 0): HOT})
    before = points(fleet)
    place(fleet, waiting("first", {GPU: 20}), ONLY_GENIUS)
    fleet.release("uid-first")
    fleet.charge(charge("lost", grant(7, core=50, ratio=50, memory=5), node="node-0"))
    assert points(fleet) == before
    assert [each.minor for each in place(fleet, waiting("next", {GPU: 20}), ONLY_GENIUS).grants] == [0]


# --- against Genius' formula in plain Python --------------------------------------------------------------------

RATIO = st.one_of(st.just(UNKNOWN), st.sampled_from([0.0, 0.25, 1.0]))
MEASURED = st.tuples(
    st.one_of(st.just(UNKNOWN), st.sampled_from([0.0, 10.0 * GI, 80.0 * GI])),
    RATIO,
    RATIO,
    RATIO,
    st.one_of(st.just(UNKNOWN), st.sampled_from([0.0, 100.0, 300.0])),
    st.one_of(st.just(UNKNOWN), st.sampled_from([300.0, 400.0])),
)
FACTS = st.builds(CardFacts, *[st.integers(0, 4)] * 4)
CARD = st.tuples(st.sampled_from([40 * GI, 80 * GI]), FACTS, MEASURED)
NODES = st.lists(st.lists(CARD, max_size=3), min_size=1, max_size=4)
Drawn = tuple[int, CardFacts, Values]
Terms = list[tuple[int, Sequence[float | None]]]
"""The weight of each term, and its value on each node."""


def mean(values: Sequence[float]) -> float | None:
    known = [each for each in values if not math.isnan(each)]
    return sum(known) / len(known) if known else None


def reference(nodes: Sequence[Sequence[Drawn]], *, draw: bool) -> list[float]:
    """Return the points of each node, term by term and node by node."""
    limits = [values[5] for node in nodes for *_, values in node if not math.isnan(values[5])]
    draws = [values[4] for node in nodes for *_, values in node if not math.isnan(values[4])]
    highest_limit = max(limits, default=0.0) or max(draws, default=0.0)

    def power(values: Values) -> float:
        limit = highest_limit if math.isnan(values[5]) else values[5]
        if draw or math.isnan(values[4]):
            return values[4]
        return 1 - min(values[4] / limit, 1) if limit else 1.0

    def free(memory: int, values: Values) -> float:
        return memory if math.isnan(values[0]) else min(values[0], memory)

    static: Terms = [
        (2, [sum(memory for memory, *_ in node) for node in nodes]),
        *[
            (weight, [sum(facts[index] for _, facts, _ in node) for node in nodes])
            for index, weight in enumerate((2, 2, 1, 1))
        ],
    ]
    dynamic: Terms = [
        (2, [mean([power(values) for *_, values in node]) for node in nodes]),
        (2, [mean([1 - values[2] for *_, values in node]) for node in nodes]),
        (2, [mean([1 - values[3] for *_, values in node]) for node in nodes]),
        (2, [mean([1 - values[1] for *_, values in node]) for node in nodes]),
    ]
    total = [0.0] * len(nodes)
    for weight, values in (*static, *dynamic):
        others = mean([each for each in values if each is not None]) or 0.0
        filled = [(others if node else 0.0) if each is None else each for each, node in zip(values, nodes, strict=True)]
        for number, each in enumerate(filled):
            total[number] += weight * each / max(filled) if max(filled) > 0 else 0.0
    largest = max((mean([memory for memory, *_ in node]) or 0 for node in nodes), default=0)
    for number, node in enumerate(nodes):
        total[number] += 4 * (mean([free(memory, values) for memory, _, values in node]) or 0) / max(largest, 1)
    return [100 * each / 20 for each in total]


@given(NODES, st.booleans())
def test_the_columns_are_the_formula(nodes: list[list[Drawn]], draw: bool) -> None:
    fleet = fleet_of(
        *[[card(minor, memory=memory, facts=facts) for minor, (memory, facts, _) in enumerate(each)] for each in nodes]
    )
    measured = {(f"node-{n}", m): values for n, node in enumerate(nodes) for m, (*_, values) in enumerate(node)}
    within = [
        [
            (memory, facts, (values[0] if values[0] <= memory else UNKNOWN, *values[1:]))
            for memory, facts, values in node
        ]
        for node in nodes
    ]
    measure(fleet, measured)
    score = Genius(replace(DEFAULT_WEIGHTS, power_preference="Draw" if draw else "Headroom"))
    expected = reference(within, draw=draw)
    assert [points(fleet, score)[f"node-{n}"] for n in range(len(nodes))] == pytest.approx(expected, abs=1e-4)
