"""The extender as a part of the operator: what runs in every replica, and what runs in the leader only."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from berth_client.reflector import FEW_CLIENTS_BACKOFF, Reflector
from berth_operator.apis.extender import endpoints
from berth_operator.apis.extender.extender import Binds, Extender, ExtenderOptions
from berth_operator.apis.extender.extender_server import ExtenderServer
from berth_operator.apis.extender.waiting import ForeignWaitingPods
from berth_operator.apis.serving.tls import Clients, ServedCertificate
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.clients.kube import KubeClient
from berth_operator.core.decision.policy import Policy
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """What the extender uses of the leader."""

    cluster: Cluster
    binds: Binds
    reporter: Reporter
    policy: Callable[[str], Policy]
    """Returns the policy of a scheduler name, the default policy if it has no profile."""
    term: Callable[[], int | None]


class ExtenderService:
    """Serves the extender by the settings; without a port it does nothing."""

    def __init__(self, *, settings: Settings, client: KubeClient, leader: Leader) -> None:
        self._settings, self._client, self._term = settings, client, leader.term
        self._waiting = ForeignWaitingPods()
        self._server = ExtenderServer(
            leads=self._leads, clients=frozenset(filter(None, settings.extender_clients.split(",")))
        )
        self.reflectors: Mapping[str, Reflector] = {
            title: Reflector(api=client, source=source, sink=table, max_backoff=FEW_CLIENTS_BACKOFF)
            for title, (source, table) in self._waiting.sources(settings.extended).items()
        }
        """What is reflected -> reflector."""
        self._extender = Extender(
            cluster=leader.cluster,
            binds=leader.binds,
            pods=client,
            reporter=leader.reporter,
            policy=leader.policy,
            term=leader.term,
            is_waiting=self._waiting.__contains__,
            options=ExtenderOptions(
                schedulers=frozenset(settings.extender_schedulers.split(",")),
                nodes=settings.extender_nodes,
                score=settings.extender_score,
                timeout=settings.extender_timeout,
                lease=settings.lease,
            ),
        )
        self._waiting.on_gone = self._extender.pod_gone

    def _leads(self) -> bool:
        return self._term() is not None

    async def serve(self) -> None:
        """Serve until cancelled; calls are refused until this replica leads."""
        settings = self._settings
        if not settings.extender_port:
            return
        certificate = None
        if settings.extender_certificate is not None:
            authorities = settings.extender_client_ca
            clients = None if authorities is None else Clients(authorities=authorities, required=True)
            certificate = ServedCertificate.of_files(settings.extender_certificate, settings.extender_key, clients)
        async with asyncio.TaskGroup() as tasks:
            if certificate is not None:
                await certificate.load()
                tasks.create_task(certificate.keep())
            context = None if certificate is None else certificate.tls
            await self._server.serve(str(settings.extender_address), settings.extender_port, context)

    def follow(self, tasks: asyncio.TaskGroup) -> None:
        """Start to watch the pods that wait for a node."""
        for reflector in self.reflectors.values():
            tasks.create_task(reflector.run())

    def lead(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to answer calls, and make the Service reach this replica."""
        settings = self._settings
        if not settings.extender_port:
            return
        self._server.extender = self._extender
        tasks.create_task(self._extender.reservations.run())
        if settings.extender_service:
            tasks.create_task(
                endpoints.run(
                    self._client,
                    service=settings.extender_service,
                    address=settings.pod_ip,
                    port=settings.extender_port,
                    leads=self._leads,
                )
            )
