"""Certificates, on both sides."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from berth_client.client import ApiClient
from berth_client.credentials import Login
from berth_client.errors import Unreachable
from berth_client.tokens import TokenSource
from berth_operator.controllers.handlers.connection import Connection
from berth_operator.metrics.gpu.fetching import Fetcher
from tests.stand_ins.certificates import Authority
from tests.unit.client.server import Server, Start

REFUSED = r"no answer: cannot connect to 127.0.0.1:.*CERTIFICATE_VERIFY_FAILED"


async def get(login: Login) -> dict[str, Any]:
    client = ApiClient.of(TokenSource(login=login), user_agent="berth-test/1")
    try:
        return await client.get("/x")
    finally:
        client.close()


async def test_certificates_of_a_kubeconfig_open_a_server_by_its_name(secured: Server, authority: Authority) -> None:
    certificate = authority.issue("agent")
    by_data = Login(
        server=secured.url,
        server_name="kube",
        authority=authority.file.read_bytes(),
        certificate=certificate.read_bytes(),
        key=certificate.read_bytes(),
    )
    by_file = Login(
        server=secured.url, server_name="kube", authority=authority.file, certificate=certificate, key=certificate
    )
    unverified = Login(server=secured.url, verified=False, certificate=certificate, key=certificate)
    for login in (by_data, by_file, unverified):
        assert (await get(login))["path"] == "/x"


async def test_a_server_of_another_name_or_authority_is_not_trusted(
    secured: Server, authority: Authority, tmp_path: Path
) -> None:
    certificate, other = authority.issue("agent"), Authority(tmp_path, "other")
    misnamed = Login(server=secured.url, authority=authority.file, certificate=certificate, key=certificate)
    strange = Login(
        server=secured.url, server_name="kube", authority=other.file, certificate=certificate, key=certificate
    )
    for login in (misnamed, strange):
        with pytest.raises(Unreachable, match=REFUSED):
            await get(login)
    assert secured.seen == []


def bare(folder: Path) -> Authority:
    """Return an authority as old clusters have it."""
    return Authority(folder, is_bare=True)


def intermediate(folder: Path) -> Authority:
    """Return an authority whose root is in no bundle."""
    return Authority(folder, "intermediate", signer=Authority(folder, "root"))


@pytest.fixture(params=[bare, intermediate])
def trusted_by_kubectl(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Return an authority that kubectl trusts; let Python's defaults refuse both kinds, whatever its version is."""
    usual = ssl.create_default_context

    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = usual(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.verify_flags &= ~ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    made: Callable[[Path], Authority] = request.param
    return made(tmp_path)


async def served(start: Start, certificate: Path) -> Server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return await start(context)


async def test_clients_trust_an_authority_that_kubectl_trusts(start: Start, trusted_by_kubectl: Authority) -> None:
    server = await served(start, trusted_by_kubectl.issue("kube"))
    login = Login(server=server.url, authority=trusted_by_kubectl.file)
    assert (await get(login))["path"] == "/x"
    async with Fetcher(limit=1, seconds=5.0, authority=trusted_by_kubectl.file) as metrics:
        await metrics.get(server.url)
    connector = aiohttp.TCPConnector(ssl=Connection.of(login, None).as_ssl_context())  # as kopf makes its session
    async with aiohttp.ClientSession(connector=connector) as session, session.get(server.url) as answer:
        assert answer.status == 200
    connector = aiohttp.TCPConnector(ssl=trusted_by_kubectl.client())
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):  # the test can fail
            await session.get(server.url)


@pytest.mark.parametrize("fault", [{"names": ["127.0.0.2"]}, {"lives": False}], ids=["name", "dates"])
async def test_names_and_dates_are_checked_all_the_same(
    start: Start, trusted_by_kubectl: Authority, fault: dict[str, Any]
) -> None:
    server = await served(start, trusted_by_kubectl.issue("kube", **fault))
    with pytest.raises(Unreachable, match=REFUSED):
        await get(Login(server=server.url, authority=trusted_by_kubectl.file))


async def test_rotated_certificates_are_used_by_the_next_connection(start: Start, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ca.crt", "agent.crt", "agent.key")}
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # A client of TLS 1.3 learns only later that its certificate was refused.
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def write(authority: Authority, *names: str) -> None:
        certificate, begin, key = authority.issue("agent").read_bytes().partition(b"-----BEGIN PRIVATE KEY-----")
        contents = {"ca.crt": authority.file.read_bytes(), "agent.crt": certificate, "agent.key": begin + key}
        for name in names:
            files[name].write_bytes(contents[name])

    def serve(authority: Authority) -> None:
        context.load_cert_chain(authority.issue("kube", names=["kube"]))
        context.load_verify_locations(authority.file)

    write(old, "ca.crt", "agent.crt", "agent.key")
    serve(old)
    server = await start(context)
    login = Login(
        server=server.url,
        server_name="kube",
        authority=files["ca.crt"],
        certificate=files["agent.crt"],
        key=files["agent.key"],
    )
    client = ApiClient.of(TokenSource(login=login), user_agent="berth-test/1")
    await client.get("/old")
    client.close()
    serve(new)
    with capture_logs() as logs:
        # The key is still that of the old certificate.
        write(new, "ca.crt", "agent.crt")
        for _ in range(2):
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get("/half")
    assert [line["event"] for line in logs] == ["certificates not read again"]
    write(new, "ca.crt", "agent.crt", "agent.key")
    assert (await client.get("/new"))["path"] == "/new"
    client.close()
