"""The cluster as the audit sees it; what cannot be read is a finding by itself."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from demo.audit import asked, quantity, view
from demo.audit.finding import Finding, Kind

BROKEN: Final = (AttributeError, KeyError, TypeError, ValueError)
"""What reading data of another form than expected raises."""


@dataclass(kw_only=True)
class World:
    """Nodes with what they offer, cards, and the pods that are not over."""

    pods: list[view.Pod]
    nodes: dict[str, asked.Amounts] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    """Nodes that have a Device."""
    cards: dict[view.Key, view.Card] = field(default_factory=dict)
    unreadable: list[Finding] = field(default_factory=list)

    def add_node(self, raw: view.Manifest) -> None:
        """Take in a Node."""
        name = raw["metadata"]["name"]
        try:
            self.nodes[name] = _allocatable(raw)
        except BROKEN as error:
            self.unreadable.append(Finding(kind=Kind.UNREADABLE, object=f"node {name}", text=str(error)))

    def add_device(self, raw: view.Manifest) -> None:
        """Take in a Device."""
        name = raw["metadata"]["name"]
        self.devices.add(name)
        try:
            self.cards.update(view.cards(raw))
        except BROKEN as error:
            self.unreadable.append(Finding(kind=Kind.UNREADABLE, object=f"device {name}", text=str(error)))


def read(
    *,
    pods: Iterable[view.Manifest],
    nodes: Iterable[view.Manifest],
    devices: Iterable[view.Manifest],
) -> World:
    """Read everything."""
    world = World(pods=[pod for pod in map(view.Pod.read, pods) if not pod.over])
    for node in nodes:
        world.add_node(node)
    for device in devices:
        world.add_device(device)
    return world


def _allocatable(node: view.Manifest) -> asked.Amounts:
    offered = node["status"].get("allocatable") or {}
    return {name: quantity.exact(value) for name, value in offered.items()}
