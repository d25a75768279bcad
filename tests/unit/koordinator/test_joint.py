"""Joint allocation of GPUs with NICs and FPGAs: under the same PCIe switches, required or preferred."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import names
from berth_api.allocation.partitions import Partition
from berth_api.links import DIRECT as NVLINK
from berth_api.request import Kinds, of_pod
from berth_api.request.kinds import read_nics
from berth_operator.core.allocators import switches
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import devices
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import (
    GPU,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    asks,
    card,
    charge,
    fleet,
    grant,
    hints,
    inventory,
    jointly,
    other_card,
    waiting,
)
from tests.unit.koordinator.machines import NODE, best_connected, dgx1, inside, sets_that_will_do

COUNT, ALL = {"allocateStrategy": "RequestsAsCount"}, {"allocateStrategy": "ApplyForAll"}
FPGA = "kubernetes.io/fpga"
ActualAllocation = dict[str, list[int]]


def gpus(**under: Sequence[int]) -> tuple[CardInfo, ...]:
    """Return GPUs with these minors under each switch; A and B are on NUMA node 0, others on 1."""
    return tuple(card(minor, pcie=at, numa=int(at > "B")) for at, minors in under.items() for minor in minors)


def nics(kind: str = "rdma", **under: Sequence[int]) -> tuple[CardInfo, ...]:
    """Return NICs with these minors under each switch."""
    places = ((minor, at) for at, minors in under.items() for minor in minors)
    return tuple(other_card(kind, minor, pcie=at, numa=int(at > "B")) for minor, at in places)


def wants(amounts: Mapping[str, int], *types: str, same: bool = True, **hinted: Mapping[str, Any]) -> PodRequest:
    """Return a request for a joint allocation of these amounts: GPUs with NICs by default."""
    together = jointly(*(types or ("gpu", "rdma")), same=same)
    return asks(amounts, annotations={**together, **(hints(**hinted) if hinted else {})})


def placed(made: Fleet, request: PodRequest, policy: Policy | None = None) -> ActualAllocation | str:
    """Return the minors of each type that a pod gets, or the reason why it gets none."""
    outcome = decide(made, waiting("pod", request), policy or Policy())
    if isinstance(outcome, Failure):
        return outcome.reasons[0][0]
    given: ActualAllocation = {}
    for each in outcome.grants:
        given.setdefault(each.type, []).append(each.minor)
    return {kind: sorted(minors) for kind, minors in given.items()}


def node(*cards: CardInfo, gpu: Mapping[int, int] | None = None, rdma: Mapping[int, int] | None = None) -> Fleet:
    """Return a node of whose cards pods hold these hundredths."""
    made = fleet({"node": cards})
    for minor, taken in (gpu or {}).items():
        made.charge(charge(f"on-gpu-{minor}", grant(minor, core=taken, ratio=taken)))
    for minor, taken in (rdma or {}).items():
        made.charge(charge(f"on-rdma-{minor}", grant(minor, "rdma", rdma=taken)))
    return made


BOARD = (*gpus(A=(0, 1), B=(2, 3), C=(4, 5), D=(6, 7)), *nics(A=(0,), B=(1,), C=(2,), D=(3,)))
CROSSED = (*gpus(A=(0,), B=(1,)), *nics(B=(0,)))
"""The first GPU has no NIC under its switch."""


def none_of(gpu: int, rdma: int) -> str:
    """Return the reason for a node that has enough for each part alone."""
    return f"node(s) have too few free devices under the same PCIe switches ({gpu} GPU and {rdma} RDMA requested)"


UNDER_THE_SAME_SWITCHES = {
    "shares of both": (BOARD, {}, {GPU: 50, RDMA: 1}, {"gpu": [0], "rdma": [0]}),
    "two switches, two NICs": (BOARD, {}, {NVIDIA: 4, RDMA: 1}, {"gpu": [0, 1, 2, 3], "rdma": [0, 1]}),
    "the fewest switches": (BOARD, {"gpu": {0: 100}}, {NVIDIA: 2, RDMA: 1}, {"gpu": [2, 3], "rdma": [1]}),
    "breaks no pair": (BOARD, {"gpu": {0: 100}}, {NVIDIA: 1, RDMA: 1}, {"gpu": [1], "rdma": [0]}),
    "the fullest card": (BOARD, {"gpu": {5: 20}}, {GPU: 50, RDMA: 1}, {"gpu": [5], "rdma": [2]}),
    "no whole NIC": (
        BOARD,
        {"rdma": {0: 1, 1: 1, 2: 1, 3: 1}},
        {NVIDIA: 1, RDMA: 100},
        "node(s) have too few free RDMA devices (1 requested with rdma 100)",
    ),
    "far": (BOARD, {"gpu": {6: 100, 7: 100}, "rdma": {0: 1, 1: 1, 2: 1}}, {NVIDIA: 1, RDMA: 100}, none_of(1, 1)),
    "though the other is fuller": (CROSSED, {"gpu": {0: 50}}, {GPU: 50, RDMA: 1}, {"gpu": [1], "rdma": [0]}),
    "places are unknown": ((card(0), other_card("rdma")), {}, {NVIDIA: 1, RDMA: 1}, none_of(1, 1)),
    "one NIC of each switch, though the first has two": (
        (*gpus(A=(0,), B=(1,)), *nics(A=(0, 1), B=(2, 3))),
        {},
        {NVIDIA: 2, RDMA: 200},
        {"gpu": [0, 1], "rdma": [0, 2]},
    ),
    "two switches rather than the lowest minors": (
        (*gpus(A=(0, 3), B=(1, 4)), *(card(minor, pcie="B2", numa=0) for minor in (2, 5)), *nics(A=(0,), B=(1, 2))),
        {},
        {NVIDIA: 3, RDMA: 1},
        {"gpu": [0, 1, 3], "rdma": [0, 1]},
    ),
}


@pytest.mark.parametrize(
    ("cards", "held", "amounts", "expected"), UNDER_THE_SAME_SWITCHES.values(), ids=UNDER_THE_SAME_SWITCHES
)
def test_under_the_same_switches(
    cards: Sequence[CardInfo],
    held: dict[str, dict[int, int]],
    amounts: dict[str, int],
    expected: ActualAllocation | str,
) -> None:
    assert placed(node(*cards, **held), wants(amounts)) == expected


@pytest.mark.parametrize(
    ("amounts", "types", "expected"),
    [
        pytest.param({NVIDIA: 3, RDMA: 1}, ("gpu", "rdma"), {"gpu": [0, 1, 2], "rdma": [0, 1]}, id="NICs after GPUs"),
        pytest.param(
            {NVIDIA: 3, RDMA: 1},
            ("rdma", "gpu"),
            "node(s) have too few free devices under the same PCIe switches (1 RDMA and 3 GPU requested)",
            id="NICs that come first are as many as the pod asks for",
        ),
        pytest.param(
            {NVIDIA: 1, RDMA: 200},
            ("rdma", "gpu"),
            "node(s) have too few free devices under the same PCIe switches (2 RDMA and 1 GPU requested)",
            id="GPUs are in any case",
        ),
    ],
)
def test_how_many_more_than_asked_for(
    amounts: dict[str, int], types: tuple[str, ...], expected: ActualAllocation | str
) -> None:
    assert placed(node(*BOARD), wants(amounts, *types)) == expected


THREE = (*BOARD, *nics("fpga", B=(0,), C=(1,), D=(2,)))


OTHER_TYPES = {
    "all three": ({NVIDIA: 2, RDMA: 1, FPGA: 1}, ("gpu", "rdma", "fpga"), {"gpu": [2, 3], "rdma": [1], "fpga": [0]}),
    "two switches of all three, on one NUMA node": (
        {NVIDIA: 4, RDMA: 1, FPGA: 100},
        ("gpu", "rdma", "fpga"),
        {"gpu": [4, 5, 6, 7], "rdma": [2, 3], "fpga": [1, 2]},
    ),
    "without GPUs": ({RDMA: 1, FPGA: 1}, ("fpga", "rdma"), {"fpga": [0], "rdma": [1]}),
    "as many as the first": ({RDMA: 1, FPGA: 200}, ("fpga", "rdma"), {"fpga": [0, 1], "rdma": [1, 2]}),
    "a type that is not named is placed anywhere": (
        {NVIDIA: 2, RDMA: 1, FPGA: 100},
        ("gpu", "rdma"),
        {"gpu": [0, 1], "rdma": [0], "fpga": [0]},
    ),
}


@pytest.mark.parametrize(("amounts", "types", "expected"), OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_other_types(amounts: dict[str, int], types: tuple[str, ...], expected: ActualAllocation) -> None:
    assert placed(node(*THREE), wants(amounts, *types)) == expected


def within(scope: str) -> dict[str, str]:
    """Return the hint that requires a type's cards to be within a scope."""
    return {"requiredTopologyScope": scope}


VFS: dict[str, Any] = {"vfSelector": {}}


@pytest.mark.parametrize(
    ("held", "amounts", "hinted", "expected"),
    [
        pytest.param({}, {NVIDIA: 2, RDMA: 1}, {"rdma": within("Device")}, {"gpu": [0, 1], "rdma": [0]}, id="one NIC"),
        pytest.param({}, {NVIDIA: 3, RDMA: 1}, {"rdma": within("Device")}, none_of(3, 1), id="and no other"),
        pytest.param({}, {NVIDIA: 2, RDMA: 2}, {"rdma": COUNT}, {"gpu": [0, 2], "rdma": [0, 1]}, id="counted NICs"),
        pytest.param(
            {"rdma": {0: 50}},
            {NVIDIA: 1, RDMA: 1},
            {"rdma": ALL},
            {"gpu": [0], "rdma": [0, 1, 2, 3]},
            id="no NIC is near a GPU",
        ),
    ],
)
def test_with_hints(
    held: dict[str, dict[int, int]], amounts: dict[str, int], hinted: dict[str, Any], expected: ActualAllocation | str
) -> None:
    assert placed(node(*BOARD, **held), wants(amounts, **hinted)) == expected


def loose(minor: int, at: str) -> CardInfo:
    """Return a NIC whose NUMA node is unknown."""
    return other_card("rdma", minor, pcie=at)


@pytest.mark.parametrize(
    ("cards", "amounts", "expected"),
    [
        pytest.param(
            (*gpus(A=(0, 1)), loose(0, "A"), *nics(B=(1, 2))),
            {NVIDIA: 2, RDMA: 1},
            {"gpu": [0, 1], "rdma": [0]},
            id="one may be anywhere",
        ),
        pytest.param(
            (*gpus(A=(0,)), loose(0, "A"), loose(1, "A"), *nics(B=(2, 3))),
            {NVIDIA: 1, RDMA: 200},
            none_of(1, 2),
            id="two are not known to be on one",
        ),
        pytest.param(
            (*gpus(A=(0,), B=(1,)), loose(0, "A"), loose(1, "B")),
            {NVIDIA: 2, RDMA: 1},
            none_of(2, 1),
            id="nor are those that each switch must have",
        ),
    ],
)
def test_nics_on_one_numa_node_that_is_not_reported(
    cards: Sequence[CardInfo], amounts: dict[str, int], expected: ActualAllocation | str
) -> None:
    assert placed(node(*cards), wants(amounts, rdma=within("NUMANode"))) == expected


def test_functions_are_given_under_the_switch() -> None:
    spare = (((), ((0, "0000:1f:00.2"),)),)
    cards = (*gpus(A=(0,), B=(1,)), *nics(A=(0,)), other_card("rdma", 1, pcie="B", functions=spare))
    outcome = decide(fleet({"node": cards}), waiting("pod", wants({NVIDIA: 1, RDMA: 1}, rdma=VFS)), Policy())
    assert not isinstance(outcome, Failure)
    assert [(each.minor, [one.bus_id for one in each.functions]) for each in outcome.grants] == [
        (1, []),
        (1, ["0000:1f:00.2"]),
    ]


@pytest.mark.parametrize(
    ("cards", "held", "amounts", "types", "expected"),
    [
        pytest.param(CROSSED, {}, {NVIDIA: 1, RDMA: 1}, (), {"gpu": [1], "rdma": [0]}, id="near if possible"),
        pytest.param(CROSSED, {"gpu": {1: 1}}, {NVIDIA: 1, RDMA: 1}, (), {"gpu": [0], "rdma": [0]}, id="far else"),
        pytest.param(
            (card(0), other_card("rdma")), {}, {NVIDIA: 1, RDMA: 1}, (), {"gpu": [0], "rdma": [0]}, id="unknown"
        ),
        pytest.param(
            (card(0), card(1, pcie="A"), other_card("rdma"), *nics(A=(1,))),
            {},
            {NVIDIA: 1, RDMA: 1},
            (),
            {"gpu": [1], "rdma": [1]},
            id="a known place is preferred",
        ),
        pytest.param(
            (card(0), card(1, pcie="A"), *nics(A=(0,), B=(1,))),
            {},
            {NVIDIA: 2, RDMA: 1},
            (),
            {"gpu": [0, 1], "rdma": [0]},
            id="none for an unknown switch",
        ),
        pytest.param(
            (*gpus(A=(0,), B=(1, 2)), *nics(A=(0,))),
            {},
            {NVIDIA: 2, RDMA: 1},
            ("rdma", "gpu"),
            {"gpu": [0, 1], "rdma": [0]},
            id="GPUs that come second are near as well, as far as there are any",
        ),
    ],
)
def test_rather_under_the_same_switches(
    cards: Sequence[CardInfo],
    held: dict[str, dict[int, int]],
    amounts: dict[str, int],
    types: tuple[str, ...],
    expected: ActualAllocation,
) -> None:
    assert placed(node(*cards, **held), wants(amounts, *types, same=False)) == expected


@pytest.mark.parametrize(
    ("under", "hinted", "expected"),
    [
        pytest.param({"A": 1, "B": 1, "C": 2}, {}, {"fpga": [2, 3], "rdma": [2]}, id="fewest switches"),
        pytest.param({"A": 1, "B": 1, "C": 2}, {"fpga": "NUMANode"}, {"fpga": [2, 3], "rdma": [2]}, id="on any node"),
        pytest.param({"A": 1, "B": 1, "C": 1}, {"fpga": "NUMANode"}, {"fpga": [0, 1], "rdma": [0, 1]}, id="on one"),
    ],
)
def test_without_gpus(under: dict[str, int], hinted: dict[str, str], expected: ActualAllocation) -> None:
    minors = iter(range(9))
    fpgas = {at: [next(minors) for _ in range(count)] for at, count in under.items()}
    made = node(*nics("fpga", **fpgas), *nics(A=(0,), B=(1,), C=(2,)))
    scopes: dict[str, Any] = {kind: within(scope) for kind, scope in hinted.items()}
    assert placed(made, wants({FPGA: 200, RDMA: 1}, "fpga", "rdma", **scopes)) == expected


def test_of_equal_switches_that_with_fewest_others_is_taken() -> None:
    made = node(*nics("fpga", A=(0, 1), B=(2,)), *nics(A=(0,), B=(1,)))
    assert placed(made, wants({FPGA: 1, RDMA: 1}, "fpga", "rdma")) == {"fpga": [2], "rdma": [1]}


def test_pods_in_the_way_may_be_evicted_and_a_board_may_not_do_at_all() -> None:
    made = fleet({"crossed": CROSSED, "board": BOARD})
    made.charge(charge("other", grant(1), node="crossed"))
    request = wants({NVIDIA: 1, RDMA: 200})
    assert not devices.BUILT_IN.could_pass(made, request)[list(made.rows.values())].any()
    request = wants({NVIDIA: 1, RDMA: 1})
    rows = [made.rows["crossed"], made.rows["board"]]
    assert devices.BUILT_IN.passes(made, request)[rows].tolist() == [False, True]
    assert devices.BUILT_IN.could_pass(made, request)[rows].tolist() == [True, True]


# --- brute force ------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_the_fewest_switches_are_found(under: list[tuple[int, int]], wanted: tuple[int, int]) -> None:
    found = switches.fewest(under, wanted)
    sizes = (
        size
        for size in range(len(under) + 1)
        for chosen in combinations(under, size)
        if all(sum(each[i] for each in chosen) >= wanted[i] for i in range(2))
    )
    assert (None if found is None else len(found)) == next(sizes, None)
    if found is not None:
        assert all(sum(under[place][i] for place in found) >= wanted[i] for i in range(2))


PLACES = st.tuples(st.sampled_from(["", "A", "B", "C"]), st.integers(-1, 1))
SCOPES = st.sampled_from(["", "", "PCIe", "NUMANode"])


@st.composite
def boards(draw: st.DrawFn, other: str = "rdma") -> tuple[Fleet, dict[str, dict[int, tuple[str, int]]]]:
    """Draw a node of GPUs and cards of another type, some in use; and for each type the places of the free ones."""
    gpu = dict(enumerate(draw(st.lists(PLACES, min_size=1, max_size=4))))
    others = dict(enumerate(draw(st.lists(PLACES, max_size=4))))
    cards = [card(i, pcie=pcie, numa=numa) for i, (pcie, numa) in gpu.items()]
    cards += [other_card(other, i, pcie=pcie, numa=numa) for i, (pcie, numa) in others.items()]
    made, free = fleet({"node": cards}), {"gpu": gpu, other: others}
    for each in cards:
        if draw(st.integers(0, 3)) == 0:
            amounts = {"core": 100, "ratio": 100} if each.type == "gpu" else {other: 100}
            made.charge(charge(each.id, grant(each.minor, each.type, **amounts)))
            del free[each.type][each.minor]
    return made, free


def together(places: Sequence[tuple[str, int]], scope: str) -> bool:
    """Return whether cards at these places are within a scope."""
    if len(places) < 2 or not scope:
        return True
    scopes = {each[scope == "NUMANode"] for each in places}
    return len(scopes) == 1 and scopes.isdisjoint({"", -1})


def right(
    given: ActualAllocation, free: dict[str, dict[int, tuple[str, int]]], wanted: dict[str, int], first: str
) -> bool:
    """Return whether a choice meets the definition of SamePCIe."""
    (other,) = given.keys() - {"gpu"}
    under = {kind: Counter(free[kind][minor][0] for minor in minors) for kind, minors in given.items()}
    common = set(under["gpu"])
    exact = len(given["gpu"]) == wanted["gpu"] and (first == "gpu" or len(given[other]) == wanted[other])
    return (
        exact
        and "" not in common
        and common == set(under[other])
        and len(given[other]) == max(wanted[other], len(common))
    )


@given(
    board=st.sampled_from(["rdma", "fpga"]).flatmap(boards),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    scopes=st.tuples(SCOPES, SCOPES),
    gpus_first=st.booleans(),
    shares=st.booleans(),
)
def test_a_set_is_found_wherever_there_is_one(
    board: tuple[Fleet, dict[str, dict[int, tuple[str, int]]]],
    counts: tuple[int, int],
    scopes: tuple[str, str],
    *,
    gpus_first: bool,
    shares: bool,
) -> None:
    made, free = board
    (other,) = free.keys() - {"gpu"}
    types = ("gpu", other) if gpus_first else (other, "gpu")
    pairs = tuple(zip(("gpu", other), scopes, strict=True))
    hinted: dict[str, Any] = {kind: within(scope) for kind, scope in pairs if scope}
    of_gpus = {SHARED: counts[0], RATIO: 50 * counts[0]} if shares else {NVIDIA: counts[0]}
    answer = placed(made, wants({**of_gpus, f"kubernetes.io/{other}": 100 * counts[1]}, *types, **hinted))
    sets = {
        kind: [
            list(each)
            for size in range(1, 5)
            for each in combinations(free[kind], size)
            if together([free[kind][minor] for minor in each], scope)
        ]
        for kind, scope in pairs
    }
    possible = [
        {"gpu": gpu, other: others}
        for gpu, others in product(sets["gpu"], sets[other])
        if right({"gpu": gpu, other: others}, free, {"gpu": counts[0], other: counts[1]}, types[0])
    ]
    if possible:
        assert answer in possible
        assert len(answer[other]) == min(len(each[other]) for each in possible)
    else:
        assert isinstance(answer, str)


@given(boards(), st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_a_preference_keeps_no_pod_waiting(
    board: tuple[Fleet, dict[str, dict[int, tuple[str, int]]]], counts: tuple[int, int]
) -> None:
    made, _ = board
    amounts = {NVIDIA: counts[0], RDMA: 100 * counts[1]}
    apart, preferred = (placed(made, each) for each in (asks(amounts), wants(amounts, same=False)))
    assert isinstance(apart, str) == isinstance(preferred, str)
    if isinstance(apart, str) or isinstance(preferred, str):
        return
    assert len(preferred["gpu"]) == counts[0]
    assert counts[1] <= len(preferred["rdma"]) <= max(counts)
    same = placed(made, wants(amounts))
    assert isinstance(same, str) or same == preferred


MAPPED = Kinds(nics=read_nics("nvidia.com/hostdev=100,rdma/a=1,rdma/b=1"))
SWITCHES = st.sampled_from(["", "A", "B", "C"])


@given(
    st.lists(st.tuples(st.lists(SWITCHES, max_size=4), st.lists(SWITCHES, max_size=4)), min_size=1, max_size=2),
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(
                [{"rdma/a": 1}, {"rdma/a": 1, "rdma/b": 1}, {"nvidia.com/hostdev": 1}, {"nvidia.com/hostdev": 2}]
            ),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_pods_with_nics_of_another_plugin_get_them_next_to_their_gpus(
    nodes: list[tuple[list[str], list[str]]], pods: list[tuple[int, dict[str, int]]]
) -> None:
    boards = {
        f"node-{number}": [
            *(card(minor, pcie=at) for minor, at in enumerate(of_gpus)),
            *(other_card("rdma", minor, pcie=at) for minor, at in enumerate(of_nics)),
        ]
        for number, (of_gpus, of_nics) in enumerate(nodes)
    }
    made = fleet(boards)
    switch = {(name, each.type, each.minor): each.pcie for name, cards in boards.items() for each in cards}
    left = dict.fromkeys(switch, 100)
    for number, (gpu_count, names_) in enumerate(pods):
        [nic_part] = of_pod(names_, {}, {}, MAPPED).parts
        nic_amount = dict(nic_part.amounts)["rdma"]
        request = replace(asks({}), devices=of_pod({NVIDIA: gpu_count, **names_}, {}, {}, MAPPED))
        sets = [
            (name, (*gpu_set, *nic_set))
            for name in boards
            for gpu_set in combinations(
                [key for key in left if key[:2] == (name, "gpu") and left[key] == 100], gpu_count
            )
            for nic_set in combinations(
                [key for key in left if key[:2] == (name, "rdma") and left[key] >= nic_amount], nic_part.count
            )
        ]
        next_to = [(name, chosen) for name, chosen in sets if is_next_to(switch, chosen)]
        outcome = decide(made, waiting(f"pod-{number}", request), Policy())
        if isinstance(outcome, Failure):
            assert not sets
            continue
        given_ = [(outcome.node, each.type, each.minor) for each in outcome.grants]
        assert (outcome.node, tuple(sorted(given_))) in (next_to or sets)
        for each in outcome.grants:
            left[outcome.node, each.type, each.minor] -= dict(each.amounts).get("rdma", 100)
        made.charge(outcome.charge)


def is_next_to(switch: Mapping[tuple[str, str, int], str], chosen: Sequence[tuple[str, str, int]]) -> bool:
    """Return whether the GPUs and the NICs are under the same switches."""
    under = {kind: {switch[key] for key in chosen if key[1] == kind} for kind in ("gpu", "rdma")}
    return under["gpu"] == under["rdma"] and "" not in under["gpu"]


# --- what GPUs ask of each other --------------------------------------------------------------------------------


@st.composite
def linked(draw: st.DrawFn) -> tuple[Fleet, list[CardInfo], dict[int, str], list[tuple[int, ...]] | None]:
    """Draw a node whose GPUs have some NVLinks; return its GPUs, the switch of each NIC, and required partitions."""
    places = draw(st.lists(PLACES, min_size=2, max_size=4))
    ways = {pair: draw(st.sampled_from([0, NODE, NVLINK, 2 * NVLINK])) for pair in combinations(range(len(places)), 2)}
    gpus = [
        card(
            i, pcie=at, numa=numa, links=tuple((b if a == i else a, way) for (a, b), way in ways.items() if i in (a, b))
        )
        for i, (at, numa) in enumerate(places)
    ]
    nic_switches = dict(enumerate(draw(st.lists(st.sampled_from(["A", "B", "C"]), max_size=4))))
    made = fleet({"node": (*gpus, *(other_card("rdma", i, pcie=at) for i, at in nic_switches.items()))})
    if draw(st.booleans()):
        return made, gpus, nic_switches, None
    sets = draw(st.lists(st.sampled_from(sorted(ways)), unique=True, max_size=3))
    table = ((2, tuple(Partition(minors=each, score=1) for each in sets)),)
    cards = (*gpus, *(other_card("rdma", i, pcie=at) for i, at in nic_switches.items()))
    made.put_device("node", replace(inventory(*cards), partitions=table, partitions_only=True))
    return made, gpus, nic_switches, list(sets)


@given(linked(), st.sampled_from(["", "nvlink", "pcie", "numa"]), st.integers(1, 3))
def test_gpus_have_the_requested_links_and_nics_next_to_them(
    board: tuple[Fleet, list[CardInfo], dict[int, str], list[tuple[int, ...]] | None], level: str, nic_count: int
) -> None:
    made, gpus, nic_switches, bound = board
    annotations = jointly("gpu", "rdma") | ({names.GPU_TOPOLOGY: level} if level else {})
    answer = placed(made, asks({NVIDIA: 2, RDMA: 100 * nic_count}, annotations=annotations))
    possible = [
        chosen
        for chosen in sets_that_will_do(gpus, 2, [level] if level else [])
        if all(each.pcie in nic_switches.values() for each in chosen)
        and sum(at in {each.pcie for each in chosen} for at in nic_switches.values()) >= nic_count
        and (bound is None or tuple(each.minor for each in chosen) in bound)
    ]
    if not possible:
        assert isinstance(answer, str)
        return
    assert not isinstance(answer, str)
    chosen = tuple(gpus[minor] for minor in answer["gpu"])
    assert chosen in possible
    assert {nic_switches[minor] for minor in answer["rdma"]} == {each.pcie for each in chosen}
    assert bound is not None or inside(chosen) == max(map(inside, possible))


def test_the_best_connected_gpus_are_those_that_have_nics() -> None:
    made = fleet({"node": (*dgx1(), *(other_card("rdma", i, pcie=f"switch-{i}") for i in (0, 1, 3)))})
    free = [minor for minor in range(8) if minor not in (4, 5)]
    answer = placed(made, wants({NVIDIA: 4, RDMA: 1}))
    assert not isinstance(answer, str)
    assert tuple(answer["gpu"]) in best_connected(dgx1(), free, 4)


def test_more_gpus_than_can_be_compared() -> None:
    under = {minor: f"switch-{minor:02}" for minor in range(24)}
    cards = [card(minor, pcie=at) for minor, at in under.items()]
    nics_ = [other_card("rdma", minor, pcie=under[minor]) for minor in range(1, 24, 2)]
    answer = placed(fleet({"node": (*cards, *nics_)}), wants({NVIDIA: 12, RDMA: 1}))
    assert answer == {"gpu": list(range(1, 24, 2)), "rdma": list(range(1, 24, 2))}


def test_more_gpus_than_can_be_compared_are_spread_over_all_switches_that_are_needed() -> None:
    under = {minor: f"switch-{minor // 2:02}" for minor in range(24)}
    cards = [card(minor, pcie=at) for minor, at in under.items()]
    nics_ = [other_card("rdma", number, pcie=f"switch-{number:02}") for number in range(12)]
    answer = placed(fleet({"node": (*cards, *nics_)}), wants({NVIDIA: 13, RDMA: 1200}))
    assert answer == {"gpu": [0, 1, *range(2, 24, 2)], "rdma": list(range(12))}


PAIRS = tuple(
    card(minor, pcie=f"switch-{minor}", links=((minor ^ 1, NVLINK), *((other, NODE) for other in range(4))))
    for minor in range(4)
)
"""Four GPUs, each under a switch of its own, with NVLinks between two and two."""
TABLE = ((2, (Partition(minors=(0, 1), score=1), Partition(minors=(2, 3), score=1))),)


@pytest.mark.parametrize(
    ("nic_switches", "expected"),
    [
        pytest.param((2, 3), {"gpu": [2, 3], "rdma": [0, 1]}, id="the pair that has NICs"),
        pytest.param((1, 2), none_of(2, 1), id="no pair has"),
    ],
)
@pytest.mark.parametrize("bound", [False, True], ids=["by links", "by partition"])
def test_pairs_of_gpus_with_nics(
    nic_switches: tuple[int, ...], expected: ActualAllocation | str, *, bound: bool
) -> None:
    cards = (*PAIRS, *(other_card("rdma", i, pcie=f"switch-{at}") for i, at in enumerate(nic_switches)))
    made = fleet({"other": PAIRS, "node": cards})
    made.put_device("node", replace(inventory(*cards), partitions=TABLE, partitions_only=bound))
    annotations = jointly("gpu", "rdma") | ({} if bound else {names.GPU_TOPOLOGY: "nvlink"})
    outcome = decide(made, waiting("pod", asks({NVIDIA: 2, RDMA: 1}, annotations=annotations)), Policy())
    if isinstance(outcome, Failure):
        assert dict(outcome.reasons).keys() == {expected, "node(s) have too few healthy RDMA devices (1 requested)"}
    else:
        assert {"gpu": [each.minor for each in outcome.grants if each.type == "gpu"]} | {
            "rdma": [each.minor for each in outcome.grants if each.type == "rdma"]
        } == expected


def test_no_more_switches_than_the_first_type_asks_for_however_good_the_links() -> None:
    far = (card(0, pcie="A", links=((1, NVLINK),)), card(1, pcie="B", links=((0, NVLINK),)))
    cards = (*far, card(2, pcie="C"), card(3, pcie="C"), *nics(A=(0,), B=(1,), C=(2,)))
    request = wants({NVIDIA: 2, RDMA: 1}, "rdma", "gpu")
    assert placed(fleet({"node": cards}), request) == {"gpu": [2, 3], "rdma": [2]}


def test_many_switches_of_many_cards_are_distinguished() -> None:
    # So many that their numbers, written one after the other, are longer than 64 bits.
    others = [(2, 1)] * 11
    rows = [[(1, 1)] * 5 + others, [(1, 1)] * 4 + [(1, 7)] + others, [(7, 7)]]
    columns = []
    for kind in range(2):
        slots = [[at + 1 for at, numbers in enumerate(row) for _ in range(numbers[kind])] for row in rows]
        columns.append(np.array([each + [0] * (40 - len(each)) for each in slots], np.int32))
    assert switches.exist((7, 7), columns, 4).tolist() == [False, True, True]
