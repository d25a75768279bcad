"""A login, and the token that goes with it now.

The login is read again once a minute and after a 401, so that rotated tokens are picked up while a request costs no
more than one look at the clock. A rotated *client certificate* needs a restart: the TLS context is made once.
"""

import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Self

import structlog

from berth_client import credentials
from berth_client.credentials import CredentialsError, Login, UnknownLoginError

RELOAD_SECONDS: Final = 60.0
"""Kubernetes rotates a token after 80 % of its life, and at least two minutes before its end."""

Renew = Callable[[], Awaitable[Login]]
"""Reads a login anew."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Credentials:
    """A login and how to bring it up to date."""

    def __init__(self, *, login: Login, renew: Renew, proxy: str | None = None) -> None:
        self.login, self.proxy = login, proxy
        self._renew = renew
        self._reload_at = time.monotonic() + RELOAD_SECONDS
        self._header = _header(login)

    @classmethod
    async def load(cls, kubeconfig: Path | None) -> Self:
        """Read a kubeconfig, or the service account of this pod where none is named.

        Raises:
            CredentialsError: it cannot be used.
        """

        async def read() -> Login:
            return credentials.load(kubeconfig)

        try:
            return cls(login=await read(), renew=read)
        except UnknownLoginError:
            # kubernetes-asyncio takes 0.15 s to load, and in a cluster nobody needs it.
            from berth_operator.clients import kubeconfigs  # noqa: PLC0415 - only now

            login, renew, proxy = await kubeconfigs.load(str(kubeconfig))
            return cls(login=login, renew=renew, proxy=proxy)

    async def authorization(self) -> str | None:
        """Return the Authorization header of a request sent now."""
        if time.monotonic() >= self._reload_at:
            # Set before the wait: the requests that come meanwhile go on with the token that we have.
            self._reload_at = time.monotonic() + RELOAD_SECONDS
            await self._refresh()
        return self._header

    def refused(self) -> None:
        """Note a 401: the next request reads the credentials anew."""
        self._reload_at = 0.0

    async def _refresh(self) -> None:
        try:
            self._header = _header(await self._renew())
        except (CredentialsError, OSError, UnicodeDecodeError) as error:
            # The token at hand is most likely still good; if not, the server says so with a 401.
            log.warning("credentials not renewed", error=str(error))

    def facts(self) -> dict[str, Any]:
        """Return server, authority and identity for a client that makes its own session, under kopf's names."""
        return {
            "server": self.login.server,
            **_file("ca", self.login.authority),
            "insecure": not self.login.verified,
            **_file("certificate", self.login.certificate),
            **_file("private_key", self.login.key),
            "proxy_url": self.proxy,
            "scheme": "Bearer" if self._header else None,
            "token": self._header.removeprefix("Bearer ") if self._header else None,
        }


def _header(login: Login) -> str | None:
    return login.authorization().get("Authorization")


def _file(name: str, pem: Path | bytes | None) -> dict[str, Path | bytes | None]:
    return {f"{name}_data": b64encode(pem)} if isinstance(pem, bytes) else {f"{name}_path": pem}
