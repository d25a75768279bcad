"""The agent's calls against a small server on loopback: what is sent, and what becomes of each answer."""

import asyncio
import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from berth_agent import cluster
from berth_agent.cluster import CallError
from berth_client.credentials import Login

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
REFUSAL = {"kind": "Status", "message": "pods is forbidden", "code": 403}
TOKEN = "one"  # noqa: S105 -- opens nothing


class Server:
    """Answers with `handler`; remembers the requests."""

    def __init__(self) -> None:
        self.handler: Handler = self.echo
        self.seen: list[web.BaseRequest] = []
        self.bodies: list[Any] = []
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(orjson.loads(await request.read() or b"null"))
        return await self.handler(request)

    async def echo(self, request: web.BaseRequest) -> web.Response:  # noqa: ARG002 -- a handler
        return web.json_response({"metadata": {"name": "x"}})

    def says(self, body: bytes, status: int = 200) -> None:
        async def answer(_request: web.BaseRequest) -> web.Response:
            return web.Response(status=status, body=body)

        self.handler = answer

    def streams(self, *chunks: bytes) -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            return response

        self.handler = answer


Start = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    runners: list[web.ServerRunner] = []

    async def begin(tls: ssl.SSLContext | None = None) -> Server:
        made = Server()
        runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        made.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        return made

    yield begin
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def server(start: Start) -> Server:
    return await start()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[cluster.Cluster]:
    login = Login(server=f"{server.url}/below", token=TOKEN)
    async with cluster.opened(login, timeout=30, connections=4) as made:
        yield made


async def test_requests_say_who_asks_and_what_they_carry(server: Server, api: cluster.Cluster) -> None:
    assert await api.get("/api/v1/nodes/a") == {"metadata": {"name": "x"}}
    await api.create("/api/v1/events", {"a": "ü"})
    await api.apply("/apis/x/y", {"b": 1}, manager="who")
    await api.merge("/apis/x/y", {"c": None})
    await api.delete("/apis/x/y", uid="u-1")
    assert [(each.method, each.path_qs, each.content_type) for each in server.seen] == [
        ("GET", "/below/api/v1/nodes/a", "application/json"),
        ("POST", "/below/api/v1/events?fieldManager=berth-agent", "application/json"),
        ("PATCH", "/below/apis/x/y?fieldManager=who", "application/apply-patch+yaml"),
        ("PATCH", "/below/apis/x/y?fieldManager=berth-agent", "application/merge-patch+json"),
        ("DELETE", "/below/apis/x/y", "application/json"),
    ]
    assert server.bodies == [None, {"a": "ü"}, {"b": 1}, {"c": None}, {"preconditions": {"uid": "u-1"}}]
    assert {each.headers["Authorization"] for each in server.seen} == {"Bearer one"}


async def test_a_list_is_read_to_its_last_page(server: Server, api: cluster.Cluster) -> None:
    async def page(request: web.BaseRequest) -> web.Response:
        last = request.query.get("continue") == "a+b/c="
        metadata = {"resourceVersion": "7", **({} if last else {"continue": "a+b/c="})}
        return web.json_response({"metadata": metadata, "items": [{"page": 2 if last else 1}]})

    server.handler = page
    assert await api.list("/api/v1/pods", field="spec.nodeName=a", label="x in (y,z)") == (
        [{"page": 1}, {"page": 2}],
        "7",
    )
    assert {each.query["fieldSelector"] for each in server.seen} == {"spec.nodeName=a"}
    assert {each.query["labelSelector"] for each in server.seen} == {"x in (y,z)"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        pytest.param(orjson.dumps(REFUSAL), 403, "pods is forbidden", id="status"),
        pytest.param(b"<html>", 502, "502 Bad Gateway", id="no-json"),
        pytest.param(b"[]", 429, "429 Too Many Requests", id="no-status"),
    ],
)
async def test_a_refusal_gives_the_server_s_own_words(
    server: Server, api: cluster.Cluster, body: bytes, status: int, message: str
) -> None:
    server.says(body, status)
    for call in (api.get("/x"), anext(api.watch("/x", field="", version="1"))):
        with pytest.raises(CallError) as raised:
            await call
        assert (str(raised.value), raised.value.status) == (message, status)


@pytest.mark.parametrize("status", [404, 409])
async def test_deleting_a_missing_object_is_no_error(server: Server, api: cluster.Cluster, status: int) -> None:
    server.says(b"{}", status)
    await api.delete("/x", uid="u-1")
    assert len(server.seen) == 1


async def test_an_answer_that_is_no_json_is_none(server: Server, api: cluster.Cluster) -> None:
    server.says(b"<html>welcome</html>")
    with pytest.raises(CallError, match=r"^no answer that can be read: ") as raised:
        await api.get("/x")
    assert raised.value.status == 0


@pytest.fixture
def nowhere() -> Iterator[str]:
    """Return the address of a port without a listener, reserved for this test."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


async def test_a_server_that_is_not_there_or_hangs_gives_no_answer(server: Server, nowhere: str) -> None:
    async def hang(_request: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.handler = hang
    for url, limit in ((nowhere, 30.0), (server.url, 0.2)):
        async with cluster.opened(Login(server=url), timeout=limit, connections=1) as api:
            with pytest.raises(CallError, match=r"^no answer: ") as raised:
                await api.get("/x")
            assert raised.value.status == 0


async def test_a_token_that_is_gone_is_no_answer(server: Server, tmp_path: Path) -> None:
    login = Login(server=server.url, token=tmp_path / "token")
    async with cluster.opened(login, timeout=30, connections=1) as api:
        with pytest.raises(CallError, match="token") as raised:
            await api.get("/x")
    assert raised.value.status == 0
    assert server.seen == []


async def test_a_watch_gives_each_event_however_it_is_cut(server: Server, api: cluster.Cluster) -> None:
    events = [{"type": "ADDED", "object": {"n": number, "text": "x" * 200_000}} for number in range(3)]
    text = b"".join(orjson.dumps(each) + b"\n" for each in events)
    server.streams(text[:7], text[7:300_000], text[300_000:])
    assert [each async for each in api.watch("/x", field="a=b", version="5")] == events
    query = dict(server.seen[0].query)
    assert query.pop("timeoutSeconds") == "300"
    assert query == {"watch": "true", "fieldSelector": "a=b", "resourceVersion": "5", "allowWatchBookmarks": "true"}


async def test_a_watch_of_a_version_that_is_too_old_says_so(server: Server, api: cluster.Cluster) -> None:
    error = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    server.streams(orjson.dumps(error) + b"\n")
    with pytest.raises(CallError, match=r"^too old$") as raised:
        await anext(api.watch("/x", field="", version="1"))
    assert raised.value.status == cluster.GONE


async def test_a_watch_that_is_left_closes_its_connection(server: Server) -> None:
    left = asyncio.Event()

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b'{"type": "ADDED"}\n')
                await asyncio.sleep(0.01)
        finally:
            left.set()

    server.handler = endless
    async with cluster.opened(Login(server=server.url), timeout=30, connections=1) as api:
        watch = api.watch("/x", field="", version="1")
        assert await anext(watch) == {"type": "ADDED"}
        await watch.aclose()
        async with asyncio.timeout(30):
            await left.wait()
        server.handler = server.echo
        # There is one connection only.
        assert await api.get("/x") == {"metadata": {"name": "x"}}


# --- TLS --------------------------------------------------------------------------------------------------------


class Authority:
    """Issues certificates."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.pem = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Return a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), x509.SubjectAlternativeName([x509.DNSName(name)]))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate, private

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType) -> bytes:
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def secured(start: Start, authority: Authority, tmp_path: Path) -> Server:
    """Start a server named `kube` that asks for certificates of the authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.issue("kube")
    (tmp_path / "server.pem").write_bytes(certificate + key)
    context.load_cert_chain(tmp_path / "server.pem")
    return await start(context)


async def _ask(login: Login) -> dict[str, Any]:
    async with cluster.opened(login, timeout=30, connections=1) as api:
        return await api.get("/x")


async def test_certificates_of_a_kubeconfig_open_a_server_by_its_name(
    secured: Server, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("agent")
    (tmp_path / "agent.crt").write_bytes(certificate)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    by_data = Login(server=secured.url, server_name="kube", authority=authority.pem, certificate=certificate, key=key)
    by_file = Login(
        server=secured.url,
        server_name="kube",
        authority=tmp_path / "ca.crt",
        certificate=tmp_path / "agent.crt",
        key=key,
    )
    unverified = Login(server=secured.url, verified=False, certificate=certificate, key=key)
    for login in (by_data, by_file, unverified):
        assert await _ask(login) == {"metadata": {"name": "x"}}


async def test_a_server_of_another_name_or_authority_is_not_trusted(secured: Server, authority: Authority) -> None:
    certificate, key = authority.issue("agent")
    misnamed = Login(server=secured.url, authority=authority.pem, certificate=certificate, key=key)
    strange = Login(server=secured.url, server_name="kube", authority=Authority().pem, certificate=certificate, key=key)
    for login in (misnamed, strange):
        with pytest.raises(CallError, match=r"^no answer: .*CERTIFICATE_VERIFY_FAILED|^no answer: .*certificate"):
            await _ask(login)
    assert secured.seen == []
