"""The TLS context of a server, whose certificate is renewed while it serves."""

import asyncio
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Self

import structlog

from berth_client import trust
from berth_client.errors import CallError
from berth_operator.apis.serving.certificates import CertificateError, Files, Source

SETTLE: Final = 2.0
"""Seconds from writing a new bundle to serving its certificate: each API server reads the bundle by its own watch."""

RELOAD_SECONDS: Final = 30.0
"""Seconds between two checks whether the files of a certificate have changed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The authorities of client certificates. One that they did not sign ends the handshake."""

    authorities: str | Path | Callable[[], str]
    """PEM text, or a file or function of it that is read again with the certificate."""
    required: bool = False
    """Whether clients need a certificate."""

    def pem(self) -> str:
        """Return the authorities.

        Raises:
            CertificateError: the file cannot be read.
        """
        if isinstance(self.authorities, str):
            return self.authorities
        if not isinstance(self.authorities, Path):
            return self.authorities()
        try:
            # Comments may have any characters, `ssl` takes ASCII alone.
            return self.authorities.read_text("ascii", "ignore")
        except OSError as error:
            raise CertificateError(str(error)) from error


class ServedCertificate:
    """A server's TLS context, and the check for another certificate every `period` seconds.

    Attributes:
        tls: the context; new connections use the certificate that was loaded last, and all authorities that were.
    """

    def __init__(
        self, *, source: Source, period: float, clients: Clients | None = None, settle: float = SETTLE
    ) -> None:
        """Create a context without a certificate. A new certificate is used after `settle` seconds."""
        self._source, self._period, self._clients, self._settle = source, period, clients, settle
        self._loaded: tuple[bytes, str] | None = None
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
        # Go's clients resume no sessions, and kube-scheduler opens a connection for each bind beyond two.
        self.tls.num_tickets = 0
        if clients is not None:
            trust.trust_like_go(self.tls)
            self.tls.verify_mode = ssl.CERT_REQUIRED if clients.required else ssl.CERT_OPTIONAL

    @classmethod
    def of_files(cls, certificate: Path, key: Path | None, clients: Clients | None = None) -> Self:
        """Create a context for a certificate in files. `key` is None if the key is in the same file."""
        source = Files(certificate=certificate, key=key)
        return cls(source=source, period=RELOAD_SECONDS, clients=clients, settle=0.0)

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
            current = await self._source.current(), "" if self._clients is None else self._clients.pem()
            if current == self._loaded:
                return
            if self._loaded:
                await asyncio.sleep(self._settle)
            _load(self.tls, *current)
        except (CallError, CertificateError, ssl.SSLError) as error:
            log.warning("certificate not renewed", error=str(error), again_in=self._period)
            return
        self._loaded = current
        log.info("certificate in use")


def _load(tls: ssl.SSLContext, pem: bytes, authorities: str) -> None:
    """Load a certificate for new connections, and the authorities of clients; `ssl` accepts only files of keys."""
    if authorities:
        tls.load_verify_locations(cadata=authorities)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tls.pem"
        file.touch(mode=0o600)
        file.write_bytes(pem)
        tls.load_cert_chain(file)
