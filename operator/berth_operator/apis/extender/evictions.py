"""The pods for which kube-scheduler evicts others, and whether Berth's watches may lag behind kube-scheduler.

kube-scheduler tries a pod again within milliseconds after its last victim is gone. If Berth's watch shows the victim a
moment longer, filter would reject the node, and kube-scheduler would evict more pods on another node. So filter answers
with an error instead. kube-scheduler then retries after a back-off and preempts nothing.
"""

from collections.abc import Collection
from typing import Final

MAX_ERRORS: Final = 5
"""Times that filter answers with an error after one preemption although no victim is seen to leave, 1, 2, 4, 8 and 10 s
apart: then the eviction has failed."""
MAX_PODS: Final = 1000
"""Pods that are remembered, each with up to all nodes of the cluster."""


class Evictions:
    """The pods of one term for which preempt has answered victims."""

    def __init__(self, limit: int = MAX_PODS) -> None:
        """Create the store for at most `limit` pods."""
        self._limit = limit
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._errors: dict[str, int] = {}
        """UID of a pod -> how many more times filter may answer with an error."""

    def begin(self, uid: str, nodes: Collection[str]) -> None:
        """Record that preempt has answered victims for a pod on these nodes; kube-scheduler empties one of them."""
        if len(self._errors) >= self._limit:
            # Without a record filter rejects a node whose victims it still sees, as for a pod that preempts nothing.
            self._errors.clear()
            self._nodes.clear()
        self._errors[uid], self._nodes[uid] = MAX_ERRORS, tuple(nodes)

    def nodes(self, uid: str) -> Collection[str]:
        """Return the nodes of the last answer of preempt."""
        return self._nodes.get(uid, ())

    def wait(self, uid: str) -> bool:
        """Return whether filter may answer with an error although no victim is seen to leave, and count it."""
        left = self._errors.get(uid, 0)
        if left:
            self._errors[uid] = left - 1
        return left > 0

    def end(self, uid: str) -> None:
        """Handle that a pod has a reservation, or no longer waits."""
        self._errors.pop(uid, None)
        self._nodes.pop(uid, None)
