"""The series that the agent exposes, and how they are derived from what it knows. Pure functions.

A value that is unknown, or that a card does not support, has no sample, because 0 would be a value.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from berth_agent.metrics.sampler import Sample
from berth_agent.readings import CardSample, MemoryUse, Reading
from berth_agent.usage.holders import Holder, PodNames
from berth_agent.vendor import OTHER_EVENTS
from berth_api.allocation import short
from berth_api.device import DeviceInfo, MigInstance
from berth_api.names import GPU, GPU_MEMORY
from berth_api.resources import quantity
from berth_base import request_metrics
from berth_client.refusals import RefusalGroup

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float | None]]

CARD: Final = ("node", "UUID", "minor", "model")
"""Labels of a card; `UUID` is spelled as NVIDIA's DCGM exporter spells it, so that series can be joined."""
INSTANCE: Final = ("mig_uuid", "GPU_I_PROFILE", "GPU_I_ID")
"""Labels of a MIG instance; the last two are DCGM exporter's."""
POD: Final = ("namespace", "pod")
CONTAINER: Final = (*POD, "container")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the agent knows at one moment."""

    nodes: Mapping[str, Reading] = field(default_factory=dict)
    sample: Sample = field(default_factory=Sample)
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Xids by UUID and Xid."""
    holders: Sequence[Holder] = ()
    pods: Mapping[str, PodNames] = field(default_factory=dict)
    """Pods by UID."""
    processes: Mapping[str, Mapping[tuple[str, str], int]] = field(default_factory=dict)
    """Bytes by UUID of the card, and by owner: UID of the pod and id of the container."""
    refused: Collection[RefusalGroup] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """One card, and what it measures."""

    node: str
    info: DeviceInfo
    sample: CardSample

    @property
    def labels(self) -> Labels:
        return self.node, self.info.id, str(self.info.minor), self.info.model

    @property
    def instances(self) -> list[MigInstance]:
        return self.info.mig.instances if self.info.mig else []

    @property
    def memory(self) -> int | None:
        amounts = {short(name): amount for name, amount in self.info.resources.items()}
        return quantity.parse(amounts[GPU_MEMORY]) if GPU_MEMORY in amounts else None

    @property
    def memory_bandwidth(self) -> float | None:
        return None if self.info.memory_bandwidth is None else quantity.parse(self.info.memory_bandwidth)


Read = Callable[[_Card], Iterable[tuple[Labels, float | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of cards."""

    name: str
    help: str
    read: Read
    """Returns the values of a card, each with the labels that come after the card's."""
    labels: Labels = ()
    kind: Literal["gauge", "counter"] = "gauge"

    def family(self, cards: Iterable[_Card]) -> Metric:
        """Return the samples of all cards."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self.help, labels=(*CARD, *self.labels))
        for card in cards:
            labels = card.labels
            for more, value in self.read(card):
                if value is not None:
                    family.add_metric((*labels, *more), value)
        return family


def _one(read: Callable[[_Card], float | None]) -> Read:
    """Return a reader of a series with one value for each card."""
    return lambda card: [((), read(card))]


def _by_name(read: Callable[[CardSample], Mapping[str, float]]) -> Read:
    """Return a reader of a series with a value for each name."""
    return lambda card: (((name,), value) for name, value in read(card.sample).items())


def _of_memory(read: Callable[[MemoryUse], int]) -> Read:
    def values(card: _Card) -> Values:
        if memory := card.sample.memory:
            yield (), read(memory)

    return values


def _of_instances(read: Callable[[MemoryUse], int]) -> Read:
    def values(card: _Card) -> Values:
        for instance in card.instances:
            if memory := card.sample.instances.get(instance.id):
                yield of_instance(instance), read(memory)

    return values


def of_instance(instance: MigInstance | None) -> Labels:
    """Return the label values of an instance; empty values for None."""
    return (instance.id, instance.profile, str(instance.gpu_instance)) if instance else ("", "", "")


STATIC: Final = (
    Series(name="berth_gpu_info", help="1 for each GPU of the node", read=_one(lambda _: 1)),
    Series(
        name="berth_gpu_healthy",
        help="1 if the GPU may be allocated, 0 if the agent found a fault",
        read=_one(lambda card: int(card.info.health)),
    ),
    Series(
        name="berth_gpu_memory_total_bytes", help="Memory of the GPU, all of it", read=_one(lambda card: card.memory)
    ),
    Series(
        name="berth_gpu_multiprocessors",
        help="Streaming multiprocessors of the GPU",
        read=_one(lambda card: card.info.multiprocessors),
    ),
    Series(
        name="berth_gpu_memory_bandwidth_bytes_per_second",
        help="Peak bandwidth of the GPU's memory",
        read=_one(lambda card: card.memory_bandwidth),
    ),
    Series(
        name="berth_gpu_encoders", help="Video encoders of the GPU (NVENC)", read=_one(lambda card: card.info.encoders)
    ),
    Series(
        name="berth_gpu_decoders", help="Video decoders of the GPU (NVDEC)", read=_one(lambda card: card.info.decoders)
    ),
)
"""What is known of a card that does not answer, too."""

MEASURED: Final = (
    Series(
        name="berth_gpu_memory_used_bytes",
        help="Memory that is in use, without what the driver reserves",
        read=_of_memory(lambda memory: memory.used),
    ),
    Series(
        name="berth_gpu_memory_free_bytes",
        help="Memory that is free",
        read=_of_memory(lambda memory: memory.free),
    ),
    Series(
        name="berth_gpu_sm_utilization_ratio",
        help="Share of the time in which a kernel ran, from 0 to 1",
        read=_one(lambda card: card.sample.sm_utilization),
    ),
    Series(
        name="berth_gpu_memory_utilization_ratio",
        help="Share of the time in which memory was read or written, from 0 to 1",
        read=_one(lambda card: card.sample.memory_utilization),
    ),
    Series(
        name="berth_gpu_encoder_utilization_ratio",
        help="Utilization of the video encoders, from 0 to 1",
        read=_one(lambda card: card.sample.encoder_utilization),
    ),
    Series(
        name="berth_gpu_decoder_utilization_ratio",
        help="Utilization of the video decoders, from 0 to 1",
        read=_one(lambda card: card.sample.decoder_utilization),
    ),
    Series(name="berth_gpu_power_watts", help="Power that the GPU draws", read=_one(lambda card: card.sample.power)),
    Series(
        name="berth_gpu_power_limit_watts",
        help="Power that the GPU may draw now",
        read=_one(lambda card: card.sample.power_limit),
    ),
    Series(
        name="berth_gpu_temperature_celsius",
        help="Temperature of the GPU",
        read=_one(lambda card: card.sample.temperature),
    ),
    Series(
        name="berth_gpu_clock_hertz",
        help="Clock of the multiprocessors (sm) and of the memory",
        labels=("clock",),
        read=_by_name(lambda sample: sample.clocks),
    ),
    Series(
        name="berth_gpu_throttle_reason",
        help="1 for each reason for which the clocks are not at their highest, 0 for the others that the GPU reports",
        labels=("reason",),
        read=_by_name(lambda sample: sample.throttle_reasons),
    ),
    Series(
        name="berth_gpu_ecc_errors_total",
        help="ECC errors since the driver was loaded",
        labels=("type",),
        kind="counter",
        read=_by_name(lambda sample: sample.ecc_errors),
    ),
    Series(
        name="berth_gpu_mig_memory_total_bytes",
        help="Memory of a MIG instance",
        labels=INSTANCE,
        read=_of_instances(lambda memory: memory.total),
    ),
    Series(
        name="berth_gpu_mig_memory_used_bytes",
        help="Memory of a MIG instance that is in use",
        labels=INSTANCE,
        read=_of_instances(lambda memory: memory.used),
    ),
    Series(
        name="berth_gpu_mig_memory_free_bytes",
        help="Memory of a MIG instance that is free",
        labels=INSTANCE,
        read=_of_instances(lambda memory: memory.free),
    ),
)
"""What a card measures."""


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Return all series."""
    cards = [
        _Card(node=node, info=info, sample=snapshot.sample.cards.get(info.id, CardSample()))
        for node, reading in snapshot.nodes.items()
        for info in reading.spec.devices
        if info.type == GPU
    ]
    yield from (series.family(cards) for series in (*STATIC, *MEASURED, *_known(snapshot)))
    conditions = GaugeMetricFamily(
        "berth_device_condition",
        "1 if a condition of the Device that the agent writes is True, 0 if it is False",
        labels=("node", "condition"),
    )
    sampled_at = GaugeMetricFamily(
        "berth_gpu_sample_timestamp_seconds", "Unix time at which the GPUs were sampled", labels=("node",)
    )
    for node, reading in snapshot.nodes.items():
        for finding in reading.findings:
            conditions.add_metric((node, finding.type), int(finding.ok))
        if snapshot.sample.cards:
            sampled_at.add_metric((node,), snapshot.sample.at)
    yield conditions
    yield sampled_at
    refused_writes = GaugeMetricFamily(
        request_metrics.REFUSED, request_metrics.REFUSED_TEXT, labels=request_metrics.REFUSED_LABELS
    )
    for refused in snapshot.refused:
        refused_writes.add_metric(refused.labels, refused.reach)
    yield refused_writes


def _known(snapshot: Snapshot) -> tuple[Series, ...]:
    """Return the series of the cards' facts, in addition to their samples."""

    def xids(card: _Card) -> Values:
        for (uuid, xid), count in sorted(snapshot.xids.items()):
            if uuid == card.info.id:
                yield ("other" if xid == OTHER_EVENTS else str(xid),), count

    def held(card: _Card) -> Values:
        values = {
            (holder.namespace, holder.pod, holder.container, *of_instance(holder.instance), holder.text): holder.share
            for holder in snapshot.holders
            if holder.card == card.info.id
        }
        return values.items()

    def pod_shares(card: _Card) -> Values:
        # A pod has one share of a card by name, and may have several by claim.
        memory: dict[tuple[str, str], dict[str, int]] = {}
        for holder in snapshot.holders:
            if holder.card == card.info.id and holder.memory is not None:
                memory.setdefault((holder.namespace, holder.pod), {})[holder.claimed] = holder.memory
        return [(pod, sum(parts.values())) for pod, parts in memory.items()]

    def unheld(card: _Card) -> Values:
        use = snapshot.nodes[card.node].use
        for pod in use.unheld if use else ():
            if pod.id == card.info.id:
                yield (pod.namespace, pod.pod), quantity.parse(pod.memory)

    def process_memory(card: _Card) -> Values:
        memory: dict[Labels, int] = {}
        for (uid, container), used in snapshot.processes.get(card.info.id, {}).items():
            pod = snapshot.pods.get(uid)
            # Of a pod whose object is gone and that held nothing, only its UID is known.
            labels = (pod.namespace, pod.name, pod.containers.get(container, "")) if pod else ("", uid, "")
            memory[labels] = memory.get(labels, 0) + used
        return memory.items()

    return (
        Series(
            name="berth_gpu_xid_errors_total",
            help="Xids since the start of the agent; xid is the number, or other if NVIDIA's catalogue lacks it",
            labels=("xid",),
            kind="counter",
            read=xids,
        ),
        Series(
            name="berth_gpu_pod_info",
            help="The share of the GPU that a container holds: 1 for all of it",
            labels=(*CONTAINER, *INSTANCE, "share"),
            read=held,
        ),
        Series(
            name="berth_gpu_pod_share_bytes",
            help="Memory of the GPU that is the share of a pod; none for whole GPUs, replicas and MIG instances",
            labels=POD,
            read=pod_shares,
        ),
        Series(
            name="berth_gpu_unheld_memory_bytes",
            help="Memory that the processes of a pod use which does not hold the GPU, rounded up to 1 GiB",
            labels=POD,
            read=unheld,
        ),
        Series(
            name="berth_gpu_process_memory_bytes",
            help="Memory that the processes of a container use; of processes of no pod the labels are empty",
            labels=CONTAINER,
            read=process_memory,
        ),
    )
