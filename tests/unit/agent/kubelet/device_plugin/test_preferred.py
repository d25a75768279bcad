from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_agent.kubelet.device_plugin import preferred
from berth_agent.kubelet.device_plugin.preferred import LinkScores, PreferenceError
from berth_agent.vendor import Offer
from berth_agent.vendors.nvidia.hand_over import resources
from berth_api import links
from berth_api.device import DeviceSpec, Link
from tests.objects.devices import options, spec

Policy = Literal["distributed", "packed"]


def offer_of(node: DeviceSpec, **chosen: Any) -> Offer:
    (offer,) = resources.offers(node, options(**chosen)).offers
    return offer


def wired(*links: tuple[int, int, Link], cards: int = 4) -> DeviceSpec:
    """Build cards that reach each other by these links alone."""
    node = spec(cards, profile="t4")
    rows: dict[int, list[Link]] = {minor: [] for minor in range(cards)}
    for one, other, link in links:
        rows[one].append(link.model_copy(update={"minor": other}))
        rows[other].append(link.model_copy(update={"minor": one}))
    return node.model_copy(
        update={"devices": [card.model_copy(update={"links": rows[card.minor]}) for card in node.devices]}
    )


def way(kind: Any, count: int = 0) -> Link:
    return Link(minor=0, type=kind, count=count)


def prefer(node: DeviceSpec, available: str, size: int, must: str = "") -> str:
    offer = offer_of(node)
    ids = preferred.prefer(
        node,
        offer,
        [f"GPU-{number}" for number in available],
        [f"GPU-{number}" for number in must],
        size,
        policy="packed",
    )
    return "".join(unit.removeprefix("GPU-") for unit in ids)


@pytest.mark.parametrize(
    ("node", "available", "must", "size", "expected"),
    [
        pytest.param(spec(8), "01234567", "", 2, "01", id="NVSwitch: all alike, the first"),
        pytest.param(spec(8), "01234567", "5", 1, "5", id="what must be there is enough"),
        pytest.param(spec(8), "0134567", "5", 3, "501", id="what must be there comes first"),
        pytest.param(spec(8, profile="v100"), "01234567", "", 2, "03", id="two NVLinks before one"),
        pytest.param(spec(8, profile="v100"), "01234567", "1", 2, "12", id="two NVLinks of the one that must"),
        pytest.param(spec(8, profile="v100"), "0123", "1", 2, "12", id="of what is available"),
        pytest.param(spec(8, profile="v100"), "01234567", "", 8, "01234567", id="all"),
        pytest.param(spec(4, profile="a10"), "0123", "", 2, "01", id="one PCIe switch"),
        pytest.param(spec(4, profile="a10"), "123", "", 2, "23", id="the PCIe switch that is whole"),
        pytest.param(spec(4, profile="a10"), "0123", "3", 2, "32", id="the switch of the one that must"),
        pytest.param(spec(4, profile="t4"), "0123", "", 1, "0", id="one"),
        pytest.param(spec(8, profile="l4"), "124567", "", 2, "12", id="one NUMA node"),
        pytest.param(spec(8, profile="l4"), "34567", "", 4, "4567", id="four of one NUMA node"),
        pytest.param(wired((0, 1, way("NVLink", 1))), "0123", "", 1, "2", id="of equals what others miss least"),
        pytest.param(wired(), "0123", "", 2, "01", id="a driver that reports nothing"),
    ],
)
def test_cards_that_reach_each_other_best(
    node: DeviceSpec, available: str, must: str, size: int, expected: str
) -> None:
    assert prefer(node, available, size, must) == expected


WAYS = [
    *map(way, ("System", "SameNUMANode", "HostBridge", "MultiSwitch", "SingleSwitch", "SameBoard")),
    way("NVLink", 1),
    way("NVLink", 2),
    way("XGMI", 3),
]


@pytest.mark.parametrize(("worse", "better"), list(pairwise(WAYS)), ids=lambda link: f"{link.type}{link.count or ''}")
def test_the_pair_with_the_better_link_is_preferred(worse: Link, better: Link) -> None:
    assert prefer(wired((0, 1, worse), (2, 3, better)), "0123", 2) == "23"


SLICES = [f"GPU-{card}::{number}" for card in (0, 1) for number in range(4)]


SLICES_BY_POLICY = {
    "one of each card": (SLICES, [], 2, "distributed", ["GPU-0::0", "GPU-1::0"]),
    "then a second": (SLICES, [], 3, "distributed", ["GPU-0::0", "GPU-1::0", "GPU-0::1"]),
    "packed: one card": (SLICES, [], 2, "packed", ["GPU-0::0", "GPU-0::1"]),
    "the card with fewer in use": (SLICES[1:], [], 1, "distributed", ["GPU-1::0"]),
    "packed: the card with more in use": (SLICES[:4] + SLICES[5:], [], 1, "packed", ["GPU-1::1"]),
    "until they are even": (SLICES[2:], [], 3, "distributed", ["GPU-1::0", "GPU-1::1", "GPU-0::2"]),
    "of equals the one not picked yet": (SLICES[:4] + SLICES[5:], [], 2, "distributed", ["GPU-0::0", "GPU-1::1"]),
    "what must be is in use": (SLICES, ["GPU-0::3"], 2, "distributed", ["GPU-0::3", "GPU-1::0"]),
    "packed: next to what must be": (SLICES, ["GPU-0::3"], 2, "packed", ["GPU-0::3", "GPU-0::0"]),
    "unknown ones are passed over": (["GPU-9::0", *SLICES], [], 1, "distributed", ["GPU-0::0"]),
    "packed: over the edge": (SLICES[3:5], [], 2, "packed", ["GPU-0::3", "GPU-1::0"]),
}


@pytest.mark.parametrize(
    ("free", "must", "size", "policy", "expected"), SLICES_BY_POLICY.values(), ids=SLICES_BY_POLICY
)
def test_slices_by_policy(free: list[str], must: list[str], size: int, policy: Policy, expected: list[str]) -> None:
    node = spec(2)
    assert preferred.prefer(node, offer_of(node, slices=4), free, must, size, policy=policy) == expected


@pytest.mark.parametrize(
    ("slices", "free", "must", "size"),
    [
        (1, ["GPU-0"], [], 2),
        (1, ["GPU-0", "GPU-0"], [], 2),
        (2, ["GPU-0::0"], [], 2),
        (2, ["GPU-0::0"], ["GPU-0::1"], 3),
    ],
)
def test_too_few_are_refused_with_nvidias_message(slices: int, free: list[str], must: list[str], size: int) -> None:
    node = spec(2)
    with pytest.raises(PreferenceError) as error:
        preferred.prefer(node, offer_of(node, slices=slices), free, must, size, policy="distributed")
    assert str(error.value) == "not enough available devices to satisfy allocation"


PROFILES = ["a100", "v100", "t4", "a10"]


@st.composite
def asked(draw: st.DrawFn) -> tuple[DeviceSpec, Offer, list[str], list[str], int, Policy]:
    node = spec(8, profile=draw(st.sampled_from(PROFILES)))
    offer = offer_of(node, slices=draw(st.sampled_from([1, 3])))
    free = draw(st.lists(st.sampled_from([unit.id for unit in offer.units]), unique=True, min_size=1))
    must = draw(st.lists(st.sampled_from(free), unique=True, max_size=3))
    size = draw(st.integers(max(len(must), 1), len(free)))
    return node, offer, free, must, size, draw(st.sampled_from(["distributed", "packed"]))


@given(asked())
def test_an_answer_is_of_the_available_has_what_must_be_and_the_size(case: Any) -> None:
    node, offer, free, must, size, policy = case
    chosen = preferred.prefer(node, offer, free, must, size, policy=policy)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(free)


@given(asked())
def test_the_order_of_asking_changes_nothing(case: Any) -> None:
    node, offer, free, must, size, policy = case
    backwards = preferred.prefer(node, offer, free[::-1], must, size, policy=policy)
    assert preferred.prefer(node, offer, free, must, size, policy=policy) == backwards


@given(st.sampled_from(PROFILES), st.sets(st.integers(0, 7), min_size=2), st.data())
def test_no_other_set_of_cards_is_closer(profile: str, free: set[int], data: st.DataObject) -> None:
    node = spec(8, profile=profile)
    size = data.draw(st.integers(1, len(free)))
    ids = [f"GPU-{minor}" for minor in sorted(free)]
    chosen = preferred.prefer(node, offer_of(node), ids, [], size, policy="packed")
    affinity = LinkScores({card.id: card for card in node.devices})
    assert affinity.within(chosen) == max(affinity.within(combination) for combination in combinations(ids, size))


def test_of_too_many_cards_they_are_picked_one_by_one() -> None:
    node = spec(64, profile="a10")
    chosen = preferred.prefer(node, offer_of(node), _all_but(node, 0), [], 8, policy="packed")
    assert len(set(chosen)) == 8
    assert chosen[0] in _all_but(node, 0)
    affinity = LinkScores({card.id: card for card in node.devices})
    assert affinity.between(chosen[0], chosen[1]) == links.SCORES["SingleSwitch"]


def _all_but(node: DeviceSpec, minor: int) -> Sequence[str]:
    return [card.id for card in node.devices if card.minor != minor]
