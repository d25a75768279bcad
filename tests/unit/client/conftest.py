import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.stand_ins.certificates import Authority
from tests.unit.client.server import Server, Start, started


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
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def secured(start: Start, authority: Authority) -> Server:
    """Start a server named `kube` that asks for certificates of the authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(authority.issue("kube", names=["kube"]))
    return await start(context)
