"""Pending pods by queue, plugin, namespace and reason."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from berth_client import times
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.decision.messages import POD_GROUP_NOT_READY
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import gauges
from berth_operator.metrics.gauges import Family, Values
from berth_operator.metrics.monitoring.bounds import OTHER, frequent

QUEUED: Final = "Queued"
"""The reason of a pod that is about to be decided."""
BACKING_OFF: Final = "BackingOff"
GATED: Final = "SchedulingGated"
"""Kubernetes' reason of the condition PodScheduled=False."""

Unit = PendingPod | Gang


def reason_of(failure: Failure) -> str:
    """Return the filter that rejected the nodes which passed all others, or else the condition's reason.

    The other filters rejected nodes that the pod may not use anyway, such as nodes of another pool.
    """
    return failure.rejected_by[-1].NAME if failure.rejected_by else failure.condition


class PendingCount:
    """Counts pending pods in steps that take microseconds, so that the loop can do other work in between."""

    def __init__(self) -> None:
        self._queues: Counter[str] = Counter(dict.fromkeys(event_labels.QUEUES, 0))
        self._plugins: Counter[tuple[str, ...]] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._pods: Counter[tuple[str, ...]] = Counter()
        """(namespace, reason) -> number of pods."""
        self._oldest: dict[tuple[str, ...], str] = {}
        """(namespace, reason) -> creation time of the oldest pod."""

    def count(self, queue: Queue[Unit], pending: Mapping[str, PendingPod]) -> Iterator[None]:
        """Count all pods; yields after each step, and tolerates that the queue changes in between."""
        active, backing_off, parked = queue.active(), queue.backing_off(), queue.parked()
        waiting_members = [pod for pod in pending.values() if pod.gang is not None and pod.gang.key not in queue]
        for unit in active:
            self._add(unit, event_labels.ACTIVE, QUEUED)
            yield
        for unit in backing_off:
            self._add(unit, event_labels.BACKOFF, BACKING_OFF)
            yield
        for pod in waiting_members:
            self._add(pod, event_labels.GATED, POD_GROUP_NOT_READY)
            yield
        for waiting in parked:
            reason = reason_of(waiting.failure)
            plugins = {filter_.TRAITS.plugin or filter_.NAME for filter_ in waiting.failure.rejected_by}
            for unit in tuple(waiting.units.values()):
                for plugin in plugins:
                    self._plugins[plugin, pods_of(unit)[0].scheduler] += unit.size
                self._add(unit, event_labels.UNSCHEDULABLE, reason)
                yield
        # The pods of all but the most frequent namespaces count together.
        kept = frequent(self._namespaces)
        for namespace, reason in [key for key in self._pods if key[0] not in kept]:
            pods, created = self._pods.pop((namespace, reason)), self._oldest.pop((namespace, reason))
            self._merge((OTHER, reason), pods, created)
            yield

    def _add(self, unit: Unit, queue: str, reason: str) -> None:
        self._queues[queue] += unit.size
        for pod in pods_of(unit):
            self._namespaces[pod.namespace] += 1
            self._merge((pod.namespace, reason), 1, pod.created)

    def _merge(self, key: tuple[str, ...], pods: int, created: str) -> None:
        self._pods[key] += pods
        oldest = self._oldest.get(key)
        if oldest is None or created < oldest:
            self._oldest[key] = created

    def values(self, *, gated: int) -> Mapping[Family, Values]:
        """Return the gauges; `gated` is the number of pods with scheduling gates."""
        self._queues[event_labels.GATED] += gated
        return {
            gauges.QUEUED: {(queue,): count for queue, count in self._queues.items()},
            gauges.UNSCHEDULABLE: self._plugins,
            gauges.PENDING: self._pods,
            gauges.OLDEST: {key: times.parse(created).timestamp() for key, created in self._oldest.items()},
        }
