"""Virtual functions: which function of a card is allocated, and which cards have a free one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import allocation
from berth_api.allocation import Function
from berth_operator.core.allocators import shortage, simple
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.what_if import WhatIf
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.pods.placed_pods import PlacedPods
from berth_operator.core.values.inventory import Functions
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import asks, charge, fleet, hints, inventory, other_card, waiting, with_functions

ANY: dict[str, Any] = {"vfSelector": {}}
FAST = {"vfSelector": {"matchLabels": {"net": "fast"}}}
NOT_SLOW = {"vfSelector": {"matchExpressions": [{"key": "net", "operator": "NotIn", "values": ["slow"]}]}}
COUNT = {"allocateStrategy": "RequestsAsCount"}
ALL = {"allocateStrategy": "ApplyForAll"}


def functions(*buses: str, net: str = "") -> Functions:
    """Return one group of virtual functions at these addresses, numbered in this order."""
    labels = (("net", net),) if net else ()
    return ((labels, tuple(enumerate(buses))),)


def wants(amount: int, hint: Mapping[str, Any] | None = None, kind: str = "rdma") -> PodRequest:
    """Return a request for an amount of a type, with this hint."""
    return asks({f"kubernetes.io/{kind}": amount}, annotations=hints(**{kind: hint or {}}))


def given_by(made: Fleet, request: PodRequest) -> list[tuple[int, list[str]]] | str:
    """Return (minor, addresses of functions) of each card that a pod gets, or the reason why it gets none."""
    outcome = decide(made, waiting("pod", request), Policy())
    if isinstance(outcome, Failure):
        return outcome.reasons[0][0]
    return [(each.minor, [function.bus_id for function in each.functions]) for each in outcome.grants]


NONE = "node(s) have too few {1} with matching virtual functions ({0} requested)"
HELD = "node(s) have too few {} with free virtual functions ({} requested)"


@pytest.mark.parametrize(
    ("groups", "hint", "expected"),
    [
        pytest.param(functions("a", "b"), {}, [""], id="none without a selector"),
        pytest.param(functions("a", "b"), {"vfSelector": None}, [""], id="none with null"),
        pytest.param(functions("b", "a"), ANY, ["a"], id="the lowest address, not the first"),
        pytest.param(functions("0000:1f:00.10", "0000:1f:00.2"), ANY, ["0000:1f:00.10"], id="addresses are texts"),
        pytest.param((*functions("b"), *functions("a", net="fast")), ANY, ["a"], id="the lowest of all groups"),
        pytest.param((), ANY, NONE.format(1, "RDMA devices"), id="a card without any"),
    ],
)
def test_which_function_a_card_gives(groups: Functions, hint: dict[str, Any], expected: list[str] | str) -> None:
    made = fleet({"node": (other_card("rdma", functions=groups),)})
    wanted = expected if isinstance(expected, str) else [(0, [each for each in expected if each])]
    assert given_by(made, wants(1, hint)) == wanted


@pytest.mark.parametrize("kind", ["rdma", "fpga"])
@pytest.mark.parametrize(
    ("amount", "hint", "expected"),
    [
        pytest.param(100, ANY, [(0, ["a0"])], id="one of a whole card"),
        pytest.param(200, ANY, [(0, ["a0"]), (1, ["a1"])], id="one of each of two"),
        pytest.param(1, ANY | ALL, [(0, ["a0"]), (1, ["a1"])], id="one of every card"),
        pytest.param(300, ANY, "node(s) have too few healthy {} (3 requested, at most 2 on a node)", id="three of two"),
    ],
)
def test_each_card_gives_one(kind: str, amount: int, hint: dict[str, Any], expected: Any) -> None:
    card_infos = (other_card(kind, minor, functions=functions(f"a{minor}", f"b{minor}")) for minor in range(2))
    made = fleet({"node": tuple(card_infos)})
    wanted = expected.format(shortage.plural(kind)) if isinstance(expected, str) else expected
    assert given_by(made, wants(amount, hint, kind)) == wanted


TWO = functions("a", "b", net="fast") + functions("c", "d", net="slow")


@pytest.mark.parametrize(
    ("held", "hint", "expected"),
    [
        pytest.param(("a",), ANY, ["b"], id="the next"),
        pytest.param(("a", "b", "c", "d"), ANY, None, id="no more"),
        pytest.param(("gone",), ANY, ["a"], id="what the Device no longer lists is none of these"),
        pytest.param(("gone", "lost", "past", "over", "more"), ANY, ["a"], id="however much there is of it"),
    ],
)
def test_what_pods_hold_is_not_given(held: tuple[str, ...], hint: dict[str, Any], expected: list[str] | None) -> None:
    made = fleet({"node": (other_card("rdma", functions=TWO),)})
    made.charge(charge("other", with_functions(0, *held)))
    assert given_by(made, wants(1, hint)) == ([(0, expected)] if expected else HELD.format("RDMA devices", 1))
    made.release("uid-other")
    assert given_by(made, wants(1, hint)) == [(0, ["a"])]


def test_a_card_without_a_free_one_does_not_count() -> None:
    made = fleet({"node": tuple(other_card("rdma", minor, functions=functions(f"a{minor}")) for minor in range(3))})
    made.charge(charge("other", with_functions(1, "a1")))
    assert given_by(made, wants(2, ANY | COUNT)) == [(0, ["a0"]), (2, ["a2"])]
    assert given_by(made, wants(3, ANY | COUNT)) == HELD.format("RDMA devices", 3)
    assert (
        given_by(made, wants(1, ANY | ALL)) == "node(s) have too little free on some RDMA devices (every one requested)"
    )
    assert given_by(made, wants(3, COUNT)) == [(1, []), (0, []), (2, [])]


def test_a_function_of_minor_0_is_written_and_read_again() -> None:
    made = fleet({"node": (other_card("rdma", 1, functions=(((), ((0, "0000:1f:00.2"),)),)),)})
    outcome = decide(made, waiting("pod", wants(1, ANY)), Policy())
    assert isinstance(outcome, Placement)
    text = allocation.render(outcome.grants)
    assert '"extension":{"vfs":[{"busID":"0000:1f:00.2","minor":0}]}' in text
    assert allocation.parse(text) == outcome.grants


def test_functions_without_address_are_distinguished_by_number() -> None:
    made = fleet(
        {"node": tuple(other_card("rdma", minor, functions=(((), ((0, ""), (1, ""))),)) for minor in range(2))}
    )
    first = decide(made, waiting("a", wants(2, ANY | COUNT)), Policy())
    assert isinstance(first, Placement)
    made.charge(first.charge)
    second = decide(made, waiting("b", wants(2, ANY | COUNT)), Policy())
    assert isinstance(second, Placement)
    assert [each.functions for each in (*first.grants, *second.grants)] == [(Function(minor=0),)] * 2 + [
        (Function(minor=1),)
    ] * 2


def test_what_is_held_outlives_its_device() -> None:
    made = fleet({"node": (other_card("rdma", functions=functions("a", "b")),)})
    made.charge(charge("other", with_functions(0, "a")))
    made.remove_device("node")
    made.put_device("node", inventory(other_card("rdma", functions=functions("a", "b", "c"))))
    made.set_fresh("node", fresh=True)
    assert given_by(made, wants(1, ANY)) == [(0, ["b"])]


def test_what_a_pod_holds_under_another_card_is_held_all_the_same() -> None:
    made = fleet({"node": tuple(other_card("rdma", minor, functions=functions(f"a{minor}")) for minor in range(2))})
    made.charge(charge("strange", with_functions(0, "a1")))
    assert given_by(made, wants(1, ANY)) == [(0, ["a0"])]
    assert given_by(made, wants(2, ANY | COUNT)) == HELD.format("RDMA devices", 2)


def test_a_selector_is_asked_again_when_there_are_new_functions() -> None:
    made = fleet({"node": (other_card("rdma", functions=functions("a", net="slow")),)})
    assert given_by(made, wants(1, FAST)) == NONE.format(1, "RDMA devices")
    made.put_device("node", inventory(other_card("rdma", functions=functions("b", net="fast"))))
    assert given_by(made, wants(1, FAST)) == [(0, ["b"])]


def test_pods_that_came_later_give_functions_back_as_well() -> None:
    made = fleet({"node": (other_card("rdma", functions=TWO),)})
    made.charge(charge("x", with_functions(0, "a")))
    made.placed_pods.current(made)
    made.charge(charge("y", with_functions(0, "b")))
    placed = made.placed_pods.current(made)
    bench = WhatIf(made, np.array([made.rows["node"]]), placed)
    later = [each.uid for each in placed.charges].index("uid-y")
    bench.take(np.array([0]), np.array([later]))
    (grant,) = simple.choose(bench.fleet, 0, wants(1, FAST), wants(1, FAST).devices.parts[0], Policy())
    assert grant.functions == (Function(minor=1, bus_id="b"),)


def test_a_what_if_gives_functions_back() -> None:
    made = fleet({"node": (other_card("rdma", functions=TWO),)})
    charges = [charge("x", with_functions(0, "a")), charge("y", with_functions(0, "b", "c"))]
    for each in charges:
        made.charge(each)
    bench = WhatIf(made, np.array([made.rows["node"]] * 2), PlacedPods.of(made, charges))
    request = wants(1, FAST)
    assert bench.fits(request, Policy()).tolist() == [False, False]
    bench.take(np.array([0, 1]), np.array([0, 1]))
    assert bench.fits(request, Policy()).tolist() == [True, True]
    bench.give_back(np.array([1]), np.array([1]))
    assert bench.fits(request, Policy()).tolist() == [True, False]
    assert not made.column_cache.column(0, lambda rows: made.cards["rdma"].spare[rows] & 1).any()


# --- the filter and the choice say the same ---------------------------------------------------------------------

LABELS = st.sampled_from(["", "fast", "slow"])
CARDS = st.lists(st.lists(st.tuples(LABELS, st.integers(0, 3)), max_size=3), min_size=1, max_size=3)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Fleet, str, list[dict[str, str]]]:
    """Draw a node, some of whose functions pods hold; its cards' type, and what is free of each: address -> label."""
    card_infos, free, held = [], [], []
    kind = draw(st.sampled_from(["rdma", "fpga"]))
    for minor, groups in enumerate(draw(CARDS)):
        made: list[Any] = []
        left: dict[str, Any] = {}
        for group, (net, size) in enumerate(groups):
            buses = [f"{draw(st.integers(0, 9))}-{minor}-{group}-{each}" for each in range(size)]
            made += functions(*buses, net=net)
            taken = {bus for bus in buses if draw(st.booleans())}
            left |= {bus: net for bus in buses if bus not in taken}
            held += [(minor, bus) for bus in taken]
        card_infos.append(other_card(kind, minor, functions=tuple(made)))
        free.append(left)
    fleet_of = fleet({"node": tuple(card_infos)})
    for minor, bus in draw(st.permutations(held)):
        fleet_of.charge(charge(bus, replace(with_functions(minor, bus), type=kind, amounts=((kind, 1),))))
    return fleet_of, kind, free


@given(node=nodes(), count=st.integers(1, 3), hint=st.sampled_from([ANY, FAST, NOT_SLOW]))
def test_there_is_one_on_each_card_or_the_node_is_refused(
    node: tuple[Fleet, str, list[dict[str, str]]], count: int, hint: dict[str, Any]
) -> None:
    made, kind, free = node
    accepts = {"": hint is not FAST, "fast": True, "slow": hint is ANY}
    lowest = [min((bus for bus, net in card.items() if accepts[net]), default="") for card in free]
    expected = [(minor, [bus]) for minor, bus in enumerate(lowest) if bus]
    answer = given_by(made, wants(count, hint | COUNT, kind))
    if len(expected) < count:
        assert isinstance(answer, str)
    else:
        assert not isinstance(answer, str)
        assert len({minor for minor, _ in answer}) == count
        assert all(each in expected for each in answer)
