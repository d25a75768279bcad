"""The ResourceSlices of a node on a real API server: other clients cannot keep them from being what they should be."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from berth_agent.cluster import client_of
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.publisher import SLICES, SlicePublisher
from berth_client import credentials
from devcluster import Arena, waiting
from devcluster.control_plane.api import Manifest

BACK_SECONDS: Final = 2.0
"""Seconds within which deleted slices are there again."""


def card(number: int, fault: str = "") -> ListedDevice:
    name = f"gpu-{number}"
    attributes: dict[str, dict[str, Any]] = {"type": {"string": "gpu"}, "resource.kubernetes.io/numaNode": {"int": 0}}
    return ListedDevice(name=name, id=name, card=name, place="", attributes=attributes, memory="81920Mi", fault=fault)


async def test_slices_come_back_follow_faults_and_cost_no_needless_write(arena: Arena) -> None:
    [node] = arena.nodes(1)
    api = arena.cluster.api
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": arena.get("nodes", node)["metadata"]["uid"]}

    def slices() -> dict[str, Manifest]:
        items = api.get(SLICES, fieldSelector=f"spec.nodeName={node}")["items"]
        return {one["metadata"]["name"]: one for one in items}

    def faults() -> dict[str, list[str]]:
        """Return the values of each device's taints."""
        devices = [device for one in slices().values() for device in one["spec"].get("devices", [])]
        return {device["name"]: [taint["value"] for taint in device.get("taints", [])] for device in devices}

    async def until(condition: Callable[[], bool], what: str) -> None:
        await waiting.until_async(lambda: asyncio.to_thread(condition), what=what)

    async with _running(arena, node, owner) as publisher:
        publisher.publish([card(0), card(1), card(2)])
        await until(lambda: faults() == {"gpu-0": [], "gpu-1": [], "gpu-2": []}, "the slices")
        first = slices()
        publisher.publish([card(0), card(1, "Xid79"), card(2)])
        await until(lambda: faults()["gpu-1"] == ["Xid79"], "the taint")
        changed = [name for name, one in slices().items() if one != first[name]]
        assert len(changed) == 1

        await asyncio.to_thread(api.delete, SLICES, fieldSelector=f"spec.nodeName={node}")
        deleted = time.monotonic()
        await until(lambda: faults() == {"gpu-0": [], "gpu-1": ["Xid79"], "gpu-2": []}, "the slices to be back")
        assert time.monotonic() - deleted < BACK_SECONDS
        before = slices()
        publisher.publish([card(0), card(1), card(2)])
        await until(lambda: faults()["gpu-1"] == [], "the end of the taint")

        # Another client's change is undone.
        name = next(iter(before))
        api.request(
            "PATCH", f"{SLICES}/{name}", body={"spec": {"devices": []}}, content_type="application/merge-patch+json"
        )
        await until(lambda: len(faults()) == 3, "the device to be back")
    after = slices()
    # The next agent finds all as it should be, and writes nothing; without cards, no slice is left.
    async with _running(arena, node, owner) as publisher:
        publisher.publish([card(0), card(1), card(2)])
        publisher.publish([card(0), card(1), card(2), card(3)])
        await until(lambda: "gpu-3" in faults(), "the new card")
        assert {one["metadata"]["uid"] for one in after.values()} < {
            one["metadata"]["uid"] for one in slices().values()
        }
        publisher.publish([])
        await until(lambda: slices() == {}, "the slices to go")


@contextlib.asynccontextmanager
async def _running(arena: Arena, node: str, owner: Manifest) -> AsyncIterator[SlicePublisher]:
    client = client_of(credentials.load(arena.cluster.kubeconfig), timeout=10, connections=4)
    publisher = SlicePublisher(client=client, node=node, owner=lambda: owner)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        client.close()
