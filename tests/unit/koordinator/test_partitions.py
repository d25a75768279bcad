"""Partitions of an NVSwitch: which pods need one, which one is taken, and the reasons if there is none."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.allocation.partitions import NVSWITCH, Partition, Table
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import devices
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from berth_operator.state.objects.devices import record
from tests.objects.builders import (
    A100,
    GI,
    GPU,
    NVIDIA,
    RATIO,
    asks,
    card,
    charge,
    device,
    entry,
    fleet,
    grant,
    waiting,
)
from tests.unit.koordinator.machines import nvswitch, related, trees, wired

SPEC: dict[str, Any] = {}
RESTRICTED = {"allocatePolicy": "Restricted"}
BEST_EFFORT = {"allocatePolicy": "BestEffort"}


def wants(amounts: Mapping[str, int], spec: object = None, **annotations: str) -> PodRequest:
    """Return a class, with a partition spec unless it is None."""
    own = {names.PARTITION_SPEC: orjson.dumps(spec).decode()} if spec is not None else {}
    return asks(amounts, annotations={**own, **annotations})


def switch(
    table: Table = NVSWITCH,
    *,
    used: Sequence[int] = (),
    shared: Sequence[int] = (),
    partitions_only: bool = False,
    card_infos: Sequence[CardInfo] | None = None,
) -> Fleet:
    """Return a fleet of one node with partitions; pods hold some cards as a whole, and a tenth of others."""
    made = fleet(
        {"node": nvswitch() if card_infos is None else card_infos}, partitions=table, partitions_only=partitions_only
    )
    for minor in used:
        made.charge(charge(f"holds-{minor}", grant(minor, core=100, ratio=100)))
    for minor in shared:
        made.charge(charge(f"shares-{minor}", grant(minor, core=10, ratio=10)))
    return made


def table(*sets: tuple[int, Sequence[int]] | tuple[int, Sequence[int], int]) -> Table:
    """Return a table of (score, minors[, bandwidth in Gi])."""
    by_size: dict[int, list[Partition]] = {}
    for score, minors, *rest in sets:
        bandwidth = rest[0] * GI if rest else None
        each = Partition(minors=tuple(minors), score=score, bandwidth=bandwidth)
        by_size.setdefault(len(minors), []).append(each)
    return tuple(sorted((size, tuple(found)) for size, found in by_size.items()))


def chosen(made: Fleet, request: PodRequest) -> tuple[int, ...] | None:
    outcome = decide(made, waiting("pod", request), Policy())
    return tuple(each.minor for each in outcome.grants) if isinstance(outcome, Placement) else None


# --- the table that is built in ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "count", "expected"),
    [
        pytest.param([], 2, (0, 1), id="a quarter"),
        pytest.param([0], 4, (4, 5, 6, 7), id="the whole half"),
        pytest.param([0], 1, (1,), id="one, next to the one in use"),
        pytest.param([2], 1, (3,), id="one, next to it, whatever comes before"),
        pytest.param([0], 2, (2, 3), id="a quarter of the broken half"),
        pytest.param([4], 2, (6, 7), id="a quarter of the broken half, whatever comes before"),
        pytest.param([0, 1, 6], 2, (2, 3), id="a quarter, both halves are broken: the first"),
        pytest.param([0, 1, 4], 1, (5,), id="one: the quarters stay whole"),
        pytest.param([], 6, None, id="nor three quarters"),
    ],
)
@pytest.mark.parametrize(
    ("partitions_only", "spec"),
    [
        pytest.param(True, None, id="the node honours its table"),
        pytest.param(False, SPEC, id="the pod has a spec"),
        pytest.param(True, BEST_EFFORT, id="both"),
        pytest.param(False, RESTRICTED, id="all sets have the highest score"),
    ],
)
def test_which_pods_are_restricted_to_partitions(
    used: Sequence[int], count: int, expected: tuple[int, ...] | None, *, partitions_only: bool, spec: object
) -> None:
    assert chosen(switch(used=used, partitions_only=partitions_only), wants({NVIDIA: count}, spec)) == expected


@pytest.mark.parametrize(
    ("used", "count", "expected"),
    [
        pytest.param([4], 1, (5,), id="one, next to the one in use"),
        pytest.param([0, 2, 4, 6], 2, (1, 3), id="every quarter is broken: any two"),
        pytest.param([], 3, (0, 1, 2), id="no partition has three: any three"),
    ],
)
def test_a_node_that_only_prefers_its_table(used: Sequence[int], count: int, expected: tuple[int, ...]) -> None:
    assert chosen(switch(used=used), wants({NVIDIA: count})) == expected


@pytest.mark.parametrize(
    "amounts", [pytest.param({GPU: 50}, id="half a card"), pytest.param({RATIO: 99}, id="almost a card")]
)
def test_shares_mind_no_partitions(amounts: dict[str, int]) -> None:
    broken = switch(used=[0, 2, 4, 6], partitions_only=True)
    assert chosen(broken, wants(amounts, SPEC)) == (1,)


# --- scores and bandwidths --------------------------------------------------------------------------------------

SCORED = table((1, [0, 1]), (5, [2, 3]), (3, [4, 5]), (5, [6, 7]))
RINGS = table((1, [0, 1], 400), (1, [2, 3], 100), (1, [4, 5]), (2, [6, 7], 200))


@pytest.mark.parametrize(
    ("partition_table", "used", "spec", "expected"),
    [
        pytest.param(SCORED, [], SPEC, (2, 3), id="the highest score first"),
        pytest.param(SCORED, [2], RESTRICTED, (6, 7), id="restricted: the highest score"),
        pytest.param(RINGS, [], {"ringBusBandwidth": "300Gi"}, (0, 1), id="a fast ring"),
        pytest.param(RINGS, [], {"ringBusBandwidth": "401Gi"}, None, id="faster than all"),
        pytest.param(RINGS, [], {"ringBusBandwidth": "100Gi"}, (6, 7), id="of those that are fast enough, the highest"),
        pytest.param(RINGS, [0, 2, 6], {"ringBusBandwidth": "0"}, None, id="an unknown ring"),
        pytest.param(RINGS, [0, 2, 6], SPEC, (4, 5), id="suffices for a pod without a required bandwidth"),
        pytest.param(
            RINGS, [], {"ringBusBandwidth": "300Gi", **RESTRICTED}, None, id="restricted: the highest is too slow"
        ),
    ],
)
def test_scores_and_bandwidths(partition_table: Table, used: Sequence[int], spec: object, expected: Any) -> None:
    assert chosen(switch(partition_table, used=used), wants({NVIDIA: 2}, spec)) == expected


def test_larger_sets_are_kept_whole_by_their_worth() -> None:
    """A set of four is worth more than all pairs, and one of eight more than all sets of four."""
    pairs = [(1, pair) for pair in ([0, 1], [2, 3], [4, 5], [6, 7], [8, 9])]
    made = switch(table(*pairs, (1, [0, 1, 2, 3]), (1, [4, 5, 6, 7])), card_infos=nvswitch(10))
    assert chosen(made, wants({NVIDIA: 2}, SPEC)) == (8, 9)
    broken = switch(table(*pairs[:4], (1, [0, 1, 2, 3]), (9, [4, 5, 6, 7])), card_infos=nvswitch(10))
    assert chosen(broken, wants({NVIDIA: 2}, SPEC)) == (0, 1)


@pytest.mark.parametrize(
    ("partition_table", "used", "count", "expected"),
    [
        pytest.param(
            table((1, [0, 1]), *((1, [8, each]) for each in (9, 10, 11)), (1, [0, 1, 2, 3])),
            [],
            2,
            (8, 9),
            id="a set of four is worth more than two pairs",
        ),
        pytest.param(
            table((1, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (1, [0, 1]), (1, [2, 3])),
            [],
            4,
            (0, 1, 2, 3),
            id="smaller sets than the pod's count nothing",
        ),
        pytest.param(
            table((1, [0, 1]), (1, [4, 5]), (1, [0, 1, 2, 3]), (9, [4, 5, 6, 7])),
            [6],
            2,
            (0, 1),
            id="nor do larger ones with less than the highest score of their size",
        ),
    ],
)
def test_what_sets_are_worth(
    partition_table: Table, used: Sequence[int], count: int, expected: tuple[int, ...]
) -> None:
    assert chosen(switch(partition_table, used=used, card_infos=nvswitch(12)), wants({NVIDIA: count}, SPEC)) == expected


def test_a_highest_scored_pair_may_cost_a_larger_set() -> None:
    """The score of a pair counts before what the pair leaves free."""
    made = switch(table((2, [0, 1]), (1, [4, 5]), (1, [0, 1, 2, 3])))
    assert chosen(made, wants({NVIDIA: 2}, SPEC)) == (0, 1)


# --- the cards of a partition must fit, each of them ------------------------------------------------------------

PAIRS = table((2, [0, 1]), (1, [2, 3]))


@pytest.mark.parametrize(
    ("made", "request_", "expected"),
    [
        pytest.param(switch(PAIRS, shared=[1]), wants({NVIDIA: 2}, SPEC), (2, 3), id="a share is in use, too"),
        pytest.param(
            switch(PAIRS, card_infos=[card(0), card(2), card(3)]), wants({NVIDIA: 2}, SPEC), (2, 3), id="gone"
        ),
        pytest.param(
            switch(PAIRS, card_infos=[card(0), card(1, memory=GI), card(2), card(3)]),
            wants({NVIDIA: 2}, SPEC, **{names.MIN_GPU_MEMORY: "2Gi"}),
            (2, 3),
            id="too small",
        ),
        pytest.param(
            switch(PAIRS, card_infos=[card(each, labels=(("rack", str(each // 2)),)) for each in range(4)]),
            wants(
                {NVIDIA: 2}, SPEC, **{names.ALLOCATE_HINT: '{"gpu": {"selector": {"matchLabels": {"rack": "1"}}}}'}
            ),
            (2, 3),
            id="other labels",
        ),
        pytest.param(
            switch(table((2, [0, 4]), (1, [2, 3])), card_infos=trees(4, 4)),
            wants({NVIDIA: 2}, SPEC, **{names.GPU_TOPOLOGY: "pcie", names.GPU_TOPOLOGY_POLICY: "preferred"}),
            (2, 3),
            id="the partition that the pod prefers",
        ),
        pytest.param(
            switch(table((2, [0, 4])), card_infos=trees(4, 4)),
            wants({NVIDIA: 2}, SPEC, **{names.GPU_TOPOLOGY: "pcie", names.GPU_TOPOLOGY_POLICY: "preferred"}),
            (0, 4),
            id="a partition comes before what the pod only prefers",
        ),
    ],
)  # fmt: skip
def test_every_card_of_a_partition_must_fit(made: Fleet, request_: PodRequest, expected: Any) -> None:
    assert chosen(made, request_) == expected


# --- why not ----------------------------------------------------------------------------------------------------


REASON = {
    "no table": (switch(()), wants({NVIDIA: 2}, SPEC), "node(s) have no partition table of GPUs"),
    "honours none": (switch((), partitions_only=True), wants({NVIDIA: 1}), "node(s) have no partition table of GPUs"),
    "no such size": (switch(), wants({NVIDIA: 3}, SPEC), "node(s) have no partition of 3 GPUs"),
    "all broken": (switch(used=[0, 2, 4, 6]), wants({NVIDIA: 2}, SPEC), "node(s) have no free partition of 2 GPUs"),
    "restricted": (
        switch(SCORED, used=[2, 6]),
        wants({NVIDIA: 2}, RESTRICTED),
        "node(s) have no free partition of 2 GPUs with the highest score",
    ),
    "bandwidth": (
        switch(RINGS),
        wants({NVIDIA: 2}, {"ringBusBandwidth": "1Ti"}),
        "node(s) have no partition of 2 GPUs with a ring bandwidth of 1Ti",
    ),
    "topology": (
        switch(table((1, [0, 4])), card_infos=trees(4, 4)),
        wants({NVIDIA: 2}, SPEC, **{names.GPU_TOPOLOGY: "pcie"}),
        "node(s) have no free partition of 2 GPUs under one PCIe switch",
    ),
    "too few, whatever the partitions": (
        switch(used=range(1, 8)),
        wants({NVIDIA: 2}, SPEC),
        "node(s) have too few free GPUs (2 requested with gpu-core 100 and gpu-memory-ratio 100)",
    ),
}


@pytest.mark.parametrize(("made", "request_", "message"), REASON.values(), ids=REASON)
def test_the_reason(made: Fleet, request_: PodRequest, message: str) -> None:
    outcome = decide(made, waiting("pod", request_), Policy())
    assert isinstance(outcome, Failure), outcome
    assert outcome.reasons == ((message, 1),)


@pytest.mark.parametrize(
    ("count", "able"), [pytest.param(2, True, id="a size of the table"), pytest.param(3, False, id="none")]
)
def test_no_pod_is_evicted_for_a_partition_that_does_not_exist(count: int, *, able: bool) -> None:
    made = switch(used=range(8), partitions_only=True)
    assert bool(devices.BUILT_IN.could_pass(made, wants({NVIDIA: count}))[made.rows["node"]]) is able


# --- tables of models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "keeps"),
    [
        pytest.param("NVIDIA H100 80GB HBM3", True, id="H100"),
        pytest.param("NVIDIA H200", True, id="H200"),
        pytest.param("NVIDIA B200", True, id="B200"),
        pytest.param("NVIDIA H100 PCIe", False, id="H100 in a slot"),
        pytest.param(A100, False, id="A100"),
    ],
)
def test_boards_are_known_by_the_name_that_the_driver_gives(model: str, *, keeps: bool) -> None:
    made = fleet({"node": ()})
    made.put_device("node", record(device("node", *(entry(minor, model=model) for minor in range(8)))).inventory)
    got = chosen(made, wants({NVIDIA: 2}, SPEC))
    assert got == ((0, 1) if keeps else None)


# --- against all sets, one after another ------------------------------------------------------------------------

MINORS = st.sets(st.integers(0, 5), min_size=1, max_size=4).map(sorted)
TABLES = st.lists(
    st.tuples(st.integers(0, 3), MINORS, st.integers(1, 4)) | st.tuples(st.integers(0, 3), MINORS), max_size=6
).map(lambda each: table(*each))
SPECS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "allocatePolicy": st.sampled_from(["Restricted", "BestEffort"]),
        "ringBusBandwidth": st.sampled_from(["0", "2Gi"]),
    },
)


@settings(max_examples=120)
@given(
    partition_table=TABLES,
    spec=SPECS,
    partitions_only=st.booleans(),
    used=st.sets(st.integers(0, 5), max_size=4),
    count=st.integers(1, 4),
    level=st.sampled_from([None, "pcie", "nvlink"]),
)
def test_no_partition_is_missed_and_none_is_given_that_will_not_do(
    partition_table: Table, used: set[int], count: int, level: str | None, *, spec: Any, partitions_only: bool
) -> None:
    machine = wired({frozenset(pair): 100 for pair in combinations(range(4), 2)}, 6)
    request = wants({NVIDIA: count}, spec, **({names.GPU_TOPOLOGY: level} if level else {}))
    got = chosen(
        switch(partition_table, used=sorted(used), partitions_only=partitions_only, card_infos=machine), request
    )
    free = [each for each in machine if each.minor not in used]
    needs = [level] if level and count > 1 else []
    of_size = list(dict(partition_table).get(count, ()))
    able = [each for each in of_size if accepted(each, of_size, spec) and lies(each, free, needs)]
    best = max((each.score for each in able), default=None)
    if able:
        assert got in [each.minors for each in able if each.score == best]
    elif spec is not None or partitions_only:
        assert got is None
    else:
        assert (got is None) is not any(lies(each, free, needs) for each in any_sets(free, count))


def accepted(each: Partition, of_size: Sequence[Partition], spec: Any) -> bool:
    spec = spec or {}
    if spec.get("allocatePolicy") == "Restricted" and each.score < max(other.score for other in of_size):
        return False
    least = {"0": 0, "2Gi": 2 * GI, None: None}[spec.get("ringBusBandwidth")]
    return least is None or (each.bandwidth is not None and each.bandwidth >= least)


def any_sets(free: Sequence[CardInfo], count: int) -> list[Partition]:
    return [Partition(minors=tuple(one.minor for one in each)) for each in combinations(free, count)]


def lies(each: Partition, free: Sequence[CardInfo], needs: Sequence[str]) -> bool:
    own = [one for one in free if one.minor in each.minors]
    return len(own) == len(each.minors) and all(related(*pair, needs) for pair in combinations(own, 2))
