"""Which set of cards a pod gets: scopes, NVLinks, the best set of a machine, and the reasons if there is none."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.links import DIRECT as NVLINK
from berth_api.links import SCORES as LINKS
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import CARD_STRATEGIES, Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import (
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    SHARED,
    asks,
    card,
    cards,
    charge,
    divided,
    fleet,
    grant,
    instance,
    replica,
    sliced,
    waiting,
)
from tests.unit.koordinator.machines import (
    best_connected,
    dgx1,
    inside,
    nvswitch,
    related,
    sets_that_will_do,
    trees,
    wired,
)

PACKS = Policy(weights=tuple(CARD_STRATEGIES["MostAllocated"].items()), card_strategy="MostAllocated")
SPREADS = Policy(weights=tuple(CARD_STRATEGIES["LeastAllocated"].items()), card_strategy="LeastAllocated")


def wants(amounts: Mapping[str, int], **texts: Any) -> PodRequest:
    """Return a class with a hint for GPUs (`scope`), and Berth's own annotations (`topology`, `policy`)."""
    hint = orjson.dumps({"gpu": {"requiredTopologyScope": texts["scope"]}}).decode() if "scope" in texts else None
    annotations = {
        names.ALLOCATE_HINT: hint,
        names.GPU_TOPOLOGY: texts.get("topology"),
        names.GPU_TOPOLOGY_POLICY: texts.get("policy"),
    }
    return asks(amounts, annotations={name: text for name, text in annotations.items() if text is not None})


def machine(card_infos: Sequence[CardInfo], used: Iterable[int] = (), shares: Mapping[int, int] | None = None) -> Fleet:
    """Return a fleet of one node, with pods that hold these cards whole, and these hundredths of others."""
    made = fleet({"node": card_infos})
    for minor in used:
        made.charge(charge(f"holds-{minor}", grant(minor, core=100, ratio=100)))
    for minor, part in (shares or {}).items():
        made.charge(charge(f"shares-{minor}", grant(minor, core=part, ratio=part)))
    return made


def chosen(made: Fleet, request: PodRequest, policy: Policy = PACKS) -> tuple[int, ...] | None:
    """Return the minors that a pod gets, or None."""
    outcome = decide(made, waiting("pod", request), policy)
    return tuple(each.minor for each in outcome.grants) if isinstance(outcome, Placement) else None


def reason(made: Fleet, request: PodRequest) -> str:
    outcome = decide(made, waiting("pod", request), Policy())
    assert isinstance(outcome, Failure), outcome
    ((message, _),) = outcome.reasons
    return message


# --- required scopes --------------------------------------------------------------------------------------------

FOUR_BY_TWO = trees(2, 2, 2, 2)


@pytest.mark.parametrize(
    ("card_infos", "used", "amounts", "scope", "expected"),
    [
        pytest.param(FOUR_BY_TWO, [0, 2, 5, 6], {NVIDIA: 4}, "Node", (1, 3, 4, 7), id="Node asks for nothing"),
        pytest.param(FOUR_BY_TWO, [], {GPU: 50}, "Device", (0,), id="a share is of one device"),
        pytest.param(FOUR_BY_TWO, [0], {SHARED: 2, RATIO: 60}, "PCIe", (2, 3), id="shares of two under a switch"),
        pytest.param(FOUR_BY_TWO, [], {SHARED: 3, RATIO: 60}, "PCIe", None, id="shares of three under no switch"),
        pytest.param(cards(4), [], {NVIDIA: 1}, "PCIe", (0,), id="one card, whose place is unknown"),
    ],
)
def test_required_scopes(
    card_infos: Sequence[CardInfo], used: Sequence[int], amounts: dict[str, int], scope: str, expected: Any
) -> None:
    assert chosen(machine(card_infos, used), wants(amounts, scope=scope)) == expected


def test_scope_and_topology_must_both_hold() -> None:
    both = wants({NVIDIA: 2}, scope="NUMANode", topology="nvlink")
    # 0 and 4 have a link, but lie on two NUMA nodes; so do 1 and 5.
    assert chosen(machine(dgx1(), [1, 2, 3, 5, 6, 7]), both) is None
    assert chosen(machine(dgx1(), [2, 3, 5, 6, 7]), both) == (0, 1)


@pytest.mark.parametrize(
    ("level", "used", "expected"),
    [
        pytest.param("pcie", [0], (2, 3), id="met"),
        pytest.param("pcie", [0, 2, 4, 6], (1, 3), id="no switch has two: the best there is"),
        pytest.param("numa", [0, 2, 4, 6], (1, 3), id="met on a NUMA node"),
        pytest.param("nvlink", [], (0, 1), id="no links: the best there is"),
    ],
)
def test_a_preference_delays_no_pod(level: str, used: Sequence[int], expected: tuple[int, ...]) -> None:
    request = wants({NVIDIA: 2}, topology=level, policy="preferred")
    assert chosen(machine(FOUR_BY_TWO, used), request) == expected


def test_a_preference_comes_before_better_ways() -> None:
    """NVLinks to another NUMA node have a higher score, but the pod's preference comes first."""
    ways = {frozenset((0, 2)): NVLINK, frozenset((1, 3)): NVLINK}
    assert chosen(machine(wired(ways, 4)), wants({NVIDIA: 2})) == (0, 2)
    assert chosen(machine(wired(ways, 4)), wants({NVIDIA: 2}, topology="numa", policy="preferred")) == (0, 1)


def test_a_node_where_the_preference_can_be_met_comes_first() -> None:
    made = fleet({"fuller": dgx1(), "able": dgx1()})
    for minor in (0, 2, 4, 5, 6, 7):
        made.charge(charge(f"a{minor}", grant(minor, core=100, ratio=100), node="fuller"))
    plain = decide(made, waiting("pod", wants({NVIDIA: 2})), Policy())
    asking = decide(made, waiting("pod", wants({NVIDIA: 2}, topology="pcie", policy="preferred")), Policy())
    assert isinstance(plain, Placement)
    assert isinstance(asking, Placement)
    assert (plain.node, asking.node) == ("fuller", "able")


# --- why not ----------------------------------------------------------------------------------------------------


REASON_NAMES_WHAT_IS_ASKED_AND_THE_BEST_THERE_IS = {
    "switches, with a card taken each": (
        [0, 2, 4, 6],
        wants({NVIDIA: 2}, scope="PCIe"),
        "node(s) have too few free GPUs under one PCIe switch (at most 1 of 2)",
    ),
    "switches, all too small": (
        [],
        wants({NVIDIA: 3}, scope="PCIe"),
        "node(s) have too few healthy GPUs under one PCIe switch (at most 2 of 3)",
    ),
    "NUMA nodes": (
        [0, 7],
        wants({NVIDIA: 4}, topology="numa"),
        "node(s) have too few free GPUs on one NUMA node (at most 3 of 4)",
    ),
    "NVLinks": (
        [],
        wants({NVIDIA: 2}, topology="nvlink"),
        "node(s) have too few healthy GPUs with NVLinks among all of them (at most 1 of 2)",
    ),
    "one device": (
        [],
        wants({NVIDIA: 2}, scope="Device"),
        "node(s) have too few healthy GPUs in one device (at most 1 of 2)",
    ),
    "too few, wherever they are": (
        range(7),
        wants({NVIDIA: 2}, scope="PCIe"),
        "node(s) have too few free GPUs (2 requested with gpu-core 100 and gpu-memory-ratio 100)",
    ),
}


@pytest.mark.parametrize(
    ("used", "wanted", "message"),
    REASON_NAMES_WHAT_IS_ASKED_AND_THE_BEST_THERE_IS.values(),
    ids=REASON_NAMES_WHAT_IS_ASKED_AND_THE_BEST_THERE_IS,
)
def test_the_reason_names_what_is_asked_and_the_best_there_is(
    used: Sequence[int], wanted: PodRequest, message: str
) -> None:
    assert reason(machine(FOUR_BY_TWO, used), wanted) == message


# --- the best set -----------------------------------------------------------------------------------------------

UNEVEN = {
    **{frozenset(pair): 3 * NVLINK for pair in ((0, 5), (5, 2), (1, 3))},
    **{frozenset(pair): NVLINK for pair in ((0, 2), (3, 4))},
    frozenset((4, 1)): LINKS["MultiSwitch"],
}
MACHINES = {
    "NVSwitch": nvswitch(),
    "NVSwitch of four": nvswitch(4),
    "cube mesh": dgx1(),
    "two trees of four": trees(4, 4, links=True),
    "four trees of two": trees(2, 2, 2, 2, links=True),
    "trees of several sizes": trees(1, 3, 2, links=True),
    "uneven": wired(UNEVEN, 6),
}


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(MACHINES)),
    free=st.sets(st.integers(0, 7), min_size=1),
    count=st.integers(1, 8),
    level=st.sampled_from(["", "nvlink", "pcie", "numa"]),
    policy=st.sampled_from([Policy(), PACKS, SPREADS]),
)
@example(name="cube mesh", free={1, 2, 3, 4, 5, 6}, count=2, level="", policy=PACKS)
def test_whatever_is_taken_the_best_set_of_the_rest_is_given(
    name: str, free: set[int], count: int, level: str, policy: Policy
) -> None:
    card_infos = MACHINES[name]
    used = [each.minor for each in card_infos if each.minor not in free]
    needs = [level] if level and count > 1 else []
    best = best_connected(card_infos, free, count, needs)
    got = chosen(machine(card_infos, used), wants({NVIDIA: count}, topology=level or None), policy)
    assert got in best if best else got is None


# --- without links ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "count", "packed", "spread"),
    [
        pytest.param([], 1, (0,), (0,), id="an idle machine: the first card"),
        pytest.param([], 2, (0, 1), (0, 1), id="an idle machine: the first switch"),
        pytest.param([], 3, (0, 1, 2), (0, 1, 2), id="no switch has three, a NUMA node has"),
        pytest.param([], 5, (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), id="no NUMA node has five"),
        pytest.param([5], 1, (4,), (0,), id="one: next to a busy card, or far from it"),
        pytest.param([0, 5], 1, (1,), (2,), id="one: the switch is busy, or idle"),
        pytest.param([5], 2, (6, 7), (0, 1), id="two: the busy NUMA node, or the idle one"),
        pytest.param([0, 2], 2, (4, 5), (4, 5), id="two: a switch comes before a busy NUMA node"),
        pytest.param([0, 2, 4, 6], 2, (1, 3), (1, 3), id="two: no switch is left, the first NUMA node"),
        pytest.param([0, 2, 4, 6, 7], 2, (1, 3), (1, 3), id="two: only one NUMA node has two"),
        pytest.param([4], 3, (5, 6, 7), (0, 1, 2), id="three: the busy NUMA node, or the idle one"),
    ],
)
def test_scopes_decide_where_no_links_are_reported(
    used: Sequence[int], count: int, packed: tuple[int, ...], spread: tuple[int, ...]
) -> None:
    made, request = machine(FOUR_BY_TWO, used), wants({NVIDIA: count})
    assert (chosen(made, request, PACKS), chosen(made, request, SPREADS)) == (packed, spread)


@pytest.mark.parametrize(
    ("shares", "packed", "spread"),
    [
        pytest.param({3: 50}, (3,), (4,), id="the card that has a share, or the idle NUMA node"),
        pytest.param({3: 50, 6: 30}, (3,), (0,), id="the fuller one, or an empty one"),
        pytest.param({3: 80, 6: 30}, (6,), (0,), id="the fuller one that has capacity"),
        pytest.param({3: 80}, (2,), (4,), id="no card fits: next to the busy one, or on another NUMA node"),
    ],
)
def test_what_a_card_costs_comes_before_scopes(
    shares: dict[int, int], packed: tuple[int, ...], spread: tuple[int, ...]
) -> None:
    made, request = machine(FOUR_BY_TWO, shares=shares), wants({GPU: 30})
    assert (chosen(made, request, PACKS), chosen(made, request, SPREADS)) == (packed, spread)


# --- more cards than sets can be looked at ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "count", "level", "expected"),
    [
        pytest.param([], 8, "", tuple(range(8)), id="eight: one island"),
        pytest.param([0], 8, "", tuple(range(8, 16)), id="eight: the next island"),
        pytest.param([0, 9, 17, 26], 7, "", (1, 2, 3, 4, 5, 6, 7), id="seven of an island"),
        pytest.param([0, 9, 17, 26], 8, "nvlink", None, id="no island is whole"),
        pytest.param([0, 9, 17], 8, "nvlink", tuple(range(24, 32)), id="only the last island is whole"),
        pytest.param([0], 12, "", (1, 2, 3, 4, *range(8, 16)), id="twelve: an island, and some of the broken one"),
    ],
)
def test_large_machines(used: Sequence[int], count: int, level: str, expected: tuple[int, ...] | None) -> None:
    """Four islands of eight cards: there are ten million sets of eight."""
    pairs = [frozenset((a, b)) for a in range(32) for b in range(a) if a // 8 == b // 8]
    card_infos = wired(dict.fromkeys(pairs, NVLINK), 32)
    assert chosen(machine(card_infos, used), wants({NVIDIA: count}, topology=level or None)) == expected


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        pytest.param("nvlink", tuple(range(8)), id="the best ways lead out of the group of NVLinks"),
        pytest.param("numa", tuple(range(8)), id="the best ways lead to the other NUMA node"),
    ],
)
def test_large_sets_grow_within_what_is_required(level: str, expected: tuple[int, ...]) -> None:
    """Four islands of single links, and double links from each card to one on the other NUMA node."""
    islands = {frozenset((a, b)): NVLINK for a in range(32) for b in range(a) if a // 8 == b // 8}
    bridges = {frozenset((a, a + 16)): 2 * NVLINK for a in range(16)}
    card_infos = wired({**islands, **bridges}, 32)
    assert chosen(machine(card_infos), wants({NVIDIA: 8}, topology=level)) == expected


# --- which cards at all -----------------------------------------------------------------------------------------

LABELLED = [card(minor, labels=(("rack", rack),)) for minor, rack in enumerate("aab")] + [card(3)]


SELECTORS = {
    "a label": ({"matchLabels": {"rack": "b"}}, 1, (2,)),
    "none at all": ({"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}, 1, (3,)),
    "not in": ({"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a"]}]}, 2, (2, 3)),
}


@pytest.mark.parametrize(("selector", "count", "expected"), SELECTORS.values(), ids=SELECTORS)
def test_selectors(selector: Any, count: int, expected: tuple[int, ...] | None) -> None:
    hint = orjson.dumps({"gpu": {"selector": selector}}).decode()
    assert chosen(machine(LABELLED), asks({NVIDIA: count}, annotations={names.ALLOCATE_HINT: hint})) == expected


def test_no_card_with_such_labels_is_reported() -> None:
    hint = '{"gpu": {"selector": {"matchLabels": {"rack": "z"}}}}'
    message = reason(machine(LABELLED), asks({NVIDIA: 1}, annotations={names.ALLOCATE_HINT: hint}))
    assert message == "node(s) have too few healthy GPUs that match the pod's device selector rack=z (1 requested)"


@pytest.mark.parametrize(
    ("least", "amounts", "expected"),
    [
        pytest.param("20Gi", {NVIDIA: 1}, (1,), id="whole cards"),
        pytest.param("16Gi", {NVIDIA: 1}, (0,), id="just as large"),
        pytest.param("20Gi", {MEMORY: GI}, None, id="a small share, whatever the card"),
        pytest.param("20Gi", {MEMORY: 20 * GI}, (1,), id="a share that is large enough"),
        pytest.param("20Gi", {RATIO: 26}, (1,), id="a large part of a large card"),
        pytest.param("20Gi", {RATIO: 25}, None, id="a part of it that is too small"),
        pytest.param("20Gi", {NVIDIA: 2}, None, id="each of them"),
    ],
)
def test_min_memory(least: str, amounts: dict[str, int], expected: tuple[int, ...] | None) -> None:
    card_infos = [card(0, memory=16 * GI), card(1)]
    assert chosen(machine(card_infos), asks(amounts, annotations={names.MIN_GPU_MEMORY: least})) == expected


def test_the_largest_card_is_reported() -> None:
    message = reason(machine([card(0, memory=16 * GI)]), asks({NVIDIA: 1}, annotations={names.MIN_GPU_MEMORY: "20Gi"}))
    assert message == "node(s) have GPUs with too little memory (at most 16Gi of 20Gi)"


@pytest.mark.parametrize("amounts", [pytest.param({GPU: 100}, id="a card"), pytest.param({GPU: 10}, id="a share")])
def test_a_card_in_subdevices_is_never_allocated(amounts: dict[str, int]) -> None:
    made = machine([sliced(0, 4), divided(1, "1g.10gb"), card(2)])
    made.charge(charge("slice", replica(0)))
    made.charge(charge("instance", instance(1)))
    assert chosen(made, wants(amounts)) == (2,)


# --- the filter passes what the allocator can give, and nothing else --------------------------------------------

PLACES = st.builds(
    card,
    st.integers(0, 9),
    pcie=st.sampled_from(["", "a", "b"]),
    numa=st.sampled_from([-1, 0, 1]),
    healthy=st.sampled_from([True, True, True, False]),
    links=st.dictionaries(st.integers(0, 9), st.sampled_from([NVLINK, 2 * NVLINK, 10])).map(
        lambda each: tuple(each.items())
    ),
)


@settings(max_examples=120)
@given(
    card_infos=st.lists(PLACES, min_size=1, max_size=7, unique_by=lambda each: each.minor),
    used=st.sets(st.integers(0, 9), max_size=3),
    count=st.integers(1, 4),
    scope=st.sampled_from([None, "Device", "PCIe", "NUMANode", "Node"]),
    level=st.sampled_from([None, "nvlink", "pcie", "numa"]),
)
def test_no_set_is_missed_none_is_given_that_will_not_do_and_none_is_connected_better(
    card_infos: list[CardInfo], used: set[int], count: int, scope: str | None, level: str | None
) -> None:
    made = machine(card_infos, [each.minor for each in card_infos if each.minor in used])
    texts = {name: text for name, text in (("scope", scope), ("topology", level)) if text}
    needs = [
        *({"Device": ["device"], "PCIe": ["pcie"], "NUMANode": ["numa"]}.get(scope or "", [])),
        *filter(None, [level]),
    ]
    able = [each for each in card_infos if each.healthy and each.minor not in used]
    got = chosen(made, wants({NVIDIA: count}, **texts), Policy())
    if got is None:
        assert not sets_that_will_do(able, count, needs)
        return
    own = [each for each in able if each.minor in got]
    assert len(own) == len(got) == count
    assert all(related(one, other, needs) for one in own for other in own if one is not other)
    assert inside(own) == max(map(inside, sets_that_will_do(able, count, needs)))
