"""The list and watch API over HTTPS: paths, failures, access, and clients that do not read."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import orjson
import pytest
from aiohttp import web

from berth_client.errors import Unreachable
from berth_client.lists import PAGE, pages
from berth_client.objects import Object
from berth_client.reviews import ACCESS_REVIEWS, Reviews
from berth_operator.apis.aggregated import requests
from berth_operator.apis.aggregated.access import Access, FrontProxy
from berth_operator.apis.aggregated.requests import Limits
from berth_operator.apis.list_watch.cache import ReflectedCache
from berth_operator.apis.list_watch.kinds import GROUP, KINDS, NODES, PODS, VERSION
from berth_operator.apis.list_watch.list_watch_server import ListWatchServer
from berth_operator.apis.serving import certificates
from berth_operator.apis.serving.certificates import Pair
from berth_operator.apis.serving.tls import Clients, ServedCertificate
from devcluster.control_plane import front_proxy
from tests.unit.list_watch.test_cache import listed, source

API = "/apis/nvidia-gpu-scheduler/v1"
USER = {"X-Remote-User": "ann", "X-Remote-Group": "dev"}
TOKENS = ("good",)
TOKEN = {"Authorization": "Bearer good"}


class ApiServer:
    """Reviews: knows one token, and allows everything to all users but the refused ones."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.is_down = False

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        if self.is_down:
            raise Unreachable(f"{method} {path}: no answer")
        spec = body["spec"]
        if path == ACCESS_REVIEWS:
            return {"status": {"allowed": spec["user"] not in self.refused}}
        return {"status": {"authenticated": spec["token"] in TOKENS, "user": {"username": "bob"}}}


class Certificate:
    """A certificate that never changes."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    async def current(self) -> bytes:
        return self.pair.certificate + self.pair.key


class World:
    """A server, the API server behind it, and clients."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.api = folder, ApiServer()
        self.caches = {kind: ReflectedCache(kind) for kind in KINDS}
        self.pair = certificates.issue("127.0.0.1", datetime.now(UTC), timedelta(days=1))
        self.is_ready, self.limits = True, Limits(watches=3, watches_of_user=2)
        self.url = ""
        front_proxy.write(folder / "trusted")
        front_proxy.write(folder / "foreign")

    @contextlib.asynccontextmanager
    async def served(self, allowed: str = front_proxy.NAME) -> AsyncIterator[None]:
        proxy = FrontProxy(
            authorities=(self.folder / "trusted" / front_proxy.AUTHORITY).read_text(),
            allowed_names=frozenset({allowed}),
            username=("X-Remote-User",),
            group=("X-Remote-Group",),
        )
        certificate = ServedCertificate(
            source=Certificate(self.pair), period=60.0, clients=Clients(authorities=proxy.authorities)
        )
        await certificate.load()
        reviews = Reviews(api=self.api, clock=asyncio.get_running_loop().time)
        access = Access(front_proxy=proxy, reviews=reviews, group=GROUP, version=VERSION)
        self.server = ListWatchServer(
            caches=self.caches, access=access, is_ready=lambda: self.is_ready, limits=self.limits
        )
        runner = web.AppRunner(self.server.application(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.tls).start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield
        await runner.cleanup()

    def tls(self, authority: str | None) -> ssl.SSLContext:
        """Return the TLS of a client, with the certificate of a front proxy."""
        tls = ssl.create_default_context(cadata=self.pair.certificate.decode())
        if authority is not None:
            folder = self.folder / authority
            tls.load_cert_chain(folder / front_proxy.CERTIFICATE, folder / front_proxy.KEY)
        return tls

    @contextlib.asynccontextmanager
    async def client(self, authority: str | None = "trusted") -> AsyncIterator[Callable[..., Any]]:
        """Yield a function that sends a request, with the certificate of a front proxy: (status, body)."""
        connector = aiohttp.TCPConnector(ssl=self.tls(authority))
        async with aiohttp.ClientSession(connector=connector) as session:

            async def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
                async with session.request(method, self.url + path, headers=headers or USER) as answer:
                    return answer.status, orjson.loads(await answer.read())

            yield ask


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    listed(made.caches[PODS], 10, source("a", 3))
    listed(made.caches[NODES], 12)
    return made


MISSING = "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("method", "path", "expected", "message"),
    [
        ("GET", "/", (404, "NotFound"), MISSING),
        ("GET", "/api/v1/pods", (404, "NotFound"), MISSING),
        ("GET", f"{API}/gpudevices", (404, "NotFound"), MISSING),
        ("GET", f"{API}/namespaces/ns/gpunodes", (404, "NotFound"), MISSING),
        ("GET", f"{API}/gpunodes/none", (404, "NotFound"), 'gpunodes.nvidia-gpu-scheduler "none" not found'),
        ("GET", f"{API}/namespaces/other/gpupods/a", (404, "NotFound"), 'gpupods.nvidia-gpu-scheduler "a" not found'),
        ("POST", f"{API}/gpunodes", (405, "MethodNotAllowed"), "does not allow POST"),
        ("DELETE", f"{API}/namespaces/ns/gpupods/a", (405, "MethodNotAllowed"), "does not allow DELETE"),
        ("GET", f"{API}/gpupods?resourceVersion=x", (400, "BadRequest"), "resourceVersion"),
        ("GET", f"{API}/gpupods?resourceVersion=9&resourceVersionMatch=Exact", (410, "Expired"), "too old"),
        ("GET", f"{API}/gpupods?limit=many", (400, "BadRequest"), 'limit: "many" is not a number'),
        ("GET", f"{API}/gpupods?continue=x", (400, "BadRequest"), "invalid continue token: continue key is not valid"),
        ("GET", f"{API}/gpupods?watch=true&resourceVersion=9", (410, "Expired"), "too old resource version: 9 (10)"),
        ("GET", f"{API}/gpupods?watch=1&resourceVersionMatch=Exact", (422, "Invalid"), "forbidden for watch"),
    ],
)
async def test_failures_are_statuses(
    world: World, method: str, path: str, expected: tuple[int, str], message: str
) -> None:
    async with world.served(), world.client() as ask:
        status, body = await ask(path, method)
    assert (status, body["reason"]) == expected
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", status)
    assert message in body["message"]


async def test_lists_objects_and_documents_are_served(world: World) -> None:
    async with world.served(), world.client() as ask:
        assert (await ask(f"{API}/gpupods"))[1]["metadata"] == {"resourceVersion": "10"}
        assert [each["metadata"]["name"] for each in (await ask(f"{API}/gpupods"))[1]["items"]] == ["a"]
        assert (await ask(f"{API}/namespaces/other/gpupods"))[1]["items"] == []
        assert (await ask(f"{API}/namespaces/ns/gpupods/a"))[1]["metadata"]["resourceVersion"] == "3"
        exact = f"{API}/gpupods?resourceVersion=10&resourceVersionMatch=Exact"
        assert (await ask(exact))[0] == 200
        kinds = {path: (await ask(path))[1].get("kind") for path in ("/apis", "/apis/nvidia-gpu-scheduler", API)}
        assert kinds == {"/apis": "APIGroupList", "/apis/nvidia-gpu-scheduler": "APIGroup", API: "APIResourceList"}
        [version] = (await ask("/openapi/v3"))[1]["paths"].values()
        assert (await ask(version["serverRelativeURL"]))[0] == 200


# --- lists in chunks --------------------------------------------------------------------------------------------


async def test_a_list_comes_in_chunks_of_one_version(world: World) -> None:
    for number, name in enumerate("bcde", 11):
        world.caches[PODS].apply("ADDED", source(name, number))
    path = f"{API}/namespaces/ns/gpupods?limit=2"
    async with world.served(), world.client() as ask:
        status, first = await ask(path)
        token = first["metadata"].pop("continue")
        assert (status, first["metadata"]) == (200, {"resourceVersion": "14", "remainingItemCount": 3})
        world.caches[PODS].apply("DELETED", source("c", 15))
        chunks = [first, (await ask(f"{path}&continue={token}"))[1]]
        chunks.append((await ask(f"{path}&continue={chunks[-1]['metadata']['continue']}"))[1])
        assert [[each["metadata"]["name"] for each in chunk["items"]] for chunk in chunks] == [
            ["a", "b"],
            ["c", "d"],
            ["e"],
        ]
        assert chunks[2]["metadata"] == {"resourceVersion": "14"}
        watch = f"{API}/gpupods?watch=true&timeoutSeconds=1&limit=1&continue=damaged"
        async with aiohttp.ClientSession() as session:
            tls = world.tls("trusted")
            async with session.get(world.url + watch, headers=USER, ssl=tls) as answer:
                frames = [orjson.loads(line) async for line in answer.content]
        assert [frame["object"]["metadata"]["name"] for frame in frames] == ["a", "b", "d", "e"]


async def test_a_token_of_a_version_that_is_gone_is_answered_with_another(world: World) -> None:
    listed(world.caches[PODS], 20, *(source(name, 20) for name in "abc"))
    async with world.served(), world.client() as ask:
        old = (await ask(f"{API}/gpupods?limit=1"))[1]["metadata"]["continue"]
        listed(world.caches[PODS], 30, *(source(name, 30) for name in "bcd"))
        status, body = await ask(f"{API}/gpupods?limit=1&continue={old}")
        assert (status, body["reason"]) == (410, "Expired")
        status, body = await ask(f"{API}/gpupods?continue={body['metadata']['continue']}")
        assert (status, [each["metadata"]["name"] for each in body["items"]]) == (200, ["b", "c", "d"])


async def test_our_client_reads_all_pages(world: World) -> None:
    names = sorted(f"pod-{number}" for number in range(2 * PAGE + 1))
    listed(world.caches[PODS], 40, *(source(name, 40) for name in names))
    async with world.served(), world.client() as ask:

        async def fetch(params: Mapping[str, str]) -> Object:
            page: Object = (await ask(f"{API}/gpupods?{urlencode(params)}"))[1]
            return page

        seen = [[each["metadata"]["name"] for each in page["items"]] async for page in pages(fetch, {})]
    assert [len(page) for page in seen] == [PAGE, PAGE, 1]
    assert [name for page in seen for name in page] == names


# --- who is let in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("authority", "allowed", "headers", "status"),
    [
        pytest.param("trusted", front_proxy.NAME, USER, 200, id="the front proxy"),
        pytest.param("trusted", "another", USER, 401, id="a certificate of another name"),
        pytest.param("trusted", "another", {**USER, **TOKEN}, 200, id="a certificate of another name, and a token"),
        pytest.param("trusted", front_proxy.NAME, {"Accept": "*/*"}, 401, id="the front proxy names no user"),
        pytest.param(None, front_proxy.NAME, USER, 401, id="headers without a certificate"),
        pytest.param(None, front_proxy.NAME, TOKEN, 200, id="a token"),
        pytest.param(None, front_proxy.NAME, {"Authorization": "Bearer bad"}, 401, id="an unknown token"),
        pytest.param(None, front_proxy.NAME, {"Accept": "*/*"}, 401, id="no user"),
    ],
)
async def test_only_known_users_are_let_in(
    world: World, authority: str | None, allowed: str, headers: dict[str, str], status: int
) -> None:
    async with world.served(allowed), world.client(authority) as ask:
        assert {(await ask(path, **headers))[0] for path in (f"{API}/gpunodes", API)} == {status}


async def test_a_certificate_of_another_authority_ends_the_connection(world: World) -> None:
    async with world.served(), world.client("foreign") as ask:
        with pytest.raises(aiohttp.ClientError):
            await ask(f"{API}/gpunodes")


async def test_users_who_may_not_are_refused(world: World) -> None:
    world.api.refused = {"ann"}
    async with world.served(), world.client() as ask:
        for path in (f"{API}/gpunodes", f"{API}/gpupods?watch=true", f"{API}/gpunodes/x", API, "/openapi/v2"):
            status, body = await ask(path)
            assert (status, body["reason"]) == (403, "Forbidden"), path


async def test_while_the_api_server_does_not_answer_nothing_is_served(world: World) -> None:
    world.api.is_down = True
    async with world.served(), world.client() as ask:
        status, body = await ask(f"{API}/gpunodes")
        assert (status, body["reason"], body["details"]) == (503, "ServiceUnavailable", {"retryAfterSeconds": 1})


async def test_probes_need_no_user(world: World) -> None:
    async with world.served(), aiohttp.ClientSession() as session:
        for is_ready, expected in ((True, [200, 200, 200]), (False, [503, 200, 503])):
            world.is_ready = is_ready
            answers = [await session.get(world.url + path, ssl=False) for path in requests.PROBES]
            assert [answer.status for answer in answers] == expected


# --- watches ----------------------------------------------------------------------------------------------------


WATCH = f"{API}/gpupods?watch=true&resourceVersion=10"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is of a server that announces nothing
            await asyncio.sleep(0.01)


async def test_a_user_has_so_many_watches_and_gets_those_back_that_end(world: World) -> None:
    async with world.served():
        async with world.client() as ask:
            watches = [asyncio.create_task(ask(WATCH)) for _ in range(2)]
            await until(lambda: world.server.watches.by_user == {"ann": 2})
            status, body = await ask(WATCH)
            assert (status, body["reason"], body["details"]) == (429, "TooManyRequests", {"retryAfterSeconds": 5})
            watches.append(asyncio.create_task(ask(WATCH, **{"X-Remote-User": "bob"})))
            await until(lambda: world.server.watches.by_user == {"ann": 2, "bob": 1})
            assert (await ask(WATCH, **{"X-Remote-User": "cid"}))[0] == 429
            for watch in watches:
                watch.cancel()
        # The clients have gone, without a change that would have been written to them.
        await until(lambda: world.server.watches.by_user == {})


async def test_a_client_that_does_not_read_is_disconnected(world: World) -> None:
    world.limits = Limits(watches=1, watches_of_user=1, write_seconds=0.2)
    cache = world.caches[PODS]
    async with world.served():
        port = int(world.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=world.tls("trusted"), limit=1024)
        writer.write(f"GET {WATCH} HTTP/1.1\r\nHost: x\r\nX-Remote-User: ann\r\n\r\n".encode())
        assert b"200 OK" in await reader.readline()
        for version in range(11, 2011):
            changed = source("a", version)
            changed["spec"]["containers"] = [{"name": "x" * 10_000}]
            cache.apply("MODIFIED", changed)
        await until(lambda: world.server.watches.by_user == {})
        # The history still had what it did not read.
        assert cache.oldest == 10
        writer.transport.abort()
