"""Columns that are kept and repaired: always what would be computed anew."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api.model import ModelConstraint
from berth_operator.core import filters, scores
from berth_operator.core.fleet import Fleet
from berth_operator.core.policy import Policy
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import MOST, Rows, Rowwise, Values
from tests.builders import (
    A100,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RDMA,
    T4,
    asks,
    cards,
    charge,
    grant,
    inventory,
    node_info,
    told,
)

ROWS = 40


class Squares:
    """A column of squares, and which rows it was asked for."""

    def __init__(self) -> None:
        self.base = np.arange(ROWS)
        self.asked: list[int] = []

    def __call__(self, rows: Rows) -> Values:
        found: Values = self.base[rows] ** 2
        self.asked.append(len(found))
        return found


@given(st.lists(st.one_of(st.integers(0, ROWS - 1), st.none()), max_size=300))
def test_a_column_is_always_as_if_computed_anew(story: list[int | None]) -> None:
    rowwise, squares = Rowwise(), Squares()
    for row in story:
        if row is None:
            assert np.array_equal(rowwise.column("squares", squares), squares.base**2)
        else:
            squares.base[row] += 1
            rowwise.move(row)
    assert np.array_equal(rowwise.column("squares", squares), squares.base**2)


def test_only_rows_that_moved_are_computed() -> None:
    rowwise, squares = Rowwise(), Squares()
    rowwise.column("squares", squares)
    rowwise.column("squares", squares)
    for row in (3, 5, 3):
        rowwise.move(row)
    rowwise.column("squares", squares)
    assert squares.asked == [ROWS, 2]


def test_a_column_that_missed_too_much_is_computed_whole() -> None:
    rowwise, squares, other = Rowwise(), Squares(), Squares()
    rowwise.column("squares", squares)
    for step in range(4 * ROWS):
        rowwise.move(step % 3)
        rowwise.column(("other", step), other)
    rowwise.column("squares", squares)
    assert squares.asked == [ROWS, ROWS]


def test_the_column_that_was_not_asked_for_longest_goes_first() -> None:
    rowwise = Rowwise()
    asked: list[str] = []

    def column(name: str) -> None:
        def compute(_rows: Rows) -> Values:
            asked.append(name)
            return np.zeros(MOST // 40, np.int8)

        rowwise.column(name, compute)

    names = [f"column {number}" for number in range(40)]
    for name in (*names, names[0], "one more"):
        column(name)
    asked.clear()
    column(names[0])
    assert asked == []
    column(names[1])
    assert asked == [names[1]]


def test_a_column_cannot_be_changed_by_who_asks() -> None:
    found = Rowwise().column("squares", Squares())
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


# --- in the fleet -----------------------------------------------------------------------------------------------

REQUESTS = (
    asks({"cpu": 1000}),
    asks({"cpu": 500, NVIDIA: 1}),
    asks({"memory": GI, NVIDIA: 3}),
    asks({GPU: 50}),
    asks({RDMA: 100}),
    asks({"cpu": 700, MEMORY: 5 * GI}),
    asks({"cpu": 2000, GPU: 30}, model=ModelConstraint(globs=("tesla*",))),
)
STEPS = st.tuples(
    st.sampled_from(("charge", "release", "node", "no node", "device", "no device", "fresh", "seen")),
    st.integers(0, 3),
    st.integers(0, 3),
)


def said(made: Fleet, request: PodRequest) -> list[list[float]]:
    """Give all that filters and scores say of the nodes."""
    masks = [each.passes(made, request).tolist() for each in filters.of(request, Policy())]
    return masks + [told(each, made, request, made.present).tolist() for each in scores.ALL]


def act(made: Fleet, what: str, node: int, number: int) -> None:
    """Let something happen to a node."""
    name = f"node-{node}"
    match what:
        case "charge":
            grants = [grant(minor, core=50, ratio=50, memory=5) for minor in range(number)]
            made.charge(charge(f"{name}-{number}", *grants, node=name, resources=(("cpu", 1000 * number), ("pods", 1))))
        case "release":
            made.release(f"uid-{name}-{number}")
        case "node":
            made.put_node(node_info(name, cpu=1000 * (number + 1), memory=GI, pods=3))
        case "no node":
            made.remove_node(name)
        case "device":
            made.put_device(name, inventory(*cards(number + 1, model=(A100, T4)[number % 2])))
        case "no device":
            made.remove_device(name)
        case "fresh":
            made.set_fresh(name, fresh=number > 0)
        case "seen":
            made.workload.see(REQUESTS[-1 - number])


@given(st.lists(STEPS, max_size=40))
def test_what_is_kept_is_what_would_be_computed_anew(steps: list[tuple[str, int, int]]) -> None:
    made = Fleet()
    for step in steps:
        act(made, *step)
        for request in REQUESTS:
            said(made, request)
    kept = [said(made, request) for request in REQUESTS]
    made.rowwise.forget()
    assert [said(made, request) for request in REQUESTS] == kept
