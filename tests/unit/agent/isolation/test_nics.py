"""Specifications of containers with NICs stay as long as their pods are on the node."""

import base64
import json
import os
from pathlib import Path

from berth_agent.isolation.allocations import CHECKPOINT
from berth_agent.isolation.nics import FILE, NicProvider
from berth_agent.isolation.provider import NodeView
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet_api.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse
from berth_api.device import DeviceSpec
from berth_api.names import RDMA_RESOURCE

LONG_AGO = 10.0


async def unlisted() -> tuple[list[Pod], int]:
    return [], 1


async def test_only_specifications_of_pods_that_are_gone_are_removed(tmp_path: Path) -> None:
    entries = [
        {
            "PodUID": uid,
            "ContainerName": "main",
            "ResourceName": RDMA_RESOURCE,
            "DeviceIDs": {"-1": [uid]},
            "AllocResp": base64.b64encode(answer(uid)).decode(),
        }
        for uid in ("here", "gone")
    ]
    (tmp_path / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))
    for name in ("here", "gone", "new"):
        (tmp_path / FILE.format(name)).write_text("{}")
        if name != "new":
            os.utime(tmp_path / FILE.format(name), (LONG_AGO, LONG_AGO))
    (tmp_path / "other.json").write_text("{}")
    provider = NicProvider(sysfs=tmp_path, kubelet=tmp_path, cdi_folder=tmp_path, list_pods=unlisted)
    node = NodeView(spec=DeviceSpec(devices=[]), pods=(Pod(uid="here", namespace="ns", name="here"),))
    # The files alone keep the resource on offer: a NIC may be away in the network namespace of a pod.
    assert (await provider.check(node)).wanted
    assert present(tmp_path) == {CHECKPOINT, FILE.format("here"), FILE.format("new"), "other.json"}


def present(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def answer(name: str) -> bytes:
    text: bytes = ContainerAllocateResponse(cdi_devices=[CDIDevice(name=f"{RDMA_RESOURCE}={name}")]).SerializeToString()
    return text
