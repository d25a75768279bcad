"""One event of the cluster, with what queueing hints read of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.verdict import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """What happened, and to what."""

    change: Change
    node: str = ""
    """The node that it happened on, if it is a single one."""
    labels: frozenset[str] = frozenset()
    """Keys of this node's labels that were added, changed or removed."""
    before: Charge | None = None
    """The pod as it was, if it changed or left its node."""
    after: Charge | None = None
    """The pod as it is, if it changed or was assigned to a node."""

    @property
    def pods(self) -> Iterator[Charge]:
        """Return the pod as it was and as it is."""
        return (pod for pod in (self.before, self.after) if pod is not None)
