"""HTTP for metrics: GET with limits.

Redirects are not followed, because they lead to a server that the settings do not name. Proxies in the environment are
not used.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import aiohttp

from berth_client import trust
from berth_client.rotation import RotatedTls

MAX_BYTES: Final = 32 * 2**20
_CHUNK: Final = 2**16


class FetchError(Exception):
    """There is no usable answer."""


class Fetcher:
    """Reads from one server, or from many, with the same TLS settings."""

    def __init__(self, *, limit: int, seconds: float, authority: Path | None = None) -> None:
        """Create a fetcher.

        Args:
            limit: maximum number of connections.
            seconds: deadline of a request, including its connection.
            authority: PEM file with the certificates that sign the servers' certificates; by default the certificates
            that the system trusts.

        Raises:
            OSError: the file cannot be read.
        """
        self._tls = RotatedTls(files=[authority] if authority else [], create=lambda: trust.client_context(authority))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit),
            timeout=aiohttp.ClientTimeout(total=seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "berth-operator"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(
        self,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> bytes:
        """Return the body of an answer.

        Raises:
            FetchError: there is no answer in time, it is not 200, or it is too large.
        """
        try:
            async with self._session.get(
                url, params=params, headers=headers, allow_redirects=False, ssl=self._tls.current()
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise FetchError(f"{url}: HTTP {response.status}; expected is 200")
                body = bytearray()
                async for chunk in response.content.iter_chunked(_CHUNK):
                    body += chunk
                    if len(body) > max_bytes:
                        raise FetchError(f"{url}: more than {max_bytes} bytes")
                    # Large answers arrive in one go; decisions come in between.
                    await asyncio.sleep(0)
                return bytes(body)
        except TimeoutError as error:
            raise FetchError(f"{url}: no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchError(f"{url}: {error}") from error
