"""A NIC goes to one pod, and specifications of containers stay as long as their pods are on the node."""

import base64
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from berth_agent.isolation.nics import FILE, NicProvider
from berth_agent.isolation.provider import NodeView
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.allocations import CHECKPOINT
from berth_agent.kubelet_api.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse
from berth_agent.vendor import RefusedError
from berth_api.allocation import Grant
from berth_api.device import DeviceSpec
from berth_api.names import RDMA, RDMA_RESOURCE
from tests.objects.sysfs_tree import SysfsTree
from tests.unit.agent.dra.test_preparation import no_room

LONG_AGO = 10.0
NOON = "2026-01-01T12:00:00Z"
NIC = "0000:18:00.0"
WHOLE = Grant(type=RDMA, minor=0, id=NIC, amounts=((RDMA, 100),))


async def unlisted() -> tuple[list[Pod], int]:
    return [], 1


async def test_only_specifications_of_pods_that_are_gone_are_removed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "here", "gone")
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


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
async def test_a_running_pod_keeps_its_nic_from_one_that_was_created_in_the_same_second(
    tmp_path: Path, first: str, second: str
) -> None:
    SysfsTree(tmp_path).nic(NIC)
    pods = [Pod(uid=uid, namespace="ns", name=uid, created=NOON, nics=(WHOLE,)) for uid in (first, second)]

    def provider(*present: Pod) -> NicProvider:
        async def listed() -> tuple[list[Pod], int]:
            return list(present), 1

        return NicProvider(sysfs=tmp_path, kubelet=tmp_path, cdi_folder=tmp_path, list_pods=listed)

    write_checkpoint(tmp_path, first)
    await provider(pods[0]).before_start([first])
    write_checkpoint(tmp_path, first, second)
    # An agent that has just started knows it, too.
    restarted = provider(*pods)
    with pytest.raises(RefusedError, match=f"of ns/{second} was also given to ns/{first}, which comes before it"):
        await restarted.before_start([second])
    await restarted.before_start([first])
    assert present(tmp_path) >= {FILE.format(first)}
    assert not present(tmp_path) & {FILE.format(second)}


@pytest.mark.parametrize("content", [None, b"", b"{"])
async def test_a_specification_that_another_program_removed_or_damaged_is_written_before_the_next_start(
    tmp_path: Path, content: bytes | None
) -> None:
    SysfsTree(tmp_path).nic(NIC)
    pod = Pod(uid="a", namespace="ns", name="a", created=NOON, nics=(WHOLE,))

    async def listed() -> tuple[list[Pod], int]:
        return [pod], 1

    provider = NicProvider(sysfs=tmp_path, kubelet=tmp_path, cdi_folder=tmp_path / "cdi", list_pods=listed)
    write_checkpoint(tmp_path, "a")
    await provider.before_start(["a"])
    file = tmp_path / "cdi" / FILE.format("a")
    before = file.read_bytes()
    shutil.rmtree(tmp_path / "cdi")
    if content is not None:
        file.parent.mkdir()
        file.write_bytes(content)
    with no_room(), pytest.raises(RefusedError, match="too large; kubelet tries again"):
        await provider.before_start(["a"])
    await provider.before_start(["a"])
    assert file.read_bytes() == before


async def test_a_pod_that_was_served_during_the_list_of_pods_keeps_its_nic(tmp_path: Path) -> None:
    SysfsTree(tmp_path).nic(NIC)
    early, late = (Pod(uid=uid, namespace="ns", name=uid, created=NOON, nics=(WHOLE,)) for uid in ("a", "b"))
    write_checkpoint(tmp_path, "a")

    async def listed() -> tuple[list[Pod], int]:
        # What the server had before the other pod came. That pod is shown by the watch, and starts.
        await provider.check(NodeView(spec=DeviceSpec(devices=[]), pods=(late,)))
        write_checkpoint(tmp_path, "a", "b")
        await provider.before_start(["b"])
        return [early], 1

    provider = NicProvider(sysfs=tmp_path, kubelet=tmp_path, cdi_folder=tmp_path, list_pods=listed)
    with pytest.raises(RefusedError, match="of ns/a was also given to ns/b, which comes before it"):
        await provider.before_start(["a"])
    assert FILE.format("a") not in present(tmp_path)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(None, id="no object"),
        pytest.param({}, id="no fields"),
        pytest.param({"PodUID": ["b"]}, id="a UID that is no text"),
        pytest.param({"ContainerName": 7}, id="a name that is no text"),
        pytest.param({"ResourceName": ["x"]}, id="a resource that is no text"),
        pytest.param({"DeviceIDs": ["b"]}, id="units without NUMA nodes"),
        pytest.param({"DeviceIDs": {"-1": [["b"]]}}, id="a unit that is no text"),
        pytest.param({"AllocResp": "?"}, id="an answer that is not base64"),
        pytest.param({"AllocResp": "L3ZlcnNpb24="}, id="an answer that is no message"),
        pytest.param({"ResourceName": "example.com/x", "AllocResp": 7}, id="an odd entry of another resource"),
    ],
)
async def test_an_odd_entry_hides_no_other(tmp_path: Path, odd: dict[str, Any] | None) -> None:
    SysfsTree(tmp_path).nic(NIC)
    pod = Pod(uid="a", namespace="ns", name="a", created=NOON, nics=(WHOLE,))
    (tmp_path / FILE.format("old")).write_text("{}")
    os.utime(tmp_path / FILE.format("old"), (LONG_AGO, LONG_AGO))
    write_checkpoint(tmp_path, "a", odd=[{**entry("b"), **odd} if odd else odd])
    provider = NicProvider(sysfs=tmp_path, kubelet=tmp_path, cdi_folder=tmp_path, list_pods=unlisted)
    await provider.check(NodeView(spec=DeviceSpec(devices=[]), pods=(pod,)))
    await provider.before_start(["a"])
    is_of_nics = odd is None or odd.get("ResourceName") != "example.com/x"
    # The old file may be of the container of the odd entry.
    assert present(tmp_path) >= {FILE.format("a")} | ({FILE.format("old")} if is_of_nics else set())


def write_checkpoint(folder: Path, *uids: str, odd: Sequence[object] = ()) -> None:
    entries = [*odd, *map(entry, uids)]
    (folder / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))


def entry(uid: str) -> dict[str, Any]:
    return {
        "PodUID": uid,
        "ContainerName": "main",
        "ResourceName": RDMA_RESOURCE,
        "DeviceIDs": {"-1": [uid]},
        "AllocResp": base64.b64encode(answer(uid)).decode(),
    }


def present(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def answer(name: str) -> bytes:
    text: bytes = ContainerAllocateResponse(cdi_devices=[CDIDevice(name=f"{RDMA_RESOURCE}={name}")]).SerializeToString()
    return text
