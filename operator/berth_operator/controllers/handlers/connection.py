"""How kopf, which opens its own session, connects to the API server: like our other connections."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

import kopf

from berth_client import credentials
from berth_client.credentials import Login
from berth_client.tokens import RELOAD_SECONDS


@dataclass(frozen=True, kw_only=True)
class Connection(kopf.ConnectionInfo):
    """The server and our credentials. kopf asks for a new one before the token is rotated."""

    login: Login

    @classmethod
    def of(cls, login: Login, authorization: str | None) -> Self:
        """Return the connection of a login with this Authorization header."""
        return cls(
            server=login.server,
            login=login,
            proxy_url=login.proxy,
            scheme="Bearer" if authorization else None,
            token=authorization.removeprefix("Bearer ") if authorization else None,
            expiration=datetime.now(UTC) + timedelta(seconds=RELOAD_SECONDS),
        )

    def as_ssl_context(self) -> ssl.SSLContext:
        """Return our TLS settings; kopf's own trust fewer authorities than kubectl."""
        return credentials.tls(self.login)
