"""The client against a small server on loopback: what is sent, repeated, raised."""

import asyncio
import contextlib
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from kopf import ConnectionInfo

from berth_client.credentials import CredentialsError, Login
from berth_operator.clients import credentials, kube

TOKEN = {"token": "one"}
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
STATUS = {"kind": "Status", "status": "Failure", "message": "no", "reason": "Conflict", "code": 409}


class Server:
    """Answers with `handler`; remembers the requests."""

    def __init__(self) -> None:
        self.handler: Handler = self.echo
        self.seen: list[web.BaseRequest] = []
        self.url = ""

    async def echo(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        answer = {"method": request.method, "path": request.path_qs, "body": orjson.loads(body or b"null")}
        return web.json_response({**answer, "headers": dict(request.headers)})

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        return await self.handler(request)

    def always(self, status: int, body: Any = b"", **headers: str) -> None:
        async def answer(_request: web.BaseRequest) -> web.Response:
            data = body if isinstance(body, bytes) else orjson.dumps(body)
            return web.Response(status=status, body=data, headers=headers)

        self.handler = answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


def kubeconfig(folder: Path, server: str, *, proxy: str = "", **user: Any) -> Path:
    path = folder / "kubeconfig"
    cluster = {"server": server, **({"proxy-url": proxy} if proxy else {})}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return path


@contextlib.asynccontextmanager
async def connected(path: Path) -> AsyncIterator[kube.KubeClient]:
    client = await kube.KubeClient.connect(path, "berth-test/1")
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(server: Server, tmp_path: Path) -> AsyncIterator[kube.KubeClient]:
    async with connected(kubeconfig(tmp_path, server.url, **TOKEN)) as made:
        yield made


async def test_a_request_carries_token_agent_parameters_and_body(client: kube.KubeClient) -> None:
    answer = await client.request("POST", "/a/b", params={"fieldSelector": "x!=,y=a b"}, body={"k": [1]})
    assert (answer["method"], answer["body"]) == ("POST", {"k": [1]})
    assert answer["path"] == "/a/b?fieldSelector=x%21%3D%2Cy%3Da+b"
    assert answer["headers"]["Authorization"] == "Bearer one"
    assert answer["headers"]["User-Agent"] == "berth-test/1"


async def test_each_patch_names_its_kind(client: kube.KubeClient, server: Server) -> None:
    merged = await client.merge_patch("/x", {})
    assert merged["headers"]["Content-Type"] == "application/merge-patch+json"
    await client.apply("/x", {}, "berth")
    assert server.seen[-1].headers["Content-Type"] == "application/apply-patch+yaml"
    assert server.seen[-1].path_qs == "/x?fieldManager=berth&force=false"
    status = await client.patch_pod_status("ns", "p", {})
    assert status["headers"]["Content-Type"] == "application/strategic-merge-patch+json"


async def test_a_pod_is_annotated_as_it_was_read(client: kube.KubeClient, server: Server) -> None:
    seen: list[Any] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append((request.method, request.path, request.content_type, orjson.loads(await request.read())))
        return web.json_response({})

    server.handler = answer
    read = {"metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}}
    await client.annotate_pod(read, {"x": "y"})
    body = {"metadata": {"uid": "u", "resourceVersion": "7", "annotations": {"x": "y"}}}
    assert seen == [("PATCH", "/api/v1/namespaces/ns/pods/p", kube.MERGE, body)]


async def test_many_requests_at_once_take_turns_and_each_gets_its_own_answer(server: Server, tmp_path: Path) -> None:
    client = await kube.KubeClient.connect(kubeconfig(tmp_path, server.url, **TOKEN), "berth-test/1", limit=3)
    answers = await asyncio.gather(*(client.request("POST", f"/{i}", body="x" * i * 1000) for i in range(40)))
    await client.close()
    assert [(each["path"], len(each["body"])) for each in answers] == [(f"/{i}", i * 1000) for i in range(40)]
    assert len({each.transport for each in server.seen}) <= 3


async def test_a_path_before_the_api_and_a_proxy_between(server: Server, tmp_path: Path) -> None:
    async with connected(kubeconfig(tmp_path, f"{server.url}/clusters/one/", **TOKEN)) as client:
        assert (await client.request("GET", "/api"))["path"] == "/clusters/one/api"
    behind = kubeconfig(tmp_path, "http://api.example/one", proxy=server.url, **TOKEN)
    async with connected(behind) as client:
        answer = await client.request("GET", "/api", params={"a": "b c"})
    assert (answer["path"], answer["headers"]["Host"]) == ("/one/api?a=b+c", "api.example")


async def test_an_answer_in_pieces_and_a_closed_connection(client: kube.KubeClient, server: Server) -> None:
    server.handler = streams(b'{"a":', b"[1]}")
    assert await client.request("GET", "/") == {"a": [1]}
    server.always(200, {}, Connection="close")
    assert [await client.request("GET", "/") for _ in range(2)] == [{}, {}]


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"SSH-2.0-OpenSSH\r\n"])
async def test_half_an_answer_and_no_http_are_no_answer(tmp_path: Path, sent: bytes) -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        async with connected(kubeconfig(tmp_path, f"http://{host}:{port}", **TOKEN)) as client:
            with pytest.raises(kube.Unreachable, match="GET /"):
                await client.request("GET", "/")


async def test_a_refusal_tells_status_reason_and_message(client: kube.KubeClient, server: Server) -> None:
    server.always(409, STATUS)
    with pytest.raises(kube.ApiError) as caught:
        await client.request("POST", "/")
    error = caught.value
    assert (error.status, error.reason, error.message, error.retry_after) == (409, "Conflict", "no", None)


@pytest.mark.parametrize("body", [b"404 page not found\n", b"[1]", b""])
async def test_a_refusal_that_is_no_status_object(client: kube.KubeClient, server: Server, body: bytes) -> None:
    server.always(404, body)
    with pytest.raises(kube.ApiError, match="404 Unknown"):
        await client.request("GET", "/")


@pytest.mark.parametrize("status", [429, 503])
async def test_later_is_repeated_at_most_five_times(client: kube.KubeClient, server: Server, status: int) -> None:
    server.always(status, b"later", **{"Retry-After": "0"})
    with pytest.raises(kube.ApiError, match="later"):
        await client.request("POST", "/")
    assert len(server.seen) == kube.TRIES


async def test_later_is_repeated_until_it_is_now(client: kube.KubeClient, server: Server) -> None:
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
async def test_what_is_not_repeated(
    client: kube.KubeClient, server: Server, status: int, headers: dict[str, str]
) -> None:
    server.always(status, **headers)
    with pytest.raises(kube.ApiError):
        await client.request("GET", "/")
    assert len(server.seen) == 1


async def test_a_write_whose_answer_is_lost_is_not_repeated(client: kube.KubeClient, server: Server) -> None:
    async def hang_up(request: web.BaseRequest) -> web.Response:
        await request.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    await client.request("POST", "/")  # so that the connection is an old one
    server.handler = hang_up
    with pytest.raises(kube.Unreachable):
        await client.request("POST", "/")
    assert len(server.seen) == 2


async def test_no_answer_in_time_and_no_server_are_unreachable(
    client: kube.KubeClient, server: Server, tmp_path: Path
) -> None:
    async def never(_request: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.handler = never
    with pytest.raises(kube.Unreachable, match="GET /x"):
        await client.request("GET", "/x", timeout=0.05)
    with pytest.raises(kube.Unreachable, match="no time left"):
        await client.request("GET", "/x", timeout=0)
    async with connected(kubeconfig(tmp_path, "http://127.0.0.1:9", **TOKEN)) as nowhere:
        with pytest.raises(kube.Unreachable):
            await nowhere.request("GET", "/")


async def test_an_answer_that_is_not_json_is_no_answer(client: kube.KubeClient, server: Server) -> None:
    server.always(200, b"<html>")
    with pytest.raises(kube.Unreachable, match="not JSON"):
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


async def test_a_stream_yields_whole_lines_of_any_length(client: kube.KubeClient, server: Server) -> None:
    long = b"x" * 3_000_000
    server.handler = streams(b"one\ntw", b"o\n\n" + long[:70_000], long[70_000:] + b"\nla", b"st\ncut off")
    lines = [line async for line in client.stream("/", {"watch": "true"})]
    assert lines == [b"", b"one", b"two", long, b"last"]


async def test_a_silent_stream_is_given_up(client: kube.KubeClient, server: Server) -> None:
    server.handler = streams(b"one\n", then="hang")
    lines = client.stream("/", {}, idle_timeout=0.1)
    assert [await anext(lines), await anext(lines)] == [b"", b"one"]
    with pytest.raises(kube.Unreachable):
        await anext(lines)


async def test_a_broken_or_refused_stream_says_so(client: kube.KubeClient, server: Server) -> None:
    server.handler = streams(b"one\n", then="abort")
    with pytest.raises(kube.Unreachable):
        assert [line async for line in client.stream("/", {})]
    server.always(410, {**STATUS, "reason": "Expired"})
    with pytest.raises(kube.ApiError, match="410 Expired"):
        assert [line async for line in client.stream("/", {})]


async def test_a_refused_token_is_read_anew(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    async with connected(kubeconfig(tmp_path, server.url, tokenFile=str(token))) as client:
        token.write_text("new")
        assert (await client.request("GET", "/"))["headers"]["Authorization"] == "Bearer old"
        server.always(401)
        with pytest.raises(kube.ApiError):
            await client.request("GET", "/")
        server.handler = server.echo
        assert (await client.request("GET", "/"))["headers"]["Authorization"] == "Bearer new"


async def test_a_login_that_cannot_be_renewed_goes_on_with_the_old_token(server: Server, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    plugin.write_text(f"#!/bin/sh\necho '{orjson.dumps({**answer, 'status': {'token': 'good'}}).decode()}'\n")
    plugin.chmod(0o700)
    run = {"command": str(plugin), "apiVersion": answer["apiVersion"], "args": []}
    login = await credentials.Credentials.load(kubeconfig(tmp_path, server.url, exec=run))
    assert await login.authorization() == "Bearer good"
    plugin.write_text("#!/bin/sh\nexit 1\n")
    login.refused()
    assert await login.authorization() == "Bearer good"


async def test_of_several_kubeconfigs_each_says_a_part(server: Server, tmp_path: Path) -> None:
    whole = yaml.safe_load(kubeconfig(tmp_path, server.url, **TOKEN).read_text())
    parts = [tmp_path / "first", tmp_path / "second"]
    parts[0].write_text(yaml.safe_dump({**whole, "users": []}))
    parts[1].write_text(yaml.safe_dump({"users": whole["users"]}))
    async with connected(Path(":".join(map(str, parts)))) as client:
        assert (await client.request("GET", "/"))["headers"]["Authorization"] == "Bearer one"


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"exec": {"apiVersion": "v1"}}, "ConfigException: exec: malformed request. missing key 'command'"),
        ({"exec": {"apiVersion": "v1", "command": "/none"}}, "FileNotFoundError"),
        ({"exec": {"apiVersion": "v1", "command": "true", "env": "x"}}, "TypeError"),
        ({"exec": {"apiVersion": "v1", "command": "true", "args": 3}}, "AttributeError"),
        ({"auth-provider": {"name": "oidc"}}, "ValueError: oidc: missing configuration"),
        ({"client-key": "x"}, "of client-certificate and client-key one is missing"),
    ],
)
async def test_a_login_that_cannot_be_used_names_its_file(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    path = kubeconfig(tmp_path, "https://10.0.0.1", **user)
    with pytest.raises(CredentialsError, match=f"^{path}: .*{message}"):
        await credentials.Credentials.load(path)


async def test_kopf_is_told_the_same_login() -> None:
    login = Login(server="https://kube", authority=b"# ours\nCA", verified=False, certificate=Path("/crt"), key=b"KEY")

    async def renew() -> Login:
        return login

    found = ConnectionInfo(**credentials.Credentials(login=login, renew=renew, proxy="http://p").facts())
    assert (found.server, found.insecure, found.proxy_url, found.token) == ("https://kube", True, "http://p", None)
    assert (b64decode(found.ca_data or ""), b64decode(found.private_key_data or "")) == (b"# ours\nCA", b"KEY")
    assert (found.ca_path, found.certificate_path, found.private_key_path) == (None, Path("/crt"), None)


def test_what_only_unusual_logins_need_is_not_loaded_at_the_start() -> None:
    asked = "import berth_operator.process, berth_operator.app, sys; print('kubernetes_asyncio' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", asked], text=True) == "False\n"
