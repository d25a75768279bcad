"""Nodes that kwok simulates: their names and manifests, and when a node counts as ready."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from devcluster.control_plane.components import FAKE_NODE

Manifest = dict[str, Any]
Strings = Mapping[str, str]

RESOURCES: Final[Strings] = {"cpu": "64", "memory": "512Gi", "pods": "110"}
NO_PLUGIN: Final = {"devcluster.berth.dev/device-plugin": "none"}
"""The annotation of nodes on which no device plugin is played."""
REGION: Final = "eu-central-1"
ZONES: Final = tuple(f"{REGION}{letter}" for letter in "abc")
INSTANCE_TYPE: Final = "p4d.24xlarge"
NOT_READY: Final = "node.kubernetes.io/not-ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What the nodes of one batch have in common."""

    labels: Strings = field(default_factory=dict)
    annotations: Strings = field(default_factory=dict)
    capacity: Strings = field(default_factory=dict)
    """Added to cpu, memory and pods."""
    allocatable: Strings = field(default_factory=dict)
    """Added to the capacity."""
    taints: tuple[Mapping[str, str], ...] = ()


def expand(pattern: str) -> list[str]:
    """Return the names of a range, `node-[0-9]` or `node-[00-99]`; a pattern without brackets is one name."""
    match = re.fullmatch(r"([^\[\]]*)\[(\d+)-(\d+)\]([^\[\]]*)", pattern)
    if match is None:
        return [pattern]
    prefix, first, last, suffix = match.groups()
    return [f"{prefix}{number:0{len(first)}}{suffix}" for number in range(int(first), int(last) + 1)]


def is_of_plugin(resource: str) -> bool:
    """Return whether a resource is one that device plugins offer."""
    return resource.partition("/")[0] in ("nvidia.com", "amd.com", "dcu.com")


def zone_of(name: str) -> str:
    """Return the zone of a node: those with numbers at the end of their names are spread over all zones."""
    number = re.search(r"\d+$", name)
    return ZONES[int(number[0]) % len(ZONES) if number else 0]


def cloud_labels(name: str) -> Strings:
    """Return the labels that a cloud gives a node.

    The API server copies zone and region to Bindings, where policies see them (PodTopologyLabels).
    """
    return {
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": INSTANCE_TYPE,
        "topology.kubernetes.io/region": REGION,
        "topology.kubernetes.io/zone": zone_of(name),
    }


def provider_id(name: str) -> str:
    """Return the id under which a cloud knows the machine of a node."""
    return f"aws:///{zone_of(name)}/i-{hashlib.sha256(name.encode()).hexdigest()[:17]}"


def manifest(name: str, options: NodeOptions) -> Manifest:
    """Return one node's manifest."""
    # Ready from the start, as kwok would set it; for a thousand nodes this halves the wait.
    ready = {"type": "Ready", "status": "True", "reason": "Created"}
    capacity = {**RESOURCES, **options.capacity}
    # A caller that sets resources of plugins sets all of them.
    plugin = NO_PLUGIN if any(map(is_of_plugin, (*options.capacity, *options.allocatable))) else {}
    labels = {
        "type": "kwok",
        **cloud_labels(name),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**labels, **options.labels},
            "annotations": {**FAKE_NODE, **plugin, **options.annotations},
        },
        "spec": {"providerID": provider_id(name), "taints": [dict(taint) for taint in options.taints]},
        "status": {
            "phase": "Running",
            "conditions": [ready],
            "capacity": capacity,
            "allocatable": {**capacity, **options.allocatable},
        },
    }


def is_ready(node: Manifest) -> bool:
    """Return whether pods can be scheduled to the node: it is ready and the controller has removed its taint."""
    conditions: Iterable[Manifest] = node["status"].get("conditions", [])
    taints: Iterable[Manifest] = node["spec"].get("taints", [])
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and all(taint["key"] != NOT_READY for taint in taints)
