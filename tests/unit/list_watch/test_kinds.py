"""GpuNodes and GpuPods of nvidia-gpu-scheduler, computed from Berth's Devices and GpuPods."""

from typing import Any

import orjson
import pytest

from berth_api.objects import gpupod
from berth_operator.apis.list_watch.kinds import NODES, PODS, SourcedKind

WHOLE = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory": "16Gi", "kubernetes.io/gpu-memory-ratio": "100"}
NONE_FREE = dict.fromkeys(WHOLE, "0")
OTHER_PREFIX = {name.replace("kubernetes.io", "koordinator.sh"): amount for name, amount in WHOLE.items()}
HOLDER = {"namespace": "ns", "name": "pod", "uid": "u"}
SINCE = "2026-01-01T00:00:00Z"


def metadata(name: str, **fields: Any) -> dict[str, Any]:
    own = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": SINCE}
    return {**own, "managedFields": [{"time": "2026-01-02T00:00:00Z"}, STATUS_WRITE], **fields}


STATUS_WRITE = {"time": "2026-01-03T00:00:00Z", "subresource": "status"}


def card(minor: int, model: str = "Tesla T4", **fields: Any) -> dict[str, Any]:
    place = {"busID": f"0000:0{minor}:00.0"}
    own = {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": True, "model": model, "topology": place}
    return {**own, "resources": WHOLE, **fields}


def use(minor: int, free: dict[str, str], *holders: dict[str, str], kind: str = "gpu") -> dict[str, Any]:
    return {"type": kind, "minor": minor, "free": free, "holders": list(holders)}


def ready(status: str = "True", message: str = "the node's Lease is renewed") -> dict[str, str]:
    return {"type": "Ready", "status": status, "reason": "R", "message": message, "lastTransitionTime": SINCE}


def device(cards: list[Any], uses: list[Any], *conditions: Any) -> dict[str, Any]:
    status = {"devices": uses, "conditions": list(conditions)}
    return {"metadata": metadata("n1"), "spec": {"devices": cards}, "status": status}


def served(kind: SourcedKind, source: dict[str, Any]) -> dict[str, Any]:
    obj: dict[str, Any] = orjson.loads(kind.entry(source).body)
    return obj


def test_a_gpu_node_has_the_fields_of_the_original() -> None:
    nic = {"type": "rdma", "minor": 0, "id": "0000:1f:00.0"}
    source = device(
        [card(0), card(1), card(2, " NVIDIA A100 "), nic], [use(0, WHOLE), use(1, NONE_FREE, HOLDER)], ready()
    )
    assert served(NODES, source) == {
        "kind": "GpuNode",
        "apiVersion": "nvidia-gpu-scheduler/v1",
        "metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": "7", "creationTimestamp": SINCE},
        "spec": {
            "device_infos": {
                f"GPU-{minor}": {
                    "device_id": f"GPU-{minor}",
                    "device_model": model,
                    "device_busid": f"0000:0{minor}:00.0",
                    "device_node": "n1",
                }
                for minor, model in enumerate(("Tesla T4", "Tesla T4", " NVIDIA A100 "))
            },
            "device_models": {"nvidia a100": ["GPU-2"], "tesla t4": ["GPU-0", "GPU-1"]},
            "device_busy": ["GPU-1", "GPU-2"],
            "report_time": "2026-01-02T00:00:00Z",
        },
        "status": {
            "node": "n1",
            "health": "True",
            "message": "the node's Lease is renewed",
            "last_health_time": SINCE,
            "last_transition_time": SINCE,
        },
    }


ONE = {"nvidia.com/mig-1g.10gb": "1"}
INSTANCES: Any = {"mig": {"enabled": True, "instances": [{"id": "MIG-a"}]}}


@pytest.mark.parametrize(
    ("of", "used", "is_busy"),
    [
        pytest.param(card(0), [use(0, WHOLE)], False, id="all of it is free"),
        pytest.param(card(0), [use(0, OTHER_PREFIX)], False, id="all of it is free, under the other prefix"),
        pytest.param(card(0), [use(0, {**WHOLE, "kubernetes.io/gpu-core": "50"}, HOLDER)], True, id="a share is held"),
        pytest.param(card(0), [use(0, {**WHOLE, "kubernetes.io/gpu-memory": "15Gi"})], True, id="less is free"),
        pytest.param(card(0), [use(0, WHOLE, HOLDER)], True, id="a pod holds nothing that counts"),
        pytest.param(card(0, health=False), [use(0, NONE_FREE)], True, id="unhealthy"),
        pytest.param(card(0), [], True, id="the operator has not seen it"),
        pytest.param(card(0), [use(0, WHOLE, kind="rdma")], True, id="a NIC of that minor is free"),
        pytest.param(card(0), [use(0, {})], True, id="nothing is known to be free"),
        pytest.param(card(0, **INSTANCES), [use(0, ONE)], False, id="its instances are free"),
        pytest.param(card(0, **INSTANCES), [use(0, ONE, HOLDER)], True, id="one is held"),
        pytest.param(card(0, resources={}), [use(0, {"kubernetes.io/gpu-core": "100"})], False, id="no amounts"),
    ],
)  # fmt: skip
def test_a_card_is_busy_unless_all_of_it_can_be_allocated(of: Any, used: list[Any], *, is_busy: bool) -> None:
    assert served(NODES, device([of], used))["spec"]["device_busy"] == (["GPU-0"] if is_busy else [])


@pytest.mark.parametrize(
    ("conditions", "health", "message"),
    [
        ([ready("False", "no driver")], "False", "no driver"),
        ([ready("Unknown", "silent")], "False", "silent"),
        ([], "False", "the operator has not seen the node's Device yet"),
        ([{**ready(), "type": "Valid"}], "False", "the operator has not seen the node's Device yet"),
    ],
)
def test_a_node_is_healthy_only_if_its_device_is_ready(conditions: list[Any], health: str, message: str) -> None:
    status = served(NODES, device([], [], *conditions))["status"]
    assert (status["health"], status["message"]) == (health, message)


def test_a_bare_device_is_a_node_without_gpus() -> None:
    bare = {"metadata": metadata("n1", managedFields=None), "spec": {}}
    spec = served(NODES, bare)["spec"]
    assert spec == {"device_infos": {}, "device_models": {}, "device_busy": [], "report_time": SINCE}


CARDS = [
    {"minor": 0, "id": "GPU-0", "model": "Tesla T4", "busID": "0000:00:00.0"},
    {"minor": 1, "id": "GPU-1", "model": "NVIDIA A100", "busID": "0000:01:00.0"},
]


def gpu_pod(name: str = "p", namespace: str = "ns", node: str = "n1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": metadata(gpupod.name_of(name, node), namespace=namespace, labels={"berth.dev/node": "x"}),
        "spec": {"nodeName": node, "podUID": "u", "cards": CARDS, **spec},
    }


def held(minor: int, device_id: str, kind: str = "gpu") -> dict[str, Any]:
    return {"type": kind, "minor": minor, "id": device_id}


def info(device_id: str, minor: int | None = None) -> dict[str, str]:
    card = {} if minor is None else {"device_model": CARDS[minor]["model"], "device_busid": CARDS[minor]["busID"]}
    return {"device_id": device_id, **card, "device_node": "n1"}  # type: ignore[dict-item]


def test_a_gpu_pod_has_the_fields_of_the_original() -> None:
    assert served(PODS, gpu_pod(containers=[{"name": "main", "devices": [held(0, "GPU-0")]}])) == {
        "kind": "GpuPod",
        "apiVersion": "nvidia-gpu-scheduler/v1",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "uid-p.n1",
            "resourceVersion": "7",
            "creationTimestamp": SINCE,
            "labels": {"nvidia-gpu-scheduler.node": "n1"},
        },
        "spec": {
            "pod_name": "p",
            "pod_namespace": "ns",
            "node_name": "n1",
            "containers_device": [{"container_name": "main", "device_info": [info("GPU-0", 0)]}],
        },
        "status": {"last_changed_time": "2026-01-02T00:00:00Z"},
    }


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        pytest.param(held(1, "GPU-1::3"), [info("GPU-1", 1)], id="a replica is its card"),
        pytest.param(held(1, "MIG-a::0"), [info("MIG-a", 1)], id="an instance is on the card of its minor"),
        pytest.param(held(0, "GPU-old"), [info("GPU-old")], id="another card has the minor now"),
        pytest.param(held(9, "MIG-old"), [info("MIG-old")], id="the card is gone"),
        pytest.param(held(0, "0000:1f:00.0", "rdma"), [], id="a NIC"),
    ],
)
def test_a_device_has_the_model_of_its_card(device: Any, expected: list[Any]) -> None:
    containers = [{"name": "main", "devices": [device]}]
    spec = served(PODS, gpu_pod(containers=containers))["spec"]
    assert spec["containers_device"] == [{"container_name": "main", "device_info": expected}]


def test_shares_are_of_no_container() -> None:
    spec = served(PODS, gpu_pod(containers=[], allocated=[held(0, "GPU-0")]))["spec"]
    assert spec["containers_device"] == [{"device_info": [info("GPU-0", 0)]}]


@pytest.mark.parametrize("own", ["p.n1", pytest.param("p", id="of an older agent")])
def test_it_has_its_pod_s_name(own: str) -> None:
    source = gpu_pod()
    source["metadata"]["name"] = own
    body = served(PODS, source)
    assert {PODS.entry(source).key[1], body["metadata"]["name"], body["spec"]["pod_name"]} == {"p"}


def test_names_that_the_original_joined_do_not_collide() -> None:
    first, second = (PODS.entry(gpu_pod(name, namespace)) for namespace, name in (("a-b", "c"), ("a", "b-c")))
    assert first.key != second.key
    assert first.fields == {"metadata.name": "c", "metadata.namespace": "a-b", "spec.node_name": "n1"}


def test_a_node_name_that_is_no_label_value_is_left_out_of_the_labels() -> None:
    entry = PODS.entry(gpu_pod(node="n" * 64))
    assert (entry.labels, entry.fields["spec.node_name"]) == ({}, "n" * 64)


@pytest.mark.parametrize(
    ("kind", "source", "cells"),
    [
        (
            NODES,
            device([card(0), card(1, "A")], [use(0, WHOLE)], ready(message="m")),
            ["True", 2, 1, "a, tesla t4", "m"],
        ),
        (
            PODS,
            gpu_pod(containers=[{"name": name, "devices": [held(0, "GPU-0")]} for name in "ab"]),
            ["n1", 1, "2026-01-02T00:00:00Z", "GPU-0"],
        ),
    ],
)
def test_kubectl_shows_as_many_cells_as_columns(kind: SourcedKind, source: Any, cells: list[Any]) -> None:
    assert kind.entry(source).cells == [*cells, SINCE]
    assert len(cells) + 1 == len(kind.columns)
