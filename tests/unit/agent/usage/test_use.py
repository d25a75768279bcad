"""What is published of pods' devices."""

from berth_agent.kubelet.admission.mirror import Holding
from berth_agent.kubelet.admission.units import Units
from berth_agent.publishing.gpupods import body
from berth_agent.usage import use

UNITS = Units(
    minors={"GPU-a": 3, "GPU-b": 4, "MIG-c": 4}, cards=frozenset({"GPU-a", "GPU-b"}), parents={"MIG-c": "GPU-b"}
)


def holding(pod: str, container: str, *ids: str) -> Holding:
    return Holding(uid=f"uid-{pod}", namespace="ns", pod=pod, container=container, ids=ids)


def test_each_container_s_devices_stand_with_their_card_s_minor() -> None:
    held = use.held([holding("b", "y", "MIG-c"), holding("a", "x", "GPU-a::1", "GPU-a::0")], UNITS)
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


def test_devices_that_were_never_seen_are_left_out() -> None:
    assert use.held([holding("a", "x", "GPU-z")], UNITS) == ()


def test_the_order_does_not_matter() -> None:
    listed = [holding("b", "y", "MIG-c"), holding("a", "x", "GPU-a"), holding("a", "w", "GPU-b")]
    assert use.held(listed, UNITS) == use.held(listed[::-1], UNITS)


def test_a_gpu_pod_has_all_containers_of_a_pod_that_is_there() -> None:
    listed = [holding("a", "x", "GPU-a"), holding("a", "w", "GPU-b"), holding("gone", "x", "MIG-c")]
    specs = use.gpu_pods(listed, UNITS, node="n", uids=["uid-a"])
    assert list(specs) == [("ns", "a")]
    gpupod = body(("ns", "a"), specs["ns", "a"])
    assert gpupod == {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "GpuPod",
        "metadata": {
            "namespace": "ns",
            "name": "a",
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
        },
    }
