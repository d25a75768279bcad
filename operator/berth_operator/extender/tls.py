"""TLS of the extender: our certificate, the authorities of client certificates, and their renewal."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

RELOAD_SECONDS: Final = 30.0
"""Seconds between two checks whether the files have changed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """PEM files, which cert-manager or another program renews."""

    certificate: Path
    key: Path | None = None
    """By default in the certificate's file."""
    client_ca: Path | None = None
    """Authorities of client certificates; None if clients need none."""

    def content(self) -> bytes:
        """Return the content of all files.

        Raises:
            OSError: a file cannot be read.
        """
        paths = filter(None, (self.certificate, self.key, self.client_ca))
        return b"\0".join(each.read_bytes() for each in paths)


class Tls:
    """The context of the server; new connections use the current files."""

    def __init__(self, files: Files, *, period: float = RELOAD_SECONDS) -> None:
        """Load the files; `period` is the number of seconds between two checks whether they have changed.

        Raises:
            OSError: a file cannot be used.
        """
        self._files, self._period, self._loaded = files, period, files.content()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load()

    async def run(self) -> None:
        """Load the files again whenever they change, until cancelled; an authority that was removed stays valid."""
        while True:
            await asyncio.sleep(self._period)
            try:
                self._reload()
            except OSError as error:
                log.warning("certificate of the extender not renewed", error=str(error), again_in=self._period)

    def _reload(self) -> None:
        current = self._files.content()
        if current != self._loaded:
            self._load()
            self._loaded = current
            log.info("certificate of the extender renewed")

    def _load(self) -> None:
        self.context.load_cert_chain(self._files.certificate, self._files.key)
        if self._files.client_ca is not None:
            self.context.load_verify_locations(self._files.client_ca)
            self.context.verify_mode = ssl.CERT_REQUIRED
