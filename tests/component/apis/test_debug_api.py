"""The debug API over HTTP: its paths and refusals. It does not block other tasks of the event loop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from berth_client.access import Guard, RefusedError, needs_guard
from berth_client.errors import ApiError
from berth_operator.apis.debug_api.debug_server import CONNECTIONS, PATH, SLICE, DebugApi
from berth_operator.apis.debug_api.snapshots import UnreadError
from berth_operator.apis.serving.connections import SHARE
from berth_operator.core.advice import summary
from berth_operator.core.fleet.fleet import Fleet
from tests.objects.builders import cards, charge, fleet, grant
from tests.stand_ins.certificates import Authority

NODES = 3 * SLICE + 1


def many() -> Fleet:
    of = fleet({f"n{number}": cards(2) for number in range(NODES)})
    of.charge(charge("pod", grant(0, core=100, ratio=100), node="n3"))
    return of


class Shown:
    """A Fleet; `on_summary` is called before it is shown."""

    def __init__(self, of: Fleet, on_summary: Callable[[], object] = lambda: None) -> None:
        self.fleet, self.on_summary = of, on_summary
        self.error: Exception | None = None
        self.looked_up: list[str] = []

    async def whole(self) -> Fleet:
        if self.error is not None:
            raise self.error
        self.on_summary()
        return self.fleet

    async def of(self, node: str) -> Fleet:
        self.looked_up.append(node)
        return await self.whole()


class Gate(Guard):
    """A guard that admits requests by their own header."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def check(self, authorization: str, path: str) -> None:
        self.paths.append(path)
        if authorization != "Bearer good":
            raise RefusedError(401 if not authorization else 403, "no")


@contextlib.asynccontextmanager
async def serving(shown: Shown, guard: Guard | None = None) -> AsyncIterator[Callable[..., Any]]:
    """Serve, and yield a function that sends a request: path and options in, (status, answer, headers) out."""
    served = DebugApi(snapshots=lambda: shown, guard=guard, address="127.0.0.1")
    async with TestServer(served.application()) as server, aiohttp.ClientSession() as session:

        async def ask(path: str, method: str = "GET", **options: Any) -> tuple[int, Any, dict[str, str]]:
            async with session.request(method, server.make_url(path), **options) as answer:
                assert answer.content_type == "application/json"
                return answer.status, orjson.loads(await answer.read()), dict(answer.headers)

        yield ask


async def test_all_nodes_are_shown_as_each_one_is() -> None:
    shown = Shown(many())
    async with serving(shown) as ask:
        status, everything, _ = await ask(PATH)
        assert status == 200
        assert everything == {name: summary.summary(shown.fleet, name) for name in shown.fleet.rows}
        for name in ("n0", "n3"):
            assert (await ask(f"{PATH}/{name}"))[:2] == (200, everything[name])
        assert everything["n3"]["allocateSet"]["gpu"].keys() == {"ns/pod"}


async def test_without_nodes_there_is_an_empty_object() -> None:
    async with serving(Shown(Fleet())) as ask:
        assert (await ask(PATH))[:2] == (200, {})


@pytest.mark.parametrize(
    ("path", "method", "status", "message"),
    [
        pytest.param(f"{PATH}/unheard-of", "GET", 404, "cannot find node unheard-of", id="unknown node"),
        pytest.param(f"{PATH}/a,b", "GET", 404, "cannot find node a,b", id="no name of a node"),
        pytest.param(f"{PATH}/N0", "GET", 404, "cannot find node N0", id="names are in small letters"),
        pytest.param("/", "GET", 404, "Not Found: GET /", id="unknown path"),
        pytest.param(f"{PATH}/n0/more", "GET", 404, f"Not Found: GET {PATH}/n0/more", id="below a node"),
        pytest.param(PATH, "POST", 405, f"Method Not Allowed: POST {PATH}", id="nothing is written here"),
    ],
)
async def test_what_does_not_exist_is_reported_in_json(path: str, method: str, status: int, message: str) -> None:
    shown = Shown(many())
    async with serving(shown) as ask:
        assert (await ask(path, method))[:2] == (status, {"message": message})
    # An invalid name is not looked up: it would get into a selector.
    assert shown.looked_up in ([], ["unheard-of"])


async def test_nodes_that_go_meanwhile_are_left_out() -> None:
    of = many()
    gone = [f"n{number}" for number in range(SLICE, 2 * SLICE)] + [f"n{NODES - 1}"]

    def remove() -> None:
        for name in gone:
            of.remove_device(name)
            of.remove_node(name)

    async with serving(Shown(of, lambda: asyncio.get_running_loop().call_soon(remove))) as ask:
        _, everything, _ = await ask(PATH)
    assert everything.keys() == {f"n{number}" for number in range(NODES)} - set(gone)


async def test_others_have_their_turns_while_a_large_cluster_is_rendered() -> None:
    turns = 0
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal turns
        turns += 1
        if turns < 1000:
            loop.call_soon(count)

    async with serving(Shown(many(), count)) as ask:
        await ask(PATH)
    assert turns >= NODES // SLICE


# --- access -----------------------------------------------------------------------------------------------------


async def test_a_guard_is_asked_before_anything_is_served() -> None:
    guard = Gate()
    good = {"Authorization": "Bearer good"}
    async with serving(Shown(many()), guard) as ask:
        status, body, headers = await ask(PATH)
        assert (status, body, headers["WWW-Authenticate"]) == (401, {"message": "no"}, "Bearer")
        assert (await ask(f"{PATH}/n0", headers={"Authorization": "Bearer bad"}))[0] == 403
        # Without access, not even the existing paths can be discovered.
        assert (await ask("/nothing"))[0] == 401
        assert (await ask(f"{PATH}/n0", headers=good))[0] == 200
        assert (await ask("/nothing", headers=good))[0] == 404
    assert guard.paths == [PATH, f"{PATH}/n0", "/nothing", f"{PATH}/n0", "/nothing"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("localhost:10251", 200, id="forwarded port"),
        pytest.param("LOCALHOST", 200, id="names have no case"),
        pytest.param("127.0.0.1:80", 200, id="IPv4"),
        pytest.param("[::1]:10251", 200, id="IPv6"),
        pytest.param("rebound.example:10251", 403, id="a website that resolves to loopback"),
        pytest.param("localhost.example", 403, id="begins like localhost"),
        pytest.param("10.0.0.1", 403, id="another address"),
        pytest.param("127.0.0.1@rebound.example", 403, id="a user in front"),
        pytest.param("[::1", 403, id="no host"),
        pytest.param("", 403, id="empty"),
    ],
)
async def test_without_a_guard_only_local_names_are_served(host: str, status: int) -> None:
    async with serving(Shown(many())) as ask:
        assert (await ask(f"{PATH}/n0", headers={"Host": host}))[0] == status
    async with serving(Shown(many()), Gate()) as ask:
        assert (await ask(f"{PATH}/n0", headers={"Host": host, "Authorization": "Bearer good"}))[0] == 200


@pytest.mark.parametrize("error", [ApiError(500, "InternalError", "etcd is away"), UnreadError("etcd is away")])
async def test_what_is_not_known_is_reported(error: Exception) -> None:
    shown = Shown(many())
    shown.error = error
    async with serving(shown) as ask:
        for path in (PATH, f"{PATH}/n0"):
            status, body, _ = await ask(path)
            assert (status, "etcd is away" in body["message"]) == (503, True)


@pytest.mark.parametrize(
    ("address", "guarded"),
    [("127.0.0.1", False), ("127.0.0.2", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("10.0.0.1", True)],  # noqa: S104 - not bound
)
def test_only_what_this_machine_alone_can_reach_is_open(address: str, *, guarded: bool) -> None:
    assert needs_guard(address) is guarded


# --- serving ----------------------------------------------------------------------------------------------------


async def test_it_serves_few_connections_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue("127.0.0.1"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = DebugApi(snapshots=lambda: Shown(many()), guard=Gate(), address="127.0.0.1")
    serving = asyncio.create_task(served.serve(port, tls))
    streams: list[asyncio.StreamWriter] = []
    try:
        async with asyncio.timeout(60):
            while not streams:  # until it listens
                with contextlib.suppress(ConnectionError):
                    streams.append((await asyncio.open_connection("127.0.0.1", port, ssl=authority.client()))[1])
        while len(streams) < CONNECTIONS // SHARE:
            streams.append((await asyncio.open_connection("127.0.0.1", port, ssl=authority.client()))[1])
        connector = aiohttp.TCPConnector(ssl=authority.client())
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.get(f"https://127.0.0.1:{port}{PATH}") as answer:
                assert (answer.status, await answer.json()) == (429, {"message": "too many connections"})
            for writer in streams:
                writer.transport.abort()
                writer.close()
            headers = {"Authorization": "Bearer good"}
            async with asyncio.timeout(60):
                status = 429
                while status == 429:  # until the others have ended
                    async with session.get(f"https://127.0.0.1:{port}{PATH}/n0", headers=headers) as answer:
                        status = answer.status
            assert status == 200
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_what_keeps_it_from_serving_is_reported_and_ends_nothing() -> None:
    served = DebugApi(snapshots=lambda: Shown(many()), guard=None, address="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as other, capture_logs() as logs:
        port = other.getsockname()[1]
        await served.serve(port, None)
    assert [(each["event"], each["log_level"]) for each in logs] == [("debug API not served", "warning")]
