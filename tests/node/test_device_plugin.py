"""A device plugin's answers reach the container and PodResources unchanged. The agent's plugin relies on this."""

# ruff: noqa: N802, ARG002 - the interface names its methods and arguments

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from berth_agent.kubelet_api import deviceplugin_pb2 as messages
from berth_agent.kubelet_api import podresources_pb2 as resources
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from berth_agent.kubelet_api.podresources_pb2_grpc import PodResourcesListerStub
from devcluster import Arena, waiting
from devcluster.real_node import RealNode
from tests.node.boxes import box, running

RESOURCE = "example.com/gpu"
SOCKET = "example-gpu.sock"
UNITS = [f"GPU-{number}" for number in range(8)]
CHOSEN = ["GPU-5", "GPU-3"]

Held = dict[tuple[str, str, str], list[str]]


@dataclass
class Plugin(DevicePluginServicer):
    """Offers UNITS, always prefers CHOSEN, and keeps what kubelet asks."""

    preferred: list[Any] = field(default_factory=list)
    allocated: list[list[str]] = field(default_factory=list)

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> messages.DevicePluginOptions:
        return messages.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[messages.ListAndWatchResponse]:
        yield messages.ListAndWatchResponse(devices=[messages.Device(ID=unit, health="Healthy") for unit in UNITS])
        await asyncio.Event().wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> messages.PreferredAllocationResponse:
        self.preferred += request.container_requests
        answer = messages.ContainerPreferredAllocationResponse(deviceIDs=CHOSEN)
        return messages.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request: Any, context: Any) -> messages.AllocateResponse:
        [container_request] = request.container_requests
        self.allocated.append(list(container_request.devices_ids))
        answer = messages.ContainerAllocateResponse(
            envs={"NVIDIA_VISIBLE_DEVICES": ",".join(container_request.devices_ids)},
            cdi_devices=[messages.CDIDevice(name=f"{RESOURCE}={unit}") for unit in container_request.devices_ids],
        )
        return messages.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(self, request: Any, context: Any) -> messages.PreStartContainerResponse:
        raise AssertionError("it was not asked for")


async def test_answers_of_a_plugin_reach_the_container(arena: Arena, node: RealNode) -> None:
    _write_cdi(node)
    plugin = Plugin()
    async with _serving(plugin, node):
        await _register(node)
        await asyncio.to_thread(_wait_for_units, arena, node, len(UNITS))

        pod = box(arena, limits={RESOURCE: "2"}, nodeName=node.name)
        arena.create([pod])
        ready = await asyncio.to_thread(running, arena)

        [container_request] = plugin.preferred
        assert sorted(container_request.available_deviceIDs) == UNITS
        assert container_request.allocation_size == 2
        [allocated] = plugin.allocated
        assert sorted(allocated) == sorted(CHOSEN)
        container = node.container(ready)
        assert container.environment["NVIDIA_VISIBLE_DEVICES"] == ",".join(allocated)
        assert container.environment["SEEN_BY_CDI"] == "yes"
        assert {name for name in container.devices if name.startswith("nvidia")} == {"nvidia3", "nvidia5"}
        await asyncio.to_thread(_wait_for_held, node, {("pod", "main", RESOURCE): sorted(CHOSEN)})

        await asyncio.to_thread(node.restart_daemon, "kubelet")

        # A kubelet that has not received its pods yet lists none.
        await asyncio.to_thread(_wait_for_held, node, {("pod", "main", RESOURCE): sorted(CHOSEN)})
        assert await asyncio.to_thread(node.container, ready) == container


@asynccontextmanager
async def _serving(plugin: Plugin, node: RealNode) -> AsyncIterator[None]:
    server = grpc.aio.server()
    add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix://{node.device_plugins / SOCKET}")
    await server.start()
    yield
    await server.stop(grace=None)
    await asyncio.to_thread((node.device_plugins / SOCKET).unlink, missing_ok=True)


async def _register(node: RealNode) -> None:
    request = messages.RegisterRequest(
        version="v1beta1",
        endpoint=SOCKET,
        resource_name=RESOURCE,
        options=messages.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    async with grpc.aio.insecure_channel(f"unix://{node.device_plugins / 'kubelet.sock'}") as channel:
        await RegistrationStub(channel).Register(request)


def _wait_for_held(node: RealNode, expected: Held) -> None:
    waiting.until(lambda: asyncio.run(_held(node)) == expected, what=f"{expected} in PodResources")


async def _held(node: RealNode) -> Held:
    """Return what PodResources lists: the units of each resource, by pod and container."""
    async with grpc.aio.insecure_channel(f"unix://{node.pod_resources}") as channel:
        answer: Awaitable[resources.ListPodResourcesResponse]
        answer = PodResourcesListerStub(channel).List(resources.ListPodResourcesRequest())
        pods = (await answer).pod_resources
    held: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for pod in pods:
        for container in pod.containers:
            # Units of one resource may come in several entries.
            for devices in container.devices:
                held[pod.name, container.name, devices.resource_name] += devices.device_ids
    return {key: sorted(units) for key, units in held.items()}


def _wait_for_units(arena: Arena, node: RealNode, count: int) -> None:
    arena.wait(lambda: node.allocatable(RESOURCE) == count, what=f"{count} of {RESOURCE} in the Node")


def _write_cdi(node: RealNode) -> None:
    specification = {
        "cdiVersion": "0.5.0",
        "kind": RESOURCE,
        "containerEdits": {"env": ["SEEN_BY_CDI=yes"]},
        "devices": [_cdi_device(unit) for unit in UNITS],
    }
    (node.cdi / "example.json").write_text(json.dumps(specification))


def _cdi_device(unit: str) -> dict[str, Any]:
    path = f"/dev/nvidia{unit.removeprefix('GPU-')}"
    # Every machine has this one.
    return {"name": unit, "containerEdits": {"deviceNodes": [{"path": path, "hostPath": "/dev/null"}]}}
