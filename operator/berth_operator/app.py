"""The life of one operator process: stand by, lead for one term, exit.

A replica that loses its term exits instead of repairing its state: the next start lists everything again, which is the
only way in which state is built.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import structlog

from berth_api import names
from berth_client import served
from berth_client.reflector import FEW_CLIENTS_BACKOFF, Reflector
from berth_operator.apis.debug_api import server as debug_server
from berth_operator.apis.extender.service import ExtenderService, Leader
from berth_operator.apis.visibility.service import Decisions, VisibilityService
from berth_operator.binding import confirmation
from berth_operator.binding.attempts import Attempts
from berth_operator.binding.defragmenter import Defragmenter
from berth_operator.binding.drift import DriftKeeper
from berth_operator.binding.gangs import GangKeeper
from berth_operator.binding.moves import Moves
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.preemptor import Preemptor
from berth_operator.binding.reporter import Reporter
from berth_operator.binding.scheduler import Scheduler
from berth_operator.binding.volumes import VolumeBinder
from berth_operator.clients.fence import Fence
from berth_operator.clients.kube import KubeClient
from berth_operator.clients.leader import LeaderElection, TermLostError
from berth_operator.controllers.handlers.marks import Marks
from berth_operator.controllers.handlers.memo import Memo
from berth_operator.controllers.handlers.thread import KopfThread
from berth_operator.controllers.lifecycle import controller
from berth_operator.controllers.lifecycle.evictor import Evictor
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import DevicePlugin, kinds_of
from berth_operator.core.values.verdict import ANY
from berth_operator.metrics import counters
from berth_operator.metrics.gpu import refreshing
from berth_operator.metrics.monitoring.monitor import Monitor
from berth_operator.process import heap
from berth_operator.settings.configuration import Configuration
from berth_operator.settings.flags import Settings
from berth_operator.settings.reloading import ConfigurationFile
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.watches import sources, storage
from berth_operator.state.watches.pod_watches import PodWatches

STUCK_SECONDS: Final = 60.0
"""Seconds without a turn of the scheduling loop after which liveness fails."""
STANDBY_SECONDS: Final = 3.0
"""Seconds until kopf, which serves probes, starts in a standby replica."""
READING_SECONDS: Final = 240.0
"""Seconds until kopf starts in a leader that still reads its first lists; below the startup probe's limit."""
SILENT_SECONDS: Final = 600.0
"""Seconds without news on a watch after which liveness fails; bookmarks come every minute, broken watches continue."""
FENCE_SECONDS: Final = 0.5
"""Seconds that lists wait for the first test of the fence, which takes milliseconds if the fence is loaded."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class App:
    """The parts of one operator process."""

    def __init__(
        self,
        *,
        settings: Settings,
        configuration: Configuration,
        plugins: Mapping[str, DevicePlugin],
        client: KubeClient,
        election: LeaderElection,
    ) -> None:
        self._settings, self._client, self._election = settings, client, election
        self._plugins = plugins
        self._configuration = configuration.with_plugins(plugins)
        self._default_policy = replace(settings.default_policy, plugins=plugins)
        self._file = (
            None
            if settings.config is None
            else ConfigurationFile(settings.config, first=configuration, use=self._use, refused=self._refused)
        )
        self._reporter = Reporter(api=client, instance=settings.identity, clock=time.monotonic)
        marks = Marks(asyncio.get_running_loop())
        self._attempts = Attempts(clock=time.monotonic)
        self._notifier = Notifier(reporter=self._reporter, attempts=self._attempts, mark=marks.mark)
        self._cluster = _cluster(settings, configuration, plugins, self._notifier)
        self._storage = storage.Storage(self._cluster)
        self._reflectors = self._make_reflectors()
        self._pods = PodWatches(api=client, cluster=self._cluster)
        self._moves = Moves(self._cluster) if settings.defragment else None
        self._preemptor = self._make_preemptor()
        self._scheduler = self._make_scheduler()
        self._gangs, self._evictor, self._drift = self._make_keepers()
        self._extender = self._make_extender()
        self._visibility = self._make_visibility()
        self._memo = Memo(
            settings=settings,
            problem=self._problem,
            busy=lambda: self._reporter.in_flight_binds.is_busy,
            cluster=self._cluster,
            marks=marks,
            loop=asyncio.get_running_loop(),
        )
        self._fence = Fence(
            api=client, namespace=settings.namespace, lease=settings.lease, required=settings.require_fence
        )
        self._kopf = KopfThread(memo=self._memo, are_served=self._are_served)
        self._tasks: asyncio.TaskGroup | None = None
        """The tasks of the term; None until it has begun."""
        self._leading = False
        self._read = asyncio.Event()
        """Set once the first lists of a term are read."""
        counters.CONFIGURATION_VALID.set(1)
        self._show()

    def _make_preemptor(self) -> Preemptor:
        return Preemptor(
            cluster=self._cluster,
            pods=self._client,
            reporter=self._reporter,
            policy=self._policy,
            term=self._term,
            moves=self._moves,
        )

    def _make_scheduler(self) -> Scheduler:
        volumes = VolumeBinder(api=self._client, cluster=self._cluster, timeout=self._settings.volume_timeout)
        self._storage.on_claim = volumes.changed
        return Scheduler(
            cluster=self._cluster,
            preemptor=self._preemptor,
            pods=self._client,
            volumes=volumes,
            reporter=self._reporter,
            attempts=self._attempts,
            policy=self._policy,
            lease=self._settings.lease,
            term=self._term,
            work=self._notifier.work,
        )

    def _make_keepers(self) -> tuple[GangKeeper, Evictor, DriftKeeper]:
        gangs = GangKeeper(
            cluster=self._cluster,
            pods=self._client,
            reporter=self._reporter,
            keep_partial=self._keep_partial,
            leads=self._leads,
        )
        evictor = Evictor(
            cluster=self._cluster,
            pods=self._client,
            per_minute=self._settings.evictions_per_minute,
            report=self._reporter.evicted,
            leads=self._leads,
        )
        drift = DriftKeeper(
            cluster=self._cluster,
            pods=self._client,
            reporter=self._reporter,
            leads=self._leads,
            changed=self._notifier.drift,
        )
        return gangs, evictor, drift

    def _make_defragmenter(self, moves: Moves) -> Defragmenter:
        return Defragmenter(
            cluster=self._cluster,
            moves=moves,
            preemptor=self._preemptor,
            pods=self._client,
            reporter=self._reporter,
            policies=lambda: {name: self._policy(name) for name in _scheduled(self._settings, self._configuration)},
            leads=self._leads,
            most=self._settings.defragment,
            after=self._settings.defragment_after,
        )

    def _make_extender(self) -> ExtenderService:
        leader = Leader(
            cluster=self._cluster,
            binds=self._scheduler,
            reporter=self._reporter,
            policy=self._policy_or_default,
            term=self._term,
        )
        return ExtenderService(settings=self._settings, client=self._client, leader=leader)

    def _make_visibility(self) -> VisibilityService:
        decisions = Decisions(
            cluster=self._cluster,
            policy=self._policy,
            managed=lambda: {*self._configuration.policies, *self._settings.extended},
            rack_key=lambda: self._configuration.rack_key,
            ranking=self._scheduler.recent_binds.of,
        )
        return VisibilityService(
            settings=self._settings, election=self._election, pods=self._client, decisions=decisions
        )

    def _policy_or_default(self, name: str) -> Policy:
        """Return the policy of a scheduler name; the default policy if it has no profile."""
        return self._configuration.policies.get(name, self._default_policy)

    def _policy(self, name: str) -> Policy:
        """Return the policy of a scheduler name in the current configuration."""
        return self._configuration.policies[name]

    def _term(self) -> int | None:
        return self._election.term

    def _leads(self) -> bool:
        return self._election.term is not None

    async def run(self) -> None:
        """Stand by, then lead until the term ends.

        Raises:
            ExceptionGroup: with a TermLostError when the term has ended, or with another failure.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reporter.run())
                tasks.create_task(heap.run())
                if self._file is not None:
                    tasks.create_task(self._file.run())
                await self._test_fence_first()
                for reflector in self._reflectors.values():
                    tasks.create_task(reflector.run())
                tasks.create_task(self._serve(tasks))
                tasks.create_task(self._extender.serve())
                tasks.create_task(self._visibility.serve())
                term = await self._election.acquired()
                tasks.create_task(self._lose(term))
                await self._fenced(term)
                await self._lead(term, tasks)
        finally:
            counters.LEADING.set(0)
            self._election.drained = await self._scheduler.drain()
            await self._memo.stop_writing()

    async def stop(self) -> None:
        """Stop kopf; last, because the next leader waits for the LeaderLease and kopf's clean-up takes a second."""
        await self._kopf.stop()

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        """Start kopf, and serve the debug API.

        kopf lists all Devices once more. It starts after the lists that decisions need, because garbage collection is
        off during those lists and kopf's garbage would never be freed. After a timeout it starts anyway.
        """
        await self._have_read(STANDBY_SECONDS)
        if self._election.term is not None:
            await self._have_read(READING_SECONDS)
        tasks.create_task(self._kopf.run())
        await debug_server.run(
            settings=self._settings,
            api=self._client,
            cluster=self._cluster,
            knows_pods=self._read.is_set,
            knows_nodes=lambda: all(each.is_synced for each in self._reflectors.values()),
        )

    async def _have_read(self, seconds: float) -> None:
        """Wait until the first lists are read, for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._read.wait()

    async def _test_fence_first(self) -> None:
        """Test the fence before the first lists if we lead: its answers would queue behind megabytes of lists."""
        if (term := self._election.term) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FENCE_SECONDS):
                    await self._fence.loaded(term)

    async def _fenced(self, term: int) -> None:
        """Wait until our Bindings pass the fence, and those of the last leader no longer do."""
        waited = await self._fence.loaded(term)
        if not self._election.follows_drained:
            # One API server was tested; others learn the term, or the fence, a moment later.
            since = self._election.clock() if waited else self._election.won_at
            await asyncio.sleep(since + self._settings.takeover_pause - self._election.clock())

    async def _lead(self, term: int, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._pods.follow(_scheduled(self._settings, self._configuration), tasks)
        self._extender.follow(tasks)
        with _without_collector():
            await self._synced()
        objects = {name: reflector.listed for name, reflector in self._watches().items()}
        log.info("first lists read", objects=objects)
        self._read.set()
        tasks.create_task(controller.run(self._cluster))
        tasks.create_task(self._scheduler.run())
        tasks.create_task(self._gangs.run())
        tasks.create_task(self._drift.run())
        tasks.create_task(self._preemptor.run())
        tasks.create_task(self._evictor.run())
        if self._moves is not None:
            tasks.create_task(self._make_defragmenter(self._moves).run())
        tasks.create_task(confirmation.run(self._cluster, self._client))
        tasks.create_task(self._refresh_gpu_metrics())
        self._memo.lead()
        tasks.create_task(Monitor(cluster=self._cluster, ages=self._ages).run())
        self._leading = True
        self._extender.lead(tasks)
        self._visibility.lead(term, tasks)
        counters.LEADING.set(1)
        log.info("leading", term=term)

    async def _refresh_gpu_metrics(self) -> None:
        await refreshing.run(
            settings=self._settings, api=self._client, cluster=self._cluster, report=self._gpu_metrics_stale
        )

    def _gpu_metrics_stale(self, problem: str) -> None:
        if self._settings.pod:
            self._reporter.gpu_metrics_stale(self._settings.pod, problem)

    def _use(self, configuration: Configuration) -> None:
        """Use another configuration from now on."""
        self._configuration = configuration.with_plugins(self._plugins)
        schedulers = _scheduled(self._settings, configuration)
        self._cluster.gangs.set_schedulers(schedulers)
        self._cluster.fleet.set_model_aliases(configuration.model_aliases)
        self._show()
        log.info("configuration in use", hash=configuration.hash, schedulers=list(configuration.policies))
        if self._tasks is not None:
            self._pods.follow(schedulers, self._tasks)
            # Under another policy any pod may fit.
            self._cluster.waker.changed(ANY)

    def _refused(self, problem: str) -> None:
        """Report an invalid configuration file as an Event on our own pod."""
        if self._settings.pod:
            self._reporter.misconfigured(self._settings.pod, problem)

    def _keep_partial(self, scheduler: str) -> bool:
        """Return whether members of an incomplete gang stay bound; they do if the profile was removed."""
        policy = self._configuration.policies.get(scheduler)
        return policy is None or policy.gang_keep_partial

    def _show(self) -> None:
        """Set the metric of the configuration in use."""
        counters.CONFIGURATION.clear()
        counters.CONFIGURATION.labels(self._configuration.hash).set(1)

    async def _lose(self, term: int) -> None:
        await self._election.lost(term)
        raise TermLostError(f"term {term} has ended")

    async def _synced(self) -> None:
        """Wait for the first lists of all kinds, because decisions need the complete state."""
        while waiting := {name: each for name, each in self._watches().items() if not each.is_synced}:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await next(iter(waiting.values())).synced.wait()
                    continue
            log.warning("not synced yet, nothing is decided", waiting=list(waiting))

    def _watches(self) -> dict[str, Reflector]:
        return {**self._reflectors, **self._pods.reflectors, **self._extender.reflectors}

    def _ages(self) -> Mapping[str, float]:
        """Return for each watch the seconds since it was last heard."""
        return {name: each.last_event_age() for name, each in self._watches().items()}

    async def _are_served(self) -> bool:
        """Return whether the API server serves the kinds that kopf watches."""
        return not await served.missing(self._client, names.API_VERSION, ("Device", "GpuPod"))

    def _problem(self) -> str:
        """Return what is wrong with this process; empty if nothing is."""
        if not self._leading:
            return ""
        if (stuck := self._cluster.clock() - self._scheduler.turn_at) > STUCK_SECONDS:
            return f"the scheduling loop has not run for {stuck:.0f} s; allowed are {STUCK_SECONDS:.0f}"
        silent = [name for name, each in self._watches().items() if each.last_event_age() > SILENT_SECONDS]
        return f"nothing heard about {', '.join(silent)}" if silent else ""

    def _make_reflectors(self) -> Mapping[str, Reflector]:
        by_name = sources.except_pods(
            self._storage,
            node_selector=self._settings.node_selector,
            agent_namespace=self._settings.agent_namespace,
        )
        return {
            name: Reflector(api=self._client, source=source, sink=sink, max_backoff=FEW_CLIENTS_BACKOFF)
            for name, (source, sink) in by_name.items()
        }


def _cluster(
    settings: Settings, configuration: Configuration, plugins: Mapping[str, DevicePlugin], listener: Listener
) -> Cluster:
    """Return an empty state of the cluster."""
    cluster = Cluster(
        grace=settings.agent_grace,
        startup_timeout=settings.node_startup_timeout,
        gang_timeout=settings.gang_timeout,
        confined=bool(settings.node_selector),
        listener=listener,
        fleet=Fleet(kinds=kinds_of(plugins)),
        tenants=Tenants(kinds=kinds_of(plugins), min_age=settings.defragment_min_age) if settings.defragment else None,
        charges_foreign=settings.charge_foreign,
        trusted_schedulers=settings.trusted,
        priorities=settings.priorities,
    )
    cluster.gangs.set_schedulers(_scheduled(settings, configuration))
    cluster.fleet.set_model_aliases(configuration.model_aliases)
    return cluster


def _scheduled(settings: Settings, configuration: Configuration) -> frozenset[str]:
    """Return the scheduler names whose pods Berth schedules itself, without the extender."""
    return frozenset(configuration.policies) - settings.extended


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable garbage collection, and at the end exempt all existing objects from it.

    The first lists become state that stays. Scanning it repeatedly took longer than reading it, and would later delay
    decisions.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
