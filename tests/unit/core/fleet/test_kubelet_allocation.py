"""kubelet's allocations compared with annotations: charges, messages, and rewritten annotations."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import allocation, names
from berth_api.allocation import Grant
from berth_api.request import BUILT_IN, GpuVendor, Kinds
from berth_operator.core.decision import record
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import ActualAllocation, KubeletDevice, Mismatch
from berth_operator.core.values.charge import Charge
from tests.objects.builders import (
    A100_BYTES,
    T4,
    T4_BYTES,
    add,
    card,
    cards,
    charge,
    divided,
    fleet,
    grant,
    instance,
    inventory,
    node_info,
    other_card,
    replica,
    sliced,
)

WHOLE: Any = {"core": 100, "ratio": 100, "memory": A100_BYTES}
NVIDIA, SLICES, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"


def device(name: str) -> KubeletDevice:
    """Return a device by an id such as `GPU-3`, `GPU-3::1`, `MIG-3-0` and `rdma-1`."""
    kind, minor = name.replace("::", "-").split("-")[:2]
    return KubeletDevice(type="rdma" if kind == "rdma" else "gpu", minor=int(minor), id=name)


def gave(name: str, *ids: str, **containers: Sequence[str]) -> ActualAllocation:
    """Return what kubelet allocated to a pod."""
    containers_ = tuple((key, tuple(map(device, each))) for key, each in (containers or {"main": ids}).items())
    return ActualAllocation(uid=f"uid-{name}", pod=f"ns/{name}", node="node", containers=containers_)


def whole(name: str, *minors: int, **fields: Any) -> Charge:
    """Return the charge of a pod that requests whole cards from kubelet."""
    grants = [grant(minor, **WHOLE) for minor in minors]
    return charge(name, *grants, plugin_requests=((NVIDIA, len(minors)),), **fields)


def half(name: str, minor: int) -> Charge:
    return charge(
        name, grant(minor, core=50, ratio=50, memory=A100_BYTES // 2), plugin_requests=(("kubernetes.io/gpu", 50),)
    )


def little(name: str, minor: int, **fields: Any) -> Charge:
    """Return a pod that requests a card from kubelet, and whose annotation has a hundredth of it."""
    return charge(name, replace(grant(minor, core=1), **fields), plugin_requests=((NVIDIA, 1),))


def foreign_pod(name: str, wanted: int = 1) -> Charge:
    """Return a pod of another scheduler, without an allocation annotation."""
    return charge(name, plugin_requests=((NVIDIA, wanted),), unknown=("gpu",))


def replicas(name: str, *ids: tuple[int, int]) -> Charge:
    made = node(sliced(0, 4), sliced(1, 4))
    grants = [made.grant_of_device("node", "gpu", minor, f"GPU-{minor}::{number}") for minor, number in ids]
    return charge(name, *grants, plugin_requests=((SLICES, len(ids)),))


def node(*infos: Any) -> Fleet:
    return fleet({"node": infos or cards(4)})


def held(of: Charge) -> list[tuple[str, dict[str, int]]]:
    """Return what a pod is charged for, without memory if it follows from the ratio."""
    return [(each.id, {k: v for k, v in each.amounts if k != "gpu-memory"}) for each in of.grants]


ALL = {"gpu-core": 100, "gpu-memory-ratio": 100}
HALF = {"gpu-core": 50, "gpu-memory-ratio": 50}
QUARTER = {"gpu-core": 25, "gpu-memory-ratio": 25, SLICES: 1}


def all_of(*ids: str) -> list[tuple[str, dict[str, int]]]:
    return [(name, ALL) for name in ids]


TINY, NIC = ("GPU-0", {"gpu-core": 1}), ("rdma-0", {"rdma": 100})
CHARGED: dict[str, tuple[Charge, ActualAllocation, bool, list[tuple[str, dict[str, int]]]]] = {
    "as promised": (whole("p", 0), gave("p", "GPU-0"), False, all_of("GPU-0")),
    "a part of it": (whole("p", 0, 1), gave("p", "GPU-1"), False, all_of("GPU-0", "GPU-1")),
    "nothing yet": (whole("p", 0), gave("p"), False, all_of("GPU-0")),
    "another": (whole("p", 0), gave("p", "GPU-2"), False, all_of("GPU-2")),
    "another of AMD's": (
        replace(whole("p", 0), plugin_requests=(("amd.com/gpu", 1),)),
        gave("p", "GPU-2"),
        False,
        all_of("GPU-2"),
    ),
    "another of an added vendor's": (
        replace(whole("p", 0), plugin_requests=(("example.com/gpu", 1),)),
        gave("p", "GPU-2"),
        False,
        all_of("GPU-2"),
    ),
    "another's": (whole("p", 0), gave("p", "GPU-2"), True, all_of("GPU-0", "GPU-2")),
    "one of two": (whole("p", 0, 1), gave("p", "GPU-1", "GPU-2"), False, all_of("GPU-1", "GPU-2")),
    "another, and more to come": (whole("p", 0, 1), gave("p", "GPU-2"), False, all_of("GPU-0", "GPU-1", "GPU-2")),
    "handed on to a container": (whole("p", 0), gave("p", a=["GPU-2"], b=["GPU-2"]), False, all_of("GPU-2")),
    "more than promised": (whole("p", 0), gave("p", "GPU-0", "GPU-3"), False, all_of("GPU-0", "GPU-3")),
    "a share is not kubelet's to give": (half("p", 0), gave("p"), False, [("GPU-0", HALF)]),
    "a card in addition to a share": (half("p", 0), gave("p", "GPU-1"), False, [("GPU-0", HALF), ("GPU-1", ALL)]),
    "all of a card that it has a share of": (half("p", 0), gave("p", "GPU-0"), False, all_of("GPU-0")),
    "a card, and a hundredth promised": (little("p", 0), gave("p", "GPU-0"), False, all_of("GPU-0")),
    "the same by its minor": (little("p", 0, id=""), gave("p", "GPU-0"), False, all_of("GPU-0")),
    "and another's": (little("p", 0), gave("p", "GPU-1"), True, [TINY, ("GPU-1", ALL)]),
    "another scheduler's": (foreign_pod("p"), gave("p", "GPU-1"), False, all_of("GPU-1")),
    "an unknown card": (whole("p", 0), gave("p", "GPU-9"), False, all_of("GPU-9")),
    "an unknown instance": (whole("p", 0), gave("p", "MIG-1-7"), False, all_of("MIG-1-7")),
    "another type": (whole("p", 0), gave("p", "rdma-0"), False, [("GPU-0", ALL), NIC]),
}


@pytest.mark.parametrize(("promised", "given_", "claimed", "charged"), CHARGED.values(), ids=CHARGED)
def test_the_pod_that_holds_a_device_is_charged_for_it(
    promised: Charge, given_: ActualAllocation, *, claimed: bool, charged: list[tuple[str, dict[str, int]]]
) -> None:
    made = Fleet(kinds=Kinds(gpus={"example.com/gpu": GpuVendor(name="example", cards=("example.com/gpu",))}))
    add(made, node_info("node"), inventory(*cards(4), other_card("rdma")))
    assert held(kubelet_allocation.effective_charge(made, promised, given_, claimed=claimed)) == charged


def test_subdevices_are_charged_as_what_they_are() -> None:
    made = node(sliced(0, 4), sliced(1, 4), divided(2, "1g.10gb", "1g.10gb"))
    slices = kubelet_allocation.effective_charge(made, replicas("p", (0, 0)), gave("p", "GPU-1::3"), claimed=False)
    assert held(slices) == [("GPU-1::3", QUARTER)]
    kept = kubelet_allocation.effective_charge(made, replicas("p", (0, 0)), gave("p", "GPU-0::0"), claimed=False)
    assert held(kept) == [("GPU-0::0", QUARTER)]
    vanished = replace(replicas("p", (0, 0)).grants[0], minor=9, id="GPU-9::0")
    gone = charge("p", vanished, plugin_requests=((SLICES, 1),))
    assert kubelet_allocation.effective_charge(made, gone, gave("p", "GPU-9::0"), claimed=False) is gone
    asked = charge("q", instance(2, 0), plugin_requests=((MIG, 1),))
    assert held(kubelet_allocation.effective_charge(made, asked, gave("q", "MIG-2-1"), claimed=False)) == [
        ("MIG-2-1", {MIG: 1})
    ]


SHARE = charge("p", plugin_requests=(("kubernetes.io/gpu", 50),), unknown=("gpu",))
OF_TWO_TYPES = charge("p", plugin_requests=((NVIDIA, 1),), unknown=("gpu", "rdma"))


@pytest.mark.parametrize(
    ("promised", "given_", "unknown"),
    [
        pytest.param(foreign_pod("p"), gave("p", "GPU-1"), (), id="all of it"),
        pytest.param(foreign_pod("p", 2), gave("p", "GPU-1"), ("gpu",), id="a part"),
        pytest.param(foreign_pod("p"), gave("p"), ("gpu",), id="nothing"),
        pytest.param(OF_TWO_TYPES, gave("p", "GPU-1"), ("rdma",), id="of one type"),
        pytest.param(SHARE, gave("p", "GPU-1"), ("gpu",), id="a share"),
    ],
)
def test_a_pod_whose_devices_are_reported_holds_no_others(
    promised: Charge, given_: ActualAllocation, unknown: tuple[str, ...]
) -> None:
    assert kubelet_allocation.effective_charge(node(), promised, given_, claimed=False).unknown == unknown


def test_what_a_pod_leaves_behind_is_no_pod() -> None:
    left = kubelet_allocation.leftover_charge(node(), gave("p", "GPU-1", "GPU-3"))
    assert left is not None
    assert held(left) == [("GPU-1", ALL), ("GPU-3", ALL)]
    assert not kubelet_allocation.is_pod(left)
    assert (left.pod, left.resources, left.plugin_requests) == ("ns/p", (), ())
    assert kubelet_allocation.leftover_charge(node(), gave("p")) is None


def test_what_no_pod_holds_may_be_of_an_unknown_node() -> None:
    left = kubelet_allocation.leftover_charge(Fleet(), gave("p", "GPU-1"))
    assert left is not None
    assert held(left) == [("GPU-1", ALL)]


def test_foreign_use_takes_whole_cards() -> None:
    foreign = kubelet_allocation.foreign_charge(node(), "node", [KubeletDevice(type="gpu", minor=2, id="")])
    assert foreign is not None
    assert [(each.minor, each.amounts) for each in foreign.grants] == [
        (2, (("gpu-core", 100), ("gpu-memory", A100_BYTES), ("gpu-memory-ratio", 100)))
    ]
    assert kubelet_allocation.foreign_charge(node(), "node", []) is None


def gave_it(given_: str, allocated: str) -> str:
    return f"kubelet gave it {given_}; allocated was {allocated}"


ANOTHER = gave_it("gpu 2 (GPU-2)", "gpu 0 (GPU-0)")
ONE_OF_THREE = gave_it("gpu 3 (GPU-3)", "gpu 0 (GPU-0), gpu 2 (GPU-2)")
NEXT_TO_A_SHARE = gave_it("gpu 1 (GPU-1)", "gpu 0 (GPU-0)")


@pytest.mark.parametrize(
    ("promised", "given_", "message"),
    [
        pytest.param(whole("p", 0), gave("p", "GPU-0"), "", id="none"),
        pytest.param(whole("p", 0, 1), gave("p", "GPU-1"), "", id="a part is none"),
        pytest.param(whole("p", 0), gave("p", "GPU-2"), ANOTHER, id="another"),
        pytest.param(whole("p", 0, 1, 2), gave("p", "GPU-1", "GPU-3"), ONE_OF_THREE, id="one of three"),
        pytest.param(half("p", 0), gave("p", "GPU-1"), NEXT_TO_A_SHARE, id="in addition to a share"),
        pytest.param(foreign_pod("p"), gave("p", "GPU-1"), "", id="nothing was promised"),
        pytest.param(whole("p", 0), gave("p", "GPU-0", "rdma-0"), "", id="nothing was promised of the type"),
        pytest.param(charge("p", Grant(type="gpu", minor=1, amounts=())), gave("p", "GPU-1"), "", id="by its minor"),
    ],
)
def test_a_difference_is_reported_in_words(promised: Charge, given_: ActualAllocation, message: str) -> None:
    assert kubelet_allocation.difference(promised, given_, BUILT_IN) == message


# --- exchanges --------------------------------------------------------------------------------------------------

Story = Sequence[tuple[Charge, ActualAllocation | None]]


def cards_of(pod: str, *named: int, holds: Sequence[int]) -> tuple[Charge, ActualAllocation]:
    """Return a pod whose annotation names some cards, and which holds others."""
    return whole(pod, *named), gave(pod, *(f"GPU-{minor}" for minor in holds))


def rewritten(made: Fleet, story: Story) -> dict[str, dict[str, str]]:
    """Return by pod which devices replace which in its new annotation."""
    drifted = [
        Mismatch(promised=p, actual=g)
        for p, g in story
        if g is not None and kubelet_allocation.difference(p, g, BUILT_IN)
    ]
    others = [g for p, g in story if g is not None and not kubelet_allocation.difference(p, g, BUILT_IN)]
    rewrites = kubelet_allocation.to_be_rewritten(made, drifted, others)
    return {case.actual.pod[3:]: {key: each.id for key, each in instead.items()} for case, instead in rewrites}


SWAP = {"p": {"GPU-0": "GPU-1"}, "q": {"GPU-1": "GPU-0"}}
P, Q, R = (partial(cards_of, name) for name in "pqr")
EXCHANGES: dict[str, tuple[Story, dict[str, dict[str, str]]]] = {
    "all as promised": ([P(0, holds=[0])], {}),
    "two hold each other's": ([P(0, holds=[1]), Q(1, holds=[0])], SWAP),
    "one card of two": (
        [P(0, 1, holds=[0, 2]), Q(2, holds=[1])],
        {"p": {"GPU-1": "GPU-2"}, "q": {"GPU-2": "GPU-1"}},
    ),
    "three in a circle": (
        [P(0, holds=[1]), Q(1, holds=[2]), R(2, holds=[0])],
        {"p": {"GPU-0": "GPU-1"}, "q": {"GPU-1": "GPU-2"}, "r": {"GPU-2": "GPU-0"}},
    ),
    "a third is left alone": ([P(0, holds=[1]), Q(1, holds=[0]), R(2, holds=[2])], SWAP),
    "one half was written before a crash": ([P(0, holds=[0]), Q(0, holds=[1])], {"q": {"GPU-0": "GPU-1"}}),
    "another that no annotation names": ([P(0, holds=[1])], {}),
    "the other has nothing yet": ([P(0, holds=[1]), (whole("q", 1), None)], {}),
    "one has not got all yet": ([P(0, 2, holds=[1]), Q(1, holds=[0])], {"q": {"GPU-1": "GPU-0"}}),
    "a card with a share on it": ([P(0, holds=[1]), (half("q", 1), gave("q"))], {}),
}


@pytest.mark.parametrize(("story", "expected"), EXCHANGES.values(), ids=EXCHANGES)
def test_exchanged_allocations_say_what_is_held(story: Story, expected: dict[str, dict[str, str]]) -> None:
    assert rewritten(node(), story) == expected


def test_cards_of_other_models_are_not_as_good() -> None:
    made = node(card(0), card(1, model=T4, memory=T4_BYTES))
    assert rewritten(made, [P(0, holds=[1]), Q(1, holds=[0])]) == {}


def test_replicas_are_exchanged_for_replicas() -> None:
    swap = [
        (replicas("p", (0, 0), (1, 0)), gave("p", "GPU-0::0", "GPU-1::1")),
        (replicas("q", (1, 1)), gave("q", "GPU-1::0")),
    ]
    assert rewritten(node(sliced(0, 4), sliced(1, 4)), swap) == {
        "p": {"GPU-1::0": "GPU-1::1"},
        "q": {"GPU-1::1": "GPU-1::0"},
    }


@pytest.mark.parametrize(("profile", "same"), [("1g.10gb", True), ("2g.20gb", False)])
def test_instances_are_exchanged_for_those_of_their_profile(profile: str, *, same: bool) -> None:
    made = node(divided(0, "1g.10gb", profile))
    second = charge("q", instance(0, 1, profile), plugin_requests=(("nvidia.com/mig-" + profile, 1),))
    swap = [
        (charge("p", instance(0, 0), plugin_requests=((MIG, 1),)), gave("p", "MIG-0-1")),
        (second, gave("q", "MIG-0-0")),
    ]
    expected = {"p": {"MIG-0-0": "MIG-0-1"}, "q": {"MIG-0-1": "MIG-0-0"}}
    assert rewritten(made, swap) == (expected if same else {})


def written(promised: Charge, **visible: str) -> dict[str, str]:
    """Return a bound pod's annotations."""
    seen = {f"{name}{names.VISIBLE_SUFFIX}": ids for name, ids in visible.items()}
    return {names.ALLOCATED: allocation.render(promised.grants), names.EPOCH: "1", **seen}


def test_annotations_say_what_each_container_holds() -> None:
    promised = whole("p", 0, 1)
    case = Mismatch(promised=promised, actual=gave("p", a=["GPU-3"], b=["GPU-2"]))
    instead = {"GPU-0": grant(2, **WHOLE), "GPU-1": grant(3, **WHOLE)}
    before = written(promised, a="GPU-0", b="GPU-1", init="GPU-0,GPU-1")
    annotations = record.rewritten(before, case, instead)
    assert annotations is not None
    kinds = orjson.loads(annotations.pop(names.ALLOCATED))
    assert [(each["minor"], each["id"], each["resources"]["kubernetes.io/gpu-core"]) for each in kinds["gpu"]] == [
        (2, "GPU-2", "100"),
        (3, "GPU-3", "100"),
    ]
    assert annotations == {
        f"a{names.VISIBLE_SUFFIX}": "GPU-3",
        f"b{names.VISIBLE_SUFFIX}": "GPU-2",
        f"init{names.VISIBLE_SUFFIX}": "GPU-2,GPU-3",
    }


def test_a_replica_is_seen_as_its_card() -> None:
    promised = replicas("p", (0, 0), (0, 1))
    case = Mismatch(promised=promised, actual=gave("p", "GPU-1::0", "GPU-1::1"))
    instead = {"GPU-0::0": replica(1, 0), "GPU-0::1": replica(1, 1)}
    annotations = record.rewritten(written(promised, main="GPU-0"), case, instead)
    assert annotations is not None
    assert annotations[f"main{names.VISIBLE_SUFFIX}"] == "GPU-1"


def test_a_rewritten_allocation_has_the_minors_of_now_in_all_entries() -> None:
    recorded = whole("p", 0, 1)
    before = written(recorded, main="GPU-0,GPU-1")
    # The driver has numbered the cards in another order since.
    now = replace(recorded, grants=(replace(grant(0, **WHOLE), minor=2), replace(grant(1, **WHOLE), minor=0)))
    case = Mismatch(promised=now, actual=gave("p", "GPU-2", "GPU-1"))
    annotations = record.rewritten(before, case, {"GPU-0": replace(grant(2, **WHOLE), minor=1)})
    assert annotations is not None
    entries = orjson.loads(annotations[names.ALLOCATED])["gpu"]
    assert [(each["minor"], each["id"]) for each in entries] == [(1, "GPU-2"), (0, "GPU-1")]


def test_an_allocation_of_a_card_that_is_gone_is_not_rewritten() -> None:
    recorded = whole("p", 0, 1)
    gone = fleet({"node": (card(0), card(2))}).resolve_charge(recorded)
    case = Mismatch(promised=gone, actual=gave("p", "GPU-2", "GPU-1"))
    assert record.rewritten(written(recorded, main="GPU-0,GPU-1"), case, {"GPU-0": grant(2, **WHOLE)}) is None


def test_the_prefix_of_an_allocation_stays() -> None:
    promised = whole("p", 0)
    case = Mismatch(promised=promised, actual=gave("p", "GPU-1"))
    before = {names.ALLOCATED: allocation.render(promised.grants, names.OTHER_PREFIX)}
    annotations = record.rewritten(before, case, {"GPU-0": grant(1, **WHOLE)})
    assert annotations is not None
    assert '"koordinator.sh/gpu-core":"100"' in annotations[names.ALLOCATED]
    assert names.PREFIX not in annotations[names.ALLOCATED]


@pytest.mark.parametrize(
    "annotation",
    [
        pytest.param(allocation.render([grant(1, **WHOLE)]), id="already exchanged"),
        pytest.param("{", id="not to be read"),
    ],
)
def test_an_allocation_that_says_something_else_by_now_is_left(annotation: str) -> None:
    case = Mismatch(promised=whole("p", 0), actual=gave("p", "GPU-1"))
    assert record.rewritten({names.ALLOCATED: annotation}, case, {"GPU-0": grant(1, **WHOLE)}) is None


# --- laws -------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.sampled_from([1, 1, 2, 4]), min_size=1, max_size=8)


def laid_out(sizes: Sequence[int], order: Sequence[int]) -> list[list[int]]:
    """Return the cards, in this order, divided among pods of these sizes."""
    layout, left = [], list(order)
    for size in sizes:
        layout.append(sorted(left[:size]))
        del left[:size]
    return layout


def used(of: Fleet) -> list[int]:
    columns = of.cards["gpu"]
    assert (columns.used >= 0).all()
    assert (columns.users >= 0).all()
    return [int(each) for each in columns.used[0, of.rows["node"], list(columns.slots(of.rows["node"]))]]


@settings(max_examples=60)
@given(sizes=SIZES, random=st.randoms(use_true_random=False))
def test_allocations_converge_to_what_kubelet_gave(sizes: list[int], random: Any) -> None:
    """Any write may be lost at any time, and writes never change charges."""
    count = sum(sizes)
    promised, given_ = ({}, {})
    orders = [random.sample(range(count), count) for _ in range(2)]
    made = node(*cards(count))
    for number, (named, held_) in enumerate(zip(*(laid_out(sizes, each) for each in orders), strict=True)):
        promised[f"p{number}"] = whole(f"p{number}", *named)
        given_[f"p{number}"] = gave(f"p{number}", *(f"GPU-{minor}" for minor in held_))
    for _ in range(3 * len(sizes) + 1):
        for name, each in promised.items():
            made.charge(kubelet_allocation.effective_charge(made, each, given_[name], claimed=False))
        assert used(made) == [100] * count
        rewrites = rewritten(made, [(promised[name], given_[name]) for name in promised])
        drifted = {name for name in promised if kubelet_allocation.difference(promised[name], given_[name], BUILT_IN)}
        assert rewrites.keys() == drifted
        if not rewrites:
            break
        lost = random.sample(sorted(rewrites), random.randrange(len(rewrites)))
        for name in rewrites.keys() - lost:
            promised[name] = whole(name, *sorted(int(each.minor) for each in given_[name].devices))
    else:
        raise AssertionError("it never ends")


HOLDINGS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 5), max_size=4)), max_size=12)


@settings(max_examples=60)
@given(events=HOLDINGS, claimed=st.booleans())
def test_what_is_charged_is_given_back_exactly(events: list[tuple[int, list[int]]], *, claimed: bool) -> None:
    made = node(*cards(4))
    for pod, minors in events:
        name = f"p{pod}"
        charged = kubelet_allocation.effective_charge(
            made, whole(name, pod), gave(name, *(f"GPU-{each}" for each in minors)), claimed=claimed
        )
        ids = {each.id for each in charged.grants}
        assert {f"GPU-{minor}" for minor in minors} <= ids
        made.charge(charged)
        used(made)
    for pod in range(4):
        made.release(f"uid-p{pod}")
    columns = made.cards["gpu"]
    assert len(list(columns.slots(made.rows["node"]))) == 4
    assert not columns.used.any()
    assert not columns.users.any()
