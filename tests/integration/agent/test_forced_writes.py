"""The publisher of Devices on a real API server, next to a manager that applied a copy."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from berth_agent import cluster, conditions
from berth_agent.conditions import Finding
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.publishing.publish import Publisher
from berth_agent.readings import Reading
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec
from berth_client import credentials
from berth_client.client import ApiClient
from devcluster import Arena

GPU = DeviceInfo(type="gpu", minor=0, id="GPU-0", health=True)


@pytest.fixture
async def client(arena: Arena) -> AsyncIterator[ApiClient]:
    made = cluster.client_of(credentials.load(arena.cluster.kubeconfig), timeout=60.0, connections=2)
    yield made
    made.close()


async def test_a_copy_with_a_fault_that_is_over_freezes_nothing(client: ApiClient, arena: Arena) -> None:
    """After the fault's reason has changed, the copy owns a condition without a reason, which no Device may have."""
    [node] = arena.nodes()
    nodes = NodeCache(client=client)
    await nodes.refresh([node])
    publisher = Publisher(client=client, client_of=lambda _: client, nodes=nodes, concurrency=1)

    async def publish(*cards: DeviceInfo) -> dict[str, Any]:
        await publisher.publish({node: Reading(spec=DeviceSpec(devices=list(cards)), findings=())})
        spec: dict[str, Any] = arena.get("devices", node)["spec"]
        return spec

    spec = await publish(conditions.unhealthy(GPU, reason="Xid79", message=""))
    copy = {"apiVersion": names.API_VERSION, "kind": "Device", "metadata": {"name": node}, "spec": spec}
    await client.apply(f"{cluster.DEVICES}/{node}", copy, "argocd", force=True)
    changed = await publish(conditions.unhealthy(GPU, reason="GpuIsLost", message=""))
    assert changed["devices"][0]["conditions"][0]["reason"] == "GpuIsLost"
    [healthy] = (await publish(GPU))["devices"]
    assert (healthy["health"], "conditions" in healthy) == (True, False)
    # The copy also has a card that is gone by now.
    await publish()
    assert arena.get("devices", node)["spec"].get("devices", []) == []


async def test_a_copy_with_an_earlier_condition_freezes_no_status(client: ApiClient, arena: Arena) -> None:
    [node] = arena.nodes()
    nodes = NodeCache(client=client)
    await nodes.refresh([node])
    publisher = Publisher(client=client, client_of=lambda _: client, nodes=nodes, concurrency=1)

    async def publish(*findings: Finding) -> dict[str, str]:
        await publisher.publish({node: Reading(spec=DeviceSpec(devices=[GPU]), findings=findings)})
        return {each["type"]: each["reason"] for each in arena.get("devices", node)["status"]["conditions"]}

    loaded = Finding(type=names.DRIVER_LOADED, ok=True, reason="Loaded")
    await publish(loaded, Finding(type=names.DEVICES_OFFERED, ok=False, reason="First"))
    foreign = {"type": "Audited", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [*arena.get("devices", node)["status"]["conditions"], foreign]
    copy = {"apiVersion": names.API_VERSION, "kind": "Device", "metadata": {"name": node}}
    path = f"{cluster.DEVICES}/{node}/status"
    await client.apply(path, {**copy, "status": {"conditions": conditions}}, "argocd", force=True)
    await publish(loaded, Finding(type=names.DEVICES_OFFERED, ok=False, reason="Second"))
    assert await publish(loaded) == {names.DRIVER_LOADED: "Loaded", "Audited": "R"}
