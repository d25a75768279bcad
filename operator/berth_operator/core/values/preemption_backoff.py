"""Nodes where no pods are evicted for a pod now, because earlier places that were freed for it were lost."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionBackoff:
    """Nodes on which no pods are evicted for a preemptor until a time."""

    preemptor: str = ""
    """The key of the preemptor; empty if it does not back off."""
    nodes: frozenset[str] = frozenset()
    everywhere: bool = False
    """Whether no pods are evicted on any node."""
    note: str = ""
    """The reason, as the end of a pod's message."""

    def __bool__(self) -> bool:
        """Return whether there is a node on which no pods are evicted."""
        return bool(self.preemptor)


NO_BACKOFF: Final = PreemptionBackoff()
