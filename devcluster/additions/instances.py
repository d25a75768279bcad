"""The machines that Karpenter's provider for kwok appears to start: their agent, and what their kubelets show at first.

It runs as a separate program (`karpenter.start`). A new Node offers no devices at first, as with a real kubelet. Some
seconds later, the Node is in the fleet file of the simulated agent, which publishes its Device. When the Node is
deleted, its entry leaves the file.
"""

import argparse
import contextlib
import http.client
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster.control_plane.api import Api, ApiError
from devcluster.control_plane.cluster import Cluster
from devcluster.control_plane.nodes import is_of_plugin

POLL_SECONDS: Final = 0.3
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
NODE_POOL: Final = "karpenter.sh/nodepool"
SUMS: Final = ("kubernetes.io/", "koordinator.sh/")
"""Prefixes of the resources that Berth writes to Nodes."""

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One kind of machine."""

    name: str
    profile: str
    """The GPU's profile, as in fleet files."""
    gpus: int
    cpu: str
    memory: str
    price: float

    def for_karpenter(self) -> Manifest:
        """Return the type as Karpenter's provider for kwok reads it, on demand in one zone."""
        place = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone-a"}
        requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in place.items()]
        return {
            "name": self.name,
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "offerings": [{"Price": self.price, "Available": True, "Requirements": requirements}],
            "resources": {"cpu": self.cpu, "memory": self.memory, "nvidia.com/gpu": str(self.gpus)},
        }


class Instances:
    """The machines of a cluster."""

    def __init__(self, *, api: Api, types: dict[str, InstanceType], fleet: Path, delay: float) -> None:
        self._api, self._types, self._fleet, self._delay = api, types, fleet, delay
        self._seen: dict[str, float] = {}
        """Name of a Node -> when it was first seen."""
        self._written: list[Manifest] = []

    def update(self, now: float) -> None:
        """Bring the fleet file up to the Nodes; `now` is in monotonic seconds."""
        nodes = self._api.get("/api/v1/nodes", labelSelector=NODE_POOL)["items"]
        for node in nodes:
            if node["metadata"]["name"] not in self._seen:
                self._seen[node["metadata"]["name"]] = now
                # The provider gives a Node its devices at once; take them away until the delay is over.
                none = {
                    name: None
                    for name in node["status"]["capacity"] | node["status"]["allocatable"]
                    if is_of_devices(name)
                }
                with contextlib.suppress(ApiError):  # the Node may be gone already
                    path = f"/api/v1/nodes/{node['metadata']['name']}/status"
                    self._api.merge(path, {"status": {"capacity": none, "allocatable": none}})
        names = {node["metadata"]["name"]: node["metadata"]["labels"][INSTANCE_TYPE] for node in nodes}
        self._seen = {name: since for name, since in self._seen.items() if name in names}
        ready = [name for name, since in self._seen.items() if now - since >= self._delay]
        kinds = {name: self._types[names[name]] for name in sorted(ready)}
        groups: list[Manifest] = [
            {"names": name, "profile": kind.profile, "gpus": kind.gpus} for name, kind in kinds.items()
        ]
        if groups != self._written or not self._fleet.exists():
            draft = self._fleet.with_suffix(".draft")
            draft.write_text(yaml.safe_dump({"nodes": groups}))
            draft.replace(self._fleet)
            self._written = groups


def is_of_devices(resource: str) -> bool:
    """Return whether a resource comes from device plugins or from Berth."""
    return is_of_plugin(resource) or resource.startswith(SUMS)


def save(types: list[InstanceType], file: Path) -> None:
    """Write types for this program."""
    file.write_text(json.dumps([asdict(kind) for kind in types]))


def main() -> None:
    """Play the machines of the cluster that KUBECONFIG is in, until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", type=Path)
    parser.add_argument("fleet", type=Path)
    parser.add_argument("delay", type=float)
    options = parser.parse_args()
    types = [InstanceType(**kind) for kind in json.loads(options.types.read_text())]
    instances = Instances(
        api=Cluster(folder=Path(os.environ["KUBECONFIG"]).parent).api,
        types={kind.name: kind for kind in types},
        fleet=options.fleet,
        delay=options.delay,
    )
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            instances.update(time.monotonic())
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
