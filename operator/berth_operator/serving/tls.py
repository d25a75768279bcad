"""The TLS of a server, whose certificate is renewed while it serves."""

import asyncio
import ssl
import tempfile
from pathlib import Path
from typing import Final, NoReturn

import structlog

from berth_client.errors import CallError
from berth_operator.serving.certificates import CertificateError, Source

SETTLE: Final = 2.0
"""Seconds from writing a new bundle to serving its certificate: each API server reads the bundle by its own watch."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ServedCertificate:
    """A server's TLS context, and the check for another certificate every `period` seconds.

    Attributes:
        tls: the context; new connections use the certificate that was loaded last. With `client_authorities` (PEM)
            clients may show a certificate, and one that these authorities did not sign ends the handshake.
    """

    def __init__(self, *, source: Source, period: float, client_authorities: str = "") -> None:
        self._source, self._period = source, period
        self._loaded = b""
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
        if client_authorities:
            self.tls.load_verify_locations(cadata=client_authorities)
            self.tls.verify_mode = ssl.CERT_OPTIONAL

    async def load(self) -> None:
        """Return once there is a certificate."""
        while not self._loaded:
            await self._renew()
            if not self._loaded:
                await asyncio.sleep(self._period)

    async def keep(self) -> NoReturn:
        """Check for another certificate until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            await self._renew()

    async def _renew(self) -> None:
        """Load the current certificate for new connections; a failure is logged and retried after the period."""
        try:
            current = await self._source.current()
            if current == self._loaded:
                return
            if self._loaded:
                await asyncio.sleep(SETTLE)
            _load(self.tls, current)
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
