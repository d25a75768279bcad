"""The token that is sent with each request.

By default, the login is read again once a minute and after a 401, so that rotated tokens are used. A request costs no
more than reading the clock. Certificates are read again for each connection (`rotation`).
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from berth_client.credentials import CredentialsError, Login

RELOAD_SECONDS: Final = 60.0
"""Kubernetes rotates a token after 80 % of its life, and at least two minutes before its end."""

Renew = Callable[[], Awaitable[Login]]
"""Reads a login again."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class TokenSource:
    """A login, and its current token."""

    def __init__(self, *, login: Login, renew: Renew | None = None, reload_seconds: float = RELOAD_SECONDS) -> None:
        """Store a login.

        Args:
            login: how to reach the API server.
            renew: reads the login again; by default only its token file is read again.
            reload_seconds: how long a token is used before it is read again.

        Raises:
            OSError: the token file cannot be read.
        """
        self.login = login
        self._renew = renew
        self._reload_seconds = reload_seconds
        self._reload_at = time.monotonic() + reload_seconds
        self._header = login.authorization()
        self._failure = ""

    async def authorization(self) -> str | None:
        """Return the Authorization header of a request sent now."""
        if time.monotonic() >= self._reload_at:
            # Set before the wait, so that requests sent meanwhile use the current token.
            self._reload_at = time.monotonic() + self._reload_seconds
            try:
                login = await self._renew() if self._renew else self.login
                self._header = login.authorization()
            except (CredentialsError, OSError, UnicodeDecodeError) as error:
                # The current token is probably still valid; if not, the server answers 401.
                # Log a failure once, not at each retry.
                failure = str(error)
                if failure != self._failure:
                    _log.warning("credentials not renewed", error=failure)
                self._failure = failure
            else:
                self._failure = ""
        return self._header

    def refused(self) -> None:
        """Record a 401: the next request reads the token again."""
        self._reload_at = 0.0
