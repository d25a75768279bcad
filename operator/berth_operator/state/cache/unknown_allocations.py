"""Bound pods whose allocation is missing or not trusted. They block devices, or see none, and are reported."""

from collections.abc import Callable
from typing import Final

from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.node_cache import NodeCache

KUBELET_SECONDS: Final = 5.0
"""Seconds that kubelet and the node's agent may take to report a pod's devices."""


class UnknownAllocations:
    """Reports each such pod once, after its Node and Device are known, because lists arrive in any order."""

    def __init__(self, *, fleet: Fleet, node_cache: NodeCache, listener: Listener, clock: Callable[[], float]) -> None:
        self._fleet, self._node_cache, self._listener, self._clock = fleet, node_cache, listener, clock
        self._since: dict[str, float] = {}
        """UID of a pod that is still to be reported -> when it was added."""

    def add(self, uid: str) -> None:
        """Report a pod later if its devices are still unknown then."""
        self._since[uid] = self._clock()

    def discard(self, uid: str) -> None:
        """Drop a pod without a report."""
        self._since.pop(uid, None)

    def report(self) -> None:
        """Report the pods that are due."""
        for uid, since in list(self._since.items()):
            charge = self._fleet.charges[uid]
            patience = KUBELET_SECONDS if kubelet_allocation.count_plugin_devices(charge, self._fleet.kinds) else 0.0
            if self._node_cache.is_complete(charge.node) and self._clock() - since >= patience:
                del self._since[uid]
                if charge.unknown or charge.lacks_cards:
                    self._listener.allocation_unknown(charge)
