"""The visibility API as a part of the operator: what runs in every replica, and what runs in the leader only."""

import asyncio
import ssl
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from aiohttp import web

from berth_api.objects.visibility import GROUP, VERSION
from berth_client.reviews import Reviews
from berth_operator.apis.aggregated import front_proxies
from berth_operator.apis.aggregated.access import Access, FrontProxy
from berth_operator.apis.aggregated.requests import REQUEST_CONNECTIONS, Limits, raw_refusal
from berth_operator.apis.aggregated.statuses import too_many
from berth_operator.apis.serving.certificates import Shared
from berth_operator.apis.serving.connections import Connections
from berth_operator.apis.serving.tls import Clients, ServedCertificate
from berth_operator.apis.visibility.certificate import ReplicaCertificate
from berth_operator.apis.visibility.explainer import Explainer
from berth_operator.apis.visibility.operator_settings import SettingsInUse
from berth_operator.apis.visibility.registration import Registration
from berth_operator.apis.visibility.relay import Relay
from berth_operator.apis.visibility.row_cache import RowCache, Source
from berth_operator.apis.visibility.slices import LoopTurns
from berth_operator.apis.visibility.sources import FleetRows, HolderRows, QueueRows
from berth_operator.apis.visibility.visibility_server import Leading, VisibilityServer
from berth_operator.clients.kube import KubeClient
from berth_operator.clients.leader import LeaderElection
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.ranking import Ranking
from berth_operator.core.fleet.pods import pod_mix_document
from berth_operator.metrics import counters
from berth_operator.metrics.gauges import GAUGES
from berth_operator.settings.configuration import Configuration
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster

CONNECTIONS: Final = 4
"""Connections to the API server, for reviews of clients."""
SHUTDOWN_SECONDS: Final = 0.05
"""Seconds for which watches delay the end of a leader. The next leader waits for its LeaderLease."""
PAUSE_SECONDS: Final = 5.0
"""After a failure, before the API is served again."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What the API uses of the leader's decisions."""

    cluster: Cluster
    policy: Callable[[str], Policy]
    """Returns the policy of a scheduler name."""
    managed: Callable[[], Collection[str]]
    """Returns the scheduler names whose pods Berth places."""
    ranking: Callable[[str], Ranking | None]
    """Returns the points of the bind of a pod's UID, while they are kept."""
    reservation: Callable[[str], str]
    """Returns the sentence about the node reservation of a pod's UID; empty if there is none."""
    refusal: Callable[[str], str]
    """Returns which writes for a pod's UID the API server refuses; empty if it refuses none."""
    rack_key: Callable[[], str]
    """Returns the label that names a node's rack; empty for none."""
    configuration: Callable[[], Configuration]
    """Returns the profiles of the pods that Berth schedules itself."""


class VisibilityService:
    """Serves the visibility API by the settings; without a port it only deletes an APIService that is left."""

    def __init__(self, *, settings: Settings, election: LeaderElection, api: KubeClient, decisions: Decisions) -> None:
        self._settings, self._election, self._api, self._decisions = settings, election, api, decisions
        self._leading: Leading | None = None
        self._registration = Registration(
            namespace=settings.namespace,
            service=settings.visibility_service,
            port=settings.visibility_service_port,
            pod=settings.own_pod_name,
            period=settings.visibility_period,
        )

    async def serve(self) -> None:
        """Serve until cancelled; a failure does not end the process: the API is served again after a pause."""
        while self._settings.visibility_port:
            try:
                settings = self._settings
                # A client of its own, so that reviews do not queue behind binds.
                client = await KubeClient.connect(settings.kubeconfig, "berth-operator/visibility", limit=CONNECTIONS)
                client.refused = GAUGES.writes
                try:
                    reviews = Reviews(api=client, clock=time.monotonic)
                    front_proxy = await front_proxies.another(client, None, settings.visibility_period)
                    while True:
                        # If the front proxy has other authorities, all connections end and begin again.
                        front_proxy = await self._serve_for(front_proxy, client, reviews)
                finally:
                    client.close()
            except Exception:
                counters.VISIBILITY_FAILURES.labels("server").inc()
                log.exception("visibility API not served", again_in=PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)
        await self._registration.keep_away(self._api)

    async def leave(self) -> None:
        """Delete the APIService if no replica stays; after all else, because the next leader must not wait for it."""
        if self._settings.visibility_port:
            await self._registration.leave(self._api)

    def lead(self, term: int, tasks: asyncio.TaskGroup) -> None:
        """Answer from the state of this replica, which has read the cluster."""
        if not self._settings.visibility_port:
            return
        decisions, cluster = self._decisions, self._decisions.cluster
        sources: tuple[Source, ...] = (
            FleetRows(cluster, decisions.rack_key),
            QueueRows(cluster),
            HolderRows(cluster),
        )
        turns = LoopTurns()
        caches = {source.kind: RowCache(source, term=term, clock=cluster.clock, turns=turns) for source in sources}
        for cache in caches.values():
            tasks.create_task(cache.run())
        explainer = Explainer(
            cluster=cluster,
            pods=self._api,
            policy=decisions.policy,
            managed=decisions.managed,
            ranking=decisions.ranking,
            reservation=decisions.reservation,
            refusal=decisions.refusal,
            term=lambda: self._election.term,
        )
        in_use = SettingsInUse(
            settings=self._settings,
            configuration=decisions.configuration,
            mix=lambda: pod_mix_document.document(cluster.fleet.pod_mix),
            reserved=lambda: {uid: pod.reserved_node for uid, pod in cluster.pending.items() if pod.reserved_node},
        )
        self._leading = Leading(caches=caches, explainer=explainer, settings=in_use)

    async def _serve_for(self, front_proxy: FrontProxy, client: KubeClient, reviews: Reviews) -> FrontProxy:
        """Serve users that a front proxy names, until there is another one; return that one."""
        settings = self._settings
        own = Shared(
            api=client,
            namespace=settings.namespace,
            secret=settings.visibility_secret,
            host=settings.visibility_host,
            lifetime=timedelta(seconds=settings.visibility_lifetime),
            of_client=True,
        )
        shared = ReplicaCertificate(own, period=settings.visibility_period)
        # TLS verifies by both; whose certificate it is decides what it is good for.
        clients = Clients(authorities=lambda: front_proxy.authorities + shared.bundle)
        certificate = ServedCertificate(source=shared, period=settings.visibility_period, clients=clients)
        await certificate.load()
        access = Access(front_proxy=front_proxy, reviews=reviews, group=GROUP, version=VERSION)
        election, most = self._election, settings.visibility_max_watches
        relay = Relay(
            certificate=shared,
            host=settings.visibility_host,
            leader=lambda: election.leader,
            heard=lambda: election.renewed,
        )
        server = VisibilityServer(
            access=access,
            certificate=shared,
            relay=relay,
            leading=lambda: None if election.term is None else self._leading,
            leads=lambda: election.term is not None,
            limits=Limits(watches=most, watches_of_user=max(1, most // 4)),
        )
        runner = web.AppRunner(
            server.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_SECONDS,
            auto_decompress=False,
        )
        await runner.setup()
        try:
            address, port = str(settings.visibility_address), settings.visibility_port
            limit = most + REQUEST_CONNECTIONS
            async with connections(certificate.tls, limit, runner).listening(address, port):
                log.info("visibility API served", address=address, port=port)
                async with asyncio.TaskGroup() as tasks:
                    others = (
                        tasks.create_task(certificate.keep()),
                        tasks.create_task(self._registration.keep(client, lambda: shared.bundle)),
                    )
                    another = await front_proxies.another(client, front_proxy, settings.visibility_period)
                    for task in others:
                        task.cancel()
        finally:
            await runner.cleanup()
        return another


def connections(tls: ssl.SSLContext, limit: int, runner: web.AppRunner) -> Connections:
    """Return the connections of a server that is set up, at most `limit` at once."""
    assert runner.server is not None  # noqa: S101 - it is set up
    return Connections(
        tls=tls,
        limit=limit,
        serve=runner.server,
        refusal=raw_refusal(too_many("too many connections, try again later")),
        count_refused=counters.VISIBILITY_REFUSED.inc,
    )
