"""Gauges over the state, computed together in the scheduler's loop, and exposed together by the metrics' thread.

The thread never reads the state. It reads `GAUGES.shown` and the shown refused writes, which the loop replaces.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from berth_base import request_metrics
from berth_client.refusals import RefusedWrites

Values = Mapping[tuple[str, ...], float]
"""Label values, in the order of the family's labels -> value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric: name, meaning and labels."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    counter: bool = False

    def metric(self, values: Values) -> Metric:
        """Return the exposed metric."""
        make = CounterMetricFamily if self.counter else GaugeMetricFamily
        metric = make(self.name, self.text, labels=self.labels)
        for labels, value in values.items():
            metric.add_metric(labels, value)
        return metric


QUEUED: Final = Family(name="scheduler_pending_pods", text="Pending pods, by queue", labels=("queue",))
UNSCHEDULABLE: Final = Family(
    name="scheduler_unschedulable_pods",
    text="Unschedulable pods, by plugin that rejected a node; a pod counts for each of them",
    labels=("plugin", "profile"),
)
INCOMING: Final = Family(
    name="scheduler_queue_incoming_pods_total",
    text="Pods that moved into a queue, by event",
    labels=("queue", "event"),
    counter=True,
)
CACHED: Final = Family(
    name="scheduler_cache_size", text="Nodes, pods and assumed pods in the scheduler's state", labels=("type",)
)
PENDING: Final = Family(
    name="berth_pending_pods",
    text="Pending pods, by namespace and reason: the filter that rejected the nodes that passed all others",
    labels=("namespace", "reason"),
)
OLDEST: Final = Family(
    name="berth_pending_pods_oldest_timestamp_seconds",
    text="When the oldest pending pod was created",
    labels=("namespace", "reason"),
)
GPUS: Final = Family(
    name="berth_fleet_gpus",
    text="GPUs, by model and state: allocated, free or unavailable; a part of a card counts as a fraction",
    labels=("model", "state"),
)
FRAGMENTATION: Final = Family(
    name="berth_fleet_fragmentation_ratio",
    text="Share of the free GPUs that pods which request this many whole GPUs cannot get",
    labels=("gpus",),
)
STRANDED: Final = Family(
    name="berth_fleet_stranded_ratio",
    text="Share of the free GPUs whose nodes have too little free cpu for the typical pod with GPUs",
)
CLAIM_DEVICES: Final = Family(
    name="berth_claim_devices",
    text="Devices in ResourceSlices, by driver and state: allocated to ResourceClaims, by any scheduler, or free",
    labels=("driver", "state"),
)
HEARD: Final = Family(
    name="berth_watch_last_event_timestamp_seconds",
    text="When the API server was last heard on a watch: an event, a bookmark or a list",
    labels=("watch",),
)
SILENT: Final = Family(name="berth_silent_agents", text="Nodes with a Device whose agent is silent")
REFRESHED: Final = Family(
    name="berth_state_timestamp_seconds", text="When the gauges over the leader's state were computed"
)
REFUSED: Final = Family(
    name=request_metrics.REFUSED, text=request_metrics.REFUSED_TEXT, labels=request_metrics.REFUSED_LABELS
)
FAMILIES: Final = (
    REFUSED,
    QUEUED,
    UNSCHEDULABLE,
    INCOMING,
    CACHED,
    PENDING,
    OLDEST,
    GPUS,
    FRAGMENTATION,
    STRANDED,
    CLAIM_DEVICES,
    HEARD,
    SILENT,
    REFRESHED,
)


@dataclass(slots=True, eq=False)
class Gauges(Collector):
    """Exposes the values that were last set; none until then."""

    shown: Mapping[Family, Values] = field(default_factory=dict)
    """Replaced, never changed, because another thread reads it."""
    writes: RefusedWrites = field(default_factory=RefusedWrites)
    """The refused writes of this process, whether or not it leads."""

    def collect(self) -> Iterator[Metric]:
        """Return the metrics with their values."""
        refused: Values = {refused.labels: refused.reach for refused in self.writes.current()}
        shown = {REFUSED: refused, **self.shown} if refused else self.shown
        return (family.metric(values) for family, values in shown.items())

    def describe(self) -> Iterable[Metric]:
        """Return all metrics without values."""
        return [family.metric({}) for family in FAMILIES]


GAUGES: Final = Gauges()
REGISTRY.register(GAUGES)
