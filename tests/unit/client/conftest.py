import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.unit.client.server import Authority, Server, Start, started


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    runners: list[web.ServerRunner] = []

    async def begin(tls: ssl.SSLContext | None = None) -> Server:
        return await started(runners, tls)

    yield begin
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def server(start: Start) -> Server:
    return await start()


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
