"""The parts of one operator process, and how they are wired."""

import asyncio
import functools
import time
from collections.abc import Iterator, Mapping

import structlog

from berth_api import names, words
from berth_api.request.kinds import GpuVendor, Kinds, read_gpu_vendors, read_nics
from berth_client import served
from berth_client.objects import Object
from berth_client.reflector import FEW_CLIENTS_BACKOFF, Reflector
from berth_operator.apis.debug_api import debug_server
from berth_operator.apis.extender.service import ExtenderService, Leader
from berth_operator.apis.visibility.service import Decisions, VisibilityService
from berth_operator.binding.evictions.moves import Moves
from berth_operator.binding.evictions.node_taints import NodeTaints
from berth_operator.binding.evictions.preemptor import Preemptor
from berth_operator.binding.evictions.progress import EvictionProgress
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.prebind.claims import ClaimBinder
from berth_operator.binding.prebind.volumes import VolumeBinder
from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.scheduler import Scheduler
from berth_operator.binding.selectors.slow import SlowSelectors
from berth_operator.binding.workloads.admission_checks import CheckWriter
from berth_operator.binding.workloads.fits_check import FitsCheck
from berth_operator.clients.kube import KubeClient
from berth_operator.clients.leader import LeaderElection
from berth_operator.controllers.handlers.marks import Marks
from berth_operator.controllers.handlers.memo import Memo
from berth_operator.controllers.handlers.thread import KopfThread
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import DevicePlugin, kinds_of
from berth_operator.core.values import releases
from berth_operator.metrics.monitoring.monitor import Monitor
from berth_operator.process import health, inherited, refused_writes, upgrade
from berth_operator.process.configured import Configured
from berth_operator.process.fence import Fence
from berth_operator.process.health import Watches
from berth_operator.process.keepers import Keepers
from berth_operator.process.life import Life, Loop, ProcessParts
from berth_operator.process.reloading import ConfigurationFile
from berth_operator.settings.configuration import Configuration
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.objects.pod_sets import Templates
from berth_operator.state.watches import admission_rules, gang_owners, kueue, sources, storage
from berth_operator.state.watches.kueue import QuotaObjects
from berth_operator.state.watches.pod_watches import PodWatches

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class App:
    """One operator process, wired."""

    def __init__(
        self,
        *,
        settings: Settings,
        configuration: Configuration,
        plugins: Mapping[str, DevicePlugin],
        gpus: Mapping[str, GpuVendor],
        client: KubeClient,
        election: LeaderElection,
        kubernetes: int | None,
    ) -> None:
        """Wire the parts.

        Args:
            settings: flags and variables.
            configuration: the configuration at the start.
            plugins: the installed plug-ins, by device type.
            gpus: the installed vendors of GPUs, by the resources of their cards.
            client: the client of the API server.
            election: the election that this process won, or takes part in.
            kubernetes: the API server's minor version; None if it is unknown.
        """
        self._settings, self._client, self._election = settings, client, election
        self._configured = Configured(settings=settings, first=configuration, plugins=plugins)
        self._reporter = Reporter(
            api=client,
            instance=settings.identity,
            clock=time.monotonic,
            state_changed_at=lambda: self._cluster.waker.changed_at,
            lost_of=lambda gang: self._cluster.gang_tracker.notes(gang),  # noqa: PLW0108 - there is no cluster yet
        )
        self._marks = Marks(asyncio.get_running_loop())
        self._attempts = Attempts(clock=time.monotonic)
        self._notifier = Notifier(reporter=self._reporter, attempts=self._attempts, mark=self._marks.mark)
        self._cluster = _cluster(settings, _kinds(settings, plugins, gpus), self._notifier)
        self._cluster.fleet.set_kubernetes(kubernetes or releases.NEWEST)
        self._configured.apply_to(self._cluster)
        self._storage = storage.Storage(self._cluster)
        self._quota = self._make_quota_objects()
        self._check_writer = self._make_check_writer()
        self._moves = Moves(self._cluster) if settings.defragment else None
        self._preemptor = self._make_preemptor()
        self._scheduler = self._make_scheduler()
        election.record = self._record
        self._extender = self._make_extender()
        reflectors, pods = self._make_reflectors(), PodWatches(api=client, cluster=self._cluster)
        self._watches = Watches(lambda: reflectors, lambda: pods.reflectors, lambda: self._extender.reflectors)
        memo = self._make_memo()
        self.life = Life(
            ProcessParts(
                cluster=self._cluster,
                configured=self._configured,
                file=self._make_file(configuration),
                election=election,
                fence=self._make_fence(),
                takeover_pause=settings.takeover_pause,
                reporter=self._reporter,
                scheduler=self._scheduler,
                reflectors=reflectors,
                pods=pods,
                watches=self._watches,
                extender=self._extender,
                visibility=self._make_visibility(),
                memo=memo,
                kopf=KopfThread(memo=memo, are_served=self._are_served),
                debug_api=self._make_debug_api(reflectors),
                upgrade=self._make_upgrade(),
                lead=tuple(self._make_loops()),
            )
        )

    def _make_upgrade(self) -> Loop:
        known = self._cluster.fleet.kubernetes
        return functools.partial(upgrade.run, functools.partial(served.minor_version, self._client), known)

    def _make_preemptor(self) -> Preemptor:
        return Preemptor(
            cluster=self._cluster,
            pods=self._client,
            reporter=self._reporter,
            policy=self._configured.policy,
            term=self._term,
            progress=EvictionProgress(self._cluster),
            taints=NodeTaints(cluster=self._cluster, nodes=self._client, leads=lambda: self._term() is not None),
            moves=self._moves,
        )

    def _make_scheduler(self) -> Scheduler:
        volume_binder = VolumeBinder(api=self._client, cluster=self._cluster, timeout=self._settings.volume_timeout)
        self._storage.on_claim = volume_binder.changed
        claim_binder = ClaimBinder(
            api=self._client,
            cluster=self._cluster,
            lease=self._settings.lease,
            term=self._term,
            fenced=self._settings.require_fence,
        )
        self._cluster.claim_tracker.on_change = claim_binder.changed
        fits = FitsCheck(
            cluster=self._cluster,
            policy=self._configured.policy,
            settings=lambda: self._configured.admission_check,
            answer=self._check_writer.answer,
        )
        self._slow_selectors = SlowSelectors(self._cluster)
        return Scheduler(
            cluster=self._cluster,
            preemptor=self._preemptor,
            pods=self._client,
            volume_binder=volume_binder,
            claim_binder=claim_binder,
            reporter=self._reporter,
            attempts=self._attempts,
            policy=self._configured.policy,
            lease=self._settings.lease,
            term=self._term,
            confirmed=self._election.confirmed,
            work=self._notifier.work,
            inherited=lambda: inherited.read(self._election.inherited, self._cluster),
            fits=fits if self._settings.kueue else None,
            promise_seconds=lambda: self._configured.admission_check.promise,
            slow=self._slow_selectors,
        )

    def _make_extender(self) -> ExtenderService:
        leader = Leader(
            cluster=self._cluster,
            binds=self._scheduler,
            reporter=self._reporter,
            policy=self._configured.policy_or_default,
            term=self._term,
        )
        return ExtenderService(settings=self._settings, client=self._client, leader=leader)

    def _make_reflectors(self) -> Mapping[str, Reflector]:
        by_name = sources.except_pods(
            self._storage,
            node_selector=self._settings.node_selector,
            agent_namespace=self._settings.agent_namespace,
        )
        if self._settings.kueue:
            by_name |= kueue.sources(self._quota)
        by_name |= gang_owners.sources(self._cluster, self._settings.gang_owners)
        by_name |= admission_rules.sources(self._cluster.admission_rules)
        reflectors = {
            name: Reflector(api=self._client, source=source, sink=sink, max_backoff=FEW_CLIENTS_BACKOFF)
            for name, (source, sink) in by_name.items()
        }
        self._cluster.admission_rules.are_served = lambda: all(
            reflectors[kind].is_served for kind in admission_rules.KINDS
        )
        return reflectors

    def _make_quota_objects(self) -> QuotaObjects:
        templates = Templates(
            kinds=self._cluster.kinds,
            priorities=self._cluster.priorities,
            schedulers=lambda: tuple(self._configured.scheduled_configuration.policies),
            namespace_labels=self._cluster.fleet.affinity_index.labels_of,
            route=self._settings.routing,
            served=frozenset(filter(None, self._settings.routed_resources.split(","))),
            priority_classes=self._cluster.admission_rules.priority_classes,
        )
        self._cluster.gangs.templates = templates
        return QuotaObjects(self._cluster, templates)

    def _make_check_writer(self) -> CheckWriter:
        return CheckWriter(
            api=self._client,
            objects=self._quota,
            lease=self._settings.lease,
            term=self._term,
            fenced=self._settings.require_fence,
        )

    def _make_memo(self) -> Memo:
        return Memo(
            settings=self._settings,
            problem=self._problem,
            busy=lambda: self._reporter.in_flight_binds.is_busy,
            cluster=self._cluster,
            marks=self._marks,
            loop=asyncio.get_running_loop(),
        )

    def _make_file(self, first: Configuration) -> ConfigurationFile | None:
        if self._settings.config is None:
            return None
        return ConfigurationFile(self._settings.config, first=first, use=self._use, refused=self._refused)

    def _make_fence(self) -> Fence:
        fence = Fence(
            api=self._client,
            namespace=self._settings.namespace,
            lease=self._settings.lease,
            required=self._settings.require_fence,
        )
        self._election.hindrance = lambda: fence.problem
        return fence

    def _make_visibility(self) -> VisibilityService:
        decisions = Decisions(
            cluster=self._cluster,
            policy=self._configured.policy,
            managed=lambda: self._configured.managed,
            rack_key=lambda: self._configured.rack_key,
            configuration=lambda: self._configured.scheduled_configuration,
            ranking=self._scheduler.recent_binds.of,
            reservation=self._scheduler.reserver.note,
            refusal=self._reporter.refusal,
        )
        return VisibilityService(
            settings=self._settings, election=self._election, api=self._client, decisions=decisions
        )

    def _make_debug_api(self, reflectors: Mapping[str, Reflector]) -> Loop:
        return lambda: debug_server.run(
            settings=self._settings,
            api=self._client,
            cluster=self._cluster,
            knows_pods=self.life.read.is_set,
            knows_nodes=lambda: all(each.is_synced for each in reflectors.values()),
        )

    def _make_loops(self) -> Iterator[Loop]:
        """Yield what only a leader runs."""
        yield self._scheduler.run
        yield self._slow_selectors.run
        if self._settings.kueue:
            yield self._check_writer.run
        yield Monitor(cluster=self._cluster, ages=self._watches.ages).run
        yield from Keepers(
            settings=self._settings,
            client=self._client,
            cluster=self._cluster,
            configured=self._configured,
            reporter=self._reporter,
            notifier=self._notifier,
            preemptor=self._preemptor,
            moves=self._moves,
            leads=lambda: self._election.term is not None,
        ).loops()

    def _use(self, configuration: Configuration) -> None:
        """Use another configuration from now on."""
        self._configured.replace(configuration)
        self._configured.apply_to(self._cluster)
        log.info("configuration in use", hash=configuration.hash, schedulers=list(configuration.policies))
        self.life.configuration_changed()

    def _refused(self, problem: str) -> None:
        """Report an invalid configuration file as an Event on our own pod."""
        if self._settings.pod:
            self._reporter.misconfigured(self._settings.pod, problem)

    def _record(self, term: int) -> Object | None:
        if (record := self._scheduler.record(term)) is None:
            return None
        refused = refused_writes.record(self._client.refused.current())
        return record.model_copy(update={"refused_writes": refused}).model_dump(
            mode="json", by_alias=True, exclude_defaults=True
        )

    def _term(self) -> int | None:
        return self._election.term

    async def _are_served(self) -> bool:
        """Return whether the API server serves the kinds that kopf watches."""
        return not await served.missing(self._client, names.API_VERSION, ("Device", "GpuPod"))

    def _problem(self) -> str:
        """Return this process's problem; empty if there is none."""
        if not self.life.leads:
            return ""
        idle = self._cluster.clock() - self._scheduler.turn_at
        return health.problem(idle_seconds=idle, ages=self._watches.ages())


def _kinds(settings: Settings, plugins: Mapping[str, DevicePlugin], gpus: Mapping[str, GpuVendor]) -> Kinds:
    units, nics = words.read_units(settings.memory_units), read_nics(settings.nic_resources)
    return kinds_of(plugins, units, nics, gpus, read_gpu_vendors(settings.gpu_vendors))


def _cluster(settings: Settings, kinds: Kinds, listener: Listener) -> Cluster:
    """Return an empty state of the cluster."""
    return Cluster(
        grace=settings.agent_grace,
        startup_timeout=settings.node_startup_timeout,
        gang_timeout=settings.gang_timeout,
        confined=bool(settings.node_selector),
        listener=listener,
        fleet=Fleet(kinds=kinds),
        tenants=Tenants(kinds=kinds, min_age=settings.defragment_min_age) if settings.defragment else None,
        charges_foreign=settings.charge_foreign,
        charges_unheld=settings.charge_unheld,
        agent_pods_namespace=settings.agent_pods_namespace,
        trusted_schedulers=settings.trusted,
        priorities=settings.priorities,
    )
