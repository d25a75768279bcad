"""Units of `nvidia.com/gpu` and `nvidia.com/gpu.shared`: replicas, instances or cards, as the Device lists them."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.allocation import REPLICAS, Grant
from berth_api.request.share import Share
from berth_api.values.selectors import EVERYTHING
from berth_operator.core.decision import capacity
from berth_operator.core.decision.cycle import Failure, Placement, decide, feasible
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters.devices import BUILT_IN
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import REPLICA_NAMES
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PendingPod, PodRequest
from tests.objects.builders import (
    A100_BYTES,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    SHARED,
    add,
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
    place,
    sliced,
    waiting,
)

MIG_1G, MIG_3G = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
THREE = ("1g.10gb",) * 3
SEVERAL = {names.GPU_SUBDEVICES: "only"}
WHOLE: Any = {"core": 100, "ratio": 100, "memory": A100_BYTES}
PACKED, SPREAD = Policy(), Policy(card_strategy="LeastAllocated", weights=(("card-spreading", 1.0),))


def slices(minor: int, *numbers: int, of: int = 4) -> list[Grant]:
    """Return grants of this many replicas of a card."""
    amounts = (("gpu-core", 100 // of), ("gpu-memory", A100_BYTES // of), ("gpu-memory-ratio", 100 // of))
    return [
        Grant(
            type="gpu",
            minor=minor,
            amounts=(*amounts, (REPLICAS, 1)),
            id=f"GPU-{minor}::{number}",
            parent=f"GPU-{minor}",
        )
        for number in numbers
    ]


def node(*card_infos: CardInfo, single: bool = False, **fields: Any) -> Fleet:
    made = Fleet()
    add(made, node_info("node"), inventory(*card_infos, mig_single=single, **fields))
    return made


def ids(of: Fleet, wanted: PodRequest | dict[str, int], policy: Policy = PACKED) -> list[str]:
    """Return the ids that a pod would get; empty if it fits nowhere."""
    outcome = decide(of, waiting("pod", wanted), policy)
    return [each.id for each in outcome.grants] if isinstance(outcome, Placement) else []


def why(of: Fleet, wanted: dict[str, int], **fields: Any) -> str:
    outcome = decide(of, waiting("pod", asks(wanted, **fields)), Policy())
    assert isinstance(outcome, Failure), outcome
    return outcome.message.removeprefix("0/1 nodes are available: 1 ").removesuffix(".")


# --- replicas ---------------------------------------------------------------------------------------------------


FOUR, FOURS = [sliced(0, 4)], [sliced(0, 4), sliced(1, 4)]
OF_1 = [f"GPU-1::{number}" for number in range(4)]
FIVE = ["GPU-1::2", "GPU-0::0", "GPU-1::3", "GPU-0::1", "GPU-0::2"]
FIVE_SPREAD = ["GPU-0::0", "GPU-1::2", "GPU-0::1", "GPU-1::3", "GPU-0::2"]

SLICES: dict[str, tuple[list[CardInfo], list[Grant], int, list[str], list[str] | None]] = {
    "the lowest number": (FOUR, [], 1, ["GPU-0::0"], ["GPU-0::0"]),
    "the lowest free numbers": (FOUR, slices(0, 0, 2), 2, ["GPU-0::1", "GPU-0::3"], None),
    "the fullest or emptiest card": (FOURS, slices(1, 3), 1, ["GPU-1::0"], ["GPU-0::0"]),
    "several of a pod on different cards": (FOURS, slices(1, 0, 1), 2, FIVE[:2], FIVE_SPREAD[:2]),
    "and again on each, once all have given one": (FOURS, slices(1, 0, 1), 5, FIVE, FIVE_SPREAD),
    "too many": ([sliced(0, 2), sliced(1, 3)], [], 6, [], []),
    "no sliced card": ([card(0)], [], 1, [], []),
    "an unhealthy card": ([replace(sliced(0, 4), healthy=False)], [], 1, [], []),
    "the other card": (FOURS, [grant(0, **WHOLE)], 4, OF_1, None),
    "none of a card that is shared": (FOURS, [grant(0, ratio=1, memory=9)], 5, [], []),
}


@pytest.mark.parametrize(("card_infos", "held", "count", "packed", "spread"), SLICES.values(), ids=SLICES)
def test_which_slices_a_pod_gets(
    card_infos: list[CardInfo], held: list[Grant], count: int, packed: list[str], spread: list[str] | None
) -> None:
    made = node(*card_infos)
    made.charge(charge("holder", *held))
    assert ids(made, {REPLICAS: count}) == packed
    assert ids(made, {REPLICAS: count}, SPREAD) == (packed if spread is None else spread)


@pytest.mark.parametrize(
    ("name", "wanted", "expected"),
    [
        ("", NVIDIA, ["GPU-0::0"]),
        ("", REPLICAS, ["GPU-0::0"]),
        (NVIDIA, NVIDIA, ["GPU-0::0"]),
        (NVIDIA, REPLICAS, []),
        (REPLICAS, NVIDIA, []),
        (REPLICAS, REPLICAS, ["GPU-0::0"]),
        (REPLICAS, GPU, ["GPU-0"]),
    ],
)
def test_slices_are_had_by_the_name_by_which_kubelet_counts_them(name: str, wanted: str, expected: list[str]) -> None:
    assert ids(node(sliced(0, 4, replica_resource=name)), {wanted: 1}) == expected


def test_of_cards_under_both_names_each_pod_gets_its_own() -> None:
    made = node(sliced(0, 4, replica_resource=NVIDIA), sliced(1, 4, replica_resource=REPLICAS), card(2))
    several = asks({NVIDIA: 3}, annotations=SEVERAL)
    assert ids(made, {NVIDIA: 1}) == ["GPU-2"]
    assert ids(made, several) == ["GPU-0::0", "GPU-0::1", "GPU-0::2"]
    assert ids(made, {REPLICAS: 2}) == ["GPU-1::0", "GPU-1::1"]
    made.put_device("node", inventory(sliced(0, 4, replica_resource=REPLICAS), sliced(1, 4), card(2)))
    assert ids(made, several) == ["GPU-1::0", "GPU-1::1", "GPU-1::2"]
    assert ids(made, {REPLICAS: 2}) == ["GPU-0::0", "GPU-1::0"]


@pytest.mark.parametrize("number", [2, 3, 4, 7, 100])
def test_a_slice_is_charged_its_part_of_the_card(number: int) -> None:
    made = node(sliced(0, number))
    first = place(made, waiting("first", {REPLICAS: 1}))
    assert first.grants == tuple(slices(0, 0, of=number))
    assert len(ids(made, {REPLICAS: number - 1})) == number - 1
    assert ids(made, {REPLICAS: number}) == []


def test_slices_of_a_card_whose_minor_changed_stay_its_own() -> None:
    made = node(sliced(0, 2), sliced(1, 2))
    made.charge(charge("a", *slices(0, 0, of=2)))
    made.put_device("node", inventory(*(replace(each, minor=1 - each.minor) for each in (sliced(0, 2), sliced(1, 2)))))
    assert made.charges["uid-a"].grants[0].minor == 1
    assert sorted(ids(made, {REPLICAS: 3})) == ["GPU-0::1", "GPU-1::0", "GPU-1::1"]


@pytest.mark.parametrize("wanted", [{NVIDIA: 1}, {GPU: 100}, {GPU: 10}, {SHARED: 1, MEMORY: 1}], ids=str)
def test_a_sliced_card_is_one_like_any_other_until_a_slice_is_held(wanted: dict[str, int]) -> None:
    made = node(sliced(0, 2), sliced(1, 2))
    made.charge(charge("a", *slices(0, 0, of=2)))
    made.charge(charge("b", grant(1, core=50, ratio=50, memory=A100_BYTES // 2)))
    expected = {NVIDIA: ["GPU-0::1"], GPU: ["GPU-1"], SHARED: ["GPU-1"]}[next(iter(wanted))]
    assert ids(made, wanted) == ([] if wanted == {GPU: 100} else expected)
    made.release("uid-b")
    assert ids(made, {GPU: 100}) == ["GPU-1"]


POLICIES = [Policy(), SPREAD, Policy(card_strategy="MostAllocated")]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each.card_strategy)
@pytest.mark.parametrize("wanted", [{GPU: 100}, {GPU: 10}, {SHARED: 2, MEMORY: 2}, {GPU: 200}], ids=str)
def test_plain_cards_are_taken_before_sliced_ones_are_broken_up(wanted: dict[str, int], policy: Policy) -> None:
    count = 2 if wanted in ({GPU: 200}, {SHARED: 2, MEMORY: 2}) else 1
    made = node(sliced(0, 4), card(1), sliced(2, 4), card(3))
    chosen = ids(made, wanted, policy)
    assert len(chosen) == count
    assert set(chosen) <= {"GPU-1", "GPU-3"}
    made.charge(charge("a", grant(1, **WHOLE)))
    made.charge(charge("b", grant(3, **WHOLE)))
    assert ids(made, wanted, policy) == ["GPU-0", "GPU-2"][:count]


def test_a_sliced_card_that_is_broken_up_already_is_filled() -> None:
    made = node(sliced(0, 4), sliced(1, 4))
    made.charge(charge("a", grant(1, core=10, ratio=10, memory=A100_BYTES // 10)))
    assert ids(made, {GPU: 10}, SPREAD) == ["GPU-1"]


@pytest.mark.parametrize("wanted", [{GPU: 100}, {GPU: 50}, {GPU: 200}], ids=str)
def test_nodes_with_plain_cards_come_before_those_with_sliced_ones(wanted: dict[str, int]) -> None:
    made = fleet({"sliced": (sliced(0, 4), sliced(1, 4)), "mixed": (sliced(0, 4), card(1)), "plain": cards(2)})
    assert place(made, waiting("a", wanted)).node == ("plain" if wanted == {GPU: 200} else "mixed")
    made.remove_device("plain")
    made.remove_device("mixed")
    assert place(made, waiting("b", wanted)).node == "sliced"


# --- slots ------------------------------------------------------------------------------------------------------


TWOS, THREES = [sliced(0, 2), sliced(1, 2)], [divided(0, *THREE), divided(1, *THREE)]
SLICE_AND_CARD, MIG_AND_CARD = [sliced(0, 2), card(1)], [divided(0, *THREE), card(1)]
OF_TWO = ["GPU-0::0", "GPU-1::0"]
BY_INSTANCE = ["MIG-1-0", "MIG-0-0", "MIG-1-2"]

SLOTS: dict[str, tuple[Sequence[CardInfo], bool, list[Grant], int, list[str]]] = {
    "cards": (cards(2), False, [], 2, ["GPU-0", "GPU-1"]),
    "slices of several cards": (TWOS, False, [], 2, OF_TWO),
    "no two slices of one card": (TWOS, False, [], 3, []),
    "slices and a card are not alike": (SLICE_AND_CARD, False, [], 3, []),
    "cards before slices": ([*SLICE_AND_CARD, card(2)], False, [], 2, ["GPU-1", "GPU-2"]),
    "slices if cards are few": ([*TWOS, card(2)], False, [], 2, OF_TWO),
    "sizes": ([sliced(0, 2), sliced(1, 4), sliced(2, 4)], False, [], 2, ["GPU-1::0", "GPU-2::0"]),
    "a card that is shared is no slot": (SLICE_AND_CARD, False, [grant(1, core=1)], 3, []),
    "instances of several cards": (THREES, True, [instance(1, 1)], 3, BY_INSTANCE),
    "under mixed instances are no slots": (MIG_AND_CARD, False, [], 1, ["GPU-1"]),
    "under mixed only cards are": (MIG_AND_CARD, False, [], 2, []),
    "under mixed only cards and slices are": ([divided(0, *THREE), sliced(1, 2)], False, [], 3, []),
    "no instance of a card that is shared": ([divided(0, *THREE)], True, [grant(0, core=1)], 1, []),
    "single, and no card in MIG mode": ([card(0), card(1)], True, [], 2, ["GPU-0", "GPU-1"]),
}


@pytest.mark.parametrize(("card_infos", "single", "held", "count", "expected"), SLOTS.values(), ids=SLOTS)
def test_the_device_defines_what_one_gpu_is(
    card_infos: list[CardInfo], held: list[Grant], count: int, expected: list[str], *, single: bool
) -> None:
    made = node(*card_infos, single=single)
    made.charge(charge("holder", *held))
    assert ids(made, {NVIDIA: count}) == expected


def test_several_slices_of_one_card_are_for_pods_that_say_so() -> None:
    several = asks({NVIDIA: 3}, annotations=SEVERAL)
    assert ids(node(*TWOS), several) == ["GPU-0::0", "GPU-1::0", "GPU-0::1"]
    for rule in ("last", "equal"):
        assert ids(node(*TWOS), asks({NVIDIA: 3}, annotations={names.GPU_SUBDEVICES: rule})) == []
        assert ids(node(*TWOS), {NVIDIA: 3}, Policy(subdevices=rule)) == []
    mixed = {names.MIXED_GPUS: "true"}
    assert len(ids(node(sliced(0, 2), sliced(1, 4), card(2)), asks({NVIDIA: 3}, annotations=mixed))) == 3
    assert ids(node(sliced(0, 2), sliced(1, 4), card(2)), asks({NVIDIA: 4}, annotations=mixed)) == []


def test_a_slot_is_recorded_as_what_it_is() -> None:
    assert place(node(sliced(0, 4)), waiting("a", {NVIDIA: 1})).grants == tuple(slices(0, 0))
    assert place(node(divided(0, *THREE), single=True), waiting("a", {NVIDIA: 1})).grants == (instance(0, 0),)
    assert place(node(card(0)), waiting("a", {NVIDIA: 1})).grants == (grant(0, **WHOLE),)


def test_cards_of_other_nodes_are_chosen_as_if_no_card_were_sliced() -> None:
    plain = fleet({f"node-{i}": cards(8) for i in range(4)})
    mixed = fleet({**{f"node-{i}": cards(8) for i in range(4)}, "other": (sliced(0, 4),)})
    mixed.charge(charge("other", *slices(0, 0, 1, 2, 3), node="other"))
    for number in (1, 4, 2, 8, 1, 3):
        pods = [waiting(f"pod-{number}-{len(plain.charges)}", {NVIDIA: number}) for _ in range(2)]
        first, second = place(plain, pods[0]), place(mixed, pods[1])
        assert (first.node, first.grants) == (second.node, second.grants)


def test_cards_of_other_nodes_are_asked_what_cards_can_answer() -> None:
    linked = tuple(card(minor, links=((1 - minor, 500),)) for minor in range(2))
    made = fleet({"cards": linked, "sliced": (sliced(0, 4), sliced(1, 4))})
    wanted = asks({NVIDIA: 2}, annotations={names.GPU_TOPOLOGY: "nvlink"})
    assert ids(made, wanted) == ["GPU-0", "GPU-1"]
    made.remove_device("cards")
    assert ids(made, wanted) == []
    assert ids(made, asks({REPLICAS: 2}, annotations={names.GPU_TOPOLOGY: "nvlink"})) == ["GPU-0::0", "GPU-0::1"]


ON_BOTH, ON_FIRST = ["GPU-0::0", "GPU-1::0", "GPU-0::1"], ["GPU-0::0", "GPU-0::1", "GPU-0::2"]


@pytest.mark.parametrize(
    ("level", "places", "expected", "most"),
    [
        pytest.param("numa", (0, 0, 1), ON_BOTH, "on one NUMA node (at most 6 of 7)", id="numa"),
        pytest.param("numa", (0, -1, -1), ON_FIRST, "on one NUMA node (at most 3 of 7)", id="unknown places"),
        pytest.param("pcie", (0, 0, 1), ON_BOTH, "one PCIe switch (at most 6 of 7)", id="pcie"),
        pytest.param("nvlink", (0, 0, 0), ON_FIRST, "in one device (at most 3 of 7)", id="NVLink: of one card"),
    ],
)
def test_subdevices_lie_within_the_requested_locality(
    level: str, places: Sequence[int], expected: list[str], most: str
) -> None:
    places_: list[Any] = [{"numa": at, "pcie": str(at) if at >= 0 else ""} for at in places]
    made = node(*(replace(sliced(i, 3), **each) for i, each in enumerate(places_)))
    required = {names.GPU_TOPOLOGY: level}
    assert ids(made, asks({REPLICAS: 3}, annotations=required)) == expected
    assert ids(made, asks({NVIDIA: 3}, annotations=required)) == []
    preferred = {**required, names.GPU_TOPOLOGY_POLICY: "preferred"}
    for name in (REPLICAS, NVIDIA):
        assert ids(made, asks({name: 3}, annotations=preferred)) == ["GPU-0::0", "GPU-1::0", "GPU-2::0"]
    outcome = decide(made, waiting("pod", asks({REPLICAS: 7}, annotations=required)), Policy())
    assert isinstance(outcome, Failure)
    assert most in outcome.message


def hint(**fields: Any) -> dict[str, str]:
    return {names.ALLOCATE_HINT: orjson.dumps({"gpu": fields}).decode()}


@pytest.mark.parametrize("single", [pytest.param(False, id="slices"), pytest.param(True, id="instances")])
@pytest.mark.parametrize(
    ("annotations", "minors", "words"),
    [
        pytest.param(
            hint(selector={"matchLabels": {"x": "y"}}), {1, 2}, "match the pod's device selector", id="selector"
        ),
        pytest.param({names.MIN_GPU_MEMORY: "10Gi"}, {0, 1}, "with 10Gi of memory", id="size of the subdevice"),
        pytest.param(hint(exclusivePolicy="DeviceLevel"), {0, 2}, "exclusivePolicy", id="exclusive"),
    ],
)
def test_subdevices_are_of_cards_that_the_pod_accepts(
    annotations: dict[str, str], minors: set[int], words: str, *, single: bool
) -> None:
    there = [divided(minor, "1g.10gb", "1g.10gb") if single else sliced(minor, 2) for minor in range(3)]
    labelled = [each if each.minor == 0 else replace(each, labels=(("x", "y"),)) for each in there]
    small = tuple((name, GI if name == "gpu-memory" else amount) for name, amount in labelled[2].amounts)
    memory = tuple((name, GI) for name, _ in labelled[2].instance_memory)
    made = node(*labelled[:2], replace(labelled[2], amounts=small, instance_memory=memory), single=single)
    mate = instance(1, 0) if single else slices(1, 0, of=2)[0]
    alone = "exclusivePolicy" in str(annotations)
    made.charge(charge("mate", *([replace(mate, exclusive="DeviceLevel")] if alone else [])))
    count = 2 if minors == {0} else 4
    annotations = {**annotations, **SEVERAL}
    outcome = decide(made, waiting("pod", asks({NVIDIA: count}, annotations=annotations)), Policy())
    assert isinstance(outcome, Placement)
    assert {each.minor for each in outcome.grants} == minors
    assert {each.exclusive for each in outcome.grants} == ({"DeviceLevel"} if alone else {""})
    failed = decide(made, waiting("pod", asks({NVIDIA: count + 1}, annotations=annotations)), Policy())
    assert isinstance(failed, Failure)
    assert words in failed.message


# --- why not ----------------------------------------------------------------------------------------------------


NEITHER = "too few GPUs that are neither sliced nor in MIG mode (1 requested)"
AS_GPUS, NOT_AS_GPUS = sliced(0, 4, replica_resource=NVIDIA), sliced(0, 4, replica_resource=REPLICAS)
THREE_INSTANCES = node(divided(0, *THREE), single=True)


@pytest.mark.parametrize(
    ("made", "wanted", "words"),
    [
        pytest.param(node(card(0)), {REPLICAS: 1}, f"no {REPLICAS}", id="no slices"),
        pytest.param(node(AS_GPUS), {REPLICAS: 1}, f"no {REPLICAS}", id="slices are GPUs"),
        pytest.param(node(NOT_AS_GPUS), {NVIDIA: 1}, NEITHER, id="slices are no GPUs"),
        pytest.param(
            node(*FOUR), {REPLICAS: 5}, f"too few {REPLICAS} (5 requested, at most 4 on a node)", id="too few slices"
        ),
        pytest.param(
            node(*FOUR), {NVIDIA: 5}, f"too few {NVIDIA} (5 requested, at most 4 on a node)", id="too few slots"
        ),
        pytest.param(
            node(card(0)), {NVIDIA: 2}, "too few healthy GPUs (2 requested, at most 1 on a node)", id="too few cards"
        ),
        pytest.param(
            THREE_INSTANCES, {NVIDIA: 4}, f"too few {NVIDIA} (4 requested, at most 3 on a node)", id="too few instances"
        ),
    ],
)
def test_why_there_is_no_slot(made: Fleet, wanted: dict[str, int], words: str) -> None:
    assert why(made, wanted) == f"node(s) have {words}"


@pytest.mark.parametrize("name", [REPLICAS, NVIDIA])
def test_the_most_that_is_free_is_reported(name: str) -> None:
    made = node(*FOUR)
    made.charge(charge("a", *slices(0, 0)))
    assert why(made, {name: 4}, annotations=SEVERAL) == f"node(s) have too few free {name} (at most 3 of 4)"


ONE_OF_EACH = (
    "node(s) have too few GPUs for one slice of each (2 requested; "
    "annotation berth.dev/gpu-subdevices: only allows several slices of one GPU)"
)


@pytest.mark.parametrize(
    ("card_infos", "held", "words"),
    [
        pytest.param(FOUR, [], ONE_OF_EACH, id="the node has one sliced card"),
        pytest.param(FOURS, slices(1, 0, 1, 2, 3), ONE_OF_EACH, id="one card has free slices"),
        pytest.param(
            FOURS,
            [*slices(0, 0, 1, 2), *slices(1, 0, 1, 2, 3)],
            f"node(s) have too few free {NVIDIA} (at most 1 of 2)",
            id="one slice is free",
        ),
    ],
)
def test_why_slices_of_one_card_are_not_enough(card_infos: list[CardInfo], held: list[Grant], words: str) -> None:
    made = node(*card_infos)
    made.charge(charge("holder", *held))
    assert why(made, {NVIDIA: 2}) == words


KUBELET, ONE = {"kubelet_chooses": True}, {"one_replica": True}
CHOSEN = (
    "node(s) let kubelet choose the slices, maybe of one GPU (2 requested; agent.devicePlugin: true lets Berth choose, "
    "annotation berth.dev/gpu-subdevices: only allows several slices of one GPU)"
)
REFUSED = "node(s) refuse containers with several slices (2 requested; failRequestsGreaterThanOne of the device plugin)"


@pytest.mark.parametrize(
    ("card_infos", "choice", "wanted", "annotations", "expected"),
    [
        pytest.param(FOURS, KUBELET, {NVIDIA: 2}, {}, CHOSEN, id="kubelet chooses"),
        pytest.param(FOUR, KUBELET, {NVIDIA: 2}, {}, ONE_OF_EACH, id="and there is one card"),
        pytest.param(FOURS, KUBELET, {NVIDIA: 1}, {}, 1, id="one slice"),
        pytest.param(FOURS, KUBELET, {NVIDIA: 2}, SEVERAL, 2, id="the annotation"),
        pytest.param(FOURS, KUBELET, {REPLICAS: 2}, {}, 2, id="slices by their own name"),
        pytest.param([card(0), card(1)], KUBELET, {NVIDIA: 2}, {}, 2, id="whole cards"),
        pytest.param(FOURS, ONE, {NVIDIA: 2}, {}, REFUSED, id="the plugin refuses several"),
        pytest.param(FOURS, ONE, {NVIDIA: 2}, SEVERAL, REFUSED, id="whatever the annotation is"),
        pytest.param(FOURS, ONE, {REPLICAS: 2}, {}, REFUSED, id="by any name"),
        pytest.param(FOURS, ONE, {NVIDIA: 1}, {}, 1, id="but not one"),
        pytest.param([card(0), card(1)], ONE, {NVIDIA: 2}, {}, 2, id="nor whole cards"),
    ],
)
def test_who_chooses_the_slices(
    card_infos: list[CardInfo],
    choice: dict[str, bool],
    wanted: dict[str, int],
    annotations: dict[str, str],
    expected: str | int,
) -> None:
    made, request = node(*card_infos, **choice), asks(wanted, annotations=annotations)
    if isinstance(expected, int):
        assert len(ids(made, request)) == expected
        return
    assert why(made, wanted, annotations=annotations) == expected
    # No eviction would help.
    assert not BUILT_IN.could_pass(made, request)[made.rows["node"]]


def test_the_device_plugin_counts_the_slices_of_each_container() -> None:
    made = node(*FOURS, **ONE)
    of_one = asks({NVIDIA: 2})
    of_two = replace(of_one, shares=(Share(container="a", first=0, end=1), Share(container="b", first=1, end=2)))
    assert [len(ids(made, request)) for request in (of_one, of_two, of_one)] == [0, 2, 0]


# --- laws -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Draw a node's cards and its MIG strategy."""

    cards: tuple[CardInfo, ...]
    single: bool


RACKS = ((("rack", "a"),), (("rack", "a"),), (("rack", "b"),))
IN_RACK_A = hints(gpu={"selector": {"matchLabels": {"rack": "a"}}})


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    single = draw(st.booleans())
    profiles = ["1g.10gb"] if single else ["1g.10gb", "3g.40gb"]
    card_infos = []
    for minor in range(draw(st.integers(1, 3))):
        instances = draw(st.lists(st.sampled_from(profiles), max_size=3))
        name = draw(st.sampled_from(REPLICA_NAMES))
        kinds = [card(minor), sliced(minor, draw(st.integers(2, 4)), replica_resource=name), divided(minor, *instances)]
        info = draw(st.sampled_from(kinds))
        numa, pcie = draw(st.integers(-1, 1)), draw(st.sampled_from(["", "s", "t"]))
        healthy, labels = info.healthy and draw(st.sampled_from([True, True, False])), draw(st.sampled_from(RACKS))
        card_infos.append(replace(info, numa=numa, pcie=pcie, healthy=healthy, labels=labels))
    return Machine(cards=tuple(card_infos), single=single)


REQUESTS = st.sampled_from(
    [
        *({name: count} for name in (MIG_1G, REPLICAS, NVIDIA) for count in (1, 2, 3, 5)),
        {MIG_1G: 1, MIG_3G: 1},
        {MIG_1G: 2, MIG_3G: 2},
        {GPU: 50},
        {GPU: 100},
    ]
)
CHANGES = st.lists(st.one_of(REQUESTS, REQUESTS, st.integers(0, 9), machines()), min_size=1, max_size=14)


def on_cards(of: Fleet) -> dict[int, list[Grant]]:
    """Return the grants of each card."""
    by_slot: dict[int, list[Grant]] = {}
    for each in of.charges.values():
        for held in each.grants:
            by_slot.setdefault(held.minor, []).append(held)
    return by_slot


def way(held: Grant) -> str:
    """Return in which way a card is used."""
    names = dict(held.amounts)
    if REPLICAS in names:
        return "sliced"
    if any("mig-" in name for name in names):
        return "MIG"
    return "whole" if names["gpu-memory-ratio"] == 100 else "shared"


def subdevices_of(info: CardInfo, held: list[Grant], ways: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (resource, id) of each free subdevice of a card."""
    total, taken, names = Counter(dict(info.amounts)), Counter[str](), {each.id for each in held}
    for each in held:
        taken.update(dict(each.amounts))
    if ways <= {"MIG"}:
        left = {name: total[name] - taken[name] for name in total}
        for uuid, name in info.instances:
            if uuid not in names and left[name] > 0:
                left[name] -= 1
                yield name, uuid
    if ways <= {"sliced"} and info.healthy and (number := total[REPLICAS]):
        for name in ("gpu-core", "gpu-memory", "gpu-memory-ratio", REPLICAS):
            number = min(number, (total[name] - taken[name]) // (total[name] // total[REPLICAS]))
        free = (f"{info.id}::{n}" for n in range(total[REPLICAS]))
        yield from ((REPLICAS, each) for each in itertools.islice((n for n in free if n not in names), max(number, 0)))


def could(of: Fleet, machine: Machine, wanted: dict[str, int], racks: set[str]) -> bool:
    """Return whether a node has what a pod requests, by simple counting: enough of one kind."""
    free: Counter[str] = Counter()
    units: Counter[tuple[str, str]] = Counter()
    held = on_cards(of)
    for info in (each for each in machine.cards if dict(each.labels)["rack"] in racks):
        here = held.get(info.minor, [])
        ways = set(map(way, here))
        mine = [name for name, _ in subdevices_of(info, here, ways)]
        is_sliced = REPLICAS in dict(info.amounts)
        whole = info.healthy and not here
        shares = ways <= {"shared"} and sum(dict(each.amounts)["gpu-core"] for each in here) <= 50
        free["half"] += info.healthy and shares
        free["whole"] += whole
        units[NVIDIA, "whole"] += whole and not is_sliced
        for number, name in enumerate(mine):
            if name == REPLICAS:
                kind = str(dict(info.amounts)[REPLICAS])
                resources = {NVIDIA, REPLICAS} if not info.replica_resource else {info.replica_resource}
                # A pod gets one slice of a card by the name of whole cards.
                units.update((each, kind) for each in resources if each == REPLICAS or number == 0)
            else:
                free[NVIDIA if machine.single else name] += 1
    for (name, _), most in units.items():
        free[name] = max(free[name], most)
    names = {(GPU, 50): "half", (GPU, 100): "whole"}
    return all(free[names.get((name, count), name)] >= (1 if name == GPU else count) for name, count in wanted.items())


def state(of: Fleet) -> Any:
    gpus, row = of.cards["gpu"], of.rows["node"]
    return gpus.used[:, row].tolist(), gpus.users[row].tolist(), dict(gpus.taken)


@settings(max_examples=60, deadline=None)
@given(
    machine=machines(),
    changes=CHANGES,
    policy=st.sampled_from([PACKED, SPREAD, Policy(card_strategy="MostAllocated")]),
    picky=st.booleans(),
)
def test_what_is_given_agrees_with_trying_everything(
    machine: Machine, changes: list[dict[str, int] | int | Machine], policy: Policy, *, picky: bool
) -> None:
    made = node(*machine.cards, single=machine.single)
    for number, each in enumerate(changes):
        if isinstance(each, Machine):
            machine = each
            made.put_device("node", replace(inventory(*machine.cards), mig_single=machine.single))
        elif isinstance(each, int):
            made.release(f"uid-{each}")
        else:
            pod = waiting(str(number), asks(each, annotations=IN_RACK_A if picky else {}))
            tried(made, machine, pod, policy, each)


def tried(made: Fleet, machine: Machine, pod: PendingPod, policy: Policy, wanted: dict[str, int]) -> None:
    before, held = state(made), on_cards(made)
    outcome = decide(made, pod, policy)
    picks = {"a", "b"} if pod.request.devices.parts[0].selector == EVERYTHING else {"a"}
    assert isinstance(outcome, Placement) is could(made, machine, wanted, picks)
    if isinstance(outcome, Failure):
        assert "0/1" in outcome.message
        assert outcome.reasons, outcome
        return
    assert len(outcome.grants) == (1 if GPU in wanted else sum(wanted.values()))
    assert capacity.of_class(made, pod.request, feasible(made, pod.request))[made.rows["node"]] >= 1
    ids = [each.id for each in outcome.grants]
    assert len(ids) == len(set(ids))
    racks = {info.minor: dict(info.labels)["rack"] for info in machine.cards}
    for each in outcome.grants:
        assert racks[each.minor] in picks
        others = held.get(each.minor, [])
        assert not each.is_subdevice or each.id not in {other.id for other in others}
        assert {way(other) for other in others} <= {way(each)} - {"whole"}
    if NVIDIA in wanted:
        cards_of_slices = [each.minor for each in outcome.grants if way(each) == "sliced"]
        assert len(cards_of_slices) == len(set(cards_of_slices))
    if NVIDIA in wanted or REPLICAS in wanted:
        assert len({(way(each), each.amounts) for each in outcome.grants}) == 1
    made.charge(outcome.charge)
    made.release(pod.uid)
    assert state(made) == before
    made.charge(outcome.charge)
