"""Serve the webhook over TLS, with the current certificate."""

import functools
from collections.abc import Mapping
from typing import Final

import structlog
from aiohttp import web

from berth_base import sockets
from berth_operator.apis.serving.tls import ServedCertificate
from berth_operator.apis.webhook.review import Responder, ReviewError

HEALTH: Final = "/healthz"
MAX_BYTES: Final = 8 * 2**20
"""Bytes of a request at most; a pod in it has 1.5 MiB at most."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class WebhookServer:
    """Answers the API server."""

    def __init__(self, *, certificate: ServedCertificate, responders: Mapping[str, Responder]) -> None:
        self._certificate, self._responders = certificate, responders

    async def serve(self, address: str, port: int) -> None:
        """Wait for a certificate, then serve until cancelled."""
        await self._certificate.load()
        runner = web.AppRunner(application(self._responders), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.SockSite(runner, sockets.listener(address, port), ssl_context=self._certificate.tls).start()
            log.info("webhook served", address=address, port=port)
            await self._certificate.keep()
        finally:
            await runner.cleanup()


def application(responders: Mapping[str, Responder]) -> web.Application:
    """Return the aiohttp application."""
    served = web.Application(client_max_size=MAX_BYTES)
    for path, responder in responders.items():
        served.router.add_post(path, functools.partial(_respond, responder))
    served.router.add_get(HEALTH, _health)
    return served


async def _respond(responder: Responder, request: web.Request) -> web.Response:
    try:
        return web.json_response(responder(await request.read()))
    except ReviewError as error:
        return web.json_response({"message": str(error)}, status=web.HTTPBadRequest.status_code)


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok")
