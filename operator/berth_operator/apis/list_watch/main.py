"""`berth-operator api`: its settings and its process."""

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final, cast

import structlog
from aiohttp import web
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from berth_api import names
from berth_base import logs, start
from berth_base.start import StartError
from berth_client import served
from berth_client.credentials import CredentialsError
from berth_client.reflector import Reflector, Source
from berth_client.reviews import Reviews
from berth_client.served import NotServedError
from berth_operator.apis.aggregated import front_proxies
from berth_operator.apis.aggregated.access import Access, FrontProxy
from berth_operator.apis.aggregated.requests import REQUEST_CONNECTIONS, Limits, raw_refusal
from berth_operator.apis.aggregated.statuses import too_many
from berth_operator.apis.list_watch.cache import ReflectedCache
from berth_operator.apis.list_watch.kinds import GROUP, KINDS, VERSION, SourcedKind
from berth_operator.apis.list_watch.list_watch_server import ListWatchServer
from berth_operator.apis.serving import certificates, listening
from berth_operator.apis.serving.certificates import ApiService, Files, Shared
from berth_operator.apis.serving.connections import Connections
from berth_operator.apis.serving.settings import ServerSettings
from berth_operator.apis.serving.tls import Clients, ServedCertificate
from berth_operator.clients.kube import KubeClient

NAME: Final = "berth-operator api"
COMPONENT: Final = "list-watch-api"
WITHOUT_CERTIFICATE: Final = 128
"""Connections of all clients without a client certificate, about 0.3 MiB each; one address gets half of them."""
SILENT_SECONDS: Final = 180.0
"""Seconds without a word from the API server after which a replica is not ready: its watches should have been replaced
twice."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ApiSettings(ServerSettings):
    """The list and watch API of nvidia-gpu-scheduler: GpuPods and GpuNodes, by an aggregated API.

    docs/list-watch-api.md describes it. `--version` prints the version.
    """

    model_config = SettingsConfigDict(env_prefix="BERTH_API_", cli_prog_name=NAME)

    port: Annotated[int, Field(ge=1, le=65535)] = 9444
    """Port to listen on."""

    host: str = "berth-api.berth-system.svc"
    """Host name or address by which the API server calls this API, for its own certificate."""

    secret: str = "berth-api"  # noqa: S105 - a name
    """Name of the Secret through which replicas share their own certificate."""

    api_service: str = f"{VERSION}.{GROUP}"
    """Name of the APIService to write the certificate to."""

    max_watches: Annotated[int, Field(ge=2)] = 2000
    """Watches that this replica serves at once; one user gets at most half of them."""


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    start.show_version(NAME, arguments)
    try:
        settings = start.read(ApiSettings, arguments)
        listening.check_free(f"--port {settings.port}", str(settings.address), settings.port)
        logs.configure(form=settings.log_format, level=settings.log_level)
        logs.started(settings, os.environ)
        asyncio.run(_run(settings))
    except (StartError, CredentialsError, NotServedError) as error:
        start.give_up(NAME, str(error))
    return 0


async def _run(settings: ApiSettings) -> None:
    client = await KubeClient.connect(settings.kubeconfig, "berth-operator/api", limit=16)
    try:
        await served.check(client, names.API_VERSION, ["Device", "GpuPod"])
        serving = asyncio.create_task(ListWatchService(settings, client).serve())
        for end in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(end, serving.cancel)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
    finally:
        client.close()


class ListWatchService:
    """The caches, what feeds them, and the server."""

    def __init__(self, settings: ApiSettings, client: KubeClient) -> None:
        self._settings, self._client = settings, client
        self._caches = {kind: ReflectedCache(kind) for kind in KINDS}
        self._reflectors = [_reflector(client, kind, cache) for kind, cache in self._caches.items()]
        self._reviews = Reviews(api=client, clock=time.monotonic)

    async def serve(self) -> None:
        """Serve until cancelled; if the front proxy has other authorities, end all connections and begin again."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())
            front_proxy = await front_proxies.another(self._client, None, self._settings.period)
            while True:
                front_proxy = await self._serve_for(front_proxy)

    @property
    def is_ready(self) -> bool:
        """Return whether all objects are known and not stale."""
        return all(
            reflector.is_synced and reflector.last_event_age() < SILENT_SECONDS for reflector in self._reflectors
        )

    async def _serve_for(self, front_proxy: FrontProxy) -> FrontProxy:
        """Serve users that a front proxy names, until there is another one; return that one."""
        settings = self._settings
        source: certificates.Source
        if settings.certificate is not None and settings.key is not None:
            source = Files(certificate=settings.certificate, key=settings.key)
        else:
            source = Shared(
                api=self._client,
                namespace=settings.namespace,
                secret=settings.secret,
                trusting=(ApiService(settings.api_service),),
                component=COMPONENT,
                host=settings.host,
                lifetime=timedelta(seconds=settings.lifetime),
            )
        clients = Clients(authorities=front_proxy.authorities)
        certificate = ServedCertificate(source=source, period=settings.period, clients=clients)
        await certificate.load()
        granted = Access(front_proxy=front_proxy, reviews=self._reviews, group=GROUP, version=VERSION)
        most = settings.max_watches
        limits = Limits(watches=most, watches_of_user=most // 2)
        server = ListWatchServer(caches=self._caches, access=granted, is_ready=lambda: self.is_ready, limits=limits)
        runner = web.AppRunner(
            server.application(),
            access_log=None,
            shutdown_timeout=1.0,
            handler_cancellation=True,
            auto_decompress=False,
        )
        await runner.setup()
        try:
            address, port = str(settings.address), settings.port
            async with connections(certificate.tls, most, runner).listening(address, port):
                log.info("API served", address=address, port=port)
                async with asyncio.TaskGroup() as tasks:
                    renewals = tasks.create_task(certificate.keep())
                    another = await front_proxies.another(self._client, front_proxy, settings.period)
                    renewals.cancel()
        finally:
            await runner.cleanup()
        return another


def connections(tls: ssl.SSLContext, watches: int, runner: web.AppRunner) -> Connections:
    """Return the connections of a server that is set up."""
    return Connections(
        tls=tls,
        limit=watches + REQUEST_CONNECTIONS,
        # The API server shows the certificate of its front proxy.
        of_address=WITHOUT_CERTIFICATE // 2,
        without_certificate=WITHOUT_CERTIFICATE,
        serve=cast("web.Server", runner.server),
        refusal=raw_refusal(too_many("too many connections, try again later")),
        count_refused=lambda: None,
    )


def _reflector(client: KubeClient, kind: SourcedKind, cache: ReflectedCache) -> Reflector:
    # Unchanged: the times of GpuPods and GpuNodes are in the managed fields.
    source = Source(path=kind.path, transform=lambda obj: obj)
    return Reflector(api=client, source=source, sink=cache, on_bookmark=lambda version: cache.advance(int(version)))
