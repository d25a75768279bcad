"""Keep the published use of a node's pods up to date with what they hold.

The reporter checks after each event (a pod came or went, kubelet allocated devices), and every second in any case.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from berth_agent.boot import boot_id
from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.event_writer import EventWriter
from berth_agent.kubelet.admission.admission import Admission
from berth_agent.kubelet.admission.checkpoint import Checkpoint
from berth_agent.kubelet.admission.units import Units
from berth_agent.kubelet.admission.watch import NodePods
from berth_agent.kubelet.podresources import PodResources
from berth_agent.publishing.gpupods import GpuPods
from berth_agent.readings import ClaimedByContainer, ClaimedPart, NodeUse, Reading
from berth_agent.usage import exceeding as exceeding_module
from berth_agent.usage import holders, processes, use
from berth_agent.usage.holders import Holder, PodNames
from berth_agent.usage.replicas import OfferedReplicas
from berth_agent.usage.summary import Summaries
from berth_agent.usage.unheld import UnheldUses
from berth_agent.vendor import CardNames
from berth_api.device import MAX_DEVICES, MAX_HELD, DeviceSpec, ExceedingUse, ForeignUse, UnheldUse
from berth_api.names import GPU
from berth_api.objects.gpupod import MAX_CONTAINERS
from berth_client.client import ApiClient
from berth_client.credentials import own_namespace
from berth_client.errors import CallError

UNSETTLED_SECONDS: Final = 0.05
"""Kubelet records an allocation some milliseconds after our answer."""

Publish = Callable[[], None]

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class UsageReporter:
    """Publishes what one node's pods hold."""

    def __init__(
        self,
        settings: Settings,
        *,
        boot_id: str,
        pods: NodePods,
        admission: Admission,
        gpu_pods: GpuPods,
        replicas: OfferedReplicas | None = None,
        card_names: CardNames = lambda _spec: (),
    ) -> None:
        self._settings = settings
        self._boot_id = boot_id
        self._pods = pods
        self.admission = admission
        """The mirror of kubelet's admission, which the device plugin asks."""
        self._gpu_pods = gpu_pods
        self._replicas = replicas
        """What another device plugin offers; None if the agent is the node's device plugin."""
        self._card_names = card_names
        """Returns the ids by which other device plugins offer the cards."""
        self._unmatched: Finding | None = None
        """The condition about ids of kubelet that do not show which card it is."""
        self._reading: Reading | None = None
        """The last reading; None before the first."""
        self._unheld = UnheldUses(proc=settings.proc_root, own_namespace=own_namespace())
        self._minors: Mapping[str, int] = {}
        """Minors of the node's current GPUs, by their ids."""
        self._summaries = Summaries()
        self._use: NodeUse | None = None
        self._earlier = NodeUse()
        """What an earlier run of the agent published since the node's boot."""
        self.claimed_parts: Callable[[Sequence[ClaimedByContainer]], tuple[ClaimedPart, ...]] = lambda _: ()
        """Returns what containers have of cards by the devices of their claims; the driver of claims knows it."""
        self._is_due = False
        """Whether something is to be published or checked again, as after each reading."""
        self._resync_at = 0.0
        self._failure = ""
        self._too_large: frozenset[tuple[str, str]] = frozenset()
        """Pods with too many containers for a GpuPod, by namespace and name."""
        self._exceeds_device = False
        """Whether containers hold more than the Device lists."""

    def observe(self, reading: Reading) -> None:
        """Store the units and processes of a reading."""
        self.admission.mirror.see(Units.of(reading.spec, self._card_names(reading.spec)))
        self._reading = reading
        self._minors = {device.id: device.minor for device in reading.spec.devices if device.type == GPU}
        self._summaries = Summaries.of(reading.spec)
        self._is_due = True

    def restore(self, spec: DeviceSpec, published: NodeUse) -> None:
        """Restore what an earlier run published: replicas, and what the processes of the same boot showed."""
        if published.boot_id == self._boot_id:
            self._unheld.restore(published.unheld)
            self.admission.restore_stopped(published.stopped)
            self._earlier = published
        if self._replicas:
            self._replicas.restore(spec.devices)

    def resync(self) -> None:
        """Read the GpuPods again soon."""
        self._resync_at = 0.0
        self._is_due = True

    def with_use(self, reading: Reading) -> Reading:
        """Return the reading with what pods hold, and with what is known of another device plugin."""
        spec = self._replicas.shown(reading.spec) if self._replicas else reading.spec
        findings = (*reading.findings, self._unmatched) if self._unmatched else reading.findings
        return replace(reading, spec=spec, use=self._use, findings=findings)

    def foreign(self, reading: Reading) -> tuple[ForeignUse, ...]:
        """Return the cards with processes of no pod, as a reading shows them, or else as they were published last."""
        if reading.processes is None:
            return (self._use or self._earlier).foreign
        return processes.foreign(reading.processes, self._settings.proc_root)

    def lingering(self) -> frozenset[str]:
        """Return the UIDs of the pods that have processes, and are not among the node's pods any more; read procfs."""
        listed = {pod.cgroup_uid for pod in self.admission.mirror.pods}
        return processes.pods_with_processes(self._settings.proc_root) - listed

    def holders(self) -> tuple[Holder, ...]:
        """Return who holds the cards of the last reading."""
        mirror = self.admission.mirror
        spec = self._reading.spec if self._reading else DeviceSpec()
        claimed = self.claimed_parts(self.admission.claim_users)
        return holders.holders(mirror.holdings(), mirror.pods, spec, claimed)

    def pod_names(self) -> dict[str, PodNames]:
        """Return the names of the node's pods by UID."""
        mirror = self.admission.mirror
        return holders.pod_names(mirror.holdings(), mirror.pods)

    def begin(self, publish: Publish, tasks: asyncio.TaskGroup) -> None:
        """Follow the node's pods from now on, and publish what changed of their devices."""
        tasks.create_task(self._pods.follow(self.admission))
        tasks.create_task(self._run(publish))

    async def _run(self, publish: Publish) -> None:
        while True:
            await self.admission.refresh()
            self._is_due |= self.admission.has_news
            if self._is_due and self._replicas and await self._replicas.refresh():
                publish()
            if self._is_due and self._reading and self.admission.is_ready:
                # Reset first: a reading may come while this is published.
                self._is_due = False
                current = await self._current(self._reading)
                mirror = self.admission.mirror
                unmatched = use.unmatched_finding(mirror.unmatched(), mirror.units)
                if (current, unmatched) != (self._use, self._unmatched):
                    self._use, self._unmatched = current, unmatched
                    publish()
                await self._publish_gpu_pods()
            # Until something may have changed; while kubelet has not recorded what it gave, for a moment only.
            soon = self.admission.answers and not self.admission.mirror.is_confirmed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNSETTLED_SECONDS if soon else self._settings.pod_resources_interval):
                    await self.admission.changed.wait()

    async def _publish_gpu_pods(self) -> None:
        """Update the GpuPods to what pods hold now. Failed writes become due again."""
        if time.monotonic() >= self._resync_at:
            try:
                await self._gpu_pods.resync()
            except CallError as error:
                _log.warning("GpuPods not read, will try again", error=str(error))
            else:
                self._resync_at = time.monotonic() + self._settings.resync_interval
        mirror = self.admission.mirror
        node, uids = self._settings.node_name, [pod.uid for pod in mirror.pods]
        allocated = use.allocated_pods(mirror.pods, mirror.units, self._summaries, node=node)
        specs, too_large = use.gpu_pods(mirror.holdings(), mirror.units, self._summaries, node=node, uids=uids)
        for namespace, pod in sorted(too_large - self._too_large):
            message = "a pod has too many containers with devices for a GpuPod"
            _log.warning(message, namespace=namespace, pod=pod, allowed=MAX_CONTAINERS)
        self._too_large = too_large
        try:
            await self._gpu_pods.apply({**allocated, **specs})
        except CallError as error:
            self._is_due = True
            if not error.is_refused:
                # A write without an answer may have been done.
                self._resync_at = 0.0
            if str(error) != self._failure:
                _log.warning("GpuPods not published, will try again", error=str(error))
            self._failure = str(error)
        else:
            self._failure = ""

    async def _current(self, reading: Reading) -> NodeUse:
        """Return what pods hold now, and what a reading's processes show: foreign processes and pods' excess use."""
        mirror = self.admission.mirror
        pods, holdings, units, proc = mirror.pods, mirror.holdings(), mirror.units, self._settings.proc_root
        claimed = self.claimed_parts(self.admission.claim_users)

        def by_processes() -> tuple[tuple[ForeignUse, ...], tuple[ExceedingUse, ...], tuple[UnheldUse, ...]]:
            if reading.processes is None:
                before = self._use or self._earlier
                # A pod that has gone may have processes that run on.
                uids = {pod.uid for pod in pods} | processes.pods_with_processes(proc)
                exceeding = tuple(exceeds for exceeds in before.exceeding if exceeds.pod_uid in uids)
                return self.foreign(reading), exceeding, tuple(use for use in before.unheld if use.pod_uid in uids)
            self._unheld.observe(reading, pods, holdings, units)
            exceeding = exceeding_module.exceeding(reading.processes, pods, reading.spec, proc, claimed)
            return self.foreign(reading), exceeding, self._unheld.confirmed

        # In threads: procfs is read.
        foreign, exceeding, unheld = await asyncio.to_thread(by_processes)
        before, alive = (self._use or self._earlier).running, functools.partial(processes.pods_with_processes, proc)
        running = await asyncio.to_thread(use.running, before, pods, units, alive)
        # There is no event for the end of the processes of a pod that has gone.
        self._is_due |= not {pod.pod_uid for pod in running} <= {pod.uid for pod in pods}
        held = use.held(mirror.holdings(), mirror.units, uids=[pod.uid for pod in pods])
        if len(held) > MAX_HELD and not self._exceeds_device:
            _log.warning("too many containers have devices: some are listed in GpuPods alone", allowed=MAX_HELD)
        self._exceeds_device = len(held) > MAX_HELD
        return NodeUse(
            held=held[:MAX_HELD],
            boot_id=self._boot_id,
            withheld=self._minors_of(self.admission.withheld()),
            foreign=foreign,
            claimed=self.admission.claimed[:MAX_DEVICES],
            exceeding=exceeding,
            unheld=unheld,
            uncertain=self._minors_of(mirror.snapshot().uncertain()),
            running=running,
            stopped=tuple(sorted(mirror.stopped)[:MAX_HELD]),
        )

    def _minors_of(self, cards: frozenset[str]) -> tuple[int, ...]:
        """Return the minors of the cards among these that the node still has, sorted."""
        return tuple(sorted(self._minors[card] for card in cards & self._minors.keys()))


def of(
    settings: Settings, *, client: ApiClient, events: EventWriter, plugin: Collection[str], card_names: CardNames
) -> UsageReporter | None:
    """Return the reporter of the settings' node; None for a simulated fleet, or if it is switched off.

    Args:
        settings: the agent's settings.
        client: the client of the API server.
        events: the Events of the agent.
        plugin: the device plugin's resources, besides partitions of cards.
        card_names: returns the ids by which other device plugins offer the cards.
    """
    if settings.inventory != "nvml" or not settings.truth:
        return None
    boot = boot_id(settings.proc_root)
    pods = NodePods(client=client, node=settings.node_name, plugin=plugin)
    kubelet = PodResources(settings.pod_resources_socket, plugin=plugin)
    admission = Admission(
        kubelet=kubelet,
        server=pods,
        events=events,
        memory=Checkpoint(path=settings.checkpoint, boot_id=boot),
        running=lambda: processes.pods_with_processes(settings.proc_root),
    )
    gpu_pods = GpuPods(client=client, node=settings.node_name)
    return UsageReporter(
        settings,
        boot_id=boot,
        pods=pods,
        admission=admission,
        gpu_pods=gpu_pods,
        replicas=None if settings.device_plugin else OfferedReplicas(kubelet),
        card_names=card_names,
    )
