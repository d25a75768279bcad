"""Serve the extender over HTTP, to kube-scheduler only.

    POST /apis/nvidia-gpu-scheduler/v1/schedule/{filter,prioritize,preempt,bind}

The server runs in the leader's event loop, because filter and bind change the state. Other replicas answer 503.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
import structlog
from aiohttp import web

from berth_base import sockets
from berth_operator.apis.extender import protocol
from berth_operator.apis.extender.extender import Extender
from berth_operator.apis.extender.protocol import ProtocolError
from berth_operator.metrics import counters

PATH: Final = "/apis/nvidia-gpu-scheduler/v1/schedule"
VERBS: Final = ("filter", "prioritize", "preempt", "bind")
JSON: Final = "application/json"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Call = Callable[[Extender, bytes], Awaitable[tuple[str, bytes]]]
"""Returns the result under which a call is counted, and the answer."""
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ExtenderServer:
    """Answers calls while this replica leads; before that, `extender` is None."""

    def __init__(self, *, leads: Callable[[], bool], clients: frozenset[str] = frozenset()) -> None:
        """Create a server; `clients` are the common names of client certificates that may call it, empty for all."""
        self.extender: Extender | None = None
        self._leads, self._clients = leads, clients

    async def serve(self, address: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Serve until cancelled; a failure to start is logged and does not end the process."""
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.SockSite(runner, sockets.listener(address, port), ssl_context=tls).start()
            log.info("extender served", address=address, port=port, tls=tls is not None)
            await asyncio.Event().wait()
        except OSError as error:
            log.warning("extender not served", address=address, port=port, error=str(error))
        finally:
            await runner.cleanup()

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[self._answer], client_max_size=protocol.MAX_BYTES)
        for verb, call in zip(VERBS, (_filter, _prioritize, _preempt, _bind), strict=True):
            application.router.add_post(f"{PATH}/{verb}", functools.partial(self._call, verb, call))
        return application

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check access and leadership, handle the request, and return every failure as a JSON message."""
        try:
            if self._clients and (name := _common_name(request)) not in self._clients:
                return _message(web.HTTPForbidden, f'the client certificate of "{name}" may not call the extender')
            return await handler(request)
        except ProtocolError as error:
            return _message(web.HTTPBadRequest, str(error))
        except web.HTTPError as error:
            return _message(type(error), f"{error.reason}: {request.method} {request.path}")

    async def _call(self, verb: str, call: Call, request: web.Request) -> web.Response:
        """Answer one call, and count it by its verb and result."""
        result, started = "refused", time.perf_counter()
        try:
            if self.extender is None or not self._leads():
                raise web.HTTPServiceUnavailable(reason="this replica does not lead")
            extender = self.extender
            body = await request.read()
            started = time.perf_counter()
            result, answer = await call(extender, body)
            return web.Response(body=answer, content_type=JSON)
        finally:
            counters.EXTENDER_CALLS.labels(verb, result).inc()
            counters.EXTENDER_SECONDS.labels(verb).observe(time.perf_counter() - started)


async def _filter(extender: Extender, body: bytes) -> tuple[str, bytes]:
    args = protocol.node_args(body)
    result = extender.filter(args)
    return "error" if result.error else "ok" if result.names else "no node", protocol.filter_answer(args, result)


async def _prioritize(extender: Extender, body: bytes) -> tuple[str, bytes]:
    args = protocol.node_args(body)
    return "ok", protocol.prioritize_answer(args.names, extender.prioritize(args))


async def _preempt(extender: Extender, body: bytes) -> tuple[str, bytes]:
    victims = extender.preempt(protocol.preempt_args(body))
    return "ok" if victims else "no node", protocol.preempt_answer(victims)


async def _bind(extender: Extender, body: bytes) -> tuple[str, bytes]:
    error = await extender.bind(protocol.bind_args(body))
    return "error" if error else "ok", protocol.bind_answer(error)


def _common_name(request: web.Request) -> str:
    """Return the common name of the client's certificate; empty if it has none."""
    certificate: dict[str, Any] = request.get_extra_info("peercert") or {}
    subject = (pair for parts in certificate.get("subject", ()) for pair in parts)
    return next((value for key, value in subject if key == "commonName"), "")


def _message(kind: type[web.HTTPError], text: str) -> web.Response:
    return web.Response(body=orjson.dumps({"message": text}), status=kind.status_code, content_type=JSON)
