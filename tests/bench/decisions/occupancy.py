"""An audit of placements that shares no code with the core: what nodes and cards have, and what pods hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from berth_api.allocation import Grant
from tests.bench.decisions.openb import Machine, Task


class AuditError(Exception):
    """A placement that the node cannot hold."""


@dataclass(slots=True)
class _Node:
    cpu: int
    memory: int
    model: str
    cards: list[int]
    """Free thousandths of each card."""


@dataclass(frozen=True, slots=True)
class _Held:
    node: str
    task: Task
    minors: tuple[int, ...]


class Occupancy:
    """What is free on each node, by the trace's numbers alone."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self._nodes = {each.name: _Node(each.cpu, each.memory, each.model, [1000] * each.cards) for each in machines}
        self._held: dict[str, _Held] = {}
        self.size = 0
        """Thousandths of all cards that pods hold."""

    def take(self, uid: str, task: Task, node_name: str, grants: Sequence[Grant]) -> None:
        """Record a placement.

        Raises:
            AuditError: the pod has a place already, the wrong cards, or more than the node or a card has left.
        """
        minors = tuple(each.minor for each in grants)
        if uid in self._held or len(set(minors)) != len(minors) or len(minors) != task.cards:
            raise AuditError(f"pod {uid} on node {node_name}: {len(minors)} grants for {task.cards} cards: {minors}")
        node = self._nodes[node_name]
        if task.models and node.model not in task.models:
            raise AuditError(f"pod {uid} on node {node_name}: model {node.model}, not of {task.models}")
        self._move(node, task, minors, -1)
        if min(node.cpu, node.memory, *node.cards) < 0:
            raise AuditError(f"pod {uid} on node {node_name}: more than the node has: {node}")
        self._held[uid] = _Held(node_name, task, minors)
        self.size += task.size

    def end(self, uid: str) -> None:
        """Record that a pod ended."""
        held = self._held.pop(uid)
        self._move(self._nodes[held.node], held.task, held.minors, 1)
        self.size -= held.task.size

    @staticmethod
    def _move(node: _Node, task: Task, minors: Iterable[int], sign: int) -> None:
        node.cpu += sign * task.cpu
        node.memory += sign * task.memory
        for minor in minors:
            node.cards[minor] += sign * task.milli
