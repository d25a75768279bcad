"""The client against a small server on loopback: what is sent, retried and raised."""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from berth_client import connections
from berth_client import streams as streams_module
from berth_client.client import METADATA_LIST, NO_ANSWER, TRIES, ApiClient
from berth_client.credentials import Login
from berth_client.errors import ApiError, CallError, Unreachable
from berth_client.tokens import TokenSource
from tests.unit.client.server import Handler, Server

TOKEN = "one"  # noqa: S105 -- opens nothing
LARGE = 2**20
STATUS = {"kind": "Status", "status": "Failure", "message": "no", "reason": "Conflict", "code": 409}


@contextlib.contextmanager
def connected(login: Login, **limits: Any) -> Iterator[ApiClient]:
    client = ApiClient.of(TokenSource(login=login), user_agent="berth-test/1", **limits)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ApiClient]:
    with connected(Login(server=server.url, token=TOKEN)) as made:
        yield made


async def test_a_request_carries_token_agent_parameters_and_body(client: ApiClient) -> None:
    answer = await client.request("POST", "/a/b", params={"fieldSelector": "x!=,y=a b"}, body={"k": [1]})
    assert (answer["method"], answer["body"]) == ("POST", {"k": [1]})
    assert answer["path"] == "/a/b?fieldSelector=x%21%3D%2Cy%3Da+b"
    assert answer["headers"]["Authorization"] == "Bearer one"
    assert answer["headers"]["User-Agent"] == "berth-test/1"


async def test_each_call_names_what_it_carries(server: Server) -> None:
    with connected(Login(server=f"{server.url}/below/", token=TOKEN)) as client:
        await client.get("/api/v1/nodes/a")
        await client.create("/api/v1/events", {"a": "ü"})
        await client.apply("/apis/x/y", {"b": 1}, "manager")
        await client.apply("/apis/x/y", {"b": 1}, "manager", force=True)
        await client.merge_patch("/apis/x/y", {"c": None})
        await client.delete("/apis/x/y", uid="u-1")
    assert [(request.method, request.path_qs, request.content_type) for request in server.seen] == [
        ("GET", "/below/api/v1/nodes/a", "application/json"),
        ("POST", "/below/api/v1/events", "application/json"),
        ("PATCH", "/below/apis/x/y?fieldManager=manager&force=false", "application/apply-patch+yaml"),
        ("PATCH", "/below/apis/x/y?fieldManager=manager&force=true", "application/apply-patch+yaml"),
        ("PATCH", "/below/apis/x/y", "application/merge-patch+json"),
        ("DELETE", "/below/apis/x/y", "application/json"),
    ]
    deletion = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "u-1"}}
    assert server.bodies == [None, {"a": "ü"}, {"b": 1}, {"b": 1}, {"c": None}, deletion]
    assert {request.headers["Authorization"] for request in server.seen} == {"Bearer one"}


async def test_a_list_is_read_to_its_last_page(server: Server, client: ApiClient) -> None:
    async def page(request: web.BaseRequest) -> web.Response:
        last = request.query.get("continue") == "a+b/c="
        metadata = {"resourceVersion": "7", **({} if last else {"continue": "a+b/c="})}
        return web.json_response({"metadata": metadata, "items": None if last else [{"page": 1}]})

    server.handler = page
    params = {"fieldSelector": "spec.nodeName=a", "labelSelector": "x in (y,z)"}
    assert await client.list("/api/v1/pods", params, accept=METADATA_LIST) == ([{"page": 1}], "7")
    assert [request.query["fieldSelector"] for request in server.seen] == ["spec.nodeName=a"] * 2
    assert [request.query["labelSelector"] for request in server.seen] == ["x in (y,z)"] * 2
    assert [request.headers["Accept"] for request in server.seen] == [METADATA_LIST] * 2


async def test_many_requests_at_once_take_turns_and_each_gets_its_own_answer(server: Server) -> None:
    with connected(Login(server=server.url), limit=3) as client:
        answers = await asyncio.gather(*(client.request("POST", f"/{i}", body="x" * i * 1000) for i in range(40)))
    assert [(answer["path"], len(answer["body"])) for answer in answers] == [(f"/{i}", i * 1000) for i in range(40)]
    assert len({request.transport for request in server.seen}) <= 3


async def test_an_answer_in_fragments_and_a_closed_connection(client: ApiClient, server: Server) -> None:
    server.handler = streams(b'{"a":', b"[1]}")
    assert await client.request("GET", "/") == {"a": [1]}
    server.always(200, {}, Connection="close")
    assert [await client.request("GET", "/") for _ in range(2)] == [{}, {}]


async def test_a_name_in_a_path_cannot_begin_another_request(client: ApiClient, server: Server) -> None:
    name = "x HTTP/1.1\r\nHost: a\r\n\r\nDELETE /api/v1/namespaces/b/pods/c HTTP/1.1\r\nX: "
    answer = await client.get(f"/api/v1/namespaces/a/pods/{name}?#%ü")
    assert answer["path"].startswith("/api/v1/namespaces/a/pods/x%20HTTP/1.1%0D%0AHost:%20a%0D%0A%0D%0ADELETE%20/")
    assert answer["path"].endswith("%3F%23%25%C3%BC")
    assert [request.method for request in server.seen] == ["GET"]
    assert (await client.get("/apis/a/v1/clusterroles/system:b"))["path"] == "/apis/a/v1/clusterroles/system:b"


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"SSH-2.0-OpenSSH\r\n"])
async def test_half_an_answer_and_no_http_are_no_answer(sent: bytes) -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        with connected(Login(server=f"http://{host}:{port}")) as client, pytest.raises(Unreachable, match="GET /"):
            await client.request("GET", "/")


async def test_a_refusal_shows_status_reason_and_message(client: ApiClient, server: Server) -> None:
    server.always(409, STATUS)
    with pytest.raises(ApiError) as caught:
        await client.request("POST", "/")
    error = caught.value
    assert (error.status, error.reason, error.message, error.retry_after) == (409, "Conflict", "no", None)


@pytest.mark.parametrize("body", [b"404 page not found\n", b"[1]", b""])
async def test_a_refusal_that_is_no_status_object(client: ApiClient, server: Server, body: bytes) -> None:
    server.always(404, body)
    with pytest.raises(ApiError, match="404 Unknown"):
        await client.request("GET", "/")


@pytest.mark.parametrize("status", [429, 503])
async def test_later_is_repeated_at_most_five_times(client: ApiClient, server: Server, status: int) -> None:
    server.always(status, b"later", **{"Retry-After": "0"})
    with pytest.raises(ApiError, match="later"):
        await client.request("POST", "/")
    assert len(server.seen) == TRIES


async def test_later_is_repeated_until_it_is_now(client: ApiClient, server: Server) -> None:
    async def third_time(_request: web.BaseRequest) -> web.Response:
        if len(server.seen) < 3:
            return web.Response(status=429, headers={"Retry-After": "0"})
        return web.json_response({})

    server.handler = third_time
    assert await client.request("POST", "/", body={"a": 1}) == {}


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        pytest.param(500, {"Retry-After": "0"}, id="may have been executed"),
        pytest.param(503, {}, id="no time named"),
        pytest.param(429, {"Retry-After": "60"}, id="longer than the call's time"),
        pytest.param(429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, id="a date"),
    ],
)
async def test_what_is_not_repeated(client: ApiClient, server: Server, status: int, headers: dict[str, str]) -> None:
    server.always(status, **headers)
    with pytest.raises(ApiError):
        await client.request("GET", "/")
    assert len(server.seen) == 1


async def test_a_write_whose_answer_is_lost_is_not_repeated(client: ApiClient, server: Server) -> None:
    async def hang_up(request: web.BaseRequest) -> web.Response:
        await request.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    await client.request("POST", "/")  # so that the connection is an old one
    server.handler = hang_up
    with pytest.raises(Unreachable):
        await client.request("POST", "/")
    assert len(server.seen) == 2


async def test_no_answer_in_time_and_no_server_are_unreachable(client: ApiClient, server: Server) -> None:
    async def never(_request: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.handler = never
    with pytest.raises(Unreachable, match="GET /x"):
        await client.request("GET", "/x", timeout=0.05)
    with pytest.raises(Unreachable, match="no time left"):
        await client.request("GET", "/x", timeout=0)
    with connected(Login(server="http://127.0.0.1:9")) as nowhere, pytest.raises(Unreachable):
        await nowhere.request("GET", "/")


async def test_connections_that_died_silently_cost_one_request_its_time(client: ApiClient, server: Server) -> None:
    together = asyncio.Barrier(3)

    async def all_at_once(_request: web.BaseRequest) -> web.Response:
        await together.wait()
        return web.json_response({})

    server.handler = all_at_once
    await asyncio.gather(*(client.get("/") for _ in range(3)))
    dead = {request.transport for request in server.seen}
    assert len(dead) == 3

    async def only_on_new_ones(request: web.BaseRequest) -> web.Response:
        if request.transport in dead:  # as if its packets were dropped on the way
            await asyncio.Event().wait()
        return web.json_response({})

    server.handler = only_on_new_ones
    with pytest.raises(Unreachable):
        await client.request("GET", "/", timeout=0.05)
    assert await client.request("GET", "/") == {}


async def test_a_slow_answer_ends_no_connection_that_answers(client: ApiClient, server: Server) -> None:
    async def slow_to_one(request: web.BaseRequest) -> web.Response:
        if request.path == "/slow":
            await asyncio.Event().wait()
        return web.json_response({})

    server.handler = slow_to_one
    slow = asyncio.create_task(client.request("GET", "/slow", timeout=0.2))
    await asyncio.sleep(0.05)
    await client.get("/")
    with pytest.raises(Unreachable):
        await slow
    await client.get("/")
    answered = [request.transport for request in server.seen if request.path == "/"]
    assert answered[0] is answered[1]


async def test_an_answer_that_is_not_json_is_no_answer(client: ApiClient, server: Server) -> None:
    server.always(200, b"<html>")
    with pytest.raises(Unreachable, match="not JSON"):
        await client.request("GET", "/")


def streams(*chunks: bytes, then: str = "end") -> Handler:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then == "hang":
            await asyncio.Event().wait()
        if then == "abort":
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


async def test_a_stream_yields_whole_lines_of_any_length(client: ApiClient, server: Server) -> None:
    long = b"x" * 3_000_000
    server.handler = streams(b"one\ntw", b"o\n\n" + long[:70_000], long[70_000:] + b"\nla", b"st\ncut off")
    lines = [line async for line in client.stream("/", {"watch": "true"})]
    assert lines == [b"", b"one", b"two", long, b"last"]


async def test_a_silent_stream_is_given_up(client: ApiClient, server: Server) -> None:
    server.handler = streams(b"one\n", then="hang")
    lines = client.stream("/", {}, idle_timeout=0.1)
    assert [await anext(lines), await anext(lines)] == [b"", b"one"]
    with pytest.raises(Unreachable):
        await anext(lines)


async def test_a_broken_or_refused_stream_says_so(client: ApiClient, server: Server) -> None:
    server.handler = streams(b"one\n", then="abort")
    with pytest.raises(Unreachable):
        assert [line async for line in client.stream("/", {})]
    server.always(410, {**STATUS, "reason": "Expired"})
    with pytest.raises(ApiError, match="410 Expired"):
        assert [line async for line in client.stream("/", {})]


async def test_a_stream_that_is_left_closes_its_connection(server: Server) -> None:
    left = asyncio.Event()

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"line\n")
                await asyncio.sleep(0.01)
        finally:
            left.set()

    server.handler = endless
    with connected(Login(server=server.url), limit=1) as client:
        for _ in range(2):  # one stream at a time
            lines = client.stream("/x", {})
            assert [await anext(lines), await anext(lines)] == [b"", b"line"]
            await lines.aclose()
            async with asyncio.timeout(30):
                await left.wait()
            left.clear()


async def test_more_streams_than_the_limit_wait(server: Server) -> None:
    server.handler = streams(b"one\n", then="hang")
    with connected(Login(server=server.url), limit=1) as client:
        lines = client.stream("/x", {})
        await anext(lines)
        with pytest.raises(Unreachable, match="TimeoutError"):
            await anext(client.stream("/y", {}, idle_timeout=0.1))
        server.handler = server.echo
        assert (await client.get("/z"))["path"] == "/z"  # requests have connections of their own
        await lines.aclose()


async def test_a_stream_that_is_not_read_makes_the_server_wait(server: Server, client: ApiClient) -> None:
    written: list[int] = []

    async def much(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(400):
            await response.write(b"x" * 100_000 + b"\n")
            written.append(number)
        return response

    server.handler = much
    lines = client.stream("/", {})
    assert await anext(lines) == b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while True:
                before = len(written)
                await asyncio.sleep(0.2)
                if before == len(written) > 0:
                    break
    assert len(written) < 400
    assert len([line async for line in lines]) == 400


# --- tokens -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def authorized(server: Server, token: Path, reload_seconds: float = 60) -> Iterator[ApiClient]:
    tokens = TokenSource(login=Login(server=server.url, token=token), reload_seconds=reload_seconds)
    client = ApiClient.of(tokens, user_agent="berth-test/1")
    yield client
    client.close()


async def test_a_refused_token_is_read_again(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    with authorized(server, token) as client:
        token.write_text("new")
        assert (await client.get("/"))["headers"]["Authorization"] == "Bearer old"
        server.always(401)
        with pytest.raises(ApiError):
            await client.get("/")
        server.handler = server.echo
        assert (await client.get("/"))["headers"]["Authorization"] == "Bearer new"


async def test_a_token_can_be_read_for_each_request(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    with authorized(server, token, reload_seconds=0) as client:
        for text in ("one", "two"):
            token.write_text(text)
            assert (await client.get("/"))["headers"]["Authorization"] == f"Bearer {text}"
        token.unlink()
        assert (await client.get("/"))["headers"]["Authorization"] == "Bearer two"


async def test_a_token_that_cannot_be_read_is_logged_once_until_it_can(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    with capture_logs() as logs, authorized(server, token, reload_seconds=0) as client:
        for exists in (True, False, False, True, False):
            token.unlink(missing_ok=True)
            if exists:
                token.write_text("one")
            await client.get("/")
    assert [line["event"] for line in logs] == ["credentials not renewed"] * 2


def test_errors_say_whether_the_request_was_refused() -> None:
    assert [error.is_refused for error in (ApiError(404, "", ""), ApiError(503, "", ""), Unreachable(""))] == [
        True,
        False,
        False,
    ]
    assert CallError("no answer").status == 0


async def test_each_request_is_observed_with_the_code_of_its_answer(server: Server, client: ApiClient) -> None:
    observed: list[tuple[str, str, str]] = []
    client.observe = lambda host, method, code, _seconds: observed.append((host, method, code))
    await client.get("/a")
    server.always(409, STATUS)
    with pytest.raises(ApiError):
        await client.create("/a", {})
    with pytest.raises(ApiError):
        [line async for line in client.stream("/a", {})]
    server.always(200, b"{}\n")
    assert [line async for line in client.stream("/a", {})] == [b"", b"{}"]
    host = server.url.removeprefix("http://")
    assert observed == [(host, "GET", "200"), (host, "POST", "409"), (host, "GET", "409"), (host, "GET", "200")]


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1"])
async def test_a_request_without_an_answer_is_observed(host: str) -> None:
    observed: list[tuple[str, str]] = []
    with connected(Login(server=f"http://{host}", token=TOKEN)) as client:
        client.observe = lambda host, _method, code, _seconds: observed.append((host, code))
        with pytest.raises(Unreachable):
            await client.get("/a")
        with pytest.raises(Unreachable):
            [line async for line in client.stream("/a", {})]
    assert observed == [(host, NO_ANSWER), (host, NO_ANSWER)]


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Run without the cycle collector, which frees old objects rarely."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _ends() -> int:
    """Return the number of our ends of connections."""
    return sum(type(obj) in (streams_module._Stream, connections._Connection) for obj in gc.get_objects())


@pytest.mark.usefixtures("uncollected")
async def test_a_closed_connection_leaves_nothing_to_the_collector(server: Server) -> None:
    """Its buffers are large: each watch ends every few minutes, and the heap grew by those that had ended."""
    with connected(Login(server=server.url, token=TOKEN)) as client:
        await client.get("/x")
        server.handler = streams(b"one\n", then="hang")
        async with contextlib.aclosing(client.stream("/x", {})) as lines:
            await anext(lines)
        assert _ends() == 2
    for _ in range(3):  # the loop closes in its next round
        await asyncio.sleep(0)
    assert _ends() == 0


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
async def test_an_idle_connection_keeps_no_answer(server: Server) -> None:
    """A pod may have a megabyte, and there are many connections."""
    body = b'"' + b"x" * LARGE + b'"'

    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body)

    server.handler = answer
    with connected(Login(server=server.url, token=TOKEN)) as client:
        before, _ = tracemalloc.get_traced_memory()
        await client.request("GET", "/x", decode=False)
        await asyncio.sleep(0)
        after, _ = tracemalloc.get_traced_memory()
    assert after - before < LARGE


@pytest.mark.usefixtures("traced")
async def test_a_watch_that_waits_keeps_no_line(server: Server) -> None:
    server.handler = streams(b"x" * LARGE + b"\n", then="hang")
    with connected(Login(server=server.url, token=TOKEN)) as client:
        before, _ = tracemalloc.get_traced_memory()
        async with contextlib.aclosing(client.stream("/x", {})) as lines:
            assert await anext(lines) == b""
            assert len(await anext(lines)) == LARGE
            waiting = asyncio.ensure_future(anext(lines))
            await asyncio.sleep(0)
            after, _ = tracemalloc.get_traced_memory()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert after - before < LARGE


@pytest.mark.usefixtures("traced")
async def test_lines_keep_no_chunk() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x" * LARGE + b"\n"
        await asyncio.Event().wait()

    lines = streams_module.lines(chunks())
    assert len(await anext(lines)) == LARGE
    waiting = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    kept, _ = tracemalloc.get_traced_memory()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert kept < LARGE


async def test_a_connection_that_the_server_will_not_use_again_is_closed() -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read()  # it does not close first
        ended.set()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with connected(Login(server=f"http://{host}:{port}", token=TOKEN)) as client:
            await client.get("/x")
            async with asyncio.timeout(60):
                await ended.wait()
