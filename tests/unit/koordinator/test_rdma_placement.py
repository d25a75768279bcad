"""Which NICs and FPGAs a pod gets without a joint allocation: how many, in which order, and within which scope."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core import allocators
from berth_operator.core.allocators import simple
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.arrays.column_cache import ALL as ALL_ROWS
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import asks, charge, fleet, grant, hints, other_card, waiting

COUNT, ALL = {"allocateStrategy": "RequestsAsCount"}, {"allocateStrategy": "ApplyForAll"}
EACH, SWITCH = {"exclusivePolicy": "DeviceLevel"}, {"exclusivePolicy": "PCIeLevel"}
PACKING, SPREADING = Policy(), Policy(card_strategy="LeastAllocated")


def nic(minor: int = 0, pcie: str = "", numa: int = -1, net: str = "", **fields: Any) -> CardInfo:
    """Return a NIC at its place."""
    return other_card("rdma", minor, pcie=pcie, numa=numa, labels=(("net", net),) if net else (), **fields)


def within(scope: str) -> dict[str, str]:
    """Return the hint that requires all devices to be within a scope."""
    return {"requiredTopologyScope": scope}


def wants(amount: int, hint: Mapping[str, Any] | None = None, kind: str = "rdma") -> PodRequest:
    """Return a request for an amount of a type, with this hint."""
    return asks({f"kubernetes.io/{kind}": amount}, annotations=hints(**{kind: hint or {}}))


def node(*cards: CardInfo, held: Mapping[int, int] | None = None) -> Fleet:
    """Return a node with these cards, of which pods hold these hundredths."""
    made = fleet({"node": cards})
    for minor, amount in (held or {}).items():
        kind = cards[0].type
        made.charge(charge(f"on-{minor}", grant(minor, kind, **{kind: amount})))
    return made


def minors(made: Fleet, request: PodRequest, policy: Policy = PACKING) -> list[int] | str:
    """Return the minors that a pod gets, in the order of its allocation, or the reason why it gets none."""
    outcome = decide(made, waiting("pod", request), policy)
    if isinstance(outcome, Failure):
        return outcome.reasons[0][0]
    return [each.minor for each in outcome.grants]


FOUR = tuple(nic(minor) for minor in range(4))
SICK = (nic(0), nic(1, healthy=False), nic(2))


SOME = {
    "the lowest minor": (FOUR, {}, 100, {}, [0]),
    "a whole one has no pod on it": (FOUR, {0: 1}, 100, {}, [1]),
    "a share goes to the fullest that has capacity": (FOUR, {2: 50}, 50, {}, [2]),
    "of equal ones to the lowest minor": (FOUR, {1: 20, 3: 20}, 50, {}, [1]),
    "each of those that are counted": (FOUR, {3: 20}, 4, COUNT, [3, 0, 1, 2]),
    "the fullest of them first": (FOUR, {3: 20}, 3, COUNT, [3, 0, 1]),
    "else none": (FOUR, {3: 1}, 4, COUNT | EACH, "node(s) have too few free RDMA devices (4 requested with rdma 100)"),
    "more than there are": (
        FOUR,
        {},
        500,
        {},
        "node(s) have too few healthy RDMA devices (5 requested, at most 4 on a node)",
    ),
    "minors need not be in order": ((nic(7), nic(3)), {}, 200, {}, [3, 7]),
}


@pytest.mark.parametrize(("cards", "held", "amount", "hint", "expected"), SOME.values(), ids=SOME)
def test_some(
    cards: Sequence[CardInfo], held: dict[int, int], amount: int, hint: dict[str, Any], expected: list[int] | str
) -> None:
    assert minors(node(*cards, held=held), wants(amount, hint)) == expected


@pytest.mark.parametrize(
    ("held", "amount", "hint", "expected"),
    [
        pytest.param({2: 50}, 50, {}, [0], id="a share goes to the emptiest"),
        pytest.param({0: 10, 1: 20, 2: 30, 3: 5}, 50, {}, [3], id="by how much is free"),
        pytest.param({0: 10, 3: 20}, 3, COUNT, [1, 2, 0], id="the emptiest of several first"),
        pytest.param({}, 200, {}, [0, 1], id="of equal ones the lowest minors"),
    ],
)
def test_some_where_pods_are_to_spread(
    held: dict[int, int], amount: int, hint: dict[str, Any], expected: list[int]
) -> None:
    assert minors(node(*FOUR, held=held), wants(amount, hint), SPREADING) == expected


MIXED = (nic(0, net="fast"), nic(1, net="slow"), nic(2, net="fast"), nic(3))
FAST = {"selector": {"matchLabels": {"net": "fast"}}}
NOT_FAST = {"selector": {"matchExpressions": [{"key": "net", "operator": "NotIn", "values": ["fast"]}]}}


@pytest.mark.parametrize(
    ("held", "amount", "hint", "expected"),
    [
        pytest.param({}, 200, NOT_FAST, [1, 3], id="another label, or none"),
        pytest.param({}, 50, FAST | ALL, [0, 2], id="every one that matches"),
        pytest.param(
            {2: 60},
            50,
            FAST | ALL,
            "node(s) have too little free on some RDMA devices (every one requested)",
            id="but none of these",
        ),
    ],
)
def test_by_label(held: dict[int, int], amount: int, hint: dict[str, Any], expected: list[int] | str) -> None:
    assert minors(node(*MIXED, held=held), wants(amount, hint)) == expected


EVERY_ONE = {
    "a hundredth of each": (FOUR, {}, 1, ALL, [0, 1, 2, 3]),
    "one has not": (FOUR, {1: 51}, 50, ALL, "node(s) have too little free on some RDMA devices (every one requested)"),
    "a bad one is none of them": (SICK, {}, 50, ALL, [0, 2]),
    "not none at all": ((), {}, 50, ALL, "node(s) have too few healthy RDMA devices (1 requested)"),
    "several whole ones are counted": (FOUR, {}, 200, ALL, [0, 1]),
    "every one for the pod alone": (FOUR, {}, 50, ALL | EACH, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("cards", "held", "amount", "hint", "expected"), EVERY_ONE.values(), ids=EVERY_ONE)
def test_every_one(
    cards: Sequence[CardInfo], held: dict[int, int], amount: int, hint: dict[str, Any], expected: list[int] | str
) -> None:
    assert minors(node(*cards, held=held), wants(amount, hint)) == expected


def test_every_one_differs_by_node() -> None:
    made = fleet({"two": FOUR[:2], "none": (), "four": FOUR, "sick": SICK})
    request = wants(50, ALL)
    fits = allocators.BUILT_IN.passes(made, request, ALL_ROWS)
    counts = {name: len(PACKING.choose(made, row, request)) for name, row in made.rows.items() if fits[row]}
    assert counts == {"two": 2, "four": 4, "sick": 2}


PLACES = (nic(0, "A", 0), nic(1, "A", 0), nic(2, "B", 0), nic(3, "C", 1), nic(4, "C", 1), nic(5, "C", 1))


WITHIN_A_SCOPE = {
    "three on the first NUMA node": (PLACES, {}, 300, within("NUMANode"), [0, 1, 2]),
    "3": (
        PLACES,
        {3: 1},
        300,
        within("PCIe"),
        "node(s) have too few free RDMA devices under one PCIe switch (at most 2 of 3)",
    ),
    "4": (
        PLACES,
        {},
        400,
        within("NUMANode"),
        "node(s) have too few free RDMA devices on one NUMA node (at most 3 of 4)",
    ),
    "2 in 1": (
        PLACES,
        {},
        200,
        within("Device"),
        "node(s) have too few free RDMA devices in one device (at most 1 of 2)",
    ),
    "all in 1": (
        PLACES,
        {},
        50,
        within("PCIe") | ALL,
        "node(s) do not have all RDMA devices under one PCIe switch (at most 3)",
    ),
}


@pytest.mark.parametrize(("cards", "held", "amount", "hint", "expected"), WITHIN_A_SCOPE.values(), ids=WITHIN_A_SCOPE)
def test_within_a_scope(
    cards: Sequence[CardInfo], held: dict[int, int], amount: int, hint: dict[str, Any], expected: list[int] | str
) -> None:
    assert minors(node(*cards, held=held), wants(amount, hint)) == expected


def near(made: Fleet, amount: int, hint: Mapping[str, Any], *switches: str, policy: Policy = PACKING) -> list[int]:
    """Return the minors for a part near these switches."""
    request = wants(amount, hint)
    (part,) = request.devices.parts
    numbers = {made.intern_table.switches.number(each) for each in switches}
    return [each.minor for each in simple.choose(made, 0, request, part, policy, near=numbers)]


@pytest.mark.parametrize(
    ("held", "amount", "hint", "switches", "expected"),
    [
        pytest.param({}, 100, {}, ("B",), [2], id="under the switch"),
        pytest.param({}, 200, {}, ("B",), [2, 0], id="elsewhere where that has no more"),
        pytest.param({}, 200, {}, ("A", "C"), [0, 3], id="one of each"),
        pytest.param({}, 400, {}, ("A", "C"), [0, 3, 1, 4], id="then the second of each"),
        pytest.param({}, 600, {}, ("A", "C"), [0, 3, 1, 4, 5, 2], id="then the third, then others"),
        pytest.param({4: 10}, 3, COUNT, ("A", "C"), [4, 0, 1], id="in each turn the best first"),
        pytest.param({}, 300, {}, ("A", "B", "C"), [0, 2, 3], id="all switches"),
        pytest.param({2: 1}, 100, {}, ("B",), [0], id="near is only preferred"),
        pytest.param({}, 200, {}, ("unheard of",), [0, 1], id="near to nothing that is there"),
        pytest.param({}, 300, within("NUMANode"), ("C",), [3, 4, 5], id="the NUMA node that is near"),
    ],
)
def test_near_switches(
    held: dict[int, int], amount: int, hint: dict[str, Any], switches: tuple[str, ...], expected: list[int]
) -> None:
    assert near(node(*PLACES, held=held), amount, hint, *switches) == expected


def test_both_types_at_once_are_placed_apart_from_each_other() -> None:
    made = fleet({"node": (nic(0), nic(1), other_card("fpga", 5))})
    request = asks({"kubernetes.io/rdma": 200, "kubernetes.io/fpga": 100})
    assert minors(made, request) == [0, 1, 5]


def test_no_pod_gets_a_nic_where_an_allocation_is_unknown() -> None:
    made = node(*FOUR)
    made.charge(charge("unknown", unknown=("rdma",)))
    for hint in ({}, ALL, within("PCIe")):
        assert minors(made, wants(1, hint)) == "node(s) have pods whose RDMA allocation is unknown"


# --- brute force ------------------------------------------------------------------------------------------------

SWITCHES, NETS = st.sampled_from(["", "A", "B", "C"]), st.sampled_from(["", "fast"])
HINTS = st.fixed_dictionaries(
    {},
    optional={
        "selector": st.just({"matchLabels": {"net": "fast"}}),
        "allocateStrategy": st.sampled_from(["ApplyForAll", "RequestsAsCount"]),
        "requiredTopologyScope": st.sampled_from(["Device", "PCIe", "NUMANode", "Node"]),
    },
)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[CardInfo], dict[int, int]]:
    """Draw the NICs of a node and what pods hold of them."""
    places = draw(st.lists(st.tuples(SWITCHES, st.integers(-1, 1), NETS, st.booleans()), max_size=5))
    nics = [nic(i, pcie, numa, net, healthy=not bad) for i, (pcie, numa, net, bad) in enumerate(places)]
    held = draw(st.dictionaries(st.sampled_from(range(len(nics) or 1)), st.sampled_from([1, 50, 100]), max_size=3))
    return nics, held if nics else {}


def will_do(cards: Sequence[CardInfo], scope: str) -> bool:
    """Return whether these cards are within a scope."""
    if len(cards) < 2 or scope in ("", "Node"):
        return True
    field = {"Device": "minor", "PCIe": "pcie"}.get(scope, "numa")
    places = {getattr(each, field) for each in cards}
    return len(places) == 1 and places.isdisjoint({"", -1})


@given(
    drawn(),
    st.sampled_from(["rdma", "fpga"]),
    HINTS,
    st.sampled_from([1, 2, 3, 50, 100, 200, 300]),
    st.sampled_from([PACKING, SPREADING]),
)
def test_a_pod_gets_what_it_asks_for_wherever_there_is_some(
    node_state: tuple[list[CardInfo], dict[int, int]], kind: str, hint: dict[str, Any], amount: int, policy: Policy
) -> None:
    nics, held = node_state
    cards = [replace(each, type=kind, id=f"{kind}-{each.minor}", amounts=((kind, 100),)) for each in nics]
    request = wants(amount, hint, kind)
    (part,) = request.devices.parts
    picked = [each for each in cards if each.healthy and ("selector" not in hint or each.labels)]
    able = [each for each in picked if dict(part.amounts)[kind] <= 100 - held.get(each.minor, 0)]
    count = max(len(picked), 1) if part.every else part.count
    sets = [each for each in combinations(able, count) if will_do(each, part.scope)]
    answer = minors(node(*cards, held=held), request, policy)
    if sets:
        assert sorted(answer) in [[each.minor for each in chosen] for chosen in sets]
    else:
        assert isinstance(answer, str)
