"""MIG instances: which are free, which a pod gets, and that no card is ever used in two ways at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_api.request.model import of_pod
from berth_operator.core import allocators
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import nominated_fit, preempt
from berth_operator.core.fleet.arrays.column_cache import ALL
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import Membership
from tests.objects.builders import (
    A100,
    A100_BYTES,
    CORE,
    NVIDIA,
    RATIO,
    add,
    asks,
    card,
    charge,
    divided,
    fleet,
    gang,
    grant,
    instance,
    inventory,
    node_info,
    place,
    sliced,
    waiting,
)
from tests.unit.core.allocators.test_slices import MIG_1G, MIG_3G, PACKED, SEVERAL, ids, node, why

SEVEN = ("1g.10gb",) * 7
SPREAD = Policy(card_strategy="LeastAllocated")
WHOLE: Any = {"core": 100, "ratio": 100, "memory": A100_BYTES}


def holding(cards: Sequence[CardInfo], *held: tuple[int, int] | tuple[int, int, str]) -> Fleet:
    """Return a node with these instances in use."""
    made = fleet({"node": cards})
    for number, each in enumerate(held):
        made.charge(charge(f"holder-{number}", instance(*each)))
    return made


# --- slices of instances -----------------------------------------------------------------------------------------


def sliced_instances(instances: int, resource: str = "nvidia.com/mig-1g.10gb") -> CardInfo:
    """Return a card whose MIG instances have two time slices each."""
    listed = tuple((f"MIG-0-{number}::{turn}", resource) for turn in range(2) for number in range(instances))
    return replace(divided(0, *SEVEN[:instances]), instances=listed, amounts=((resource, len(listed)),))


ONE_OF_EACH = "node(s) have too few MIG instances for one slice of each (2 requested; annotation "
BY_KUBELET = "node(s) let kubelet choose the slices, maybe of one MIG instance (2 requested; "
STRATEGIES = pytest.mark.parametrize(("name", "single"), [(MIG_1G, False), (NVIDIA, True)], ids=["mixed", "single"])


@STRATEGIES
@pytest.mark.parametrize(
    ("instances", "held", "annotations", "chooses", "expected"),
    [
        pytest.param(2, [], {}, False, ["MIG-0-0::0", "MIG-0-1::0"], id="a slice of each"),
        pytest.param(2, ["MIG-0-1::0"], {}, False, ["MIG-0-0::0", "MIG-0-1::1"], id="another slice of each"),
        pytest.param(2, ["MIG-0-1::0", "MIG-0-1::1"], {}, False, ONE_OF_EACH, id="one instance has free slices"),
        pytest.param(1, [], {}, False, ONE_OF_EACH, id="one instance"),
        pytest.param(1, [], SEVERAL, False, ["MIG-0-0::0", "MIG-0-0::1"], id="a pod that accepts several of one"),
        pytest.param(2, [], {}, True, BY_KUBELET, id="kubelet chooses"),
        pytest.param(
            2, [], SEVERAL, True, ["MIG-0-0::0", "MIG-0-1::0"], id="kubelet chooses, and several are accepted"
        ),
    ],
)
def test_a_pod_gets_one_slice_of_each_instance(
    instances: int,
    held: list[str],
    annotations: dict[str, str],
    name: str,
    *,
    chooses: bool,
    single: bool,
    expected: list[str] | str,
) -> None:
    made = node(sliced_instances(instances), kubelet_chooses=chooses, single=single)
    made.charge(charge("other", *(replace(instance(), id=uuid) for uuid in held)))
    outcome = decide(made, waiting("pod", asks({name: 2}, annotations=annotations)), Policy())
    if isinstance(outcome, Failure):
        assert isinstance(expected, str)
        assert expected in outcome.message
    else:
        assert sorted(grant.id for grant in outcome.grants) == expected


@STRATEGIES
@pytest.mark.parametrize(
    ("count", "held", "annotations", "chooses", "expected"),
    [
        pytest.param(2, [], {}, False, {"MIG-0-0", "MIG-0-1"}, id="a slice of each"),
        pytest.param(1, ["MIG-0-0::0"], {}, False, {"MIG-0-1"}, id="none of what a member has"),
        pytest.param(
            3, [], {}, False, "MIG instances of which no other member of the pod group", id="too many members"
        ),
        pytest.param(3, [], SEVERAL, False, {"MIG-0-0", "MIG-0-1"}, id="members that accept slices of one"),
        pytest.param(1, [], {}, True, {"MIG-0-0"}, id="kubelet chooses for one"),
        pytest.param(2, [], {}, True, "maybe of one MIG instance (1 requested; ", id="kubelet chooses for two"),
        pytest.param(
            1, ["MIG-0-0::0"], {}, True, "maybe of one MIG instance (1 requested; ", id="kubelet chooses for another"
        ),
    ],
)
def test_members_of_a_gang_get_slices_of_different_instances(
    count: int,
    held: list[str],
    annotations: dict[str, str],
    name: str,
    *,
    chooses: bool,
    single: bool,
    expected: set[str] | str,
) -> None:
    made = node(sliced_instances(2), kubelet_chooses=chooses, single=single)
    of = Membership(group="ns/g")
    for number, uuid in enumerate(held):
        made.charge(charge(f"held{number}", replace(instance(), id=uuid), gang=of))
    members = [waiting(f"m{number}", asks({name: 1}, annotations=annotations), gang=of) for number in range(count)]
    uids = tuple(f"uid-held{number}" for number in range(len(held)))
    unit = gang(*members, minimum=count + len(held), placed=len(held), held=uids, nodes=("node",) * len(held))
    outcome = decide_gang(made, unit, Policy())
    if isinstance(outcome, Failure):
        assert isinstance(expected, str)
        assert expected in outcome.message
    else:
        ids_of = [grant.id for placement in outcome for grant in placement.grants]
        assert len(set(ids_of)) == count
        assert {uuid.partition("::")[0] for uuid in ids_of} == expected
    # Nothing of it is left for pods of no gang.
    assert isinstance(decide(made, waiting("pod", asks({name: 1})), Policy()), Placement)


def test_instances_that_are_not_sliced_are_given_where_kubelet_chooses_the_slices_of_others() -> None:
    card = divided(0, "3g.40gb", "1g.10gb")
    (whole, _), (_, small) = card.instances
    listed = ((whole, MIG_3G), (f"{whole}x::0", small), (f"{whole}x::1", small))
    mixed = replace(card, instances=listed, amounts=((MIG_3G, 1), (small, 2)))
    made = node(mixed, replace(mixed, minor=1, instances=((f"{whole}y", MIG_3G), *listed[1:])), kubelet_chooses=True)
    assert isinstance(decide(made, waiting("pod", asks({MIG_3G: 2})), Policy()), Placement)
    request = asks({MIG_3G: 1})
    assert allocators.subdevices_apart(made, request, request.devices.parts[0], ALL).sum() == 2


@STRATEGIES
@pytest.mark.parametrize(("annotations", "chooses", "members"), [({}, False, 2), ({}, True, 1), (SEVERAL, True, 4)])
def test_how_many_members_a_card_with_sliced_instances_has_room_for(
    annotations: dict[str, str], name: str, *, chooses: bool, single: bool, members: int
) -> None:
    made = node(sliced_instances(2), kubelet_chooses=chooses, single=single)
    request = asks({name: 1}, annotations=annotations)
    [part] = request.devices.parts
    assert allocators.subdevices_apart(made, request, part, ALL).sum() == members


@STRATEGIES
def test_a_pod_preempts_slices_of_different_instances(name: str, *, single: bool) -> None:
    made = node(sliced_instances(2), single=single)
    for number in range(2):
        held = [replace(instance(), id=f"MIG-0-{number}::{turn}") for turn in range(2)]
        made.charge(charge(f"low{number}", *held, priority=0))
    preemption = preempt(made, waiting("high", asks({name: 2}), priority=9), Policy(), Budgets())
    assert preemption is not None
    assert {victim.uid for victim in preemption.victims} == {"uid-low0", "uid-low1"}


def test_slices_of_an_instance_that_have_a_name_of_their_own_are_not_restricted() -> None:
    shared = f"{MIG_1G}.shared"
    assert ids(node(sliced_instances(1, shared)), {shared: 2}) == ["MIG-0-0::0", "MIG-0-0::1"]


# --- which ------------------------------------------------------------------------------------------------------


def mig_ids(minor: int, *numbers: int) -> list[str]:
    return [f"MIG-{minor}-{number}" for number in numbers]


SEVENS = [divided(minor, *SEVEN) for minor in range(3)]
PAIRS = [divided(minor, *SEVEN[:2]) for minor in range(3)]
FIRST = ["MIG-0-0"]
ON_EACH = [f"MIG-{minor}-0" for minor in range(3)]
OF_ONE = [divided(0, "1g.10gb"), divided(1, "1g.10gb", "3g.40gb")]
OF_TWO = [divided(0, "1g.10gb"), divided(1, "3g.40gb")]
MEDIA = [divided(0, "1g.10gb+me")]
FULLER = [divided(0, *SEVEN[:3]), *SEVENS[1:]]

CHOICES: dict[str, tuple[list[CardInfo], list[tuple[int, int]], dict[str, int], list[str], list[str] | None]] = {
    "the first of the Device": (SEVENS[:1], [], {MIG_1G: 1}, FIRST, FIRST),
    "the free": (SEVENS[:1], [(0, 0), (0, 2)], {MIG_1G: 2}, mig_ids(0, 1, 3), None),
    "the lowest minor": ([SEVENS[1], SEVENS[0]], [], {MIG_1G: 1}, FIRST, FIRST),
    "a card in use before an idle one": (SEVENS[:2], [(1, 4)], {MIG_1G: 1}, ["MIG-1-0"], FIRST),
    "the fullest of those in use": (SEVENS, [(1, 0), (2, 0), (2, 1)], {MIG_1G: 1}, ["MIG-2-2"], FIRST),
    "several on one card, or on as many as there are": (SEVENS, [], {MIG_1G: 3}, mig_ids(0, 0, 1, 2), ON_EACH),
    "one card that has enough before two that are fuller": (
        FULLER,
        [(0, 0), (0, 1), (1, 0), (1, 1)],
        {MIG_1G: 4},
        mig_ids(1, 2, 3, 4, 5),
        None,
    ),
    "what is left of two cards before an idle one is begun": (
        PAIRS,
        [(0, 0), (1, 0)],
        {MIG_1G: 2},
        ["MIG-0-1", "MIG-1-1"],
        None,
    ),
    "where an idle card has to be begun it gives all": (
        SEVENS[:2],
        [(0, number) for number in range(5)],
        {MIG_1G: 3},
        mig_ids(1, 0, 1, 2),
        None,
    ),
    "several profiles of one card": (OF_ONE, [], {MIG_1G: 1, MIG_3G: 1}, mig_ids(1, 0, 1), None),
    "several profiles of two": (OF_TWO, [], {MIG_1G: 1, MIG_3G: 1}, ON_EACH[:2], ON_EACH[:2]),
    "too many": ([SEVENS[0], card(1)], [], {MIG_1G: 8}, [], []),
    "no card in MIG mode": ([card(0)], [], {MIG_1G: 1}, [], []),
    "no instances": ([divided(0)], [], {MIG_1G: 1}, [], []),
    "another profile": ([divided(0, "2g.20gb")], [], {MIG_1G: 1}, [], []),
    "another kind of the profile": (MEDIA, [], {MIG_1G: 1}, [], []),
    "with media engines": (MEDIA, [], {f"{MIG_1G}.me": 1}, FIRST, FIRST),
}


@pytest.mark.parametrize(("cards", "held", "wanted", "packed", "spread"), CHOICES.values(), ids=CHOICES)
def test_which_instances_a_pod_gets(
    cards: list[CardInfo],
    held: list[tuple[int, int]],
    wanted: dict[str, int],
    packed: list[str],
    spread: list[str] | None,
) -> None:
    made = holding(cards, *held)
    assert ids(made, wanted) == packed
    assert ids(made, wanted, Policy(card_strategy="MostAllocated")) == packed
    if spread is not None:
        assert ids(made, wanted, SPREAD) == spread


@pytest.mark.parametrize(
    ("policy", "node"),
    [
        pytest.param(PACKED, "b", id="the default"),
        pytest.param(Policy(weights=(("card-packing", 1.0),)), "b", id="MostAllocated"),
        pytest.param(Policy(weights=(("card-spreading", 1.0),)), "a", id="LeastAllocated"),
    ],
)
def test_nodes_in_use_are_filled_first_unless_the_policy_spreads(policy: Policy, node: str) -> None:
    made = fleet({name: (divided(0, *SEVEN), divided(1, *SEVEN)) for name in "abc"})
    made.charge(charge("b", instance(0, 0), instance(0, 1), node="b"))
    made.charge(charge("c", instance(0, 0), node="c"))
    outcome = decide(made, waiting("pod", {MIG_1G: 1}), policy)
    assert isinstance(outcome, Placement)
    assert outcome.node == node


def test_a_policy_that_spreads_takes_the_node_with_the_emptiest_card() -> None:
    made = fleet({name: (divided(0, *SEVEN), divided(1, *SEVEN)) for name in "ab"})
    made.charge(charge("a", *(instance(minor, number) for minor in (0, 1) for number in range(3)), node="a"))
    made.charge(charge("b", *(instance(0, number) for number in range(6)), node="b"))
    outcome = decide(made, waiting("pod", {MIG_1G: 1}), Policy(weights=(("card-spreading", 1.0),)))
    assert isinstance(outcome, Placement)
    assert outcome.node == "b"


def test_an_exclusive_pod_keeps_others_like_it_from_the_instances_of_its_card() -> None:
    made = fleet({"node": (divided(0, *SEVEN[:2]), divided(1, *SEVEN[:2]))})
    wanted = asks({MIG_1G: 1}, annotations={names.ALLOCATE_HINT: '{"gpu":{"exclusivePolicy":"DeviceLevel"}}'})
    assert place(made, waiting("a", wanted)).grants == (replace(instance(0, 0), exclusive="DeviceLevel"),)
    assert place(made, waiting("b", wanted)).grants == (replace(instance(1, 0), exclusive="DeviceLevel"),)
    outcome = decide(made, waiting("c", wanted), Policy())
    assert isinstance(outcome, Failure)
    assert "free of an exclusivePolicy (DeviceLevel requested)" in outcome.message
    assert ids(made, {MIG_1G: 2}) == ["MIG-0-1", "MIG-1-1"]


def test_a_row_that_does_not_pass_gives_nothing() -> None:
    made = fleet({"node": (divided(0, *SEVEN), sliced(1, 2))})
    for wanted in ({MIG_1G: 8}, {"nvidia.com/gpu.shared": 3}):
        with pytest.raises(LookupError, match="does not pass"):
            Policy().choose(made, made.rows["node"], asks(wanted))


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        pytest.param("", ["MIG-0-0", "MIG-1-0"], id="anywhere"),
        pytest.param("PCIe", ["MIG-1-0", "MIG-2-0"], id="under one switch"),
        pytest.param("Device", [], id="of one card"),
    ],
)
def test_all_profiles_of_a_pod_lie_within_one_scope(scope: str, expected: list[str]) -> None:
    cards = [divided(0, "1g.10gb"), divided(1, "3g.40gb"), divided(2, "1g.10gb")]
    made = fleet({"node": tuple(replace(each, pcie=at) for each, at in zip(cards, "abb", strict=True))})
    wanted = asks(
        {MIG_1G: 1, MIG_3G: 1}, annotations={names.ALLOCATE_HINT: f'{{"gpu":{{"requiredTopologyScope":"{scope}"}}}}'}
    )
    outcome = decide(made, waiting("pod", wanted), Policy())
    assert sorted(each.id for each in getattr(outcome, "grants", ())) == expected
    if scope == "Device":
        assert isinstance(outcome, Failure)
        assert "too few free devices for the whole pod in one device" in outcome.message


def test_a_pod_whose_allocation_is_unknown_may_hold_any_instance() -> None:
    made = holding([divided(0, *SEVEN)])
    made.charge(Charge(uid="u", pod="ns/u", node="node", unknown=("gpu",)))
    assert ids(made, {MIG_1G: 1}) == []
    assert why(made, {MIG_1G: 1}) == "node(s) have pods whose GPU allocation is unknown"


# --- changes of the Device ---------------------------------------------------------------------------------------


def test_what_is_held_counts_by_name_whatever_was_recorded() -> None:
    made = fleet({"node": (divided(0, "1g.10gb"), divided(1, "2g.20gb"))})
    # Recorded when the names belonged to another card, and to another profile.
    made.charge(charge("a", replace(instance(0, 0, "7g.80gb"), id="MIG-1-0")))
    assert made.charges["uid-a"].grants == (replace(instance(1, 0, "2g.20gb"), parent="GPU-0"),)
    assert ids(made, {"nvidia.com/mig-2g.20gb": 1}) == []
    assert ids(made, {MIG_1G: 1}) == ["MIG-0-0"]


def test_minors_that_changed_with_a_restart_move_what_is_held() -> None:
    cards = [divided(0, *SEVEN[:2]), divided(1, *SEVEN[:2])]
    made = holding(cards, (0, 0))
    made.put_device("node", inventory(*(replace(each, minor=1 - each.minor) for each in cards)))
    assert made.charges["uid-holder-0"].grants[0].minor == 1
    assert sorted(ids(made, {MIG_1G: 3})) == ["MIG-0-1", "MIG-1-0", "MIG-1-1"]
    made.release("uid-holder-0")
    assert not made.cards["gpu"].used.any()
    assert not made.cards["gpu"].taken


def test_an_instance_that_is_gone_and_still_held_leaves_capacity_for_the_others() -> None:
    made = holding([divided(0, *SEVEN)], (0, 6))
    made.put_device("node", inventory(divided(0, *SEVEN[:3])))
    # Three are there and one is held that is not: its pod may yet turn out to have one of them.
    assert ids(made, {MIG_1G: 2}) == ["MIG-0-0", "MIG-0-1"]
    assert ids(made, {MIG_1G: 3}) == []


# --- why not ----------------------------------------------------------------------------------------------------


BOTH = [divided(0, "1g.10gb", "3g.40gb")]
NO_SHARE = "too few GPUs that are not in MIG mode (1 requested)"
NO_CARDS = "too few GPUs that are not in MIG mode (2 requested)"


@pytest.mark.parametrize(
    ("cards", "held", "wanted", "words"),
    [
        pytest.param([card(0)], [], {MIG_1G: 1}, f"no {MIG_1G}", id="none"),
        pytest.param(SEVENS[:1], [], {MIG_1G: 8}, f"too few {MIG_1G} (8 requested, at most 7 on a node)", id="too few"),
        pytest.param(SEVENS[:1], [(0, 0)], {MIG_1G: 7}, f"too few free {MIG_1G} (at most 6 of 7)", id="too few free"),
        pytest.param(
            BOTH,
            [(0, 1, "3g.40gb")],
            {MIG_1G: 1, MIG_3G: 1},
            f"too few free {MIG_3G} (at most 0 of 1)",
            id="the second of two profiles",
        ),
        pytest.param(SEVENS[:2], [], {CORE: 25, RATIO: 25}, NO_SHARE, id="a share"),
        pytest.param([SEVENS[0], card(1)], [], {CORE: 200, RATIO: 200}, NO_CARDS, id="whole cards"),
    ],
)
def test_why_there_is_no_instance(
    cards: list[CardInfo], held: list[tuple[int, int]], wanted: dict[str, int], words: str
) -> None:
    assert why(holding(cards, *held), wanted) == f"node(s) have {words}"


def test_a_model_that_is_not_accepted_has_no_instances() -> None:
    made = holding([divided(0, *SEVEN)])
    reason = why(made, {MIG_1G: 1}, model=of_pod({"berth.dev/gpu-model": "*H100*"}, {}))
    assert reason == f"node(s) have too few {MIG_1G} on GPUs of model *H100* (1 requested; models: {A100})"


def test_under_strategy_single_there_are_no_profiles() -> None:
    made = Fleet()
    add(made, node_info("node"), replace(inventory(divided(0, *SEVEN)), mig_single=True))
    assert why(made, {MIG_1G: 1}).startswith("node(s) use MIG strategy single")
    add(made, node_info("other"), inventory(divided(0, *SEVEN[:3])))
    # What the first node has cannot be requested by this name.
    assert f"1 node(s) have too few {MIG_1G} (8 requested, at most 3 on a node)" in why(made, {MIG_1G: 8})


# --- other uses of the same filters ----------------------------------------------------------------------------


def test_a_pod_takes_the_very_instance_of_one_below_it() -> None:
    made = holding([divided(0, *SEVEN[:2]), divided(1, "3g.40gb")])
    made.charge(charge("low", instance(0, 1), priority=1))
    made.charge(charge("high", instance(0, 0), priority=9))
    made.charge(charge("elsewhere", instance(1, 0, "3g.40gb")))
    preemption = preempt(made, waiting("pod", {MIG_1G: 1}, priority=5), Policy(), Budgets())
    assert preemption is not None
    assert [each.pod for each in preemption.victims] == ["ns/low"]
    assert preemption.nominee.grants == (instance(0, 1),)
    assert made.cards["gpu"].taken[made.rows["node"]] == ("MIG-0-0", "MIG-0-1", "MIG-1-0")


def test_instances_of_pods_that_leave_already_are_taken_too() -> None:
    made = holding([divided(0, *SEVEN[:3])])
    made.charge(charge("going", instance(0, 2), terminating=True))
    made.charge(charge("low", instance(0, 0), instance(0, 1)))
    pod = waiting("pod", {MIG_1G: 3}, priority=5)
    preemption = preempt(made, pod, Policy(), Budgets())
    assert preemption is not None
    assert {each.id for each in preemption.nominee.grants} == {"MIG-0-0", "MIG-0-1", "MIG-0-2"}
    made.release("uid-low")
    found_again = nominated_fit(made, pod, Policy(), "node")
    assert found_again is not None
    assert [each.id for each in found_again.grants] == ["MIG-0-0", "MIG-0-1", "MIG-0-2"]


def test_a_whole_card_evicts_all_pods_that_share_it_and_none_that_holds_instances() -> None:
    made = holding([divided(0, *SEVEN), card(1)])
    made.charge(charge("mig", instance(0, 0)))
    made.charge(charge("share", grant(1, core=50, ratio=50, memory=A100_BYTES // 2)))
    preemption = preempt(made, waiting("pod", {NVIDIA: 1}, priority=5), Policy(), Budgets())
    assert preemption is not None
    assert [each.pod for each in preemption.victims] == ["ns/share"]
    made.release("uid-share")
    made.charge(charge("whole", grant(1, **WHOLE), priority=9))
    assert preempt(made, waiting("pod", {NVIDIA: 1}, priority=5), Policy(), Budgets()) is None


def test_the_members_of_a_gang_share_a_node_that_has_instances_for_all() -> None:
    made = Fleet()
    for name in "abc":
        add(made, node_info(name, labels={"kubernetes.io/hostname": name}), inventory(divided(0, *SEVEN)))
    made.charge(charge("other", *(instance(0, number) for number in range(4)), node="a"))
    outcome = decide_gang(made, gang(*(waiting(f"pod-{number}", {MIG_1G: 1}) for number in range(4))), Policy())
    assert not isinstance(outcome, Failure)
    assert len({each.node for each in outcome}) == 1
    assert outcome[0].node != "a"
