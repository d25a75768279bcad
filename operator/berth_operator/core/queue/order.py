"""The order in which waiting pods will be tried, for users who need to know a pod's turn.

Active pods come first, in the order in which they will be taken. Pods that back off follow, by the end of their
back-off. Pods that wait for an event come next. Members of incomplete gangs come last.
"""

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.queue import Parked, Queue, order_of
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change

CHUNK: Final = 512
"""Units that are sorted at once, in less than a millisecond."""

NOTHING: Final = Change(0)

T = TypeVar("T")
Unit = PendingPod | Gang
_Waiting = tuple[Unit, Parked[Unit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A waiting pod's place in the queue."""

    pod: PendingPod
    position: int
    """1 is next; counts the pods of all namespaces."""
    state: str
    """One of `event_labels.QUEUES`."""
    until: float = 0.0
    """End of the back-off in monotonic seconds; 0 if it does not back off."""
    message: str = ""
    """Why its class is parked; empty for other states."""
    wakes_on: Change = NOTHING
    """The changes that may wake it."""
    lacks_members: bool = False
    """Whether its gang cannot be decided yet."""

    @property
    def events(self) -> list[str]:
        """Return the events after which it is tried again."""
        return [*event_labels.OF_MEMBERS] if self.lacks_members else event_labels.awaited(self.wakes_on)


def places(queue: Queue[Unit], pending: Mapping[str, PendingPod], placed: Container[str]) -> Iterator[Place | None]:
    """Yield the place of each waiting pod, in order, and None where a caller may do other work.

    The order is the order at the first step, whatever changes in between. `pending` has all pods without a node on the
    API server, by UID. `placed` are the UIDs of the assumed and bound pods.
    """
    active, backing_off = queue.active(), queue.due()
    parked = [(unit, parked) for parked in queue.parked() for unit in parked.units.values()]
    members = (pod for pod in pending.values() if pod.gang is not None and pod.gang.key not in queue)
    incomplete = [pod for pod in members if pod.uid not in placed]
    count = 0
    for place in _unnumbered(active, backing_off, parked, incomplete):
        if place is None:
            yield None
            continue
        unit, state, until, waiting = place
        for pod in pods_of(unit):
            count += not pod.error
            yield Place(
                pod=pod,
                # An invalid pod is never tried.
                position=0 if pod.error else count,
                state=state,
                until=until,
                message="" if waiting is None else waiting.failure.message,
                wakes_on=NOTHING if waiting is None else Change(waiting.bits),
                lacks_members=state == event_labels.UNSCHEDULABLE and waiting is None,
            )


_Unnumbered = tuple[Unit, str, float, Parked[Unit] | None]


def _unnumbered(
    active: Iterable[Unit],
    backing_off: Iterable[tuple[float, Unit]],
    parked: Sequence[_Waiting],
    incomplete: Sequence[PendingPod],
) -> Iterator[_Unnumbered | None]:
    for unit in sorted_in_steps(list(active), order_of):
        yield None if unit is None else (unit, event_labels.ACTIVE, 0.0, None)
    for due in sorted_in_steps(list(backing_off), lambda each: (each[0], each[1].uid)):
        yield None if due is None else (due[1], event_labels.BACKOFF, due[0], None)
    for each in sorted_in_steps(parked, lambda waiting: order_of(waiting[0])):
        yield None if each is None else (each[0], event_labels.UNSCHEDULABLE, 0.0, each[1])
    for pod in sorted_in_steps(incomplete, order_of):
        yield None if pod is None else (pod, event_labels.UNSCHEDULABLE, 0.0, None)


def sorted_in_steps(values: Sequence[T], key: Callable[[T], Any]) -> Iterator[T | None]:
    """Yield values in order, and None after each step of the sort."""
    chunks = []
    for first in range(0, len(values), CHUNK):
        chunks.append(sorted(values[first : first + CHUNK], key=key))
        yield None
    yield from heapq.merge(*chunks, key=key)
