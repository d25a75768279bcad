"""Wire the parts and run them until a signal arrives.

One loop reads the inventory, and another publishes it. The heartbeat runs in its own tasks, so that a slow reading or a
hanging driver call delays no renewal.
"""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from berth_agent.boot import boot_id
from berth_agent.cluster import DEVICES, client_of_node, connect
from berth_agent.conditions import Finding
from berth_agent.configuration import options
from berth_agent.configuration.settings import Settings
from berth_agent.event_writer import DEVICES_REFUSED, WRITES_REFUSED, EventWriter, InvolvedObject, lasting
from berth_agent.following import after_restore, follow
from berth_agent.health.faults import FaultEvent
from berth_agent.health.monitor import ANNOTATIONS, HealthMonitor
from berth_agent.inventory.numbering import Numbering
from berth_agent.isolation import manager as isolation_manager
from berth_agent.isolation import nics as isolation_nics
from berth_agent.isolation.manager import IsolationManager
from berth_agent.kubelet.admission.watch import NodePods
from berth_agent.kubelet.device_plugin.chooser import NoPreference
from berth_agent.kubelet.device_plugin.manager import InitError, PluginManager
from berth_agent.kubelet.device_plugin.registration import CrashLoopError
from berth_agent.metrics.exporter import Exporter
from berth_agent.publishing.labelling import Labeller
from berth_agent.publishing.lease import Heartbeat
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.publishing.publish import FROZEN_SECONDS, Publisher
from berth_agent.readings import Reading
from berth_agent.turns import Turn
from berth_agent.usage import reporter
from berth_agent.usage.reporter import UsageReporter
from berth_agent.vendor import Inventory, released
from berth_agent.vendors import choice
from berth_api import names
from berth_api.device import DeviceSpec
from berth_api.names import RECOVERED_DEVICES, RESERVED_MINORS
from berth_base import metrics_server, request_metrics
from berth_client import served
from berth_client.access import MetricsAccess
from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_client.objects import Object
from berth_client.refusals import RefusalGroup

if TYPE_CHECKING:
    from berth_agent.dra.driver import ClaimDriver
    from berth_agent.dra.endpoint import DriverEndpoint

LEAVE_SECONDS: Final = 15.0
"""Seconds that the last publication may take; with `ADMIT_SECONDS`, less than the 30 s that kubelet waits."""
ADMIT_SECONDS: Final = 5.0
"""Seconds for which kubelet may still request devices for pods that are bound already."""
BY_CDI: Final[Mapping[str, object]] = {
    "device_plugin": True,
    "device_list_strategy": ("cdi-cri",),
    "device_id_strategy": "uuid",
    "amd_visible_devices": False,
}
"""Settings of the driver of claims: claims get cards by CDI alone, whatever pods get by name. A variable that names
cards would have the last card of a container only, because each card of a claim is a CDI device of its own."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


async def run(settings: Settings, *, inventory: Inventory) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        OptionsError: the device plugin's configuration cannot be used.
        StartError: metrics cannot be served.
        InitError: the device plugin has nothing to offer at the start.
        CrashLoopError: its sockets break again and again.
        CredentialsError: the kubeconfig or the service account cannot be used.
        NotServedError: the API server does not serve our kinds.
    """
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(_work(settings, inventory=inventory))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        _log.info("stopped")
    except ExceptionGroup as group:
        # One line for what a user can correct; a defect keeps its traceback.
        raise next(
            (exception for exception in group.exceptions if isinstance(exception, InitError | CrashLoopError)), group
        ) from None
    finally:
        inventory.close()


async def _work(settings: Settings, *, inventory: Inventory) -> None:
    if settings.device_plugin or settings.dra:
        # Report a mistake in the options before the first request to the cluster.
        options.load(settings)
    exporter = Exporter(inventory=inventory, proc_root=settings.proc_root)
    address, port = str(settings.metrics_address), settings.metrics_port
    access = MetricsAccess(address=address, is_required=settings.metrics_authentication, clock=time.monotonic)
    serving = metrics_server.serving(exporter.render, address=address, port=port, refuse=access.refusal)
    async with serving, connect(settings) as client:
        access.connect(client)
        client.observe = request_metrics.count
        exporter.refused = client.refused
        await served.check(client, names.API_VERSION, ("Device", "GpuPod"))
        endpoint = _endpoint(settings)
        with Turn(settings.checkpoint.parent) as turn:
            try:
                async with asyncio.TaskGroup() as tasks:
                    if settings.inventory == "nvml":
                        await turn.come(endpoint, tasks)
                        tasks.create_task(turn.keep())
                    events = EventWriter(client=client, node=settings.node_name)
                    tasks.create_task(events.run())
                    usage = reporter.of(
                        settings,
                        client=client,
                        events=events,
                        plugin=choice.resources_for(settings),
                        card_names=choice.card_names_for(settings),
                    )
                    exporter.usage = usage
                    plugin = _plugin(settings, usage)
                    isolation = _isolation(settings, usage, client)
                    if isolation:
                        tasks.create_task(_serve(isolation, usage))
                    if plugin:
                        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, plugin.reload)
                        tasks.create_task(_serve(plugin, usage))
                    agent = Agent(
                        settings,
                        client=client,
                        events=events,
                        inventory=inventory,
                        plugin=plugin,
                        isolation=isolation,
                        usage=usage,
                        endpoint=endpoint,
                        exporter=exporter,
                        tasks=tasks,
                    )
                    try:
                        await agent.serve()
                    except asyncio.CancelledError:
                        # The other tasks still run: kubelet is served until the scheduler knows that it will not be,
                        # and until the next agent's driver is registered.
                        await asyncio.gather(turn.leave(), agent.leave())
                        raise
            finally:
                if endpoint:
                    await endpoint.close()


def _endpoint(settings: Settings) -> "DriverEndpoint | None":
    """Return what kubelet sees of the driver of ResourceClaims; None without one, or if the vendor gives no cards."""
    if not settings.dra or choice.hand_over_for(settings.model_copy(update=BY_CDI)) is None:
        return None
    from berth_agent.dra.endpoint import DriverEndpoint  # noqa: PLC0415 -- its interfaces take memory only where it is on

    return DriverEndpoint(settings.kubelet_folder)


def _plugin(settings: Settings, usage: UsageReporter | None) -> PluginManager | None:
    """Return the device plugin that the settings select: one that obeys the scheduler, or an ordinary one."""
    hand_over = choice.hand_over_for(settings)
    if hand_over is None:
        return None
    if usage is None or not settings.admission:
        return PluginManager(settings, hand_over=hand_over, chooser=NoPreference())
    plugin = PluginManager(settings, hand_over=hand_over, chooser=usage.admission)
    usage.admission.default_preference = plugin.best
    return plugin


def _isolation(settings: Settings, usage: UsageReporter | None, client: ApiClient) -> IsolationManager | None:
    """Return the manager that limits containers to their shares; None if the settings request no limits."""
    list_pods = NodePods(client=client, node=settings.node_name).pods
    return isolation_manager.of(
        settings,
        vendors_providers=choice.isolation_for(settings, list_pods=list_pods),
        pods=lambda: usage.admission.mirror.pods if usage else (),
        list_pods=list_pods,
    )


async def _serve(plugin: PluginManager | IsolationManager, usage: UsageReporter | None) -> None:
    """Offer devices as soon as the node's pods are known, and so which must be withheld."""
    if usage:
        await usage.admission.known.wait()
    await plugin.run()


def _driver(
    settings: Settings,
    usage: UsageReporter | None,
    client: ApiClient,
    nodes: NodeCache,
    *,
    endpoint: "DriverEndpoint | None",
    inventory: Inventory,
) -> "ClaimDriver | None":
    """Return the driver of ResourceClaims; None if the settings request none, or the vendor gives no cards."""
    hand_over = choice.hand_over_for(settings.model_copy(update=BY_CDI)) if settings.dra else None
    if hand_over is None or usage is None or endpoint is None:
        return None

    def held() -> frozenset[str] | None:
        if not usage.admission.known.is_set():
            return None
        snapshot = usage.admission.mirror.snapshot()
        nics = isolation_nics.taken(nic for pod in snapshot.pods for nic in pod.nics)
        return snapshot.held().union(nics)

    def foreign(reading: Reading) -> frozenset[int]:
        return frozenset(use.minor for use in usage.foreign(reading))

    def owner() -> Mapping[str, Any] | None:
        return nodes.owner_reference(settings.node_name)

    from berth_agent.dra.driver import ClaimDriver  # noqa: PLC0415 -- its interfaces take memory only where it is on
    from berth_agent.dra.on_demand import PartitionsOnDemand  # noqa: PLC0415 -- as above

    partitions = choice.partitions_for(settings)
    return ClaimDriver(
        settings,
        client=client,
        hand_over=hand_over,
        endpoint=endpoint,
        owner=owner,
        held=held,
        is_current=lambda: usage.admission.is_ready,
        by_claim=lambda: usage.admission.claimed,
        foreign=foreign,
        lingering=usage.lingering,
        has_shares=choice.has_shares(settings),
        has_partitions=choice.has_partitions(settings),
        on_demand=PartitionsOnDemand(
            partitions, client=client, node=settings.node_name, released=lambda: released(inventory)
        )
        if partitions
        else None,
    )


class Agent:
    """The two loops between the inventory and the API server.

    One reads the inventory, the other judges and publishes. They are apart so that an alarm is published at once, even
    while a reading hangs in the driver: broken cards do both.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client: ApiClient,
        events: EventWriter,
        inventory: Inventory,
        plugin: PluginManager | None,
        isolation: IsolationManager | None,
        usage: UsageReporter | None,
        endpoint: "DriverEndpoint | None",
        exporter: Exporter,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._plugin = plugin
        self._isolation = isolation
        self._client = client
        self._events = events
        self._nodes = NodeCache(client=client)
        self._driver = _driver(settings, usage, client, self._nodes, endpoint=endpoint, inventory=inventory)
        client_of = client_of_node(client, settings)
        self._publisher = Publisher(
            client=client, client_of=client_of, nodes=self._nodes, concurrency=settings.concurrency
        )
        self._labeller = Labeller(client=client, nodes=self._nodes)
        self._heartbeat = Heartbeat(
            client_of=client_of, restores=client.restores, nodes=self._nodes, settings=settings, tasks=tasks
        )
        self._monitor = HealthMonitor(
            boot_id=boot_id(settings.proc_root), quiet=settings.quiet_period, clock=time.monotonic
        )
        self._numbering = Numbering()
        self._tasks = tasks
        self._readings: Mapping[str, Reading] = {}
        self._resync_at = 0.0
        self._frozen: frozenset[str] = frozenset()
        """The nodes whose Devices cannot be published."""
        self._read_soon = asyncio.Event()
        self._publish_soon = asyncio.Event()
        self._usage = usage
        self._exporter = exporter
        if plugin:
            plugin.on_kubelet = self._publish_soon.set
            plugin.on_refusal = self._report_refusal
        if isolation:
            isolation.on_change = self._publish_soon.set
            isolation.on_refusal = self._report_refusal
        if self._driver:
            exporter.claims = self._driver.metrics
            self._driver.on_change(self._use_changed)
            self._driver.on_partition(self._read_soon.set)
            if usage:
                usage.claimed_parts = self._driver.parts
            if plugin:
                plugin.kept_for_claims = self._driver.withheld
                plugin.refuse_claimed = self._driver.refuse_claimed
            if isolation:
                isolation.refuse_claimed(self._driver.refuse_claimed)
                if usage:
                    mirror = usage.admission.mirror
                    self._driver.unseen_nics = lambda: isolation.unseen_nics(mirror.pods)
            self._driver.start(tasks)
        elif usage:
            self._withhold_left(usage)
        if usage:
            usage.begin(self._use_changed, tasks)

    def _withhold_left(self, usage: UsageReporter) -> None:
        """Withhold the cards of claims that an earlier agent prepared."""
        from berth_agent.dra.left import LeftClaims  # noqa: PLC0415 -- takes memory only where pods are given devices

        def spec() -> DeviceSpec | None:
            reading = self._readings.get(self._settings.node_name)
            return reading.spec if reading else None

        admission = usage.admission
        left = LeftClaims(
            self._settings,
            spec=spec,
            by_claim=lambda: admission.claimed if admission.answers else None,
            clock=time.monotonic,
            lingering=usage.lingering,
        )
        if self._plugin:
            self._plugin.kept_for_claims = left.withheld
            self._plugin.refuse_claimed = left.refuse
        if self._isolation:
            self._isolation.refuse_claimed(left.refuse)

    async def serve(self) -> None:
        """Read and publish until cancelled."""
        loop = asyncio.get_running_loop()
        self._inventory.listen(lambda fault_event: loop.call_soon_threadsafe(self._on_fault_event, fault_event))
        self._tasks.create_task(self._read_forever())
        self._tasks.create_task(self._publish_after_restores())
        if self._settings.inventory == "nvml":
            # For a simulated fleet the resync reads all Devices with one list.
            self._tasks.create_task(
                follow(
                    self._client,
                    DEVICES,
                    selector=f"metadata.name={self._settings.node_name}",
                    read=lambda device: device,
                    listed=lambda devices, _: self._heard(devices[0] if devices else None),
                    changed=lambda event, device: self._heard(None if event == "DELETED" else device),
                    # The managed fields show who changed the Device.
                    transform=lambda device: device,
                    restores=self._client.restores,
                )
            )
        while True:
            await self._publish_soon.wait()
            self._publish_soon.clear()
            await self._round()

    async def _publish_after_restores(self) -> None:
        """Read and write again what an earlier state of the API server lacks."""
        while True:
            await after_restore(self._client.restores)
            self._publisher.forget()
            if self._usage:
                self._usage.resync()
            self._resync_at = 0.0
            self._publish_soon.set()

    def _on_fault_event(self, fault_event: FaultEvent) -> None:
        """Publish the faults of an event and read the cards again, unless all of its faults are known."""
        is_new = self._monitor.is_new(fault_event)
        self._monitor.record_event(fault_event)
        if is_new:
            self._publish_soon.set()
            self._read_soon.set()

    def _heard(self, device: Object | None) -> None:
        """Look at the Device if another client changed what the agent published, or if people wrote annotations.

        People cordon devices, or call them recovered, by annotations.
        """
        name = self._settings.node_name
        annotations = (device and device["metadata"].get("annotations")) or {}
        known = self._publisher.annotations(name)
        is_annotated = any(annotations.get(annotation) != known.get(annotation) for annotation in ANNOTATIONS)
        is_changed = self._publisher.see(name, device)
        if is_annotated or (is_changed and device is None):
            # The lists also show whether the Node was replaced, which deletes its Device.
            self._resync_at = 0.0
        if is_annotated or is_changed:
            self._publish_soon.set()

    async def _read_forever(self) -> None:
        while True:
            is_first = not self._readings
            self._readings = await self._inventory.read()
            # Not in a round, which waits for the API server: only this reading says which cards were reset.
            self._observe(self._readings)
            if is_first and self._readings:
                types = Counter(device.type for reading in self._readings.values() for device in reading.spec.devices)
                _log.info("inventory read", nodes=len(self._readings), devices=dict(types))
            self._publish_soon.set()
            # An alarm brings the next reading forward.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_interval):
                    await self._read_soon.wait()
            self._read_soon.clear()

    async def _round(self) -> None:
        readings = self._readings
        self._heartbeat.keep(self._heard_of(readings))
        if time.monotonic() >= self._resync_at or self._nodes.missing(readings):
            await self._resync(readings)
        unknown = [name for name in readings if not self._monitor.knows(name) and self._nodes.owner_reference(name)]
        await asyncio.gather(*map(self._restore, unknown))
        await self._clear_faults(readings)
        current = self._with_faults(readings)
        for name, reading in current.items():
            if self._driver:
                await self._driver.update(reading, self._nodes.labels(name))
                current[name] = self._driver.undivided(reading)
            if self._plugin:
                self._plugin.update(current[name])
            if self._isolation:
                self._isolation.update(current[name], self._nodes.labels(name))
            if self._usage:
                self._usage.observe(current[name])
        view = self._view(current)
        self._exporter.readings = view
        await self._publisher.publish(view)
        if self._settings.label_nodes:
            await self._labeller.publish(view, renamed=self._plugin is not None and self._plugin.renames)
        if self._settings.inventory == "nvml":
            self._report_refused_writes()
        if self._plugin:
            self._plugin.check()

    def _report_refused_writes(self) -> None:
        """Report on the Node which writes the API server has refused for `FROZEN_SECONDS`.

        The Device's condition `WritesAccepted` may be refused, too. An upgrade may change policies before or after the
        agents, so it is not reported sooner.
        """
        node = InvolvedObject.node(self._settings.node_name)
        for refused in lasting(self._client.refused.current(), FROZEN_SECONDS):
            self._events.warn(node, WRITES_REFUSED, _message(refused), key=refused.write)

    def _report_refusal(self, resource: str, why: str) -> None:
        """Report on the Node that kubelet was refused devices: a static pod that fails has no object to report on."""
        message = (
            f"kubelet was refused {resource}. If a static pod requested it, it starts when its file has changed: {why}"
        )
        self._events.warn(InvolvedObject.node(self._settings.node_name), DEVICES_REFUSED, message)

    def _heard_of(self, readings: Mapping[str, Reading]) -> list[str]:
        """Return the nodes whose Leases are renewed, and log which end.

        A Device that cannot be published shows an earlier state, so that pods would get cards that have failed since.
        Without a Lease, the scheduler allocates none of its devices.
        """
        frozen = frozenset(name for name in readings if self._publisher.is_frozen(name))
        for name in frozen - self._frozen:
            _log.error("the API server refuses the Device; the Lease is not renewed until it accepts it", node=name)
        self._frozen = frozen
        return [name for name, reading in readings.items() if reading.heartbeat and name not in frozen]

    async def leave(self) -> None:
        """Publish that kubelet is offered nothing before that is so: it would refuse pods that come meanwhile.

        Pods that were bound before the scheduler knew are still served.
        """
        if not self._plugin:
            return
        self._plugin.leave()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                current = self._with_faults(self._readings)
                if self._driver:
                    current = {name: self._driver.undivided(reading) for name, reading in current.items()}
                await self._publisher.publish(self._view(current))
        except TimeoutError:
            _log.warning("Device not published before the end: kubelet may refuse pods that the scheduler still binds")
        if self._usage:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ADMIT_SECONDS):
                    await self._usage.admission.until_admitted()

    def _observe(self, readings: Mapping[str, Reading]) -> None:
        """Assign minors to the devices of new readings that have none, and record their faults."""
        for name, reading in self._restored(readings).items():
            self._numbering.assign(name, reading)
        self._monitor.observe(self._numbered(readings))

    def _view(self, current: Mapping[str, Reading]) -> dict[str, Reading]:
        """Return the published view: readings with sharing, what pods hold, and what kubelet cannot allocate."""
        view, refused = {}, self._refused_writes()
        for name, reading in current.items():
            view[name] = self._plugin.view(reading) if self._plugin else reading
            if self._isolation:
                view[name] = self._isolation.view(view[name])
            if self._driver:
                view[name] = self._driver.view(view[name])
            if self._usage:
                view[name] = self._usage.with_use(view[name])
            if self._plugin:
                view[name] = self._plugin.with_withheld(view[name])
            if refused:
                view[name] = replace(view[name], findings=(*view[name].findings, *refused))
        return view

    def _refused_writes(self) -> tuple[Finding, ...]:
        """Return the finding that the API server refuses writes of the agent; none if it accepts them."""
        # An Event says no more than the condition, so its refusal comes last.
        writes = sorted(
            self._client.refused.current(), key=lambda refused: (refused.write.resource == "events", refused.write)
        )
        if not writes:
            return ()
        message = _message(writes[0], others=len(writes) - 1)
        return (Finding(type=names.WRITES_ACCEPTED, ok=False, reason="Refused", message=message),)

    def _with_faults(self, readings: Mapping[str, Reading]) -> dict[str, Reading]:
        """Return the readings of restored nodes with all known faults."""
        return {
            name: self._monitor.apply_faults(name, reading, device_annotations=self._publisher.annotations(name))
            for name, reading in self._numbered(readings).items()
        }

    def _numbered(self, readings: Mapping[str, Reading]) -> dict[str, Reading]:
        return {name: self._numbering.numbered(name, reading) for name, reading in self._restored(readings).items()}

    def _restored(self, readings: Mapping[str, Reading]) -> dict[str, Reading]:
        """Return the readings of the nodes whose Devices were restored: nothing is offered or published before that."""
        return {name: reading for name, reading in readings.items() if self._monitor.knows(name)}

    async def _restore(self, name: str) -> None:
        """Restore minors and faults from the Device of a node; a failure is tried again in the next round."""
        try:
            earlier = await self._publisher.read_published(name)
        except CallError as error:
            _log.warning("Device not read, will try again", node=name, error=str(error))
        else:
            self._numbering.restore(name, earlier.spec, earlier.annotations.get(RESERVED_MINORS, ""))
            self._monitor.restore(name, earlier.spec)
            if reading := self._readings.get(name):
                self._observe({name: reading})
            if self._usage:
                self._usage.restore(earlier.spec, earlier.use)

    def _use_changed(self) -> None:
        """Offer kubelet all devices that are not withheld at once, and publish what pods hold."""
        if self._plugin:
            self._plugin.refresh()
        self._publish_soon.set()

    async def _resync(self, readings: Mapping[str, Reading]) -> None:
        """Read Nodes and Devices again; a failure is retried in the next round."""
        # Set before the lists: an annotation may change meanwhile.
        self._resync_at = time.monotonic() + self._settings.resync_interval
        try:
            # Devices first: a node whose Device was not read yet would count as one without a Device.
            await self._publisher.resync(readings)
            await self._nodes.refresh(readings)
        except CallError as error:
            self._resync_at = 0.0
            _log.warning("API server not read, will try again", error=str(error))
            return
        for name in self._nodes.missing(readings):
            _log.warning("no such Node yet, will try again", node=name)

    async def _clear_faults(self, readings: Mapping[str, Reading]) -> None:
        """Clear the faults of devices that people call recovered, once: then their annotation is removed."""
        for name, reading in self._numbered(readings).items():
            text = self._publisher.annotations(name).get(RECOVERED_DEVICES)
            if text is None:
                continue
            named = self._monitor.named(name, reading, text)
            if named.problems:
                continue
            self._monitor.clear_faults(name, reading, named.devices)
            try:
                await self._publisher.remove_annotation(name, RECOVERED_DEVICES)
            except CallError as error:
                self._resync_at = 0.0
                _log.warning("annotation not removed, will try again", node=name, error=str(error))


def _message(refused: RefusalGroup, *, others: int = 0) -> str:
    """Return what the API server refuses, and that it refuses other writes, too."""
    verb, resource, status, _ = refused.write
    more = f" (and {others} more)" if others else ""
    return f"the API server refuses to {verb} {resource}{more}, {status}: {refused.message}"
