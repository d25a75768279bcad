"""A cluster event, with the data that queueing hints read."""

from collections.abc import Iterator
from dataclasses import dataclass

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.verdict import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """A change in the cluster and the objects that it affects."""

    change: Change
    node: str = ""
    """The affected node, if it is a single one."""
    labels: frozenset[str] = frozenset()
    """Keys of the node's labels that were added, changed or removed."""
    before: Charge | None = None
    """The pod before the event, if it changed or left its node."""
    after: Charge | None = None
    """The pod after the event, if it changed or was assigned to a node."""

    @property
    def pods(self) -> Iterator[Charge]:
        """Return the pod before and after the event, as far as they exist."""
        return (pod for pod in (self.before, self.after) if pod is not None)
