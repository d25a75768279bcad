"""Where the API server is on the network, and how to open a connection to it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import urlsplit

from berth_client import credentials
from berth_client.credentials import CredentialsError, Login
from berth_client.proxy import Proxy
from berth_client.rotation import RotatedTls

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One API server, directly or through a proxy."""

    authority: str
    """Host, and port unless it is the default, as its URL has them."""
    host: str
    port: int
    path: str = ""
    """What precedes the path of each API call, without a slash at its end."""
    tls: RotatedTls | None = None
    """None for plain HTTP."""
    server_name: str | None = None
    """Name in the server's certificate, if it is not the host."""
    proxy: Proxy | None = None

    @classmethod
    def of(cls, login: Login) -> Self:
        """Return the endpoint of a login.

        Raises:
            CredentialsError: a URL or a certificate cannot be used.
        """
        secure = login.server.startswith("https://")
        try:
            url = urlsplit(login.server)
            host, port = url.hostname, url.port or (443 if secure else 80)
        except ValueError:
            host = None
        if host is None:
            raise CredentialsError(
                f'"{login.server}" is not the address of an API server; it looks like https://host:6443'
            )
        return cls(
            authority=url.netloc.rpartition("@")[2],
            host=host,
            port=port,
            path=url.path.rstrip("/"),
            tls=_tls(login) if secure else None,
            server_name=login.server_name,
            proxy=Proxy.of_url(login.proxy) if login.proxy else None,
        )

    @property
    def is_forwarded(self) -> bool:
        """Return whether a proxy reads the requests and forwards them; TLS goes through a tunnel instead."""
        return self.proxy is not None and self.tls is None

    @property
    def target(self) -> str:
        """Return what precedes the path of an API call in the request line."""
        return f"http://{self.authority}{self.path}" if self.is_forwarded else self.path

    @property
    def headers(self) -> str:
        """Return the headers that each request needs to reach the API server."""
        extra = self.proxy.authorization if self.proxy is not None and self.is_forwarded else ""
        return f"Host: {self.authority}\r\n{extra}"

    async def connect(self, protocol: Callable[[], P]) -> P:
        """Open a connection.

        Raises:
            OSError: the connection cannot be opened.
        """
        try:
            return await self._connect(protocol)
        except OSError as error:
            raise ConnectionError(f"cannot connect to {self.authority}: {error}") from error

    async def _connect(self, protocol: Callable[[], P]) -> P:
        name = self.server_name or self.host
        tls = self.tls.current() if self.tls is not None else None
        if self.proxy is not None and tls is not None:
            return await self.proxy.tunnel(self.host, self.port, protocol, tls=tls, server_name=name)
        if self.proxy is not None:
            return await self.proxy.connect(protocol)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            protocol, self.host, self.port, ssl=tls, server_hostname=name if tls else None
        )
        return connection


def _tls(login: Login) -> RotatedTls:
    """Return the TLS settings of a login.

    Raises:
        CredentialsError: a certificate or key cannot be used.
    """
    parts = (login.authority, login.certificate, login.key)
    try:
        return RotatedTls(
            files=(part for part in parts if isinstance(part, Path)), create=lambda: credentials.tls(login)
        )
    except OSError as error:
        raise CredentialsError(f"certificates of {login.server}: {error}") from error
