"""Measure attempts to schedule pods: how long they take, how they end, and how many a pod needs.

An attempt begins when a pod is taken from the queue. As in kube-scheduler, it ends with the reasons why no node fits,
with the answer to the Binding, or with another error.
"""

import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, NamedTuple

from berth_api.names import GPU
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.metrics import counters, scheduler

_SIZES: Final = ((1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"))
"""(most GPUs, label)."""
MANY: Final = "9+"
NO_GPUS: Final = "0"
PART_OF_A_GPU: Final = "part"
SIZES: Final = (NO_GPUS, PART_OF_A_GPU, *(label for _, label in _SIZES), MANY)


class _Attempt(NamedTuple):
    number: int
    started: float


class Attempts:
    """The attempts of the pods that wait; `clock` is in monotonic seconds, `wall` in seconds since 1970."""

    def __init__(self, *, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._numbers: dict[str, int] = {}
        """UID -> number of attempts so far, of pods that wait."""
        self._in_flight: dict[str, _Attempt] = {}
        """UID -> the attempt that has not ended."""

    @property
    def waiting(self) -> Collection[str]:
        """Return the UIDs of the pods that wait and have been tried."""
        return self._numbers.keys()

    @property
    def in_flight(self) -> AbstractSet[str]:
        """Return the UIDs of the pods whose attempt has not ended."""
        return self._in_flight.keys()

    def begin(self, pods: Iterable[PendingPod]) -> None:
        """Begin an attempt for each pod; it must be ended by one of the other methods."""
        started = self._clock()
        for pod in pods:
            number = self._numbers[pod.uid] = self._numbers.get(pod.uid, 0) + 1
            self._in_flight[pod.uid] = _Attempt(number, started)

    def decided(self, pod: PendingPod) -> None:
        """Record how long the decision took, since its attempt began."""
        scheduler.ALGORITHM_DURATION.observe(self._clock() - self._in_flight[pod.uid].started)

    def unschedulable(self, pods: Iterable[PendingPod]) -> None:
        """End attempts for which no node fits."""
        for pod in pods:
            self._end(pod, scheduler.UNSCHEDULABLE)

    def failed(self, pods: Iterable[PendingPod]) -> None:
        """End attempts that failed for another reason. This has no effect on pods whose attempt has ended."""
        for pod in pods:
            self._end(pod, scheduler.ERROR)

    def bound(self, pod: PendingPod) -> None:
        """End the attempt of a pod that was bound."""
        if (attempt := self._end(pod, scheduler.SCHEDULED)) is not None:
            scheduler.ATTEMPTS.observe(attempt.number)
            observe_sli = scheduler.sli_of(min(attempt.number, scheduler.MOST_ATTEMPTS))
            observe_sli(self._clock() - pod.queued_at)
            created = datetime.fromisoformat(pod.created).timestamp()
            counters.waiting_of(size(pod.request))(max(0.0, self._wall() - created))

    def forget(self, uid: str) -> None:
        """Forget a pod that no longer waits. An attempt that has not ended goes on."""
        self._numbers.pop(uid, None)

    def _end(self, pod: PendingPod, result: str) -> _Attempt | None:
        if (attempt := self._in_flight.pop(pod.uid, None)) is not None:
            count, observe = scheduler.attempts_of(result, pod.scheduler)
            count()
            observe(self._clock() - attempt.started)
        return attempt


def size(request: PodRequest) -> str:
    """Return the class of a request by the number of its GPUs, one of `SIZES`."""
    gpus = [part for part in request.devices.parts if part.type == GPU]
    if not gpus:
        return NO_GPUS
    count = sum(part.count for part in gpus)
    if count == 1 and not gpus[0].whole:
        return PART_OF_A_GPU
    return next((label for most, label in _SIZES if count <= most), MANY)
