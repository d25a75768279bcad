"""An agent process on the NVML fixture keeps the Device of its node up to date."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from berth_api import names
from devcluster import Arena
from tests.nvml.fixture import NvmlFixture, a100

Wait = Callable[[str], dict[str, Any]]
Start = Callable[..., Any]

DEVICES = "/apis/berth.dev/v1alpha1/devices"


def condition(device: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(each for each in device["status"]["conditions"] if each["type"] == kind)


def apply_as(arena: Arena, manager: str, node: str, body: dict[str, Any], *, status: bool = False) -> None:
    """Apply fields of a Device with another field manager."""
    arena.cluster.api.request(
        "PATCH",
        f"{DEVICES}/{node}/status" if status else f"{DEVICES}/{node}",
        body={"apiVersion": names.API_VERSION, "kind": "Device", "metadata": {"name": node}, **body},
        query={"fieldManager": manager, "force": "true"},
        content_type="application/apply-patch+yaml",
    )


def test_a_node_s_device_is_published_and_owned_by_the_node(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    start_nvml(node, NvmlFixture(tmp_path, gpus=[a100(0), a100(1)]))
    published = device(node)
    owner = published["metadata"]["ownerReferences"]
    assert [(each["kind"], each["uid"], each["controller"]) for each in owner] == [
        ("Node", arena.get("nodes", node)["metadata"]["uid"], True)
    ]
    assert published["metadata"]["labels"] == {
        names.VENDOR_LABEL: "nvidia",
        names.MODEL_LABEL: "A100-SXM4-80GB",
        names.DRIVER_LABEL: "570.133.20",
    }
    assert [(each["type"], each["status"]) for each in published["status"]["conditions"]] == [
        (names.DRIVER_LOADED, "True"),
        (names.INVENTORY_READ, "True"),
        (f"{names.INVENTORY_READ}.rdma", "True"),
        (f"{names.INVENTORY_READ}.fpga", "True"),
    ]
    first = published["spec"]["devices"][0]
    assert first == {
        "type": "gpu",
        "minor": 0,
        "id": "GPU-a1000000-0000-4000-8000-000000000000",
        "moduleID": 1,
        "health": True,
        "model": "NVIDIA A100-SXM4-80GB",
        "resources": {
            "kubernetes.io/gpu-core": 100,
            "kubernetes.io/gpu-memory": "80Gi",
            "kubernetes.io/gpu-memory-ratio": 100,
        },
        "multiprocessors": 108,
        "memoryBandwidth": "2039040M",
        "encoders": 0,
        "decoders": 5,
        "topology": {"socketID": 0, "nodeID": 0, "pcieID": "0000:11:00.0", "busID": "0000:13:00.0"},
        "links": [{"minor": 1, "type": "NVLink", "count": 12, "peerToPeer": True}],
        "mig": {"enabled": False, "instances": []},
    }


def test_nothing_is_written_while_nothing_changes_and_others_keep_their_fields(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    fixture = NvmlFixture(tmp_path, gpus=[a100(0), a100(1)])
    start_nvml(node, fixture)
    device(node)
    ready = {"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    apply_as(arena, names.OPERATOR, node, {"status": {"gpus": 2, "conditions": [ready]}}, status=True)
    before = arena.get("devices", node)
    time.sleep(1.2)
    assert arena.get("devices", node)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    fixture.lose(1)
    arena.wait(lambda: not arena.get("devices", node)["spec"]["devices"][1]["health"], what="the lost card")
    after = arena.get("devices", node)
    assert after["spec"]["devices"][1]["conditions"][0]["reason"] == "GpuIsLost"
    assert condition(after, "Ready") == ready
    assert after["status"]["gpus"] == 2
    writers = {(each["manager"], each["operation"]) for each in after["metadata"]["managedFields"]}
    assert writers == {(names.AGENT, "Apply"), (names.OPERATOR, "Apply")}


def test_the_driver_s_absence_is_published_and_its_return_too(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    fixture = NvmlFixture(tmp_path, gpus=[a100(0)], loaded=False)
    start_nvml(node, fixture)
    published = device(node)
    assert published["spec"]["devices"] == []
    loaded = condition(published, names.DRIVER_LOADED)
    assert (loaded["status"], loaded["reason"]) == ("False", "DriverNotLoaded")
    fixture.load()
    arena.wait(
        lambda: condition(arena.get("devices", node), names.DRIVER_LOADED)["status"] == "True", what="the driver"
    )
    assert len(arena.get("devices", node)["spec"]["devices"]) == 1


def test_a_device_that_was_deleted_or_changed_is_restored(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    start_nvml(node, NvmlFixture(tmp_path, gpus=[a100(0)]))
    before = device(node)
    arena.delete("devices", node)
    again = device(node)
    assert again["metadata"]["uid"] != before["metadata"]["uid"]
    assert again["spec"] == before["spec"]
    arena.cluster.api.request(
        "PATCH",
        f"{DEVICES}/{node}",
        body=[{"op": "remove", "path": "/spec/devices/0"}],  # type: ignore[arg-type]
        content_type="application/json-patch+json",
    )
    arena.wait(lambda: arena.get("devices", node)["spec"]["devices"] == before["spec"]["devices"], what="its card")


def test_a_restart_keeps_times_and_a_node_may_come_later(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    node = f"{arena.id}-0"
    fixture = NvmlFixture(tmp_path, gpus=[a100(0)], loaded=False)
    first = start_nvml(node, fixture)
    arena.wait(lambda: "no such Node yet" in first.log, what="a log line about the missing Node")
    arena.nodes(1)
    before = device(node)
    assert first.stop() == 0
    time.sleep(1.1)
    second = start_nvml(node, fixture)
    arena.wait(lambda: "Device published" in second.log, what="the second agent")
    time.sleep(0.5)
    after = arena.get("devices", node)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
