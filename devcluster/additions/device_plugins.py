"""Device plugins for nodes that kwok simulates: a Node offers what its Device has, as kubelet would show it.

It runs as a separate program (`Cluster.play_device_plugins`). It leaves nodes alone that were created with their own
amounts or with the annotation `NO_PLUGIN`.
"""

import http.client
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from devcluster.control_plane.api import Api, ApiError
from devcluster.control_plane.cluster import Cluster
from devcluster.control_plane.components import FAKE_NODE
from devcluster.control_plane.nodes import NO_PLUGIN, is_of_plugin

DEVICES: Final = "/apis/berth.dev/v1alpha1/devices"
VENDOR: Final = "node.koordinator.sh/gpu-vendor"
CARDS: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "hygon": "dcu.com/gpu"}
WATCH_SECONDS: Final = 300

Manifest = dict[str, Any]
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginResources:
    """What plugins offer on one node."""

    capacity: Amounts = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)
    """Of healthy devices."""


def plugin_resources(device: Manifest) -> PluginResources:
    """Return what the plugins of a Device's node offer to kubelet."""
    resource = CARDS.get(device["metadata"].get("labels", {}).get(VENDOR, "nvidia"))
    strategy = device["spec"].get("migStrategy") or "mixed"
    capacity: Counter[str] = Counter()
    allocatable: Counter[str] = Counter()
    for card in device["spec"].get("devices", ()):
        if card["type"] == "gpu" and resource:
            units = Counter(_units(card, resource, strategy))
            capacity += units
            # Unhealthy devices count in the capacity, but are not allocatable.
            allocatable += units if card.get("health") else Counter()
    return PluginResources(capacity=capacity, allocatable={name: allocatable[name] for name in capacity})


def _units(card: Manifest, resource: str, strategy: str) -> Iterator[str]:
    """Return the resource of each unit that a card is."""
    mig = card.get("mig") or {}
    if strategy == "none" or not mig.get("enabled"):
        yield from _slices(card, resource)
        return
    for instance in mig.get("instances", ()):
        profile = instance["profile"].replace("+", ".")
        if strategy == "single":
            yield from _slices(instance, resource)
        elif "c." not in profile:  # Plugins offer no compute instances that share a GPU instance.
            yield from _slices(instance, f"nvidia.com/mig-{profile}")


def _slices(device: Manifest, resource: str) -> Iterator[str]:
    count, name = device.get("replicas") or 1, device.get("replicaResource")
    yield from [name or resource] * count
    if count > 1 and not name:
        # The Device does not name the resource of its replicas: offer both.
        yield from [f"{resource}.shared"] * count


class DevicePlugins:
    """The plugins of all nodes of a cluster."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shown: dict[str, PluginResources] = {}

    def follow(self) -> None:
        """Bring all Nodes up to their Devices, until the watch ends."""
        listed = self._api.get(DEVICES)
        for device in listed["items"]:
            self.show(device)
        for event in self._api.watch(DEVICES, version=listed["metadata"]["resourceVersion"], seconds=WATCH_SECONDS):
            if event["type"] == "ERROR":
                return
            if event["type"] == "DELETED":
                self._shown.pop(event["object"]["metadata"]["name"], None)
            else:
                self.show(event["object"])

    def show(self, device: Manifest) -> None:
        """Write what a Device's node offers, if it has changed."""
        name, resources = device["metadata"]["name"], plugin_resources(device)
        if self._shown.get(name) == resources:
            return
        try:
            self._write(name, resources)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
        else:
            self._shown[name] = resources

    def _write(self, name: str, resources: PluginResources) -> None:
        path = f"/api/v1/nodes/{name}"
        node = self._api.get(path)
        annotations = node["metadata"].get("annotations", {})
        # FAKE_NODE alone is not enough: some nodes of kwok have no plugin.
        if not FAKE_NODE.keys() <= annotations.keys() or NO_PLUGIN.items() <= annotations.items():
            return
        # Kubelet keeps a resource that is no longer offered, with an amount of 0.
        none = {resource: "0" for resource in node["status"]["capacity"] if is_of_plugin(resource)}
        status = {
            "capacity": {**none, **_texts(resources.capacity)},
            "allocatable": {**none, **_texts(resources.allocatable)},
        }
        self._api.merge(f"{path}/status", {"status": status})


def _texts(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def main() -> None:
    """Play the plugins of the cluster that KUBECONFIG is in, until it ends."""
    plugins = DevicePlugins(Cluster(folder=Path(os.environ["KUBECONFIG"]).parent).api)
    while True:
        plugins.follow()


if __name__ == "__main__":
    main()
