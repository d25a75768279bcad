"""Which pod is decided next.

* active: by priority, then weight, then age.
* backing off: their bind failed; they return after 1 s, doubling to 10 s.
* parked: they fit nowhere. Pods of one class are parked together and wake together, by the changes that can make
  one of them fit; the first one's failure parks the rest, so that a thousand equal pods cost one decision a change.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

from berth_operator.core.cycle import Failure
from berth_operator.core.request import PendingPod, PodRequest
from berth_operator.core.verdict import Change

FIRST_BACKOFF: Final = 1.0
"""Seconds."""
LONGEST_BACKOFF: Final = 10.0

Class = tuple[PodRequest, str, str]
"""A pod's request, the error in it if any, and its scheduler's name: another policy may answer otherwise."""
Order = tuple[int, int, str, str]
"""The lowest comes first."""


def class_of(pod: PendingPod) -> Class:
    """Give the pod's class."""
    return pod.request, pod.error, pod.scheduler


@dataclass(slots=True)
class Parked:
    """The waiting pods of one class, and why they wait."""

    failure: Failure
    pods: dict[str, PendingPod] = field(default_factory=dict)


class Queue:
    """The pending pods; `now` is any clock in seconds that never goes back."""

    def __init__(self) -> None:
        self._pods: dict[str, PendingPod] = {}
        self._active: list[tuple[Order, str]] = []
        """Heap of (order, UID); an entry whose pod is no longer active, or in another order, is skipped."""
        self._is_active: dict[str, Order] = {}
        self._waiting: list[tuple[float, str]] = []
        """Heap of (due, UID)."""
        self._due: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._parked: dict[Class, Parked] = {}
        self._awaited = Change(0)
        """All that any parked pod waits for, or a little more: most changes help nobody, and are many."""

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def put(self, pod: PendingPod) -> None:
        """Add a pod, or replace one; a pod whose class is the same keeps its place."""
        known = self._pods.get(pod.uid)
        if known is not None and _place(known) == _place(pod):
            self._replace(pod)
            return
        self.remove(pod.uid)
        self._pods[pod.uid] = pod
        self._activate(pod)

    def remove(self, uid: str) -> None:
        """Forget a pod: it is bound or gone."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._is_active.pop(uid, None)
        self._due.pop(uid, None)
        self._tries.pop(uid, None)
        self._unpark(pod)

    def pop(self, now: float) -> PendingPod | None:
        """Take the next pod to decide; it stays known until removed, parked or put back."""
        self._end_backoffs(now)
        while self._active:
            order, uid = heapq.heappop(self._active)
            if self._is_active.get(uid) == order:
                del self._is_active[uid]
                return self._pods[uid]
        return None

    def parked_failure(self, pod: PendingPod) -> Failure | None:
        """Give the failure that the pod's class waits with, if it does: nothing has changed since."""
        parked = self._parked.get(class_of(pod))
        return parked.failure if parked else None

    def park(self, pod: PendingPod, failure: Failure) -> None:
        """Let a pod wait for a change."""
        self._parked.setdefault(class_of(pod), Parked(failure)).pods[pod.uid] = pod
        self._awaited |= failure.wakes_on

    def back_off(self, pod: PendingPod, now: float) -> None:
        """Let a pod whose bind failed wait, longer each time; it may have changed meanwhile."""
        self._pods[pod.uid] = pod
        tries = self._tries[pod.uid] = self._tries.get(pod.uid, 0) + 1
        self._due[pod.uid] = now + min(FIRST_BACKOFF * 2.0 ** min(tries - 1, 8), LONGEST_BACKOFF)
        heapq.heappush(self._waiting, (self._due[pod.uid], pod.uid))

    def wake(self, change: Change, concerns: Callable[[PodRequest], bool] = lambda _request: True) -> bool:
        """Make active all pods that the change may help, of those whose class it concerns; tell whether there are."""
        if not self._awaited & change:
            return False
        found = [key for key, each in self._parked.items() if each.failure.wakes_on & change and concerns(key[0])]
        for key in found:
            for pod in self._parked.pop(key).pods.values():
                self._activate(pod)
        self._awaited = reduce(or_, (each.failure.wakes_on for each in self._parked.values()), Change(0))
        return bool(found)

    def next_due(self) -> float | None:
        """Give the time at which the next back-off ends."""
        while self._waiting and self._due.get(self._waiting[0][1]) != self._waiting[0][0]:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def _end_backoffs(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            _, uid = heapq.heappop(self._waiting)
            del self._due[uid]
            self._activate(self._pods[uid])

    def _activate(self, pod: PendingPod) -> None:
        if pod.uid not in self._is_active:
            order = self._is_active[pod.uid] = (-pod.priority, -pod.weight, pod.created, pod.uid)
            heapq.heappush(self._active, (order, pod.uid))

    def _replace(self, pod: PendingPod) -> None:
        self._pods[pod.uid] = pod
        parked = self._parked.get(class_of(pod))
        if parked is not None and pod.uid in parked.pods:
            parked.pods[pod.uid] = pod

    def _unpark(self, pod: PendingPod) -> None:
        parked = self._parked.get(class_of(pod))
        if parked is not None:
            parked.pods.pop(pod.uid, None)
            if not parked.pods:
                del self._parked[class_of(pod)]


def _place(pod: PendingPod) -> tuple[object, ...]:
    return (class_of(pod), pod.priority, pod.weight)
