"""The annotations and the Binding of a decision."""

from dataclasses import replace

import orjson
import pytest

from berth_api.request.share import Share
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.record import MAX_OWN, RecordError, annotations, binding
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import GPU, NVIDIA, asks, fleet, grant, instance, place, replica, waiting

ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def test_a_pod_without_devices_gets_no_annotation() -> None:
    assert annotations(Placement(pod=waiting(), node="node")) == {}


def test_each_container_sees_its_own_cards() -> None:
    wanted = PodRequest(
        devices=asks({NVIDIA: 3}).devices,
        shares=(Share(container="a", first=0, end=1), Share(container="b", first=1, end=3)),
    )
    placement = Placement(pod=waiting("pod", wanted), node="node", grants=(grant(4), grant(2), grant(7)))
    record = annotations(placement)
    assert record["a.devices.berth.dev/visible"] == "GPU-4"
    assert record["b.devices.berth.dev/visible"] == "GPU-2,GPU-7"


def test_other_devices_are_not_among_the_cards_that_a_container_sees() -> None:
    wanted = PodRequest(shares=(Share(container="a", first=0, end=1),))
    placement = Placement(pod=waiting("pod", wanted), node="node", grants=(grant(0, "rdma", rdma=100), grant(1)))
    assert annotations(placement)["a.devices.berth.dev/visible"] == "GPU-1"


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        pytest.param(GPU, "kubernetes.io/", id="kubernetes"),
        pytest.param("koordinator.sh/gpu", "koordinator.sh/", id="koordinator"),
        pytest.param(NVIDIA, "kubernetes.io/", id="none"),
    ],
)
def test_the_allocation_has_the_pods_own_prefix(name: str, prefix: str) -> None:
    placement = place(fleet(), waiting("pod", {name: 1 if name == NVIDIA else 100}))
    ((entry,),) = orjson.loads(annotations(placement)[ALLOCATED]).values()
    assert set(entry["resources"]) == {prefix + each for each in ("gpu-core", "gpu-memory", "gpu-memory-ratio")}
    assert entry["id"] == "GPU-0"


def test_of_several_replicas_of_a_card_a_container_sees_the_card_once() -> None:
    shares = (Share(container="a", first=0, end=3), Share(container="b", first=3, end=4))
    grants = (replica(0, 0), replica(0, 2), replica(1, 1), replica(1, 0))
    record = annotations(Placement(pod=waiting("pod", PodRequest(shares=shares)), node="node", grants=grants))
    assert record["a.devices.berth.dev/visible"] == "GPU-0,GPU-1"
    assert record["b.devices.berth.dev/visible"] == "GPU-1"


def test_a_container_sees_all_its_instances() -> None:
    places = (("a", 0), ("b", 1), ("a", 2))
    shares = tuple(Share(container=name, first=first, end=first + 1) for name, first in places)
    grants = (instance(0, 0), instance(0, 1), instance(1, 0, "2g.20gb"))
    record = annotations(Placement(pod=waiting("pod", PodRequest(shares=shares)), node="node", grants=grants))
    assert record["a.devices.berth.dev/visible"] == "MIG-0-0,MIG-1-0"
    assert record["b.devices.berth.dev/visible"] == "MIG-0-1"


def test_a_binding_says_everything_at_once() -> None:
    placement = place(fleet(), waiting("pod", {GPU: 50}))
    assert binding(placement, 7, "berth", now=0) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "pod",
            "namespace": "ns",
            "uid": "uid-pod",
            "labels": {"berth.dev/fenced-by": "berth"},
            "annotations": {"berth.dev/epoch": "7", **annotations(placement)},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
    }


def test_the_term_is_recorded_for_pods_without_devices_too() -> None:
    assert binding(Placement(pod=waiting(), node="node"), 7, "berth", now=0)["metadata"]["annotations"] == {
        "berth.dev/epoch": "7"
    }


def shared_by(containers: int) -> Placement:
    shares = tuple(Share(container=f"container-{i}", first=0, end=64) for i in range(containers))
    grants = tuple(grant(minor, ratio=100) for minor in range(64))
    return Placement(pod=waiting("pod", PodRequest(shares=shares)), node="node", grants=grants)


def test_annotations_that_a_pod_can_hold_are_given() -> None:
    assert sum(len(key) + len(value) for key, value in annotations(shared_by(100)).items()) < MAX_OWN


def test_annotations_that_a_pod_cannot_hold_are_refused() -> None:
    with pytest.raises(
        RecordError, match=r"the allocation takes \d+ bytes of annotations; this pod can hold 204800 more"
    ):
        annotations(shared_by(1000))


def test_what_a_pod_has_already_counts_too() -> None:
    placement = shared_by(100)
    crowded = replace(placement, pod=replace(placement.pod, annotation_bytes=249 * 1024))
    with pytest.raises(RecordError, match="this pod can hold 1024 more"):
        annotations(crowded)
