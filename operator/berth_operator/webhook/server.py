"""Serve the webhook over TLS, with the current certificate."""

import asyncio
import functools
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from berth_client.errors import CallError
from berth_operator.webhook.certificates import CertificateError, Source
from berth_operator.webhook.review import Responder, ReviewError

HEALTH: Final = "/healthz"
SETTLE: Final = 2.0
"""Seconds from writing a new bundle to serving its certificate: each API server reads the bundle by its own watch."""
MAX_BYTES: Final = 8 * 2**20
"""Bytes of a request at most; a pod in it has 1.5 MiB at most."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Server:
    """Answers the API server, and checks for another certificate every `period` seconds."""

    def __init__(self, *, source: Source, period: float, responders: Mapping[str, Responder]) -> None:
        self._source, self._period, self._responders = source, period, responders
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = b""

    async def serve(self, address: str, port: int) -> None:
        """Wait for a certificate, then serve until cancelled."""
        while not self._loaded:
            await self._renew()
            if not self._loaded:
                await asyncio.sleep(self._period)
        runner = web.AppRunner(application(self._responders), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, address, port, ssl_context=self._tls).start()
            log.info("webhook served", address=address, port=port)
            while True:
                await asyncio.sleep(self._period)
                await self._renew()
        finally:
            await runner.cleanup()

    async def _renew(self) -> None:
        """Load the current certificate for new connections; a failure is logged and retried after the period."""
        try:
            current = await self._source.current()
            if current == self._loaded:
                return
            if self._loaded:
                await asyncio.sleep(SETTLE)
            _load(self._tls, current)
        except (CallError, CertificateError, ssl.SSLError) as error:
            log.warning("certificate not renewed", error=str(error), again_in=self._period)
            return
        self._loaded = current
        log.info("certificate in use")


def _load(tls: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate for new connections; `ssl` accepts only files."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tls.pem"
        file.touch(mode=0o600)
        file.write_bytes(pem)
        tls.load_cert_chain(file)


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
