"""Serve the webhook over TLS, with the current certificate."""

import functools
from collections.abc import Awaitable, Mapping
from typing import Final, cast

import structlog
from aiohttp import web

from berth_client.errors import CallError
from berth_operator.apis.aggregated.requests import raw_refusal
from berth_operator.apis.aggregated.statuses import too_many
from berth_operator.apis.serving.bodies import Bodies, BodyError, answer_in_time
from berth_operator.apis.serving.connections import Connections
from berth_operator.apis.serving.tls import ServedCertificate
from berth_operator.apis.webhook.review import AskingResponder, Responder, ReviewError

HEALTH: Final = "/healthz"
CONNECTIONS: Final = 256
"""Connections at once, about 0.3 MiB each. API servers show no certificate here, and open one for each review at a
time. So one address may have all, until others need some."""
TOO_MANY: Final = raw_refusal(too_many("too many connections, try again later"))

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class WebhookServer:
    """Answers the API server."""

    def __init__(
        self, *, certificate: ServedCertificate, responders: Mapping[str, Responder | AskingResponder]
    ) -> None:
        self._certificate, self._responders = certificate, responders

    async def serve(self, address: str, port: int) -> None:
        """Wait for a certificate, then serve until cancelled."""
        await self._certificate.load()
        runner = web.AppRunner(
            application(self._responders), access_log=None, shutdown_timeout=1.0, auto_decompress=False
        )
        await runner.setup()
        connections = Connections(
            tls=self._certificate.tls,
            limit=CONNECTIONS,
            of_address=CONNECTIONS,
            without_certificate=CONNECTIONS,
            serve=cast("web.Server", runner.server),  # it is set up
            refusal=TOO_MANY,
            count_refused=lambda: None,
        )
        try:
            async with connections.listening(address, port):
                log.info("webhook served", address=address, port=port)
                await self._certificate.keep()
        finally:
            await runner.cleanup()


def application(responders: Mapping[str, Responder | AskingResponder]) -> web.Application:
    """Return the aiohttp application."""
    served, bodies = web.Application(middlewares=[answer_in_time]), Bodies()
    for path, responder in responders.items():
        served.router.add_post(path, functools.partial(_respond, responder, bodies))
    served.router.add_get(HEALTH, _health)
    return served


async def _respond(responder: Responder | AskingResponder, bodies: Bodies, request: web.Request) -> web.Response:
    try:
        response = await bodies.read(request, responder)
        return web.json_response(await response if isinstance(response, Awaitable) else response)
    except BodyError as error:
        return web.json_response({"message": str(error)}, status=error.status)
    except ReviewError as error:
        return web.json_response({"message": str(error)}, status=web.HTTPBadRequest.status_code)
    except CallError as error:
        return web.json_response({"message": str(error)}, status=web.HTTPServiceUnavailable.status_code)


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok")
