"""Pods that request resources of a device plugin are bound only where the Node offers them."""

import re

import pytest

from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World

GPU = "nvidia.com/gpu"
SHORT = f"0/1 nodes are available: 1 Insufficient {GPU}."


def offers(amount: str) -> Manifest:
    """Return what kubelet would report of its device plugin."""
    return {"status": {field: {GPU: amount} for field in ("capacity", "allocatable")}}


def offer(world: World, node: str, amount: str) -> None:
    """Write what kubelet would report of its device plugin."""
    world.arena.merge("nodes", node, offers(amount), subresource="status")


def node_offering(world: World, amount: str | None) -> str:
    """Create a node with eight healthy cards in its Device, of which its kubelet offers this many."""
    capacity = {"nvidia.com/other": "1"} if amount is None else {GPU: amount}
    return world.nodes(capacity=capacity)[0]


@pytest.mark.parametrize(
    ("offered", "amount"),
    [
        pytest.param("0", "1", id="none"),
        pytest.param("7", "8", id="seven of eight"),
        pytest.param(None, "1", id="no plugin"),
    ],
)
def test_a_pod_waits_until_the_node_offers_enough(shared: World, offered: str | None, amount: str) -> None:
    node = node_offering(shared, offered)
    shared.pod("p", {GPU: amount})
    assert shared.waits("p") == SHORT
    shared.pod("half", {"kubernetes.io/gpu": "50"})
    shared.bound("half")
    shared.arena.delete("pods", "half", grace_seconds=0)
    offer(shared, node, amount)
    assert shared.bound("p")["spec"]["nodeName"] == node


def test_a_resource_of_a_device_class_needs_pools_of_berth(shared: World) -> None:
    resource, name = f"example.com/{shared.arena.id}", f"{shared.arena.id}.example.com"
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    source = (
        f"node(s) provide {resource} only by DeviceClass {name} (Berth allocates ResourceClaims only from pools in "
        "claims.drivers or claims.pools of its configuration)"
    )
    claimed = f"0/1 nodes are available: 1 {source}."
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    [node] = shared.nodes()
    shared.pod("p", {resource: "1"})
    assert shared.waits("p") == f"0/1 nodes are available: 1 Insufficient {resource}."
    shared.api.post(classes, {"metadata": {"name": name}, "spec": {"extendedResourceName": resource}})
    # Without a device, the class alone provides nothing there.
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": name, "nodeName": node, "pool": pool, "devices": [{"name": "card-0"}]}
    shared.api.post(slices, {"metadata": {"name": name}, "spec": spec})
    try:
        shared.waits("p", re.escape(claimed))
        # The node's own device plugin takes precedence.
        both = {field: {resource: "1"} for field in ("capacity", "allocatable")}
        shared.arena.merge("nodes", node, {"status": both}, subresource="status")
        shared.bound("p")
    finally:
        shared.api.delete(f"{slices}/{name}")
        shared.api.delete(f"{classes}/{name}")
