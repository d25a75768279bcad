"""Memory and ratio are computed from each other by each card's memory. The computed amount must fit, too."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from tests.objects.builders import A100_BYTES, GI, MEMORY, RATIO, T4, T4_BYTES, card, charge, fleet, grant, waiting


@pytest.mark.parametrize(
    ("total", "given_", "memory", "ratio"),
    [
        pytest.param(80 * GI, {"memory": 20 * GI}, 20 * GI, 25, id="a quarter by bytes"),
        pytest.param(80 * GI, {"ratio": 25}, 20 * GI, 25, id="a quarter by ratio"),
        pytest.param(80 * GI, {"memory": 1}, 1, 0, id="a byte is no hundredth"),
        pytest.param(80 * GI, {"memory": 80 * GI - 1}, 80 * GI - 1, 99, id="all but a byte"),
        pytest.param(80 * GI, {"memory": 80 * GI}, 80 * GI, 100, id="all by bytes"),
        pytest.param(80 * GI, {"ratio": 100}, 80 * GI, 100, id="all by ratio"),
        pytest.param(101, {"ratio": 50}, 50, 50, id="half of an odd number, rounded down"),
        pytest.param(101, {"memory": 50}, 50, 49, id="and back it is one less"),
        pytest.param(A100_BYTES, {"ratio": 1}, 851980451, 1, id="a hundredth of a real card"),
        pytest.param(A100_BYTES, {"ratio": 99}, 84346064732, 99, id="ninety-nine of a real card"),
        pytest.param(A100_BYTES, {"memory": 851980452}, 851980452, 1, id="a byte over a hundredth is one"),
        pytest.param(A100_BYTES, {"memory": 851980451}, 851980451, 0, id="what a hundredth takes is none by itself"),
        pytest.param(2**53 - 1, {"memory": 2**52}, 2**52, 50, id="no rounding of large numbers"),
        pytest.param(
            100 * GI, {"memory": 29 * GI}, 29 * GI, 29, id="no rounding of fractions: 0.29 * 100 is less than 29"
        ),
        pytest.param(80 * GI, {"memory": 5, "ratio": 7}, 5, 7, id="both are left alone"),
    ],
)
def test_what_is_left_out_is_filled_in_rounded_down(
    total: int, given_: dict[str, Any], memory: int, ratio: int
) -> None:
    made = fleet({"node": (card(0, memory=total),)})
    made.charge(charge("pod", grant(0, **given_)))
    amounts = dict(made.charges["uid-pod"].grants[0].amounts)
    assert (amounts["gpu-memory"], amounts["gpu-memory-ratio"]) == (memory, ratio)


A, T = (A100_BYTES, "A100"), (T4_BYTES, T4)


@pytest.mark.parametrize(
    ("wanted", "cards", "held", "minors"),
    [
        pytest.param({RATIO: 50}, [T], [{"memory": 8 * GI}], [0], id="half, with half by bytes"),
        pytest.param({RATIO: 51}, [T], [{"memory": 8 * GI}], None, id="a hundredth more"),
        pytest.param({MEMORY: 8 * GI + 1}, [T], [{"memory": 8 * GI}], None, id="a byte more"),
        pytest.param({RATIO: 100}, [T], [{"memory": 1}], None, id="a whole card is not shared"),
        pytest.param({RATIO: 100}, [A, T], [{"core": 1}], [1], id="not even one without memory"),
        pytest.param({RATIO: 1}, [T], [{"memory": T4_BYTES - GI}], [0], id="a hundredth in what bytes left"),
        pytest.param({RATIO: 7}, [T], [{"memory": T4_BYTES - GI}], None, id="bytes left for six, not for seven"),
        pytest.param({RATIO: 200}, [A, A], [], [0, 1], id="two cards"),
    ],
)
def test_both_must_fit_whichever_is_named(
    wanted: Mapping[str, int],
    cards: Sequence[tuple[int, str]],
    held: Sequence[dict[str, Any]],
    minors: list[int] | None,
) -> None:
    made = fleet({"node": [card(minor, memory=size, model=model) for minor, (size, model) in enumerate(cards)]})
    for minor, taken in enumerate(held):
        made.charge(charge(f"holder-{minor}", grant(minor, **taken)))
    outcome = decide(made, waiting("pod", wanted), Policy())
    found = sorted(each.minor for each in outcome.grants) if isinstance(outcome, Placement) else None
    assert found == minors


SIZES = st.one_of(st.integers(1, 2**20), st.integers(1, A100_BYTES), st.just(A100_BYTES))
SHARES = st.one_of(
    st.integers(1, 100).map(lambda ratio: {RATIO: ratio}), st.integers(1, A100_BYTES).map(lambda size: {MEMORY: size})
)


@given(SIZES, st.lists(SHARES, max_size=12))
def test_no_sequence_of_shares_books_a_card_over(size: int, wanted: list[Mapping[str, int]]) -> None:
    made = fleet({"node": (card(0, memory=size),)})
    for number, each in enumerate(wanted):
        outcome = decide(made, waiting(f"pod-{number}", each), Policy())
        if isinstance(outcome, Placement):
            made.charge(outcome.charge)
    assert (made.cards["gpu"].free >= 0).all()
