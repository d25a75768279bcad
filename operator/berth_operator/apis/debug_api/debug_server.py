"""The debug API in Koordinator's format: which pods hold which devices, and what is free.

    GET /apis/v1/plugins/DeviceShare/nodeDeviceSummaries         {node: summary}
    GET /apis/v1/plugins/DeviceShare/nodeDeviceSummaries/<node>  summary

The API runs in the scheduler's event loop. It renders a large cluster a few nodes at a time, with decisions in between.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from typing import Any, Final, cast

import orjson
import structlog
from aiohttp import web

from berth_api.values import keys
from berth_client.access import FORBIDDEN, UNAUTHORIZED, Guard, RefusedError, needs_guard
from berth_client.errors import CallError
from berth_client.reviews import Reviews
from berth_operator.apis.debug_api import hosts
from berth_operator.apis.debug_api.snapshots import Listed, Live, Snapshots, UnreadError
from berth_operator.apis.serving.bodies import answer_in_time
from berth_operator.apis.serving.connections import Connections
from berth_operator.apis.serving.tls import ServedCertificate
from berth_operator.clients.kube import KubeClient
from berth_operator.core.advice import summary
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster

BELOW: Final = "/debug"
"""Prefix of the paths that are authorized: `system:discovery` lets every authenticated user get `/apis/*`."""
PATH: Final = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
SLICE: Final = 16
"""Nodes that are rendered in one turn, which takes about 3 ms."""
JSON: Final = "application/json"
UNAVAILABLE: Final = 503
CONNECTIONS: Final = 64
"""TLS connections at once: each takes memory of the scheduler's process, before anything is known about its client."""
_TOO_MANY: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 34\r\n"
    b'Retry-After: 5\r\nConnection: close\r\n\r\n{"message":"too many connections"}'
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def run(
    *,
    settings: Settings,
    api: KubeClient,
    cluster: Cluster,
    knows_pods: Callable[[], bool],
    knows_nodes: Callable[[], bool],
) -> None:
    """Serve the debug API by the settings until cancelled."""
    if not settings.debug_port:
        return
    address = str(settings.debug_address)
    guard = Guard(Reviews(api=api, clock=cluster.clock), below=BELOW) if needs_guard(address) else None
    live, listed = Live(cluster), Listed(get_page=api.get, cluster=cluster, knows_nodes=knows_nodes)
    served = DebugApi(snapshots=lambda: live if knows_pods() else listed, guard=guard, address=address)
    async with asyncio.TaskGroup() as tasks:
        tls = None
        if settings.debug_certificate:
            certificate = ServedCertificate.of_files(settings.debug_certificate, settings.debug_key)
            await certificate.load()
            tasks.create_task(certificate.keep())
            tls = certificate.tls
        await served.serve(settings.debug_port, tls)


class DebugApi:
    """Answers requests; without a guard from every client that reaches this address by a local name."""

    def __init__(self, *, snapshots: Callable[[], Snapshots], guard: Guard | None, address: str) -> None:
        self._snapshots, self._guard, self._address = snapshots, guard, address

    async def serve(self, port: int, tls: ssl.SSLContext | None) -> None:
        """Serve until cancelled; a failure to start is logged and does not end the process."""
        address = self._address
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1.0, auto_decompress=False)
        await runner.setup()
        try:
            async with _listening(runner, address, port, tls):
                log.info("debug API served", address=address, port=port, authenticated=self._guard is not None)
                await asyncio.Event().wait()
        except OSError as error:
            log.warning("debug API not served", address=address, port=port, error=str(error))
        finally:
            await runner.cleanup()

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[answer_in_time, self._answer])
        application.router.add_get(PATH, self._summaries)
        application.router.add_get(PATH + "/{node}", self._summary)
        return application

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check access, handle the request, and return every failure as a JSON message."""
        try:
            if self._guard is not None:
                await self._guard.check(request.headers.get("Authorization", ""), request.path)
            elif not hosts.is_local(request.headers.get("Host", ""), self._address):
                reason = "the Host header must name a loopback address, such as localhost"
                return _message(FORBIDDEN, reason)
            return await handler(request)
        except RefusedError as refused:
            headers = {"WWW-Authenticate": "Bearer"} if refused.status == UNAUTHORIZED else {}
            return _message(refused.status, str(refused), headers)
        except CallError as error:
            return _message(UNAVAILABLE, f"the API server does not answer: {error}")
        except UnreadError as error:
            return _message(UNAVAILABLE, str(error))
        except web.HTTPError as error:
            return _message(error.status, f"{error.reason}: {request.method} {request.path}")

    async def _summary(self, request: web.Request) -> web.StreamResponse:
        node = request.match_info["node"]
        body = None
        if keys.NAME.fullmatch(node):
            body = summary.summary(await self._snapshots().of(node), node)
        if body is None:
            return _message(web.HTTPNotFound.status_code, f"cannot find node {node}")
        return _json(body)

    async def _summaries(self, request: web.Request) -> web.StreamResponse:
        fleet = await self._snapshots().whole()
        response = web.StreamResponse(headers={"Content-Type": JSON})
        await response.prepare(request)
        names, between = iter(summary.nodes(fleet)), b"{"
        while chosen := list(islice(names, SLICE)):
            # Nodes may have been deleted meanwhile.
            bodies = ((name, summary.summary(fleet, name)) for name in chosen)
            rendered = [orjson.dumps(name) + b":" + orjson.dumps(body) for name, body in bodies if body is not None]
            if rendered:
                await response.write(between + b",".join(rendered))
                between = b","
            await asyncio.sleep(0)
        await response.write(b"{}" if between == b"{" else b"}")
        return response


@contextlib.asynccontextmanager
async def _listening(runner: web.AppRunner, address: str, port: int, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
    """Accept connections until the end; raise OSError if the address and port cannot be listened on."""
    serve = cast("web.Server", runner.server)  # it is set up
    accepted = Connections(tls=tls, limit=CONNECTIONS, serve=serve, refusal=_TOO_MANY, count_refused=lambda: None)
    async with accepted.listening(address, port):
        yield


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type=JSON, headers=headers)


def _message(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return _json({"message": text}, status, headers)
