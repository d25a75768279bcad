"""Serve the extender over HTTP, to kube-scheduler only.

    POST /apis/nvidia-gpu-scheduler/v1/schedule/{filter,prioritize,preempt,bind}

The server runs in the leader's event loop, because filter and bind change the state. Other replicas answer 503.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, cast

import orjson
import structlog
from aiohttp import web

from berth_operator.apis.aggregated.requests import raw_refusal
from berth_operator.apis.aggregated.statuses import too_many
from berth_operator.apis.extender import protocol
from berth_operator.apis.extender.extender import Extender
from berth_operator.apis.extender.protocol import BindArgs, ProtocolError
from berth_operator.apis.serving.bodies import Bodies, BodyError, answer_in_time
from berth_operator.apis.serving.connections import Connections
from berth_operator.metrics import counters

PATH: Final = "/apis/nvidia-gpu-scheduler/v1/schedule"
VERBS: Final = ("filter", "prioritize", "preempt", "bind")
JSON: Final = "application/json"
CONNECTIONS: Final = 256
"""Connections at once. kube-scheduler opens one for each call at a time."""
MAX_IN_FLIGHT: Final = 2 * protocol.MAX_BYTES
"""Bytes of all bodies: two kube-schedulers may each send a call for a large cluster."""
TOO_MANY: Final = raw_refusal(too_many("too many connections, try again later"))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer = tuple[str, bytes]
"""The result under which a call is counted, and the body of the response."""
Call = Callable[[Extender, bytes], Answer | Awaitable[Answer]]
"""Returns the answer to a body. An awaitable does not hold the body."""
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ExtenderServer:
    """Answers calls while this replica leads; before that, `extender` is None."""

    def __init__(self, *, leads: Callable[[], bool], clients: frozenset[str] = frozenset()) -> None:
        """Create a server; `clients` are the common names of client certificates that may call it, empty for all."""
        self.extender: Extender | None = None
        self._leads, self._clients = leads, clients
        self._bodies = Bodies(max_bytes=protocol.MAX_BYTES, max_in_flight=MAX_IN_FLIGHT)

    async def serve(self, address: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Serve until cancelled; a failure to start is logged and does not end the process."""
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1.0, auto_decompress=False)
        await runner.setup()
        try:
            async with self._connections(runner, tls).listening(address, port):
                log.info("extender served", address=address, port=port, tls=tls is not None)
                await asyncio.Event().wait()
        except OSError as error:
            log.warning("extender not served", address=address, port=port, error=str(error))
        finally:
            await runner.cleanup()

    @staticmethod
    def _connections(runner: web.AppRunner, tls: ssl.SSLContext | None) -> Connections:
        """Return the connections of a server that is set up.

        Without authorities of clients, kube-scheduler shows no certificate, and is known only by its address.
        """
        shows_certificate = tls is not None and tls.verify_mode is not ssl.CERT_NONE
        return Connections(
            tls=tls,
            limit=CONNECTIONS,
            of_address=None if shows_certificate else CONNECTIONS,
            without_certificate=None if shows_certificate else CONNECTIONS,
            serve=cast("web.Server", runner.server),
            refusal=TOO_MANY,
            count_refused=lambda: None,
        )

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[answer_in_time, self._answer])
        calls: tuple[Call, ...] = (_filter, _prioritize, _preempt, _bind)
        for verb, call in zip(VERBS, calls, strict=True):
            application.router.add_post(f"{PATH}/{verb}", functools.partial(self._call, verb, call))
        return application

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check access and leadership, handle the request, and return every failure as a JSON message."""
        try:
            if self._clients and (name := _common_name(request)) not in self._clients:
                return _message(HTTPStatus.FORBIDDEN, f'the client certificate of "{name}" may not call the extender')
            return await handler(request)
        except ProtocolError as error:
            return _message(HTTPStatus.BAD_REQUEST, str(error))
        except BodyError as error:
            return _message(error.status, str(error))
        except web.HTTPError as error:
            return _message(error.status, f"{error.reason}: {request.method} {request.path}")

    async def _call(self, verb: str, call: Call, request: web.Request) -> web.Response:
        """Answer one call, and count it by its verb and result."""
        result, started = "refused", time.perf_counter()

        def begin(body: bytes) -> Answer | Awaitable[Answer]:
            nonlocal started
            started = time.perf_counter()
            return call(extender, body)

        try:
            if self.extender is None or not self._leads():
                raise web.HTTPServiceUnavailable(reason="this replica does not lead")
            extender = self.extender
            begun = await self._bodies.read(request, begin)
            result, answer = await begun if isinstance(begun, Awaitable) else begun
            return web.Response(body=answer, content_type=JSON)
        finally:
            counters.EXTENDER_CALLS.labels(verb, result).inc()
            counters.EXTENDER_SECONDS.labels(verb).observe(time.perf_counter() - started)


def _filter(extender: Extender, body: bytes) -> Answer:
    args = protocol.node_args(body)
    result = extender.filter(args)
    return "error" if result.error else "ok" if result.names else "no node", protocol.filter_answer(args, result)


def _prioritize(extender: Extender, body: bytes) -> Answer:
    args = protocol.node_args(body)
    return "ok", protocol.prioritize_answer(args.names, extender.prioritize(args))


def _preempt(extender: Extender, body: bytes) -> Answer:
    victims = extender.preempt(protocol.preempt_args(body))
    return "ok" if victims else "no node", protocol.preempt_answer(victims)


def _bind(extender: Extender, body: bytes) -> Awaitable[Answer]:
    return _bound(extender, protocol.bind_args(body))


async def _bound(extender: Extender, args: BindArgs) -> Answer:
    error = await extender.bind(args)
    return "error" if error else "ok", protocol.bind_answer(error)


def _common_name(request: web.Request) -> str:
    """Return the common name of the client's certificate; empty if it has none."""
    certificate: dict[str, Any] = request.get_extra_info("peercert") or {}
    subject = (pair for parts in certificate.get("subject", ()) for pair in parts)
    return next((value for key, value in subject if key == "commonName"), "")


def _message(status: int, text: str) -> web.Response:
    return web.Response(body=orjson.dumps({"message": text}), status=status, content_type=JSON)
