"""The waste of a pod on each node, computed manually."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api.allocation import Grant
from berth_api.request.model import ModelConstraint
from berth_operator.core.allocators import least_waste
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import empty_nodes, fragmentation
from berth_operator.core.values.request import PodRequest
from tests.objects import builders
from tests.objects.builders import (
    GPU,
    MEMORY,
    NVIDIA,
    add,
    asks,
    card,
    cards,
    charge,
    fleet,
    grant,
    inventory,
    node_info,
)

T4 = ModelConstraint(globs=("tesla t4",))
LARGE = {NVIDIA: 8, "cpu": 64_000}


def share(minor: int, hundredths: int) -> Grant:
    return grant(minor, core=hundredths, ratio=hundredths)


def wasted(on: Fleet, request: PodRequest) -> dict[str, int]:
    """Return the waste in whole hundredths; fractions only break ties."""
    waste = fragmentation.waste(on, request)
    return {name: int(np.floor(waste[row])) for name, row in on.rows.items()}


def seen(on: Fleet, *pods: dict[str, int], model: ModelConstraint | None = None) -> Fleet:
    for pod in pods:
        on.pod_mix.see(asks(pod, model=model) if model else asks(pod))
    return on


# --- what is left of cards --------------------------------------------------------------------------------------


def test_the_tightest_card_wastes_least() -> None:
    made = fleet({"empty": cards(2), "half": cards(2), "tight": cards(2)})
    made.charge(charge("a", share(0, 50), node="half"))
    made.charge(charge("b", share(1, 70), node="tight"))
    assert wasted(made, asks({GPU: 30})) == {"empty": 70, "half": 20, "tight": 0}


def test_a_whole_card_leaves_nothing() -> None:
    made = fleet({"a": cards(2)})
    assert wasted(made, asks({NVIDIA: 2})) == {"a": 0}


def test_bytes_are_more_of_a_small_card() -> None:
    made = fleet({"small": [card(memory=10 * builders.GI)], "large": [card(memory=40 * builders.GI)]})
    assert wasted(made, asks({MEMORY: 8 * builders.GI})) == {"small": 20, "large": 80}


def test_unhealthy_cards_are_neither_left_nor_tight() -> None:
    made = fleet({"a": [card(0, healthy=False), card(1)]})
    made.charge(charge("a", share(0, 60), node="a"))
    assert wasted(made, asks({GPU: 30})) == {"a": 70}


@pytest.mark.parametrize(
    ("common", "expected"),
    [
        pytest.param((), {0: 0, 30: 0, 99: 0, 100: 0}, id="nothing is known"),
        pytest.param((47,), {0: 0, 46: 46, 47: 0, 60: 13, 99: 5, 100: 0}, id="one size"),
        pytest.param((32, 47), {31: 31, 64: 0, 79: 0, 95: 1, 96: 0, 100: 0}, id="two sizes, the best mix of them"),
    ],
)
def test_residues_by_hand(common: tuple[int, ...], expected: dict[int, int]) -> None:
    residues = least_waste.residues(common)
    assert {free: int(residues[free]) for free in expected} == expected


def test_a_card_that_common_shares_need_is_not_spoilt_by_others() -> None:
    made = fleet({"empty": cards(1), "half": cards(1)})
    made.charge(charge("a", share(0, 47), node="half"))
    seen(made, {GPU: 47})
    # 53 are left on the half card, of which 6 are residue; a share of 32 would leave 21, all of them residue.
    # On the empty card it leaves 68, of which 21 are residue.
    request = asks({GPU: 32})
    assert wasted(made, request) == {"empty": 68 + 4 * 21, "half": 21 + 4 * (21 - 6)}
    assert wasted(made, asks({GPU: 47})) == {"empty": 53 + 4 * 6, "half": 6}


def test_cards_are_chosen_as_they_were_scored() -> None:
    made = fleet({"a": cards(3)})
    made.charge(charge("a", share(1, 47), node="a"))
    made.charge(charge("b", share(2, 50), node="a"))
    seen(made, {GPU: 47})
    # The last card is the tightest, but without 6 hundredths it has no room for a common share; the second has.
    assert [each.minor for each in Policy().choose(made, 0, asks({GPU: 6}))] == [1]
    assert [each.minor for each in Policy().choose(made, 0, asks({GPU: 32}))] == [2]
    assert [each.minor for each in Policy().choose(made, 0, asks({NVIDIA: 1}))] == [0]


# --- processor time ---------------------------------------------------------------------------------------------


def unequal() -> Fleet:
    """Return nodes with 4, 8 and 16 processors for each of two cards."""
    made = fleet({})
    for name, cpu in (("poor", 8_000), ("even", 16_000), ("rich", 32_000)):
        add(made, node_info(name, cpu=cpu), inventory(*cards(2)))
    return made


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        # 8 processors go with a card: the poor node is short of 100 hundredths, the rich one has 200 too many.
        pytest.param(8_000, {"poor": 0, "even": 0, "rich": 0}, id="a typical pod"),
        pytest.param(4_000, {"poor": -50, "even": 50, "rich": 50}, id="a light pod mends the poor node"),
        pytest.param(12_000, {"even": 50, "rich": -50}, id="a heavy pod mends the rich node"),
    ],
)
def test_cards_and_processors_shall_run_out_together(cpu: int, expected: dict[str, int]) -> None:
    made = seen(unequal(), {"cpu": 8_000, NVIDIA: 1})
    assert expected.items() <= wasted(made, asks({"cpu": cpu, NVIDIA: 1})).items()


def test_a_pod_without_cards_goes_where_processors_are_left_over() -> None:
    made = seen(unequal(), {"cpu": 8_000, NVIDIA: 1})
    # 16 processors are 200 hundredths.
    assert wasted(made, asks({"cpu": 16_000}))["rich"] == -200
    assert wasted(made, asks({"cpu": 16_000}))["even"] == 200


def test_nothing_is_mended_before_a_pod_was_seen() -> None:
    assert wasted(unequal(), asks({"cpu": 4_000, NVIDIA: 1})) == {"poor": 0, "even": 0, "rich": 0}


# --- models -----------------------------------------------------------------------------------------------------


def test_a_model_that_many_need_is_kept_for_them() -> None:
    made = fleet({"a": cards(3), "b": [card(model=builders.T4)]})
    seen(made, {NVIDIA: 1})
    seen(made, {NVIDIA: 1}, model=T4)
    # Half of the demand for a quarter of the cards: 0.5 + 0.5 * 4 of it, but only 0.5 of the others.
    assert wasted(made, asks({NVIDIA: 1})) == {"a": 50, "b": 250}


def test_a_model_that_ran_out_is_scarce_but_not_without_limit() -> None:
    made = fleet({"a": cards(40), "b": [card(model=builders.T4)]})
    made.charge(charge("a", share(0, 90), node="b"))
    seen(made, {NVIDIA: 1}, model=T4)
    assert wasted(made, asks({GPU: 10}))["b"] == 10 * fragmentation.MAX_SCARCITY


# --- empty nodes ------------------------------------------------------------------------------------------------


def test_the_more_pods_a_node_has_the_less_one_more_delays_its_emptying() -> None:
    made = fleet({f"with {number}": cards(8) for number in range(4)})
    for number in range(4):
        for slot in range(number):
            made.charge(charge(f"p{number}-{slot}", share(slot, 100), node=f"with {number}"))
    seen(made, {NVIDIA: 8})
    # An empty node is worth 5 hundredths for each of the 8 cards.
    assert wasted(made, asks({NVIDIA: 1})) == {"with 0": 40, "with 1": 20, "with 2": 13, "with 3": 10}
    # The same for pods without cards, which use cpu that pods with 8 cards need.
    assert wasted(made, asks({"cpu": 0})) == {"with 0": 40, "with 1": 20, "with 2": 13, "with 3": 10}


def test_only_nodes_that_could_take_large_pods_are_kept_for_them() -> None:
    made = fleet({"large": cards(8), "small": cards(2), "broken": [card(0, healthy=False), *cards(8)[1:]]})
    add(made, node_info("weak", cpu=8_000), inventory(*cards(8)))
    add(made, node_info("other"), inventory(*(card(minor, model=builders.T4) for minor in range(8))))
    seen(made, {NVIDIA: 8, "cpu": 16_000}, model=ModelConstraint(globs=("nvidia a100*",)))
    values = empty_nodes.worth(made).values
    assert {name for name, row in made.rows.items() if values[row]} == {"large"}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([{NVIDIA: 1}, {GPU: 50}], {"a": 0, "b": 0}, id="no large pods"),
        pytest.param([{NVIDIA: 2}], {"a": 10, "b": 10}, id="both nodes: 5 hundredths for each card"),
        # 16 of 32 cards are on nodes with 64 cpus.
        pytest.param(
            [{NVIDIA: 4, "cpu": 64_000}, *[{GPU: 100}] * 16], {"a": 20 * 2, "b": 0}, id="scarce nodes are worth more"
        ),
        # Two thirds of the demand are for pods with 8 cards: 2/3 * 40 * 2, and 1/3 * 20.
        pytest.param([{NVIDIA: 8, "cpu": 64_000}, {NVIDIA: 4}, *[{GPU: 100}] * 16], {"a": 60, "b": 7}, id="by demand"),
        pytest.param([{NVIDIA: 16}], {"a": 0, "b": 0}, id="fits nowhere"),
    ],
)
def test_what_an_empty_node_is_worth(pods: list[dict[str, int]], expected: dict[str, int]) -> None:
    made = fleet({})
    for name, cpu in (("a", 64_000), ("a2", 64_000), ("b", 32_000), ("b2", 32_000)):
        add(made, node_info(name, cpu=cpu), inventory(*cards(8)))
    values = empty_nodes.worth(seen(made, *pods)).values
    assert {name: round(values[made.rows[name]]) for name in expected} == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        # Half of the cards are on nodes with 64 cpus. Pods that need such nodes request a third of all cards.
        pytest.param([LARGE, *[{GPU: 100}] * 16], {"a": 80, "b": 0}, id="two thirds are needed"),
        # They request half of all cards: 1 + 9 / 2, because other pods find half of the cards elsewhere.
        pytest.param([LARGE, *[{GPU: 100}] * 8], {"a": 80 * 5.5, "b": 0}, id="all are needed"),
        # Two kinds request a quarter of all cards each; a third kind fits on all nodes.
        pytest.param(
            [LARGE, {NVIDIA: 8, "cpu": 63_000}, {NVIDIA: 8}, *[{GPU: 100}] * 8],
            {"a": (2 * 80 * 5.5 + 40) / 3, "b": 40 / 3},
            id="all are needed by two kinds",
        ),
        pytest.param(
            [LARGE, {NVIDIA: 16}, *[{GPU: 100}] * 4], {"a": 80 / 3, "b": 0}, id="pods that fit nowhere need none"
        ),
        pytest.param([{NVIDIA: 8}], {"a": 40, "b": 40}, id="other pods find no cards elsewhere"),
    ],
)
def test_nodes_that_large_pods_need_are_worth_more(pods: list[dict[str, int]], expected: dict[str, float]) -> None:
    made = fleet({})
    for name, cpu in (("a", 64_000), ("a2", 64_000), ("b", 32_000), ("b2", 32_000)):
        add(made, node_info(name, cpu=cpu), inventory(*cards(8)))
    for pod in pods:
        seen(made, pod)
    values = empty_nodes.worth(made).values
    # The values are rounded to four steps for each doubling.
    assert {name: values[made.rows[name]] for name in expected} == pytest.approx(expected, rel=0.04)


def test_what_empty_nodes_are_worth_follows_the_nodes() -> None:
    made = seen(fleet({"a": cards(8)}), {NVIDIA: 8})
    before = empty_nodes.worth(made)
    made.charge(charge("p", share(0, 100), node="a"))
    assert empty_nodes.worth(made) is before
    add(made, node_info("b"), inventory(*cards(8)))
    after = empty_nodes.worth(made)
    assert after.values[made.rows["b"]] == after.values[made.rows["a"]] == 40
    # Equal keys: what is cached for other rows stays valid.
    assert after.key == before.key


def test_the_waste_on_a_node_follows_how_scarce_its_kind_becomes() -> None:
    made = fleet({})
    add(made, node_info("large", cpu=64_000), inventory(*cards(8)))
    seen(made, {NVIDIA: 8, "cpu": 60_000}, *[{"cpu": 7_500, GPU: 100}] * 60)
    before = wasted(made, asks({NVIDIA: 1}))
    for number in range(6):
        add(made, node_info(f"small-{number}", cpu=32_000), inventory(*cards(4)))
    # The cards of such nodes are now a quarter of all; no pod has changed the node.
    assert wasted(made, asks({NVIDIA: 1}))["large"] - before["large"] == 4 * 40 - 40


# --- ties and points --------------------------------------------------------------------------------------------


def test_nodes_with_cards_are_filled_in_order_and_others_evenly() -> None:
    made = fleet({"a": cards(4), "b": cards(4)})
    made.charge(charge("a", share(0, 100), node="b", resources=(("cpu", 8_000),)))
    for name in ("c", "d"):
        add(made, node_info(name))
    made.charge(charge("b", node="d", resources=(("cpu", 8_000),)))
    points = fragmentation.score(made, asks({NVIDIA: 1}), made.has_device)
    # Whichever is fuller: to take the fullest would keep all nodes in use while pods end.
    assert points[made.rows["b"]] == points[made.rows["a"]]
    points = fragmentation.score(made, asks({"cpu": 1}), made.present & ~made.has_device)
    assert points[made.rows["c"]] > points[made.rows["d"]]


@given(
    taken=st.lists(st.integers(0, 99), min_size=2, max_size=8),
    size=st.integers(1, 100),
    cpu=st.integers(0, 64_000),
    typical=st.integers(0, 200_000),
)
def test_points_follow_waste_and_stay_on_the_scale(taken: list[int], size: int, cpu: int, typical: int) -> None:
    made = fleet({f"n{index}": cards(2) for index in range(len(taken))})
    for index, hundredths in enumerate(taken):
        made.charge(charge(f"p{index}", share(0, hundredths), node=f"n{index}", resources=(("cpu", 500 * hundredths),)))
    seen(made, {"cpu": typical, NVIDIA: 1})
    request = asks({"cpu": cpu, GPU: size})
    lost, points = fragmentation.waste(made, request), fragmentation.score(made, request, made.present)
    rows = np.flatnonzero(made.present)
    assert points[rows].max() == 100
    assert points[rows].min() >= -1e-9
    assert (np.diff(points[rows][np.argsort(lost[rows], kind="stable")]) <= 1e-9).all()
