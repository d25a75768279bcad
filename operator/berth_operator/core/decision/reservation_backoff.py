"""When a node reservation ends if nothing is freed for it, and when its pod may have the next one.

    ends_at(reservation, now)     ->  when it ends, unless something is freed before
    renewed(before, after, now)   ->  the reservation with the time when something was freed last

The pods that a reservation waits for may never end. So a reservation ends `PATIENCE` seconds after something was last
freed, or after the last known end of a pod. The pod may have its next reservation half an hour later. Meanwhile, no
other reservation waits for the pods that did not end. The pauses double, so the cards of a node are idle in vain for 15
minutes in six hours.
"""

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Final, Generic, TypeVar

from berth_api.objects.leader_lease import MAX_BACKOFFS, MAX_UID, ReservedNode
from berth_api.values.backoff import ExponentialBackoff
from berth_operator.core.decision.reservation import HORIZON, NodeReservation
from berth_operator.core.values.owner import bounded
from berth_operator.core.values.request import PendingPod

PATIENCE: Final = 900
"""Seconds without any freed capacity after which a reservation ends."""
FIRST_PAUSE: Final = 1800
"""Seconds until the next one may begin; doubled with each that was in vain."""
MAX_PAUSE: Final = 21_600
MAX_KEPT: Final = MAX_BACKOFFS
"""Back-offs that are kept before back-offs of deleted pods are forgotten."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How many node reservations were in vain."""

    count: int
    until: int = 0
    """When the next one may begin, in seconds since 1970."""


class Backoffs(Generic[K]):
    """The back-offs of pods that wait, by `key_of`, or of placed pods that reservations waited for, by UID."""

    def __init__(self) -> None:
        self._by_key: dict[K, Backoff] = {}

    def of(self, key: K) -> Backoff | None:
        """Return a back-off; None if no reservation was in vain."""
        return self._by_key.get(key)

    def last_to_end(self) -> list[tuple[K, Backoff]]:
        """Return the keys and back-offs that end last, as many as the next leader's record holds."""
        return nlargest(MAX_BACKOFFS, self._by_key.items(), key=lambda item: item[1].until)

    def in_vain(self, now: float) -> frozenset[K]:
        """Return the keys whose back-offs are not over."""
        return frozenset(key for key, backoff in self._by_key.items() if backoff.until > now)

    def add(self, key: K, now: float) -> None:
        """Record that a reservation was in vain."""
        known = self.of(key)
        count = 1 if known is None else known.count + 1
        pause = ExponentialBackoff(first=FIRST_PAUSE, longest=MAX_PAUSE).after(count)
        self._by_key[key] = Backoff(count=count, until=int(now + pause))

    def restore(self, key: K, recorded: Backoff, now: float) -> None:
        """Take over what the last leader recorded."""
        known = self.of(key) or Backoff(count=0)
        until = min(recorded.until, int(now) + MAX_PAUSE)
        self._by_key[key] = Backoff(count=max(known.count, recorded.count), until=max(known.until, until))

    def keep(self, keys: Callable[[], Collection[K]]) -> None:
        """Forget all others than these keys, once there are many."""
        if len(self._by_key) > MAX_KEPT:
            kept = keys()
            self._by_key = {key: backoff for key, backoff in self._by_key.items() if key in kept}


def key_of(pod: PendingPod) -> tuple[str, str]:
    """Return what the pods of one controller have in common: they wait for the same."""
    # A pod may name any UID as its owner's, also one of another namespace.
    return pod.namespace, bounded(pod.owner.uid, MAX_UID) or pod.uid


def ends_at(reservation: NodeReservation, now: float) -> float:
    """Return when a reservation ends unless something is freed before, in seconds since 1970."""
    last_end = reservation.ends if reservation.ends <= now + HORIZON else 0
    return max(reservation.since, last_end) + PATIENCE


def begun(reservation: NodeReservation, since: int) -> NodeReservation:
    """Return a reservation for which nothing has been freed since a time, in seconds since 1970."""
    return replace(reservation, since=since, least=reservation.lacking)


def resumed(reservation: NodeReservation, recorded: ReservedNode, now: float) -> NodeReservation:
    """Return a reservation that the last leader recorded. If its node or its free capacity differs, it begins again."""
    is_same = recorded.node == reservation.node and reservation.free <= recorded.free
    return begun(reservation, min(recorded.since, int(now)) if is_same else int(now))


def renewed(before: NodeReservation, after: NodeReservation, now: float) -> NodeReservation:
    """Return a reservation that was searched again, with the time when something was freed for it last.

    Only less than ever before counts: pods of higher priority may come and go on the node without end.
    """
    if before.node != after.node:
        return begun(after, before.since)
    if after.lacking < before.least:
        return begun(after, int(now))
    return replace(after, since=before.since, least=before.least)
