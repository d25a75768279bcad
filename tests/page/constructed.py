"""Constructed cases of tests/unit/core/advice/test_explained_cases.py, as nodes and pods of a real control plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.integration.operator.world import World
from tests.unit.core.advice.test_explained_cases import CASES

WHOLE: Final = {"kubernetes.io/gpu": "100"}
TWO: Final = {"kubernetes.io/gpu": "200"}
NIC: Final = {"kubernetes.io/rdma": "100"}
WITH_NIC: Final = {**NIC, **WHOLE}


def share(hundredths: int) -> dict[str, str]:
    """Return a request for a share of a card."""
    return {"kubernetes.io/gpu-core": str(hundredths), "kubernetes.io/gpu-memory-ratio": str(hundredths)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constructed:
    """A case by its name there: nodes with devices, the pods that use them, and the pod that waits."""

    name: str
    asks: Mapping[str, str]
    used: Sequence[Mapping[str, str]] = ()
    nodes: int = 1
    devices: Mapping[str, Any] = field(default_factory=lambda: {"gpus": 2})
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the pod that waits."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """What changes in the Nodes before the pod is created."""

    @property
    def message(self) -> str:
        """Return what the condition begins with: every node of these cases is rejected for one reason."""
        [reason] = {reason for reasons in CASES[self.name].by_node.values() for reason in reasons}
        return f"0/{self.nodes} nodes are available: {self.nodes} {reason}."

    def build(self, world: World) -> str:
        """Create nodes and pods; return the name of the pod that waits, once its condition has the message."""
        world.clear()
        for name in world.nodes(self.nodes, **self.devices):
            if self.spec:
                world.arena.merge("nodes", name, {"spec": self.spec})
        for number, requests in enumerate(self.used):
            world.pod(f"used-{number}", requests)
            world.bound(f"used-{number}")
        name = self.name.lower().replace(" ", "-").replace(",", "")
        world.pod(name, self.asks, **self.pod)
        world.wait(lambda: world.message(name).startswith(self.message), what=f"{self.message} of {name}")
        return name


CONSTRUCTED: Final = (
    Constructed(name="whole cards in use", asks=WHOLE, used=[WHOLE, WHOLE]),
    Constructed(name="one of two in use", asks=TWO, used=[WHOLE]),
    Constructed(name="more than any node has", asks={"kubernetes.io/gpu": "800"}, nodes=2),
    Constructed(name="a share", asks=share(50), used=[share(60)], devices={"gpus": 1}),
    Constructed(name="a failed card", asks=WHOLE, devices={"gpus": 1, "unhealthy": [0]}),
    Constructed(name="a failed card of two", asks=TWO, devices={"gpus": 2, "unhealthy": [0]}),
    Constructed(name="cordoned", asks=WHOLE, spec={"unschedulable": True}),
    Constructed(name="node selector", asks=WHOLE, pod={"nodeSelector": {"z": "a"}}),
    Constructed(name="cpu", asks={"cpu": "8", **WHOLE}, used=[{"cpu": "60"}]),
    Constructed(name="no NIC", asks=WITH_NIC),
    Constructed(name="a NIC in use", asks=WITH_NIC, used=[NIC], devices={"gpus": 1, "rdma": 1}),
    Constructed(name="no MIG instance", asks={"nvidia.com/mig-1g.10gb": "1"}),
)
