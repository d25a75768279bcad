"""Active units whose decision may take long, by priority. Within a priority, namespaces take turns.

These are units that need devices for ResourceClaims, because it may take long to find out what a selector matches, and
large gangs, whose size is a number in somebody's object. The namespace whose units have taken the least time recently
comes first. Within the namespace, the first unit in the queue stays first until it is decided.
"""

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from berth_operator.core.claims.bounds.turns import NamespaceTurns

Order = tuple[int, int, str, int, str]
"""Sort key of a unit; the lowest is decided first."""


class First(NamedTuple):
    """The unit that comes first."""

    order: Order
    uid: str
    namespace: str


class CostlyLane:
    """Units by namespace; entries are skipped if the unit is no longer active or its order has changed."""

    def __init__(self, turns: NamespaceTurns) -> None:
        self.turns = turns
        self._by_namespace: dict[str, list[tuple[Order, str]]] = {}

    def push(self, namespace: str, order: Order, uid: str) -> None:
        """Add a unit."""
        heapq.heappush(self._by_namespace.setdefault(namespace, []), (order, uid))

    def first(self, active: Mapping[str, Order]) -> First | None:
        """Return the next unit in turn; None if there is none. `active` has the order of each active unit."""
        firsts = []
        for namespace, units in list(self._by_namespace.items()):
            while units and active.get(units[0][1]) != units[0][0]:
                heapq.heappop(units)
            if units:
                firsts.append(First(*units[0], namespace))
            else:
                del self._by_namespace[namespace]
        return min(firsts, key=self._turn, default=None)

    def pop(self, first: First) -> None:
        """Remove the unit that `first` has returned."""
        heapq.heappop(self._by_namespace[first.namespace])

    def _turn(self, first: First) -> tuple[object, ...]:
        priority, weight, *age = first.order
        return priority, weight, self.turns.taken(first.namespace), *age
