"""A proxy between the client and the API server."""

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from berth_client import proxy
from berth_client.client import ApiClient
from berth_client.credentials import CredentialsError, Login
from berth_client.errors import Unreachable
from berth_client.tokens import TokenSource
from tests.stand_ins.certificates import Authority
from tests.unit.client.server import Server


@dataclass
class Tunnels:
    """An HTTP proxy that answers CONNECT, and remembers the heads of the requests."""

    answer: bytes = b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n"
    url: str = ""
    heads: list[bytes] = field(default_factory=list)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        writer.write(self.answer[:20])
        await writer.drain()
        writer.write(self.answer[20:])
        if b" 200 " in self.answer:
            host, port = head.split()[1].decode().split(":")
            to_reader, to_writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(OSError):
                await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))
        writer.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture
async def tunnels() -> AsyncIterator[Tunnels]:
    made = Tunnels()
    async with await asyncio.start_server(made.talk, "127.0.0.1", 0) as listening:
        made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield made


@contextlib.asynccontextmanager
async def client_of(login: Login) -> AsyncIterator[ApiClient]:
    client = ApiClient.of(TokenSource(login=login), user_agent="berth-test/1")
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def login(secured: Server, authority: Authority, tunnels: Tunnels) -> Login:
    certificate = authority.issue("agent")
    return Login(
        server=secured.url,
        server_name="kube",
        authority=authority.file,
        certificate=certificate,
        key=certificate,
        proxy=tunnels.url.replace("//", "//user:p%40ss@"),
    )


async def test_tls_goes_through_a_tunnel(login: Login, secured: Server, tunnels: Tunnels) -> None:
    there = secured.url.removeprefix("https://")
    async with client_of(login) as client:
        answers = [await client.get(f"/{number}") for number in range(3)]
        lines = client.stream("/watch", {})
        assert await anext(lines) == b""
        await lines.aclose()
    assert [answer["path"] for answer in answers] == ["/0", "/1", "/2"]
    assert "Proxy-Authorization" not in answers[0]["headers"]
    password = b64encode(b"user:p@ss").decode()
    head = f"CONNECT {there} HTTP/1.1\r\nHost: {there}\r\nProxy-Authorization: Basic {password}\r\n\r\n"
    assert tunnels.heads == [head.encode()] * 2  # one for the requests, one for the watch


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the proxy answered 'HTTP/1.1 407 Proxy"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "the proxy answered 'SSH-2.0"),
        (b"HTTP/1.1 200", "the proxy closed the connection: no answer"),
    ],
)
async def test_a_refused_tunnel_is_no_answer(login: Login, tunnels: Tunnels, answer: bytes, reason: str) -> None:
    tunnels.answer = answer
    async with client_of(login) as client:
        with pytest.raises(Unreachable, match=reason) as raised:
            await client.get("/x")
    assert "p%40ss" not in str(raised.value)


async def test_plain_http_is_forwarded(server: Server) -> None:
    behind = Login(server="http://api.example/one", proxy=server.url.replace("//", "//me:x@"), token="t")  # noqa: S106
    async with client_of(behind) as client:
        answer = await client.request("GET", "/api", params={"a": "b c"})
    assert (answer["path"], answer["headers"]["Host"]) == ("/one/api?a=b+c", "api.example")
    assert answer["headers"]["Proxy-Authorization"] == f"Basic {b64encode(b'me:x').decode()}"


@pytest.mark.parametrize("url", ["proxy:3128", "socks5://proxy", "http://", "http://proxy:port", "http://u:secret@"])
def test_what_is_no_http_proxy_is_refused(url: str) -> None:
    with pytest.raises(CredentialsError, match="proxy: not supported") as raised:
        proxy.Proxy.of_url(url)
    assert "secret" not in str(raised.value)


def test_a_password_is_not_shown(login: Login) -> None:
    assert "p%40ss" not in repr(login)
    assert "secret" not in repr(replace(login, token="secret"))  # noqa: S106


@pytest.mark.parametrize(
    ("variables", "server", "expected"),
    [
        pytest.param({}, "https://10.0.0.1", None, id="none"),
        pytest.param({"HTTPS_PROXY": "http://p:1"}, "https://10.0.0.1:6443", "http://p:1", id="https"),
        pytest.param({"https_proxy": "http://p:1"}, "https://10.0.0.1:6443", "http://p:1", id="lower case"),
        pytest.param({"HTTPS_PROXY": "http://p:1"}, "http://10.0.0.1", None, id="of the other scheme"),
        pytest.param({"http_proxy": "http://p:1"}, "http://10.0.0.1", "http://p:1", id="http"),
        pytest.param({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.1"}, "https://10.0.0.1:6443", None, id="not it"),
        pytest.param({"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".svc"}, "https://k.default.svc", None, id="no suffix"),
    ],
)
def test_the_environment_names_a_proxy(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], server: str, expected: str | None
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy.of_environment(server) == expected
