"""The operator's life: stand for election, lead for one term, end.

A replica that loses its term ends its process instead of mending its picture of the cluster: the next start lists
everything anew, which is the one way in which state is ever built.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from berth_client.reflector import Reflector
from berth_operator.binding import confirmation
from berth_operator.binding.drift import DriftKeeper
from berth_operator.binding.gangs import GangKeeper
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.preemptor import Preemptor
from berth_operator.binding.reporter import Reporter
from berth_operator.binding.scheduler import Scheduler
from berth_operator.binding.volumes import VolumeBinder
from berth_operator.clients.fence import Fence
from berth_operator.clients.kube import KubeClient
from berth_operator.clients.leader import LeaderElection, TermLostError
from berth_operator.configuration import Configuration
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import DevicePlugin, kinds_of
from berth_operator.core.values.verdict import ANY
from berth_operator.debug_api import server as debug_server
from berth_operator.handlers.marks import Marks
from berth_operator.handlers.memo import Memo
from berth_operator.handlers.thread import KopfThread
from berth_operator.lifecycle import controller
from berth_operator.lifecycle.evictor import Evictor
from berth_operator.metrics import counters
from berth_operator.reloading import ConfigurationFile
from berth_operator.settings import Settings
from berth_operator.state import sources, storage
from berth_operator.state.cluster import Cluster
from berth_operator.state.listener import Listener
from berth_operator.state.pod_watches import PodWatches

STUCK_SECONDS: Final = 60.0
"""A scheduler that has had no turn for so long is taken for dead."""
STANDBY_SECONDS: Final = 3.0
"""After so long kopf starts in a replica that stands by, for probes."""
READING_SECONDS: Final = 240.0
"""After so long it starts in one that leads, and still reads its first lists; the startup probe has more patience."""
SILENT_SECONDS: Final = 600.0
"""The same for a watch: bookmarks come every minute, and broken watches are taken up again."""
FENCE_SECONDS: Final = 0.5
"""For so long reading waits for a first test of the fence, which takes some milliseconds where the fence stands."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class App:
    """One process."""

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
        self._file = (
            None
            if settings.config is None
            else ConfigurationFile(settings.config, first=configuration, use=self._use, refused=self._refused)
        )
        self._reporter = Reporter(api=client, instance=settings.identity, clock=time.monotonic)
        marks = Marks(asyncio.get_running_loop())
        self._notifier = Notifier(reporter=self._reporter, mark=marks.mark)
        self._cluster = _cluster(settings, configuration, plugins, self._notifier)
        self._storage = storage.Storage(self._cluster)
        self._reflectors = self._make_reflectors()
        self._pods = PodWatches(api=client, cluster=self._cluster)
        self._preemptor = self._make_preemptor()
        self._scheduler = self._make_scheduler()
        self._gangs, self._evictor, self._drift = self._make_keepers()
        self._memo = Memo(
            settings=settings,
            problem=self._problem,
            busy=lambda: self._reporter.in_flight_binds.is_busy,
            cluster=self._cluster,
            marks=marks,
            loop=asyncio.get_running_loop(),
            failed=self._fail,
        )
        self._fence = Fence(
            api=client, namespace=settings.namespace, lease=settings.lease, required=settings.require_fence
        )
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kopf = KopfThread(memo=self._memo)
        self._tasks: asyncio.TaskGroup | None = None
        """Those of the term, once it has begun."""
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
            policy=self._policy,
            lease=self._settings.lease,
            term=self._term,
            work=self._notifier.work,
        )

    def _make_keepers(self) -> tuple[GangKeeper, Evictor, DriftKeeper]:
        gangs = GangKeeper(
            cluster=self._cluster, pods=self._client, reporter=self._reporter, keeps=self._keeps, leads=self._leads
        )
        evictor = Evictor(
            cluster=self._cluster,
            pods=self._client,
            per_minute=self._settings.evictions_per_minute,
            told=self._reporter.evicted,
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

    def _policy(self, name: str) -> Policy:
        """Return how a scheduler name's pods are placed, by the configuration of now."""
        return self._configuration.policies[name]

    def _term(self) -> int | None:
        return self._election.term

    def _leads(self) -> bool:
        return self._election.term is not None

    async def run(self) -> None:
        """Stand by, then lead until the term ends.

        Raises:
            ExceptionGroup: of a TermLostError when the term ended, or of what else went wrong.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._kopf_failed())
                tasks.create_task(self._reporter.run())
                if self._file is not None:
                    tasks.create_task(self._file.run())
                await self._test_fence_first()
                for reflector in self._reflectors.values():
                    tasks.create_task(reflector.run())
                tasks.create_task(self._serve())
                term = await self._election.acquired()
                tasks.create_task(self._lose(term))
                await self._fenced(term)
                await self._lead(term, tasks)
        finally:
            counters.LEADING.set(0)
            self._election.drained = await self._scheduler.drain()
            await self._kopf.stop()

    async def _serve(self) -> None:
        """Start kopf, which reads all Devices once more: not while what decisions need is read, unless that waits.

        What it leaves behind, with no collector at work, would stay for ever. The debug API has as much time.
        """
        await self._have_read(STANDBY_SECONDS)
        if self._election.term is not None:
            await self._have_read(READING_SECONDS)
        self._kopf.start()
        await debug_server.run(
            settings=self._settings,
            api=self._client,
            cluster=self._cluster,
            knows_pods=self._read.is_set,
            knows_nodes=lambda: all(each.is_synced for each in self._reflectors.values()),
        )

    async def _have_read(self, seconds: float) -> None:
        """Wait until the first lists are read, so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._read.wait()

    async def _test_fence_first(self) -> None:
        """Test the fence before anything is read, if we lead: its answers would come after megabytes of lists."""
        if (term := self._election.term) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FENCE_SECONDS):
                    await self._fence.loaded(term)

    async def _fenced(self, term: int) -> None:
        """Wait until our Bindings pass the fence, and none that the last leader sent can still do so."""
        waited = await self._fence.loaded(term)
        if not self._election.follows_drained:
            # One API server was asked; others learn the term, or the fence, a moment later.
            since = self._election.clock() if waited else self._election.won_at
            await asyncio.sleep(since + self._settings.takeover_pause - self._election.clock())

    async def _lead(self, term: int, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._pods.follow(self._configuration.policies, tasks)
        with _without_collector():
            await self._synced()
        self._read.set()
        tasks.create_task(controller.run(self._cluster))
        tasks.create_task(self._scheduler.run())
        tasks.create_task(self._gangs.run())
        tasks.create_task(self._drift.run())
        tasks.create_task(self._preemptor.run())
        tasks.create_task(self._evictor.run())
        tasks.create_task(confirmation.run(self._cluster, self._client))
        await self._memo.lead()
        self._leading = True
        counters.LEADING.set(1)
        log.info("leading", term=term)

    def _use(self, configuration: Configuration) -> None:
        """Decide by another configuration from now on."""
        self._configuration = configuration.with_plugins(self._plugins)
        self._cluster.gangs.set_schedulers(configuration.policies)
        self._show()
        log.info("configuration in use", hash=configuration.hash, schedulers=list(configuration.policies))
        if self._tasks is not None:
            self._pods.follow(configuration.policies, self._tasks)
            # By another policy any pod may fit.
            self._cluster.waker.changed(ANY)

    def _refused(self, problem: str) -> None:
        """Tell of a mistake in the configuration file where its author may look."""
        if self._settings.pod:
            self._reporter.misconfigured(self._settings.pod, problem)

    def _keeps(self, scheduler: str) -> bool:
        """Return whether members of an incomplete gang stay bound; they do if the profile is gone."""
        policy = self._configuration.policies.get(scheduler)
        return policy is None or policy.gang_keep_partial

    def _show(self) -> None:
        """Tell by a metric which configuration is in use."""
        counters.CONFIGURATION.clear()
        counters.CONFIGURATION.labels(self._configuration.hash).set(1)

    async def _lose(self, term: int) -> None:
        await self._election.lost(term)
        raise TermLostError(f"term {term} has ended")

    async def _synced(self) -> None:
        """Wait for the first lists. Devices and Nodes come with pods: nothing is decided on a part of the picture."""
        while waiting := {name: each for name, each in self._watches().items() if not each.is_synced}:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await next(iter(waiting.values())).synced.wait()
                    continue
            log.warning("not synced yet, nothing is decided", waiting=list(waiting))

    def _watches(self) -> dict[str, Reflector]:
        return {**self._reflectors, **self._pods.reflectors}

    async def _kopf_failed(self) -> None:
        await self._failed

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _problem(self) -> str:
        """Return what is wrong with this process."""
        if not self._leading:
            return ""
        if (stuck := self._cluster.clock() - self._scheduler.turn_at) > STUCK_SECONDS:
            return f"the scheduler has had no turn for {stuck:.0f} s"
        silent = [name for name, each in self._watches().items() if each.last_event_age() > SILENT_SECONDS]
        return f"nothing heard about {', '.join(silent)}" if silent else ""

    def _make_reflectors(self) -> Mapping[str, Reflector]:
        found = sources.beside_pods(
            self._storage,
            node_selector=self._settings.node_selector,
            agent_namespace=self._settings.agent_namespace,
        )
        return {name: Reflector(api=self._client, source=source, sink=sink) for name, (source, sink) in found.items()}


def _cluster(
    settings: Settings, configuration: Configuration, plugins: Mapping[str, DevicePlugin], listener: Listener
) -> Cluster:
    """Return the picture of the cluster, empty."""
    cluster = Cluster(
        grace=settings.agent_grace,
        gang_timeout=settings.gang_timeout,
        confined=bool(settings.node_selector),
        listener=listener,
        fleet=Fleet(kinds=kinds_of(plugins)),
        charges_foreign=settings.charge_foreign,
        trusted_schedulers=settings.trusted,
    )
    cluster.gangs.set_schedulers(configuration.policies)
    return cluster


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Look for no garbage meanwhile, and never again among what is there by then.

    The first lists become state that stays; looking through all of it again and again took longer than reading it, and
    would hold up decisions later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
