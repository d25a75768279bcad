"""The published use of pods' devices."""

from collections.abc import Iterable
from typing import Any

import pytest

from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.mirror import Holding, UnmatchedUnit
from berth_agent.kubelet.admission.units import Units
from berth_agent.publishing.gpupods import body
from berth_agent.usage import use
from berth_agent.usage.summary import Summaries
from berth_api import names
from berth_api.device import MAX_DEVICES, MAX_HELD, DeviceSpec, HeldByContainer
from berth_api.objects.gpupod import MAX_CONTAINERS, GpuPodSpec

UNITS = Units(
    minors={"GPU-a": 3, "GPU-b": 4, "MIG-c": 4}, cards=frozenset({"GPU-a", "GPU-b"}), parents={"MIG-c": "GPU-b"}
)


def holding(pod: str, container: str, *ids: str) -> Holding:
    return Holding(uid=f"uid-{pod}", namespace="ns", pod=pod, container=container, ids=ids)


def test_each_container_s_devices_stand_with_their_card_s_minor() -> None:
    held = use.held([holding("b", "y", "MIG-c"), holding("a", "x", "GPU-a::1", "GPU-a::0")], UNITS, uids=())
    assert [container.model_dump(by_alias=True) for container in held] == [
        {
            "podUID": "uid-a",
            "namespace": "ns",
            "pod": "a",
            "container": "x",
            "devices": [
                {"type": "gpu", "minor": 3, "id": "GPU-a::1"},
                {"type": "gpu", "minor": 3, "id": "GPU-a::0"},
            ],
        },
        {
            "podUID": "uid-b",
            "namespace": "ns",
            "pod": "b",
            "container": "y",
            "devices": [{"type": "gpu", "minor": 4, "id": "MIG-c"}],
        },
    ]


def test_pods_that_kubelet_gave_no_gpu_run_until_they_have_no_process() -> None:
    def pod(name: str, *, plugin: bool = False, phase: str = "Running") -> pods.Pod:
        limits = {"nvidia.com/gpu": "1"} if plugin else {"kubernetes.io/gpu": "50"}
        allocated = '{"gpu": [{"minor": 0, "id": "GPU-a", "resources": {"kubernetes.io/gpu-core": "50"}}]}'
        return pods.of_object(
            {
                "metadata": {
                    "name": name,
                    "namespace": "ns",
                    "uid": f"uid-{name}",
                    "annotations": {names.ALLOCATED: allocated, f"main{names.VISIBLE_SUFFIX}": "GPU-a"},
                },
                "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
                "status": {"phase": phase},
            }
        )

    def unasked() -> frozenset[str]:
        raise AssertionError("no pod has gone")

    shown = use.running((), [pod("b"), pod("a"), pod("plugin", plugin=True)], UNITS, unasked)
    assert [each.model_dump(by_alias=True) for each in shown] == [
        {
            "podUID": f"uid-{name}",
            "namespace": "ns",
            "pod": name,
            "devices": [{"type": "gpu", "minor": 3, "id": "GPU-a"}],
        }
        for name in ("a", "b")
    ]
    left = use.running(shown, [pod("b", phase="Failed")], UNITS, lambda: {"uid-a", "uid-b", "uid-other"})
    assert [each.pod for each in left] == ["a", "b"]
    assert [each.pod for each in use.running(left, [], UNITS, lambda: {"uid-b"})] == ["b"]


def test_a_condition_names_the_ids_that_show_no_card() -> None:
    units = Units(minors=UNITS.minors, cards=UNITS.cards, names={"0": frozenset({"GPU-a", "GPU-b"})})
    assert use.unmatched_finding([], units) is None

    def unmatched(unit: str, *, is_named: bool) -> UnmatchedUnit:
        cards = tuple(sorted(UNITS.cards))
        return UnmatchedUnit(id=unit, resource="nvidia.com/gpu", pod="ns/a", cards=cards, is_named=is_named)

    finding = use.unmatched_finding([unmatched("0", is_named=True), unmatched("x\n", is_named=False)], units)
    assert finding is not None
    assert not finding.ok
    assert "nvidia.com/gpu '0' of pod ns/a may be GPU 3 or GPU 4; " in finding.message
    assert "nvidia.com/gpu 'x\\n' of pod ns/a is no known id, so it may be any GPU of the node. " in finding.message
    many = use.unmatched_finding([unmatched(f"x-{number}", is_named=False) for number in range(20)], units)
    assert many is not None
    assert "; and 12 more. " in many.message


def test_the_order_does_not_matter() -> None:
    listed = [holding("b", "y", "MIG-c"), holding("a", "x", "GPU-a"), holding("a", "w", "GPU-b")]
    assert use.held(listed, UNITS, uids=()) == use.held(listed[::-1], UNITS, uids=())


def test_a_gpu_pod_has_all_containers_of_a_pod_that_is_there() -> None:
    listed = [holding("a", "x", "GPU-a"), holding("a", "w", "GPU-b"), holding("gone", "x", "MIG-c")]
    specs, _ = use.gpu_pods(listed, UNITS, Summaries(), node="n", uids=["uid-a"])
    assert list(specs) == [("ns", "a")]
    gpupod = body(("ns", "a.n"), specs["ns", "a"])
    assert gpupod == {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "GpuPod",
        "metadata": {
            "namespace": "ns",
            "name": "a.n",
            "labels": {"berth.dev/node": "n"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "uid-a"}],
        },
        "spec": {
            "nodeName": "n",
            "podUID": "uid-a",
            "containers": [
                {"name": "x", "devices": [{"type": "gpu", "minor": 3, "id": "GPU-a"}]},
                {"name": "w", "devices": [{"type": "gpu", "minor": 4, "id": "GPU-b"}]},
            ],
            "cards": [],
            "devices": "GPU 3; GPU 4",
            "ids": "GPU-a, GPU-b",
            "memory": "",
        },
    }


# --- devices and shares, for `kubectl get gpupods` --------------------------------------------------------------


def card(minor: int, **fields: Any) -> dict[str, Any]:
    resources = {"koordinator.sh/gpu-memory": "80Gi"}
    return {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "resources": resources, **fields}


INSTANCE = {"id": "MIG-2", "profile": "3g.40gb", "gpuInstance": 1, "computeInstance": 0, "memory": "40Gi"}
TWICE = {"enabled": True, "instances": [{**INSTANCE, "replicas": 2}]}
SPEC = DeviceSpec.model_validate({"devices": [card(0), card(1, replicas=4), card(2, mig=TWICE)]})
NODE = Units.of(SPEC)


def summary(spec: GpuPodSpec) -> tuple[str, str, int | None, str]:
    return spec.devices, spec.memory, spec.core, spec.ids


WHAT_KUBELET_GAVE_IS_SHOWN_IN_WORDS = {
    "a card": (["GPU-0"], ("GPU 0", "80Gi", 100, "GPU-0")),
    "a slice": (["GPU-1::3"], ("GPU 1, replica 4 of 4", "20Gi", 25, "GPU-1::3")),
    "an instance": (["MIG-2::0"], ("GPU 2, MIG 3g.40gb, replica 1 of 2", "20Gi", None, "MIG-2::0")),
    "the sum of several": (["GPU-0", "GPU-1::0"], ("GPU 0; GPU 1, replica 1 of 4", "100Gi", 125, "GPU-0, GPU-1::0")),
}


@pytest.mark.parametrize(
    ("ids", "expected"), WHAT_KUBELET_GAVE_IS_SHOWN_IN_WORDS.values(), ids=WHAT_KUBELET_GAVE_IS_SHOWN_IN_WORDS
)
def test_what_kubelet_gave_is_shown_in_words(ids: list[str], expected: tuple[str, str, int | None, str]) -> None:
    listed = [holding("a", "init", *ids), holding("a", "main", *ids)]
    specs, _ = use.gpu_pods(listed, NODE, Summaries.of(SPEC), node="n", uids=["uid-a"])
    assert summary(specs["ns", "a"]) == expected
    assert specs["ns", "a"].allocated == []


def test_the_cards_of_devices_are_described_once_each() -> None:
    place = {"model": "NVIDIA A100", "topology": {"busID": "0000:3b:00.0"}}
    spec = DeviceSpec.model_validate({"devices": [card(0), card(1, replicas=4, **place), card(2, mig=TWICE)]})
    listed = [holding("a", "x", "MIG-2::0", "MIG-2::1"), holding("a", "y", "GPU-1::3", "GPU-old")]
    units = Units.of(spec).joined(Units(minors={"GPU-old": 0}, cards=frozenset({"GPU-old"})))
    specs, _ = use.gpu_pods(listed, units, Summaries.of(spec), node="n", uids=["uid-a"])
    assert [card.model_dump(by_alias=True) for card in specs["ns", "a"].cards] == [
        {"minor": 1, "id": "GPU-1", "model": "NVIDIA A100", "busID": "0000:3b:00.0"},
        {"minor": 2, "id": "GPU-2", "model": "", "busID": ""},
    ]


def shared(allocated: str, limits: dict[str, str] | None = None, phase: str = "Running") -> pods.Pod:
    return pods.of_object(
        {
            "metadata": {
                "uid": "uid-a",
                "namespace": "ns",
                "name": "a",
                "annotations": {"scheduling.koordinator.sh/device-allocated": allocated},
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits or {}}}]},
            "status": {"phase": phase},
        }
    )


HALF = '{"gpu": [{"minor": 9, "id": "GPU-0", "resources": {"kubernetes.io/gpu-core": "50", "kubernetes.io/%s"}}]}'
NIC = '{"rdma": [{"minor": 0, "id": "r", "resources": {"kubernetes.io/rdma": "1"}}]}'
BY_MEMORY, BY_RATIO = HALF % 'gpu-memory": "20Gi', HALF % 'gpu-memory-ratio": "25'


@pytest.mark.parametrize("allocated", [BY_MEMORY, BY_RATIO])
def test_a_pod_with_a_share_has_a_gpu_pod_that_is_no_report_of_kubelet(allocated: str) -> None:
    specs = use.allocated_pods([shared(allocated)], NODE, Summaries.of(SPEC), node="n")
    assert body(("ns", "a.n"), specs["ns", "a"])["spec"] == {
        "nodeName": "n",
        "podUID": "uid-a",
        "containers": [],
        "allocated": [{"type": "gpu", "minor": 0, "id": "GPU-0"}],
        "cards": [{"minor": 0, "id": "GPU-0", "model": "", "busID": ""}],
        "devices": "GPU 0",
        "ids": "GPU-0",
        "memory": "20Gi",
        "core": 50,
    }


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(shared(BY_MEMORY, phase="Succeeded"), id="it ended"),
        pytest.param(shared(BY_MEMORY, {"nvidia.com/gpu": "1"}), id="kubelet gives it devices"),
        pytest.param(shared("{}"), id="no devices"),
        pytest.param(shared(NIC), id="a NIC"),
    ],
)
def test_other_pods_have_no_gpu_pod_of_their_allocation(pod: pods.Pod) -> None:
    assert use.allocated_pods([pod], NODE, Summaries.of(SPEC), node="n") == {}


def test_an_absurd_allocation_still_fits_the_definition() -> None:
    entries = ",".join(
        f'{{"minor": {minor}, "id": "GPU-{minor:0100x}", "resources": {{"kubernetes.io/gpu-core": "9Ei"}}}}'
        for minor in range(256)
    )
    specs = use.allocated_pods([shared(f'{{"gpu": [{entries}]}}')], NODE, Summaries.of(SPEC), node="n")
    spec = specs["ns", "a"].model_dump(by_alias=True)
    assert GpuPodSpec.model_validate(spec) == specs["ns", "a"]
    assert spec["core"] < 2**31


def test_more_devices_than_an_entry_has_room_for_stand_in_several_entries() -> None:
    """A device that is left out would not be charged, and could be given twice."""
    ids = [f"GPU-a::{number}" for number in range(MAX_DEVICES + 1)] + ["GPU-b::" + "0" * 200]
    listed = [holding("a", "x", *ids)]
    entries = [(entry.container, [device.id for device in entry.devices]) for entry in held(listed)]
    assert [(name, len(devices)) for name, devices in entries] == [("x", MAX_DEVICES), ("x", 2)]
    assert [device for _, devices in entries for device in devices] == [unit[: use.MAX_ID] for unit in ids]
    specs, _ = use.gpu_pods(listed, UNITS, Summaries(), node="n", uids=["uid-a"])
    assert [(entry.name, [device.id for device in entry.devices]) for entry in specs["ns", "a"].containers] == entries


def test_a_pod_with_too_many_containers_has_no_gpupod_and_is_held() -> None:
    """The operator prefers the GpuPod, and would not charge what is not in it."""
    listed = [holding("a", f"c{number}", "GPU-a") for number in range(MAX_CONTAINERS)]
    specs, too_large = use.gpu_pods(listed, UNITS, Summaries(), node="n", uids=["uid-a"])
    assert len(specs["ns", "a"].containers) == MAX_CONTAINERS
    assert not too_large
    listed.append(holding("a", "more", "GPU-b"))
    specs, too_large = use.gpu_pods(listed, UNITS, Summaries(), node="n", uids=["uid-a"])
    assert not specs
    assert too_large == {("ns", "a")}
    assert len(held(listed)) == len(listed)


def test_what_pods_that_are_gone_hold_is_listed_before_what_gpupods_list_too() -> None:
    present = [holding("a", f"c{number}", "GPU-a") for number in range(MAX_HELD)]
    entries = held([*present, holding("gone", "c", "GPU-b")], "uid-a")
    assert len(entries) == MAX_HELD + 1
    assert [entry.pod for entry in entries[:2]] == ["gone", "a"]


def held(holdings: Iterable[Holding], *uids: str) -> tuple[HeldByContainer, ...]:
    return use.held(holdings, UNITS, uids=uids)
