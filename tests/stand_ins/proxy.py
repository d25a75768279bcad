"""A reverse proxy on loopback that makes single requests fail.

The proxy stands between an operator and the API server. It passes everything on, including watches and the
Authorization header, and applies the faults of a network to chosen requests:

        with FaultProxy(server=cluster.server, ca_file=cluster.ca_file, folder=tmp_path) as proxy:
                operator.start(kubeconfig=proxy.kubeconfig(token))
                bind = proxy.hold("POST", r"/binding$", count=1)
                bind.wait()      # it has arrived
                bind.release()   # on its way, even if its sender is long dead

It runs in its own thread and event loop, so that synchronous tests can use it.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import aiohttp
import yaml
import yarl
from aiohttp import web

from devcluster import waiting
from tests.stand_ins.background import Background
from tests.stand_ins.certificates import Authority

HOP_BY_HOP: Final = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "upgrade"})
FIELD_MANAGER: Final = re.compile(r"[?]fieldManager=[^&]*$")
WAIT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.01


class Seen(NamedTuple):
    """One request that the proxy received."""

    method: str
    path: str
    """The path with its query, as it was sent."""
    agent: str


def _matches(pattern: re.Pattern[str], path: str) -> bool:
    """Return whether a pattern is in a path with its query, or in it without the field manager that Bindings name."""
    return bool(pattern.search(path) or pattern.search(FIELD_MANAGER.sub("", path)))


@dataclass(kw_only=True, eq=False)
class Rule:
    """A fault for the first `count` matches of a method and a path, or for all."""

    method: str
    path: re.Pattern[str]
    count: int | None
    removed: bool = False
    matched: int = 0
    """Requests of that method and path so far, with or without the fault."""
    caught: list[Seen] = field(default_factory=list)
    """Requests that this rule was applied to."""
    answers: list[int] = field(default_factory=list)
    """What the server answered to them, whether or not their sender still waited."""

    def takes(self, request: Seen) -> bool:
        """Return whether the rule applies to this request."""
        if self.removed or request.method != self.method or not _matches(self.path, request.path):
            return False
        self.matched += 1
        applies = self.count is None or self.matched <= self.count
        if applies:
            self.caught.append(request)
        return applies

    def wait(self, count: int = 1, *, timeout: float = WAIT_SECONDS) -> None:
        """Block until the rule has caught that many requests."""
        waiting.until(
            lambda: len(self.caught) >= count,
            deadline=timeout,
            what=f"{count} requests {self.method} {self.path.pattern}",
            poll=POLL_SECONDS,
        )

    def remove(self) -> None:
        """Pass all further requests."""
        self.removed = True


@dataclass(kw_only=True, eq=False)
class Hold(Rule):
    """Keeps requests from the server until they are released; they go on even when their sender has gone."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop

    def release(self) -> None:
        """Pass the held requests on, and all later ones."""
        self.remove()
        self.loop.call_soon_threadsafe(self.released.set)


@dataclass(kw_only=True, eq=False)
class Lose(Rule):
    """Passes requests on and closes the connection instead of sending the server's answer."""


@dataclass(kw_only=True, eq=False)
class Slow(Rule):
    """Passes requests on and sends each part of the server's answer only after a pause, in seconds."""

    pause: Callable[[], float]


@dataclass(kw_only=True, eq=False)
class Cut(Rule):
    """Ends the server's answer in order, but within its first line, as a proxy does that is shut down."""


@dataclass(kw_only=True, eq=False)
class Break(Rule):
    """Closes the connection within the first part of the server's answer, as a crash does."""


@dataclass(kw_only=True, eq=False)
class Answer(Rule):
    """Answers instead of the server."""

    status: int
    headers: dict[str, str]


R = TypeVar("R", bound=Rule)


class FaultProxy(Background):
    """The proxy; a context manager."""

    def __init__(self, *, server: str, ca_file: Path, folder: Path, authority: Authority | None = None) -> None:
        """Create the proxy; with an authority it serves TLS, without which Go programs send no credentials."""
        super().__init__(name="fault-proxy")
        self.requests: list[Seen] = []
        self.url = ""
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._ca_file = ca_file
        self._own_tls: ssl.SSLContext | None = None
        if authority is not None:
            self._ca_file = authority.file
            self._own_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._own_tls.load_cert_chain(authority.issue("proxy"))
        self._folder = folder
        self._rules: list[Rule] = []
        self._flows = asyncio.Event()
        self._flows.set()
        self._under_way: list[web.BaseRequest] = []

    def kubeconfig(self, token: str) -> Path:
        """Write a kubeconfig that points to this proxy."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "proxy", "cluster": {"server": self.url, "certificate-authority": str(self._ca_file)}}
            ],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "user"}}],
            "current-context": "proxy",
        }
        path = self._folder / f"proxy-{self.url.rpartition(':')[2]}-{len(list(self._folder.iterdir()))}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content))
        return path

    def hold(self, method: str, path: str, *, count: int | None = None) -> Hold:
        """Keep requests from the server until released."""
        rule = Hold(method=method, path=re.compile(path), count=count, loop=self._loop)
        return self._add(rule)

    def lose(self, method: str, path: str, *, count: int | None = None) -> Lose:
        """Pass requests on and lose their answers."""
        return self._add(Lose(method=method, path=re.compile(path), count=count))

    def cut(self, method: str, path: str, *, count: int | None = None) -> Cut:
        """End answers within their first line."""
        return self._add(Cut(method=method, path=re.compile(path), count=count))

    def tear(self, method: str, path: str, *, count: int | None = None) -> Break:
        """Break connections within the first part of an answer."""
        return self._add(Break(method=method, path=re.compile(path), count=count))

    def freeze(self) -> None:
        """Pass nothing on until `thaw`, as a network does that loses all packets.

        Requests and answers arrive late then, even if their senders have gone.
        """
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        """Pass everything on again."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def clear(self) -> None:
        """Apply no fault from now on."""
        for rule in self._rules:
            rule.release() if isinstance(rule, Hold) else rule.remove()
        self.thaw()

    def sever(self) -> None:
        """Break all connections on which something is under way, such as watches."""
        self._loop.call_soon_threadsafe(self._hang_up_all)

    def restart(self, certificate: Path) -> None:
        """End all connections, and serve others with this certificate and key, as a server that has new ones."""
        assert self._own_tls is not None
        self._own_tls.load_cert_chain(certificate)
        self._loop.call_soon_threadsafe(self._end_all)

    def slow(self, method: str, path: str, *, pause: Callable[[], float]) -> Slow:
        """Delay answers, part by part; `pause` returns the seconds before each part."""
        return self._add(Slow(method=method, path=re.compile(path), count=None, pause=pause))

    def answer(
        self,
        method: str,
        path: str,
        *,
        status: int,
        headers: dict[str, str] | None = None,
        count: int | None = None,
    ) -> Answer:
        """Answer requests here; the server does not see them."""
        pattern = re.compile(path)
        return self._add(Answer(method=method, path=pattern, count=count, status=status, headers=headers or {}))

    def sent(self, method: str, path: str) -> list[Seen]:
        """Return the requests of a method whose path matches."""
        return [seen for seen in self.requests if seen.method == method and _matches(re.compile(path), seen.path)]

    def _add(self, rule: R) -> R:
        self._rules = [*self._rules, rule]  # replaced, not changed: the other thread may be iterating over it
        return rule

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
            self._upstream = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=connector,
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                    skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                )
            )
            self._front = web.Server(self._handle)
            runner = web.ServerRunner(self._front, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            # First, and without TLS shutdown: aiohttp forgets the connection of a request that is cancelled, and its
            # shutdown would outlive the event loop.
            stack.push_async_callback(connector.close, abort_ssl=True)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._own_tls).start()
            scheme = "http" if self._own_tls is None else "https"
            self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
            self._is_ready()
            await self._stop.wait()

    def _hang_up_all(self) -> None:
        for request in self._under_way:
            _hang_up(request)

    def _end_all(self) -> None:
        for connection in self._front.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = Seen(request.method, request.raw_path, request.headers.get("User-Agent", ""))
        self.requests.append(seen)
        rule = next((rule for rule in self._rules if rule.takes(seen)), None)
        body = await request.content.read()
        if isinstance(rule, Answer):
            return web.Response(status=rule.status, headers=rule.headers)
        if isinstance(rule, Hold):
            await rule.released.wait()
        self._under_way.append(request)
        try:
            await self._flows.wait()
            return await self._forward(request, body, rule)
        except aiohttp.ClientError:
            # The server is down: the client sees what it would see without us.
            _hang_up(request)
            return web.Response(status=502)
        finally:
            self._under_way.remove(request)

    async def _forward(self, request: web.BaseRequest, body: bytes, rule: Rule | None) -> web.StreamResponse:
        url = yarl.URL(self._server + request.raw_path, encoded=True)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        async with self._upstream.request(request.method, url, data=body or None, headers=headers) as answer:
            if rule is not None:
                rule.answers.append(answer.status)
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            if isinstance(rule, Lose):
                await answer.read()
                _hang_up(request)
                return response
            for name, value in answer.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    response.headers[name] = value
            with contextlib.suppress(ConnectionError):  # the client has closed the connection
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    if isinstance(rule, Slow):
                        await asyncio.sleep(rule.pause())
                    await self._flows.wait()
                    if isinstance(rule, Cut | Break):
                        await response.write(_half_a_line(chunk))
                        if isinstance(rule, Break):
                            _hang_up(request)
                        break
                    await response.write(chunk)
            return response


def _half_a_line(chunk: bytes) -> bytes:
    """Half of the first line: half of a chunk can be whole lines, of which a client misses nothing."""
    return chunk[: len(chunk.partition(b"\n")[0]) // 2]


def _hang_up(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
