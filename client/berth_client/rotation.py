"""TLS contexts of clients, whose files may be replaced while they are used."""

import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from berth_client.credentials import CredentialsError

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class RotatedTls:
    """The TLS context of a client, created again once one of its files has changed.

    The files are read for each connection, because a new certificate is needed at once: the server whose authority was
    replaced ends all old connections. Open connections keep the context that they were opened with.
    """

    def __init__(self, *, files: Iterable[Path], create: Callable[[], ssl.SSLContext]) -> None:
        """Create the first context.

        Args:
            files: the files that `create` reads.
            create: returns a context; raises an OSError or a CredentialsError if a file cannot be used.

        Raises:
            OSError: a file cannot be used.
            CredentialsError: the same, if `create` raises it.
        """
        self._files, self._create = tuple(files), create
        # Before `create`: if a file is replaced in between, the context is created again.
        self._contents = self._read()
        self._context = create()
        self._failure = ""

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        While a file cannot be used, this is the last context: a certificate and its key are not replaced at once.
        """
        try:
            contents = self._read()
            if contents != self._contents:
                self._context = self._create()
                self._contents = contents
                _log.info("certificates read again", files=[str(file) for file in self._files])
        except (OSError, CredentialsError) as error:
            # Logged once, not at each connection.
            failure = str(error)
            if failure != self._failure:
                _log.warning("certificates not read again", error=failure)
            self._failure = failure
        else:
            self._failure = ""
        return self._context

    def _read(self) -> tuple[bytes, ...]:
        return tuple(file.read_bytes() for file in self._files)
