"""Cached and repaired columns always equal columns that are computed again."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import names
from berth_api.request.model import ModelConstraint
from berth_operator.core import allocators, scores
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import devices
from berth_operator.core.fleet.arrays.column_cache import (
    ALL,
    MAX_BYTES,
    MAX_OF_NODES,
    MIN_LOOKUPS,
    REMEMBERED_BYTES,
    SKIPPED,
    ColumnCache,
    Rows,
    Values,
)
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import (
    A100,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RDMA,
    T4,
    asks,
    card,
    cards,
    charge,
    divided,
    fleet,
    grant,
    hints,
    instance,
    inventory,
    node_info,
    other_card,
    score_values,
)

ROWS = 40


class Squares:
    """A column of squares that records which rows were computed."""

    def __init__(self) -> None:
        self.base = np.arange(ROWS)
        self.asked: list[int] = []

    def __call__(self, rows: Rows) -> Values:
        values: Values = self.base[rows] ** 2
        self.asked.append(len(values))
        return values


def made() -> ColumnCache:
    """Return a cache in which no two rows have equal fingerprints."""
    looks = itertools.count()
    return ColumnCache(lambda _row: 0, lambda _row: b"%d" % next(looks))


@pytest.mark.parametrize("first", [True, False])
def test_what_raises_costs_nothing_but_its_answer(*, first: bool) -> None:
    kept, squares = made(), Squares()
    if not first:
        kept.column("squares", squares)
        kept.move(3)
    with pytest.raises(ZeroDivisionError):
        kept.column("squares", lambda _rows: np.arange(1 // 0))
    squares.base[3] = 100
    np.testing.assert_array_equal(kept.column("squares", squares), squares.base**2)
    assert squares.asked == ([ROWS] if first else [ROWS, 1])


@given(st.lists(st.one_of(st.integers(0, ROWS - 1), st.none()), max_size=300))
def test_a_column_always_equals_a_new_computation(story: list[int | None]) -> None:
    column_cache, squares = made(), Squares()
    for row in story:
        if row is None:
            assert np.array_equal(column_cache.column("squares", squares), squares.base**2)
        else:
            squares.base[row] += 1
            column_cache.move(row)
    assert np.array_equal(column_cache.column("squares", squares), squares.base**2)


def test_only_rows_that_moved_are_computed() -> None:
    column_cache, squares = made(), Squares()
    column_cache.column("squares", squares)
    column_cache.column("squares", squares)
    for row in (3, 5, 3):
        column_cache.move(row)
    column_cache.column("squares", squares)
    assert squares.asked == [ROWS, 2]


def test_a_column_that_missed_too_much_is_computed_whole() -> None:
    column_cache, squares, other = made(), Squares(), Squares()
    column_cache.column("squares", squares)
    for step in range(4 * ROWS):
        column_cache.move(step % 3)
        column_cache.column(("other", step), other)
    column_cache.column("squares", squares)
    assert squares.asked == [ROWS, ROWS]


def test_the_column_that_was_not_asked_for_longest_goes_first() -> None:
    column_cache = made()
    computed: list[str] = []

    def column(name: str) -> None:
        def compute(_rows: Rows) -> Values:
            computed.append(name)
            return np.zeros(MAX_BYTES // 40, np.int8)

        column_cache.column(name, compute)

    names = [f"column {number}" for number in range(40)]
    for name in (*names, names[0], "one more"):
        column(name)
    computed.clear()
    column(names[0])
    assert computed == []
    column(names[1])
    assert computed == [names[1]]


def test_what_a_column_remembers_counts() -> None:
    column_cache = ColumnCache(lambda row: row, lambda row: bytes([row]) * 100_000)
    squares = Squares()
    column_cache.column("squares", squares)
    before = column_cache.size
    for row in range(ROWS):
        column_cache.move(row)
        column_cache.column("squares", squares)
    assert before + ROWS * REMEMBERED_BYTES <= column_cache.size <= before + 2 * ROWS * REMEMBERED_BYTES
    column_cache.forget()
    assert column_cache.size == 0


def test_a_row_is_not_taken_for_one_whose_resource_had_the_same_place_before() -> None:
    made = fleet({"a": (divided(0, "1g.10gb"),), "b": (divided(0, "1g.10gb"),)})
    ask = asks({"nvidia.com/mig-2g.20gb": 1})
    for profile in ("1g.10gb", "2g.20gb", "1g.10gb", "2g.20gb"):
        for node in ("a", "b"):
            made.put_device(node, inventory(divided(0, profile)))
            expected = allocators.BUILT_IN.passes(made, ask, ALL).tolist()
            assert devices.BUILT_IN.passes(made, ask).tolist() == expected
        assert [expected[made.rows[node]] for node in ("a", "b")] == [profile == "2g.20gb"] * 2


def test_a_column_cannot_be_changed_by_its_reader() -> None:
    column = made().column("squares", Squares())
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


@given(st.lists(st.integers(0, ROWS - 1), max_size=300), st.integers(1, 6))
def test_what_is_recalled_is_what_would_be_computed(story: list[int], every: int) -> None:
    squares = Squares()
    column_cache = ColumnCache(lambda _row: 0, lambda row: squares.base[row].tobytes())
    for step, row in enumerate(story):
        squares.base[row] = (squares.base[row] + 1) % 5
        column_cache.move(row)
        if step % every == 0:
            assert np.array_equal(column_cache.column("squares", squares), squares.base**2)


def test_of_rows_with_equal_fingerprints_one_is_computed() -> None:
    squares = Squares()
    column_cache = ColumnCache(lambda _row: 0, lambda row: squares.base[row].tobytes())
    column_cache.column("squares", squares)
    for row in range(8):
        squares.base[row] = 100
        column_cache.move(row)
        assert column_cache.column("squares", squares)[row] == 100**2
    assert squares.asked == [ROWS, 1]


def test_without_equal_rows_no_fingerprints_are_looked_up() -> None:
    squares, looks = Squares(), itertools.count()
    column_cache = ColumnCache(lambda _row: 0, lambda _row: b"%d" % next(looks))
    column_cache.column("squares", squares)
    for _ in range(2 * MIN_LOOKUPS):
        column_cache.move(0)
        column_cache.column("squares", squares)
    assert next(looks) == MIN_LOOKUPS


def test_a_rows_result_is_reused_for_a_row_with_the_same_fingerprint() -> None:
    base, computed = [1, 2, 1], list[int]()
    column_cache = ColumnCache(lambda row: base[row], lambda _row: b"")

    def find(row: int, factor: int) -> int:
        def compute() -> int:
            computed.append(row)
            return factor * base[row]

        return column_cache.of_row(row, factor, compute)

    assert [find(row, 10) for row in (0, 1, 2)] == [10, 20, 10]
    assert computed == [0, 1]
    assert find(2, 7) == 7  # another question
    base[0] = 5
    column_cache.alter(0)
    assert find(0, 10) == 50
    assert computed == [0, 1, 2, 0]


def test_single_rows_are_looked_up_again_after_a_time_without_equal_rows() -> None:
    column_cache = ColumnCache(lambda row: row, lambda _row: b"")
    computed = list[int]()

    def find(row: int) -> int:
        def compute() -> int:
            computed.append(row)
            return row + 1

        return column_cache.of_row(row, "", compute)

    for row in range(MIN_LOOKUPS + SKIPPED):
        find(row)
    computed.clear()
    assert [find(7), find(-1), find(-1)] == [8, 0, 0]
    assert computed == [-1]  # 7 was looked up before


# --- in the fleet -----------------------------------------------------------------------------------------------


def of_card(operator: str, *uuids: str) -> dict[str, str]:
    """Return a hint for GPUs by their UUIDs."""
    required = {"key": names.DEVICE_UUID, "operator": operator, "values": list(uuids)}
    return hints(gpu={"selector": {"matchExpressions": [required]}})


REQUESTS = (
    asks({GPU: 20}, annotations=of_card("In", "node-1/0", "node-2/1")),
    asks({NVIDIA: 1}, annotations=of_card("NotIn", "node-0/0", "node-1/1")),
    asks({"cpu": 1000}),
    asks({"cpu": 500, NVIDIA: 1}),
    asks({"memory": GI, NVIDIA: 3}),
    asks({GPU: 50}),
    asks({RDMA: 100}),
    asks({"cpu": 700, MEMORY: 5 * GI}),
    asks({"cpu": 2000, GPU: 30}, model=ModelConstraint(globs=("tesla*",))),
    asks({"cpu": 2000, NVIDIA: 2}, model=ModelConstraint(globs=("tesla*",))),
)
STEPS = st.tuples(
    st.sampled_from(("charge", "release", "node", "no node", "device", "no device", "fresh", "seen")),
    st.integers(0, 3),
    st.integers(0, 3),
)


def said(made: Fleet, request: PodRequest) -> list[Any]:
    """Return the results of all filters and scores for the nodes, and the cards chosen on each node that fits."""
    masks = [each.passes(made, request).tolist() for each in Policy().filters_of(request)]
    chosen = [
        Policy().choose(made, row, request) for row in np.flatnonzero(devices.BUILT_IN.passes(made, request)).tolist()
    ]
    return [*masks, *(score_values(each, made, request, made.present).tolist() for each in scores.ALL), chosen]


def act(made: Fleet, what: str, node: int, number: int) -> None:
    """Apply one event to a node."""
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
            listed = cards(number + 1, model=(A100, T4)[number % 2])
            made.put_device(name, inventory(*(replace(each, id=f"{name}/{each.minor}") for each in listed)))
        case "no device":
            made.remove_device(name)
        case "fresh":
            made.set_fresh(name, fresh=number > 0)
        case "seen":
            made.pod_mix.see(REQUESTS[-1 - 2 * number])


@given(st.lists(STEPS, max_size=40))
def test_what_is_kept_equals_a_new_computation(steps: list[tuple[str, int, int]]) -> None:
    made = Fleet()
    for number, step in enumerate(steps):
        act(made, *step)
        # Of one at a time, so that every column has missed several changes when it is asked for again.
        said(made, REQUESTS[number % len(REQUESTS)])
    kept = [said(made, request) for request in REQUESTS]
    fresh = made.copy()
    assert [said(fresh, request) for request in REQUESTS] == kept


def chosen(made: Fleet, request: PodRequest, strategy: str = "Fragmentation") -> list[int]:
    """Return the minors that are chosen on the only node."""
    return [each.minor for each in Policy(card_strategy=strategy).choose(made, 0, request)]


def test_a_choice_is_recalled_for_the_same_question_only() -> None:
    made = fleet({"node": (card(0, model=A100), card(1, model=A100), card(2, model=T4))})
    made.charge(charge("some", grant(0, core=50, ratio=50), grant(1, core=47, ratio=47)))
    small = asks({GPU: 6})
    assert chosen(made, small) == [0]
    assert chosen(made, asks({GPU: 52})) == [1]
    assert chosen(made, asks({GPU: 6}, model=ModelConstraint(globs=("tesla*",)))) == [2]
    assert chosen(made, small, "LeastAllocated") == [2]
    for _ in range(100):
        made.pod_mix.see(asks({GPU: 47}))
    assert chosen(made, small) == [1]  # of 50 free ones 44 could be of no use to the next pods


# --- fingerprints -----------------------------------------------------------------------------------------------

METRICS = {"facts", "measured", "measured_at", "unaccounted"}
DIRECT = {"ready", "unreachable", "cordoned", "heard", "foreign", "starting", "was_used", "refused"}
DIRECT |= {"mps_pods", "other_gpu_pods", "cards_by_claim"}
UNREAD = {*DIRECT, "node_partitions_only", "device_decides", "failed", *METRICS}
"""Columns that no cached column reads: decisions read the first directly; `partitions_only` includes the next two.
Only the search for remedies reads `failed`. Columns that are computed from metrics do without fingerprints."""


def fingerprint(made: Fleet) -> tuple[object, bytes]:
    row = made.rows["node"]
    return made.static_key(row), made.dynamic_key(row)


def of_row(column: Any, made: Fleet) -> Any:
    """Return the node's values in a column."""
    row = made.rows["node"]
    return column[row : row + 1] if len(column) == len(made.names) else column[:, row]


@pytest.mark.parametrize("where", ["fleet", "gpu", "rdma"])
def test_a_row_that_differs_in_any_column_has_another_fingerprint(where: str) -> None:
    made = fleet({"node": (*cards(2), other_card("rdma"))})
    before = fingerprint(made)
    owner = made if where == "fleet" else made.cards[where]
    columns = vars(owner._own)
    assert len(columns) > 10
    for name, column in columns.items():
        kept = column.copy()
        of_row(column, made)[...] = ~kept.any() if kept.dtype == np.bool_ else 77
        assert (fingerprint(made) != before) is (name not in UNREAD), name
        column[...] = kept
    assert fingerprint(made) == before


def test_a_rows_fingerprint_depends_on_what_each_pod_holds_of_a_card() -> None:
    made = fleet({"node": (divided(0, "1g.10gb", "1g.10gb"),)})
    seen = [fingerprint(made)]
    for number in range(2):
        made.charge(charge("pod", instance(0, number)))
        seen.append(fingerprint(made))
    made.release("uid-pod")
    assert fingerprint(made) == seen[0]
    made.put_device("node", inventory(divided(0, "1g.10gb", "2g.20gb")))
    seen.append(fingerprint(made))
    assert all(one != other for one, other in itertools.combinations(seen, 2))


def test_what_depends_on_nodes_alone_is_computed_again_when_one_changes() -> None:
    cache, counted = made(), itertools.count()

    def compute() -> int:
        return next(counted) + 1

    assert (cache.of_nodes("a", compute), cache.of_nodes("a", compute)) == (1, 1)
    cache.move(3)
    assert cache.of_nodes("a", compute) == 1
    cache.alter(3)
    assert cache.of_nodes("a", compute) == 2
    cache.forget()
    assert cache.of_nodes("a", compute) == 3
    for key in range(2 * MAX_OF_NODES):
        cache.of_nodes(key, compute)
    assert len(cache._of_nodes) <= MAX_OF_NODES
