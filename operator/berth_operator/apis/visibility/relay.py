"""Relay requests of a standby replica to the leader, with the user that the standby replica has authenticated."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final
from urllib.parse import quote

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from berth_client.reviews import User
from berth_operator.apis.aggregated.access import FrontProxy
from berth_operator.apis.aggregated.requests import USER
from berth_operator.apis.aggregated.statuses import unavailable
from berth_operator.apis.visibility.certificate import ReplicaCertificate

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 30.0
"""From a request to the beginning of its answer."""
CHECK_SECONDS: Final = 1.0
"""Seconds between two checks whether the leader that answers a watch still leads. A watch may be silent for long."""
WRITE_SECONDS: Final = 10.0
PASSED_ON: Final = ("Accept", "Accept-Encoding")
ANSWERED: Final = ("Content-Type", "Content-Encoding", "Content-Length", "Retry-After", "Cache-Control")
EXTRA: Final = "X-Remote-Extra-"
REPLICA: Final = FrontProxy(
    authorities="our own", username=("X-Remote-User",), uid=("X-Remote-Uid",), group=("X-Remote-Group",), extra=(EXTRA,)
)
"""How a replica names the user of a request that it relays."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def user_headers(user: User) -> CIMultiDict[str]:
    """Return the headers that name a user, as `REPLICA` reads them."""
    headers = CIMultiDict({"X-Remote-User": user.name})
    if user.uid:
        headers.add("X-Remote-Uid", user.uid)
    for group in user.groups:
        headers.add("X-Remote-Group", group)
    for name, values in user.extra:
        for value in values:
            headers.add(EXTRA + quote(name, safe=""), value)
    return headers


class Relay:
    """Relays to the leader's address; `host` is the name in the leader's certificate."""

    def __init__(
        self,
        *,
        certificate: ReplicaCertificate,
        host: str,
        leader: Callable[[], str | None],
        heard: Callable[[], str],
    ) -> None:
        """Create a relay.

        `leader` returns the leader's host:port; empty if the leader serves no such API, and None without a leader.
        `heard` returns when a leader last renewed its LeaderLease.
        """
        self._certificate, self._host = certificate, host
        self._leader, self._heard = leader, heard

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of an authenticated user with what the leader answers.

        Raises:
            StatusError: there is no leader, or it cannot be reached.
        """
        if (address := self._leader()) is None:
            raise unavailable(f"no replica leads{self._last_heard()}")
        if not address:
            raise unavailable("the leader does not serve this API")
        tls = self._certificate.client_tls()
        if tls is None:
            raise unavailable("this replica has no certificate yet")
        headers = user_headers(request[USER])
        headers.update({name: request.headers[name] for name in PASSED_ON if name in request.headers})
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        url = URL(f"https://{address}{request.rel_url.raw_path_qs}", encoded=True)
        # A session each: a standby is asked rarely, and nothing is left to close.
        async with aiohttp.ClientSession(auto_decompress=False, timeout=timeout, trust_env=False) as session:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await session.get(
                        url, headers=headers, ssl=tls, server_hostname=self._host, allow_redirects=False
                    )
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("leader not reached", address=address, error=str(error) or repr(error))
                raise unavailable(f"the leader at {address} does not answer{self._last_heard()}") from error
            async with answer:
                # The answer is passed on as it arrives; if it breaks off, ours does, too.
                passed = {name: answer.headers[name] for name in ANSWERED if name in answer.headers}
                response = web.StreamResponse(status=answer.status, headers=passed)
                await response.prepare(request)
                try:
                    async for chunk in self._chunks(answer, address):
                        async with asyncio.timeout(WRITE_SECONDS):
                            await response.write(chunk)
                except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                    log.info("relay ended", path=request.path, user=request[USER].name, error=str(error) or repr(error))
                    if request.transport is not None:
                        request.transport.abort()
                return response

    async def _chunks(self, answer: aiohttp.ClientResponse, address: str) -> AsyncIterator[bytes]:
        """Yield what a leader answers.

        Raises:
            TimeoutError: it no longer leads.
        """
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    chunk = await answer.content.readany()
            except TimeoutError:
                if self._leader() != address:
                    raise
                continue
            if not chunk:
                return
            yield chunk

    def _last_heard(self) -> str:
        """Return when a leader was last seen, as the end of a message; empty if that is unknown."""
        heard = self._heard()
        return f"; a leader was last heard of at {heard}" if heard else ""
