"""Nodes whose sums of devices were raised a moment ago, so that kubelet may not know the new sums yet."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from berth_api import names
from berth_api.request import Kinds

SECONDS: Final = 1.0
"""After this time, kubelet's watch has shown the sums, too. On a busy node it may be later than ours, by milliseconds.
kubelet admits pods by the Node that its watch has shown, and ends a pod beyond it (`OutOfkubernetes.io/gpu`). It reads
the Node again only for a pod whose node affinity does not match."""


class RaisedSums:
    """The resources that the operator writes to Nodes, and when kubelet knows their last raise."""

    def __init__(self, *, kinds: Kinds, clock: Callable[[], float]) -> None:
        """Create an empty set; `clock` returns monotonic seconds."""
        self._kinds, self._clock = kinds, clock
        self._known_at: dict[str, dict[str, float]] = {}
        """Node -> resource -> when kubelet knows its amount."""

    def put(self, node: str, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Update the amounts that a Node shows. A Node that is new to us showed them earlier."""
        now = self._clock()
        known_at = {name: time for name, time in self._known_at.pop(node, {}).items() if time > now}
        raised = (name for name, amount in after.items() if amount > before.get(name, 0) and self._is_ours(name))
        known_at |= dict.fromkeys(raised, now + SECONDS)
        if known_at:
            self._known_at[node] = known_at

    def remove(self, node: str) -> None:
        """Remove a Node that was deleted."""
        self._known_at.pop(node, None)

    def wait_seconds(self, node: str, resources: Iterable[str]) -> float:
        """Return for how long kubelet may not know the amounts of some resources; at most 0 if it knows them."""
        known_at = self._known_at.get(node, {})
        return max((known_at[name] for name in resources if name in known_at), default=0.0) - self._clock()

    def _is_ours(self, name: str) -> bool:
        if name.startswith((names.PREFIX, names.OTHER_PREFIX)):
            return True
        return any(name in kind.resources for kind in self._kinds.added if kind.summed)
