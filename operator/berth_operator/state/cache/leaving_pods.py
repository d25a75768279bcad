"""Since when pods are leaving their nodes, and which of them are overdue.

Preemption counts what leaves soon as free at no cost: pods that are being deleted, and what deleted pods still hold.
Some never leave: their node is down, a finalizer stays, or a process cannot be killed. Once they are *overdue*, they
are charged like pods that stay, and nominated pods no longer wait for them.

The times are not recorded, so a new leader may wait again for as long.
"""

from collections.abc import Callable
from typing import Final

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_leftover
from berth_operator.core.values.charge import Charge

LONGEST: Final = 900.0
"""Seconds after a pod was first seen terminating, after which it is overdue."""
AFTER_GRACE: Final = 120.0
"""Seconds after the end of its grace period before which no pod is overdue."""
OF_LEFTOVERS: Final = 120.0
"""Seconds after which a leftover is overdue: kubelet has killed its containers before the pod was deleted."""


class LeavingPods:
    """Marks overdue charges in the Fleet."""

    def __init__(self, *, fleet: Fleet, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """Create an empty collection. `wall` returns seconds since 1970, to compare with the ends of grace periods."""
        self._fleet, self._clock, self._wall = fleet, clock, wall
        self._since: dict[str, float] = {}
        """UID of a charge -> when it was first seen to be leaving."""

    def see(self, charge: Charge) -> None:
        """Record since when a pod or a leftover is leaving, if it is."""
        if charge.terminating or is_leftover(charge):
            self._since.setdefault(charge.uid, self._clock())

    def forget(self, uid: str) -> None:
        """Forget a charge that was released."""
        self._since.pop(uid, None)
        self._fleet.overdue.discard(uid)

    def expire(self) -> bool:
        """Mark the charges that are overdue; return whether there are new ones."""
        overdue = {
            uid
            for uid, since in self._since.items()
            if (charge := self._fleet.charges.get(uid)) is not None and self._is_overdue(charge, self._clock() - since)
        }
        is_new = not overdue <= self._fleet.overdue
        self._fleet.overdue |= overdue
        return is_new

    def _is_overdue(self, charge: Charge, seconds: float) -> bool:
        if is_leftover(charge):
            return seconds >= OF_LEFTOVERS
        # A terminating pod is expected to end with its grace period.
        return seconds >= LONGEST and self._wall() >= charge.ends + AFTER_GRACE
