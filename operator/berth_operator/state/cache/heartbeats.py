"""Which agents are alive, by the observed renewals of their Leases.

Only the operator's own clock counts, because an agent's clock may be wrong. A Lease's renewTime is compared with its
previous value, never with the time of day. A node is alive while its last observed renewal is no older than the Lease's
duration plus a grace period. Before the first observed renewal (after the operator's start, or for a new Device), the
Device's Ready condition decides. Unknown stays Unknown until a renewal is observed. Any other status is trusted for one
duration.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DEFAULT_DURATION: Final = 40.0
"""Seconds, for a Lease without a duration."""
MAX_DURATION: Final = 3600.0


@dataclass(slots=True)
class Heartbeat:
    """What is known of one node's agent."""

    renew_time: str | None = None
    """The Lease's renewTime; None if there is no Lease."""
    heard: str = ""
    """The renewTime that was observed last, also of a Lease that is gone; empty if there was none."""
    duration: float = DEFAULT_DURATION
    renewed_at: float | None = None
    """When we last observed a change of `renew_time`, by our clock."""
    expected_at: float | None = None
    """When we first observed the Device, by our clock."""
    doubted: bool = False
    """Whether the Device's Ready condition was Unknown then."""
    alive_until: float = -math.inf
    """Until when the agent is alive if nothing else is observed, by our clock; it follows from the fields above."""


class Heartbeats:
    """The agents of all nodes; `now` is a reading of a monotonic clock in seconds."""

    def __init__(self, *, grace: float) -> None:
        self._grace = grace
        self._beats: dict[str, Heartbeat] = {}

    def silent(self, now: float) -> Iterable[str]:
        """Return the nodes whose agents are not alive."""
        return [name for name, beat in self._beats.items() if beat.alive_until < now]

    def expect(self, node: str, now: float, *, doubted: bool) -> None:
        """Record that a Device exists, so that its agent's Lease should be renewed.

        `doubted`: whether the Device's Ready condition is Unknown.
        """
        beat = self._beats.setdefault(node, Heartbeat())
        if beat.expected_at is None:
            beat.expected_at, beat.doubted = now, doubted
            self._update(beat)

    def dismiss(self, node: str) -> None:
        """Record that the Device was deleted."""
        if (beat := self._beats.get(node)) is not None:
            beat.expected_at = None
            self._update(beat)

    def observe(self, node: str, renew_time: str, duration: float | None, now: float) -> None:
        """Record the Lease; it counts as renewed if its renewTime has changed since we first observed it."""
        beat = self._beats.setdefault(node, Heartbeat())
        if beat.renew_time is not None and beat.renew_time != renew_time:
            beat.renewed_at = now
        beat.renew_time, beat.heard = renew_time, renew_time or beat.heard
        beat.duration = min(max(duration or DEFAULT_DURATION, 1.0), MAX_DURATION)
        self._update(beat)

    def lost(self, node: str) -> None:
        """Record that the Lease was deleted; a new one will count as a renewal."""
        if (beat := self._beats.get(node)) is not None:
            beat.renew_time = ""
            self._update(beat)

    def forget(self, node: str) -> None:
        """Forget a node that does not exist any more, once its Device and its Lease are gone, too."""
        if (beat := self._beats.get(node)) is not None and beat.expected_at is None and not beat.renew_time:
            del self._beats[node]

    def has_lease(self, node: str) -> bool:
        """Return whether the agent's Lease exists."""
        beat = self._beats.get(node)
        return beat is not None and bool(beat.renew_time)

    def last_renewal(self, node: str) -> str:
        """Return the latest time in the node's Lease, by its agent's clock; empty if there was none."""
        beat = self._beats.get(node)
        return beat.heard if beat is not None else ""

    def alive(self, node: str, now: float) -> bool:
        """Return whether the node's agent is alive, so that its devices may be allocated."""
        beat = self._beats.get(node)
        return beat is not None and now <= beat.alive_until

    def is_confirmed(self, node: str, now: float) -> bool:
        """Return whether the node's agent is alive, and a renewal was observed: what it reports is of our time."""
        return self.alive(node, now) and self._beats[node].renewed_at is not None

    def _update(self, beat: Heartbeat) -> None:
        """Compute `alive_until`."""
        if beat.expected_at is None:
            beat.alive_until = -math.inf
        elif beat.renewed_at is not None:
            beat.alive_until = beat.renewed_at + beat.duration + self._grace
        elif beat.doubted:
            beat.alive_until = -math.inf
        else:
            beat.alive_until = beat.expected_at + (beat.duration if beat.renew_time else 0.0) + self._grace
