"""The cluster as the audit sees it; an object that cannot be parsed is a fault."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from demo.audit import quantity, requests, view
from demo.audit.fault import Fault, FaultKind

BROKEN: Final = (AttributeError, KeyError, TypeError, ValueError)
"""What parsing raises for data of an unexpected form."""


@dataclass(kw_only=True)
class Snapshot:
    """The allocatable of Nodes, the cards, and the pods that have not ended."""

    pods: list[view.Pod]
    nodes: dict[str, requests.Amounts] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    """Nodes that have a Device."""
    cards: dict[view.Key, view.Card] = field(default_factory=dict)
    unreadable: list[Fault] = field(default_factory=list)

    def add_node(self, raw: view.Manifest) -> None:
        """Add a Node."""
        name = raw["metadata"]["name"]
        try:
            self.nodes[name] = _allocatable(raw)
        except BROKEN as error:
            self.unreadable.append(Fault(kind=FaultKind.UNREADABLE, object=f"node {name}", text=str(error)))

    def add_device(self, raw: view.Manifest) -> None:
        """Add a Device."""
        name = raw["metadata"]["name"]
        self.devices.add(name)
        try:
            self.cards.update(view.cards(raw))
        except BROKEN as error:
            self.unreadable.append(Fault(kind=FaultKind.UNREADABLE, object=f"device {name}", text=str(error)))


def read(
    *,
    pods: Iterable[view.Manifest],
    nodes: Iterable[view.Manifest],
    devices: Iterable[view.Manifest],
) -> Snapshot:
    """Parse all objects."""
    snapshot = Snapshot(pods=[pod for pod in map(view.Pod.read, pods) if not pod.over])
    for node in nodes:
        snapshot.add_node(node)
    for device in devices:
        snapshot.add_device(device)
    return snapshot


def _allocatable(node: view.Manifest) -> requests.Amounts:
    offered = node["status"].get("allocatable") or {}
    return {name: quantity.exact(value) for name, value in offered.items()}
