"""Wake parked pods on events that may help them."""

import math
import time
from collections.abc import Callable, Iterable, Sequence

from berth_operator.core.decision.gang import Gang
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue import waking
from berth_operator.core.queue.queue import MAX_BACKOFF, Hint, Queue
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.listener import Listener

Unit = PendingPod | Gang


class Waker:
    """Moves units to the active queue, and calls the listener when one may be decided."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        queue: Queue[Unit],
        others: Sequence[Queue[Unit]] = (),
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a waker. `others` are further queues whose units wait for the same changes."""
        self._fleet, self._queue, self._listener, self._clock = fleet, queue, listener, clock
        self._queues = (queue, *others)
        self.changed_at = -math.inf
        """When something last changed that may change why a pod waits."""

    @property
    def version(self) -> int:
        """Return a counter of the changes that may change why a pod waits; nominations do not count."""
        return self._queue.version

    def put(self, unit: Unit) -> None:
        """Put a unit into the queue, or update it there."""
        self._queue.put(unit)
        self._listener.work_ready()

    def back_off(self, pod: PendingPod, now: float, longest: float = MAX_BACKOFF) -> None:
        """Back off a pod."""
        self._queue.back_off(pod, now, longest)
        self._listener.work_ready()

    def record_change(self) -> None:
        """Record a change that wakes no pod, but may change why pods wait."""
        self._queue.version += 1
        self.changed_at = self._clock()
        self._listener.work_ready()  # even if no pod wakes, the reasons are reviewed

    def changed(self, change: Change) -> None:
        """Wake the pods that a change may help."""
        self.record_change()
        for queue in self._queues:
            queue.wake(change)

    def changed_for(self, change: Change, hint: Hint[Unit]) -> None:
        """Wake the pods that wait for a change, if the queueing hint finds that it may help them."""
        self.record_change()
        for queue in self._queues:
            queue.wake(change, hint)

    def claim_changed(self, claim: str) -> None:
        """Wake the pods that use a ResourceClaim (namespace/name) and wait for its change."""
        self.record_change()
        for queue in self._queues:
            queue.wake_claiming(claim)

    def happened(self, event: ClusterEvent) -> None:
        """Wake the pods that an event may help."""
        self.record_change()
        for queue in self._queues:
            waking.happened(self._fleet, queue, event)

    def memory_measured(self, nodes: Iterable[str]) -> None:
        """Wake the pods that wait for measured memory and may fit now on these nodes, which have more of it free."""
        if any(queue.awaits(Change.GPU_METRICS) for queue in self._queues):
            for node in nodes:
                self.happened(ClusterEvent(change=Change.GPU_METRICS, node=node))

    def pod_assigned(self, charge: Charge) -> None:
        """Wake the pods that wait for an assigned pod, such as those with pod affinity."""
        self.record_change()
        for queue in self._queues:
            waking.pod_assigned(self._fleet, queue, charge)

    def pod_bound(self) -> None:
        """Wake the pods that could not preempt because a bind was in flight."""
        if self._queue.wake(Change.BOUND):
            self._listener.work_ready()

    def capacity_freed(self, gone: Charge) -> None:
        """Wake the pods that may fit, or may preempt others, after a pod has left its node."""
        self.record_change()
        for queue in self._queues:
            if waking.capacity_freed(self._fleet, queue, gone):
                self._listener.work_ready()
