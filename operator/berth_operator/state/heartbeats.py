"""Which agents are alive, by the renewals of their Leases that we saw ourselves.

Only our own clock counts: a Lease's renewTime is compared with what it was, never with the time of day, since the
agent's clock may be wrong. A node is alive while its last observed renewal is no older than the Lease's duration
plus a grace. Before the first observed renewal (we have just started, or the Device is new) what the Device said
last decides: Unknown stays Unknown until a renewal is seen; anything else is believed for one duration.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DEFAULT_DURATION: Final = 40.0
"""Seconds, for a Lease that names none."""
LONGEST_DURATION: Final = 3600.0


@dataclass(slots=True)
class Heartbeat:
    """What is known of one node's agent."""

    renew_time: str | None = None
    """As the Lease has it; None where there is no Lease."""
    duration: float = DEFAULT_DURATION
    renewed_at: float | None = None
    """When we last saw it change, by our clock."""
    expected_at: float | None = None
    """When we first saw the Device, by our clock."""
    doubted: bool = False
    """Whether the Device was Unknown then."""


class Heartbeats:
    """The agents of all nodes; `now` is a clock in seconds that never goes back."""

    def __init__(self, *, grace: float) -> None:
        self._grace = grace
        self._beats: dict[str, Heartbeat] = {}

    def nodes(self) -> Iterable[str]:
        """Return the nodes that have a Device."""
        return [name for name, beat in self._beats.items() if beat.expected_at is not None]

    def expect(self, node: str, now: float, *, doubted: bool) -> None:
        """A Device exists, so its agent's Lease should be renewed; `doubted` if the Device says Unknown."""
        beat = self._beats.setdefault(node, Heartbeat())
        if beat.expected_at is None:
            beat.expected_at, beat.doubted = now, doubted

    def dismiss(self, node: str) -> None:
        """The Device is gone."""
        if (beat := self._beats.get(node)) is not None:
            beat.expected_at = None

    def observe(self, node: str, renew_time: str, duration: float | None, now: float) -> None:
        """The Lease was seen; it counts as renewed if its time changed since we first saw it."""
        beat = self._beats.setdefault(node, Heartbeat())
        if beat.renew_time is not None and beat.renew_time != renew_time:
            beat.renewed_at = now
        beat.renew_time = renew_time
        beat.duration = min(max(duration or DEFAULT_DURATION, 1.0), LONGEST_DURATION)

    def lost(self, node: str) -> None:
        """The Lease is gone: nothing will be renewed, and a new one counts as a renewal."""
        if (beat := self._beats.get(node)) is not None:
            beat.renew_time = ""

    def alive(self, node: str, now: float) -> bool:
        """Return whether the node's devices may be handed out."""
        beat = self._beats.get(node)
        if beat is None or beat.expected_at is None:
            return False
        if beat.renewed_at is not None:
            return now - beat.renewed_at <= beat.duration + self._grace
        leased = beat.duration if beat.renew_time else 0.0
        return not beat.doubted and now - beat.expected_at <= leased + self._grace
