"""HTTP proxies on the way to the API server. TLS goes through a tunnel (CONNECT), and plain HTTP is forwarded."""

import asyncio
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, TypeVar, cast
from urllib.parse import unquote, urlsplit

from berth_client import trust
from berth_client.credentials import CredentialsError

MAX_HEAD: Final = 2**16
"""Bytes of an answer to CONNECT."""
VARIABLES: Final = frozenset({"http_proxy", "https_proxy"})

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """An HTTP proxy; no message contains its password."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    """TLS settings for the proxy itself, which trust the system's authorities, not the cluster's."""
    authorization: str = ""
    """Header with the user and password of its URL."""

    @classmethod
    def of_url(cls, url: str) -> Self:
        """Return the proxy of a URL such as `http://user:password@proxy:3128`.

        Raises:
            CredentialsError: the URL is not an HTTP proxy's.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if host is None or parts.scheme not in {"http", "https"}:
            raise CredentialsError("proxy: not supported; supported are URLs such as http://proxy:3128")
        tls = trust.client_context() if parts.scheme == "https" else None
        user = ":".join(unquote(part or "") for part in (parts.username, parts.password))
        header = f"Proxy-Authorization: Basic {b64encode(user.encode()).decode()}\r\n" if parts.username else ""
        return cls(host=host, port=port or (443 if tls else 80), tls=tls, authorization=header)

    async def connect(self, protocol: Callable[[], P]) -> P:
        """Open a connection to the proxy, which forwards requests for plain HTTP.

        Raises:
            OSError: the connection cannot be opened.
        """
        loop = asyncio.get_running_loop()
        name = self.host if self.tls else None
        _, connection = await loop.create_connection(protocol, self.host, self.port, ssl=self.tls, server_hostname=name)
        return connection

    async def tunnel(
        self, host: str, port: int, protocol: Callable[[], P], *, tls: ssl.SSLContext, server_name: str
    ) -> P:
        """Open a TLS connection to a server through the proxy.

        Raises:
            OSError: the connection cannot be opened.
        """
        tunnel = await self.connect(_Tunnel)
        try:
            await tunnel.open(authority(host, port), self.authorization)
            connection = protocol()
            loop = asyncio.get_running_loop()
            secured = await loop.start_tls(tunnel.transport, connection, tls, server_hostname=server_name)
        except BaseException:
            tunnel.transport.abort()
            raise
        if secured is None:
            raise ConnectionError("the proxy closed the connection")
        connection.connection_made(secured)
        return connection


def of_environment(server: str) -> str | None:
    """Return the URL of the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for a server's URL, if any."""
    if not VARIABLES & {name.lower() for name in os.environ}:
        return None
    # urllib.request takes 2.5 MB, and few clusters need it.
    import urllib.request  # noqa: PLC0415 - see above

    parts = urlsplit(server)
    url = urllib.request.getproxies().get(parts.scheme)
    return None if urllib.request.proxy_bypass(parts.hostname or "") else url


def authority(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Tunnel(asyncio.Protocol):
    """Asks a proxy to connect to a server, and waits for the head of its answer."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._head = b""
        self._answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self, server: str, authorization: str) -> None:
        self.transport.write(f"CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n{authorization}\r\n".encode())
        line = await self._answered
        if not re.match(r"HTTP/1\.[01] 2\d\d\b", line):
            raise ConnectionError(f"the proxy answered {line!r}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        is_whole = b"\r\n\r\n" in self._head or len(self._head) > MAX_HEAD
        if is_whole and not self._answered.done():
            self._answered.set_result(self._head.partition(b"\r\n")[0][:200].decode(errors="replace"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(ConnectionError(f"the proxy closed the connection: {exc or 'no answer'}"))
