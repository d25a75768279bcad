"""The scores of nodes and cards by each strategy: every card of a request counts, and every device type."""

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import CARD_STRATEGIES, Policy
from berth_operator.core.filters import devices
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import card_packing, card_spreading, fragmentation
from tests.objects.builders import (
    CORE,
    GPU,
    MEMORY,
    MI,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    T4_BYTES,
    asks,
    card,
    cards,
    charge,
    fleet,
    grant,
    other_card,
    score_values,
    waiting,
)

Use = Mapping[str, list[int]]
"""Node -> the used hundredths of each of its cards."""
NODES: Use = {"idle": [0, 0, 0, 0], "half": [100, 100, 0, 0], "mixed": [30, 60, 0, 100]}


def used(nodes: Use) -> Fleet:
    made = fleet({name: cards(len(parts)) for name, parts in nodes.items()})
    for name, parts in nodes.items():
        for minor, part in enumerate(parts):
            if part:
                made.charge(charge(f"{name}-{minor}", grant(minor, core=part, ratio=part), node=name))
    return made


def scored(module: ModuleType, made: Fleet, amounts: Mapping[str, int]) -> dict[str, float]:
    """Return the score of each node that fits the pod."""
    request = asks(amounts)
    scores_, fits = score_values(module, made, request, made.present), devices.BUILT_IN.passes(made, request)
    return {name: round(float(scores_[row]), 1) for name, row in made.rows.items() if fits[row]}


@pytest.mark.parametrize(
    ("amounts", "spreading"),
    [
        # Of whole cards counts what is left of the node's.
        pytest.param({NVIDIA: 1}, {"idle": 75, "half": 25, "mixed": 0}, id="a card"),
        pytest.param({NVIDIA: 2}, {"idle": 50, "half": 0}, id="two cards count twice"),
        pytest.param({GPU: 300}, {"idle": 25}, id="three cards"),
        pytest.param({NVIDIA: 4}, {"idle": 0}, id="all cards"),
        # Of shares what is left of the emptiest cards.
        pytest.param({GPU: 20}, {"idle": 80, "half": 80, "mixed": 80}, id="a share"),
        pytest.param({RATIO: 70}, {"idle": 30, "half": 30, "mixed": 30}, id="a share of memory alone"),
        pytest.param({SHARED: 2, RATIO: 40}, {"idle": 80, "half": 80, "mixed": 65}, id="shares of two, both count"),
        pytest.param({SHARED: 3, CORE: 30, RATIO: 30}, {"idle": 90, "mixed": 60}, id="shares of three"),
        pytest.param({SHARED: 4, RATIO: 4}, {"idle": 99}, id="shares of all"),
    ],
)
def test_spreading_counts_every_card_of_a_request(amounts: dict[str, int], spreading: dict[str, float]) -> None:
    assert scored(card_spreading, used(NODES), amounts) == spreading


@pytest.mark.parametrize(
    ("amounts", "packing"),
    [
        pytest.param({NVIDIA: 1}, {"idle": 25, "half": 75, "mixed": 100}, id="a card"),
        pytest.param({NVIDIA: 2}, {"idle": 50, "half": 100}, id="two cards count twice"),
        pytest.param({GPU: 300}, {"idle": 75}, id="three cards"),
        # Of shares what is taken of the fullest cards that have capacity.
        pytest.param({GPU: 20}, {"idle": 20, "half": 20, "mixed": 80}, id="a share"),
        pytest.param({GPU: 50}, {"idle": 50, "half": 50, "mixed": 80}, id="a share that does not fit on the fullest"),
        pytest.param({RATIO: 70}, {"idle": 70, "half": 70, "mixed": 100}, id="a share that fills a card"),
        pytest.param({SHARED: 2, RATIO: 40}, {"idle": 20, "half": 20, "mixed": 65}, id="shares of two, both count"),
        pytest.param({SHARED: 3, CORE: 30, RATIO: 30}, {"idle": 10, "mixed": 40}, id="shares of three"),
    ],
)
def test_packing_counts_every_card_of_a_request(amounts: dict[str, int], packing: dict[str, float]) -> None:
    assert scored(card_packing, used(NODES), amounts) == packing


def test_bytes_are_more_of_a_small_card() -> None:
    made = fleet({"small": (card(memory=T4_BYTES),), "large": (card(memory=4 * T4_BYTES),)})
    assert scored(card_spreading, made, {MEMORY: T4_BYTES // 2}) == {"small": 50, "large": 88}
    assert scored(card_packing, made, {MEMORY: T4_BYTES // 2}) == {"small": 50, "large": 12}


@pytest.mark.parametrize(
    ("amounts", "spreading"),
    [
        pytest.param({NVIDIA: 2}, {"many": 50, "few": 50}, id="GPUs alone"),
        pytest.param({NVIDIA: 2, RDMA: 200}, {"many": 62.5, "few": 25}, id="GPUs and NICs, as many of each"),
        pytest.param({NVIDIA: 2, RDMA: 100}, {"many": 62.5, "few": 50}, id="twice as many GPUs count twice"),
        pytest.param({NVIDIA: 3, RDMA: 20}, {"many": 38.8, "few": 38.8}, id="a share of a NIC"),
    ],
)
def test_types_are_weighed_by_how_many_are_asked_for(amounts: dict[str, int], spreading: dict[str, float]) -> None:
    nodes = {"many": 8, "few": 2}
    made = fleet(
        {name: (*cards(4), *(other_card("rdma", minor) for minor in range(nics))) for name, nics in nodes.items()}
    )
    assert scored(card_spreading, made, amounts) == spreading


def test_pods_without_devices_do_not_mind() -> None:
    made = fleet()
    assert card_spreading.score(made, asks({"cpu": 1}), made.present) is None
    assert card_packing.score(made, asks({"cpu": 1}), made.present) is None


NODE_THAT_IS_TAKEN = {
    # Charged for one card only, each pod would go to the other node.
    "spread, whole cards": ("LeastAllocated", {"a": [0, 0, 0, 100], "b": [0] * 4 + [100] * 4}, {NVIDIA: 3}, "b"),
    "packed, whole cards": ("MostAllocated", {"a": [0, 0, 0, 100], "b": [0] * 4 + [100] * 4}, {NVIDIA: 3}, "a"),
    "spread, shares of two": ("LeastAllocated", {"a": [0, 70], "b": [30, 30]}, {SHARED: 2, RATIO: 40}, "b"),
    "packed, shares of two": ("MostAllocated", {"a": [80, 0], "b": [50, 50]}, {SHARED: 2, RATIO: 40}, "b"),
}


@pytest.mark.parametrize(("strategy", "nodes", "amounts", "node"), NODE_THAT_IS_TAKEN.values(), ids=NODE_THAT_IS_TAKEN)
def test_the_node_that_is_taken(strategy: str, nodes: Use, amounts: dict[str, int], node: str) -> None:
    policy = Policy(weights=tuple(CARD_STRATEGIES[strategy].items()), card_strategy=strategy)
    outcome = decide(used(nodes), waiting("pod", asks(amounts)), policy)
    assert isinstance(outcome, Placement)
    assert outcome.node == node


def test_shares_of_several_cards_waste_on_each_of_them() -> None:
    made = used({"even": [40, 40], "uneven": [60, 0]})
    # Of shares of 20 each: 40 + 40 are left on the even cards, 20 + 80 on the others.
    scores_ = score_values(fragmentation, made, asks({SHARED: 2, CORE: 40, RATIO: 40}), made.present)
    assert scores_[made.rows["even"]] - scores_[made.rows["uneven"]] == pytest.approx(20, abs=1)


@settings(max_examples=40)
@given(
    nodes=st.lists(st.lists(st.sampled_from([0, 0, 20, 50, 100]), min_size=1, max_size=5), min_size=1, max_size=4),
    amounts=st.sampled_from([{NVIDIA: 1}, {NVIDIA: 2}, {GPU: 30}, {SHARED: 2, RATIO: 60}, {MEMORY: 512 * MI}]),
)
def test_scores_stay_within_their_bounds(nodes: list[list[int]], amounts: dict[str, int]) -> None:
    made = used({f"node-{i}": parts for i, parts in enumerate(nodes)})
    for module in (card_packing, card_spreading):
        scores_ = np.array(list(scored(module, made, amounts).values()))
        assert ((scores_ >= 0) & (scores_ <= 100)).all()
