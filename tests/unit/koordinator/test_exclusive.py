"""Exclusive policies: no two pods with one share a card, or a PCIe switch."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berth_api import allocation, names
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import CARD_STRATEGIES, Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from berth_operator.state.objects import pods
from tests.objects.builders import (
    GPU,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    asks,
    card,
    cards,
    charge,
    fleet,
    grant,
    other_card,
    pod,
    waiting,
)
from tests.unit.koordinator.machines import trees

DEVICE, PCIE = "DeviceLevel", "PCIeLevel"
PACKS = Policy(weights=tuple(CARD_STRATEGIES["MostAllocated"].items()), card_strategy="MostAllocated")


def wants(amounts: Mapping[str, int], policy: str = "", kind: str = "gpu") -> PodRequest:
    hint = {names.ALLOCATE_HINT: orjson.dumps({kind: {"exclusivePolicy": policy}}).decode()} if policy else {}
    return asks(amounts, annotations=hint)


def placed(made: Fleet, name: str, request: PodRequest) -> tuple[int, ...] | None:
    """Decide a pod and charge it; return its minors, or None."""
    outcome = decide(made, waiting(name, request), PACKS)
    if not isinstance(outcome, Placement):
        return None
    made.charge(outcome.charge)
    return tuple(each.minor for each in outcome.grants)


def one_after_another(made: Fleet, *requests: PodRequest) -> list[tuple[int, ...] | None]:
    return [placed(made, f"pod-{i}", each) for i, each in enumerate(requests)]


SHARE: dict[str, int] = {GPU: 20}
WHOLE: dict[str, int] = {NVIDIA: 1}


WHICH_PODS_REPEL_EACH_OTHER = {
    "others share a card": (cards(2), [(SHARE, ""), (SHARE, "")], [(0,), (0,)]),
    "DeviceLevel: no card is left": (cards(1), [(SHARE, DEVICE), (SHARE, DEVICE)], [(0,), None]),
    "PCIeLevel: a switch each": (trees(2, 2), [(SHARE, PCIE), (SHARE, PCIE)], [(0,), (2,)]),
    "PCIeLevel: none is left": (trees(2, 2), [(WHOLE, PCIE), (SHARE, PCIE), (SHARE, PCIE)], [(0,), (2,), None]),
    "PCIeLevel keeps no others away": (trees(2, 2), [(WHOLE, PCIE), (WHOLE, "")], [(0,), (1,)]),
    "a pod shares a switch with itself": (trees(2, 2), [({NVIDIA: 2}, PCIE), (WHOLE, PCIE)], [(0, 1), (2,)]),
    "another card of the switch": (trees(2, 2), [(SHARE, PCIE), (SHARE, DEVICE)], [(0,), (1,)]),
    "all three": (trees(2, 2), [(SHARE, DEVICE), ({SHARED: 2, RATIO: 20}, PCIE), (SHARE, PCIE)], [(0,), (2, 3), (1,)]),
}


@pytest.mark.parametrize(
    ("card_infos", "requests", "expected"), WHICH_PODS_REPEL_EACH_OTHER.values(), ids=WHICH_PODS_REPEL_EACH_OTHER
)
def test_which_pods_repel_each_other(
    card_infos: Sequence[CardInfo], requests: Sequence[tuple[dict[str, int], str]], expected: list[Any]
) -> None:
    assert one_after_another(fleet({"node": card_infos}), *(wants(*each) for each in requests)) == expected


def test_nics_keep_to_themselves_too() -> None:
    made = fleet({"node": (other_card("rdma", 0, pcie="a"), other_card("rdma", 1, pcie="a"))})
    alone = wants({RDMA: 10}, PCIE, "rdma")
    assert one_after_another(made, alone, alone) == [(0,), None]


def test_types_do_not_mind_each_other() -> None:
    made = fleet({"node": (card(0, pcie="a"), other_card("rdma", 0, pcie="a"))})
    assert one_after_another(made, wants(SHARE, PCIE), wants({RDMA: 10}, PCIE, "rdma")) == [(0,), (0,)]


@pytest.mark.parametrize("policy", [pytest.param(policy, id=policy) for policy in (DEVICE, PCIE)])
def test_a_restart_finds_it_in_the_allocation(policy: str) -> None:
    """The hint may have changed since: the policy in the allocation counts."""
    made = fleet({"node": trees(1)})
    outcome = decide(made, waiting("pod", wants(SHARE, policy)), Policy())
    assert isinstance(outcome, Placement)
    text = allocation.render(outcome.grants)
    assert orjson.loads(text)["gpu"][0]["extension"] == {"exclusivePolicy": policy}
    restarted = fleet({"node": trees(1)})
    restarted.charge(pods.charge(pod("pod", SHARE, on="node", allocated=text)))
    assert restarted.charges["uid-pod"].grants == outcome.grants
    assert placed(restarted, "next", wants(SHARE, policy)) is None


@pytest.mark.parametrize(
    "extension",
    [
        pytest.param(None, id="none"),
        pytest.param({}, id="empty"),
        pytest.param({"exclusivePolicy": "RackLevel"}, id="a word of others"),
        pytest.param({"exclusivePolicy": ["PCIeLevel"]}, id="a list"),
        pytest.param({"gpuSharedResourceTemplate": "vir04"}, id="other fields"),
        pytest.param("text", id="no object"),
    ],
)
def test_other_entries_of_an_allocation_block_no_pod(extension: object) -> None:
    held = {"minor": 0, "resources": {"kubernetes.io/gpu-core": "10"}, "extension": extension}
    (grant,) = allocation.parse(orjson.dumps({"gpu": [held]}).decode())
    assert grant.exclusive == ""


def test_the_reason_names_the_policy() -> None:
    made = fleet({"node": cards(1)})
    placed(made, "first", wants(SHARE, PCIE))
    outcome = decide(made, waiting("second", wants(SHARE, DEVICE)), Policy())
    assert isinstance(outcome, Failure)
    assert outcome.reasons == (("node(s) have too few GPUs free of an exclusivePolicy (DeviceLevel requested)", 1),)


def test_a_pod_that_keeps_others_away_may_be_evicted_for_one_of_them() -> None:
    made = fleet({"node": trees(2)})
    made.charge(charge("plain", grant(0, core=20, ratio=20)))
    placed(made, "alone", wants(SHARE, PCIE))
    preemption = preempt(made, waiting("high", wants(SHARE, PCIE), priority=9), PACKS, Budgets())
    assert preemption is not None
    assert [each.pod for each in preemption.victims] == ["ns/alone"]


# --- against all cards, one after another -----------------------------------------------------------------------

POLICIES = st.sampled_from(["", DEVICE, PCIE])
MACHINE = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=5).map(
    lambda each: [card(minor, pcie=name) for minor, name in enumerate(each)]
)


@settings(max_examples=80)
@given(MACHINE, st.lists(st.tuples(st.integers(1, 2), POLICIES, st.booleans()), max_size=8))
# The second policy takes the place of the first one in the columns, with equal amounts.
@example([card(0), card(1)], [(1, PCIE, False), (1, PCIE, True), (1, DEVICE, False), (1, PCIE, False)])
def test_no_two_ever_meet_and_none_waits_in_vain(
    card_infos: list[CardInfo], steps: list[tuple[int, str, bool]]
) -> None:
    made = fleet({"node": card_infos})
    held: dict[str, tuple[str, tuple[int, ...]]] = {}
    for i, (count, policy, leaves) in enumerate(steps):
        others = [each for each in held.values() if each[0] and policy]
        able = [each for each in card_infos if all(apart(each, policy, card_infos, *other) for other in others)]
        got = placed(made, f"pod-{i}", wants({SHARED: count, RATIO: count}, policy))
        assert (got is None) is (len(able) < count)
        assert set(got or ()) <= {each.minor for each in able}
        if got is not None:
            held[f"uid-pod-{i}"] = (policy, got)
        if leaves and held:
            uid = next(iter(held))
            made.release(uid)
            del held[uid]


def apart(own: CardInfo, policy: str, card_infos: Sequence[CardInfo], other: str, minors: Sequence[int]) -> bool:
    """Return whether a card is free of the exclusive policy of a pod with other cards."""
    theirs = [each for each in card_infos if each.minor in minors]
    if own in theirs:
        return False
    both = policy == other == PCIE
    return not (both and any(own.pcie == each.pcie or "" in (own.pcie, each.pcie) for each in theirs))
