"""Which clients may call the extender over TLS."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from structlog.testing import capture_logs

from berth_operator.apis.extender.extender_server import PATH, ExtenderServer
from berth_operator.apis.serving.certificates import Files
from berth_operator.apis.serving.tls import Clients, ServedCertificate
from tests.component.extender.extender_stage import Stage, asking
from tests.component.world import World
from tests.stand_ins.certificates import Authority


@contextlib.asynccontextmanager
async def serving(certificate: ServedCertificate, clients: frozenset[str] = frozenset()) -> AsyncIterator[str]:
    """Serve on a free port of loopback; yield the URL of filter."""
    await certificate.load()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = ExtenderServer(leads=lambda: True, clients=clients)
    world = World()
    world.add_node("a")
    server.extender = Stage(world).extender
    task = asyncio.create_task(server.serve("127.0.0.1", port, certificate.tls))
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.01)
    yield f"https://127.0.0.1:{port}{PATH}/filter"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def served(certificate: Path, client_ca: Path | None = None) -> ServedCertificate:
    clients = None if client_ca is None else Clients(authorities=client_ca, required=True)
    return ServedCertificate(source=Files(certificate=certificate), period=0.01, clients=clients, settle=0.0)


async def post(url: str, tls: ssl.SSLContext) -> tuple[int, Any]:
    body = orjson.dumps({"Pod": asking(), "NodeNames": ["a"]})
    async with aiohttp.ClientSession() as session, session.post(url, data=body, ssl=tls) as answer:
        return answer.status, orjson.loads(await answer.read())


async def test_clients_need_a_certificate_of_the_authority(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path, "others")
    async with serving(served(ours.issue("berth"), ours.file)) as url:
        assert (await post(url, ours.client(ours.issue("kube-scheduler"))))[1]["NodeNames"] == ["a"]
        for stranger in (ours.client(), ours.client(others.issue("kube-scheduler"))):
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await post(url, stranger)


async def test_the_authority_of_clients_needs_no_root_and_no_key_identifiers(tmp_path: Path) -> None:
    theirs = Authority(tmp_path, "intermediate", signer=Authority(tmp_path, "root"), is_bare=True)
    ours = Authority(tmp_path)
    async with serving(served(ours.issue("berth"), theirs.file)) as url:
        assert (await post(url, ours.client(theirs.issue("kube-scheduler"))))[0] == 200


async def test_only_named_clients_are_answered(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    async with serving(served(ours.issue("berth"), ours.file), frozenset({"system:kube-scheduler"})) as url:
        assert (await post(url, ours.client(ours.issue("system:kube-scheduler"))))[0] == 200
        assert await post(url, ours.client(ours.issue("system:node:a"))) == (
            403,
            {"message": 'the client certificate of "system:node:a" may not call the extender'},
        )


async def test_without_client_authorities_no_certificate_is_required(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    async with serving(served(ours.issue("berth"))) as url:
        assert (await post(url, ours.client()))[0] == 200


async def test_renewed_files_are_used_for_new_connections(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    certificate, client_ca = tmp_path / "tls.pem", tmp_path / "ca.pem"
    certificate.write_bytes(old.issue("berth").read_bytes())
    client_ca.write_bytes(old.file.read_bytes())
    renewed = served(certificate, client_ca)
    async with serving(renewed) as url:
        task = asyncio.create_task(renewed.keep())
        assert (await post(url, old.client(old.issue("kube-scheduler"))))[0] == 200
        with capture_logs() as logs:
            certificate.write_bytes(b"broken")
            await logged(logs, "certificate not renewed")
            client_ca.write_bytes(new.file.read_bytes())
            certificate.write_bytes(new.issue("berth").read_bytes())
            await logged(logs, "certificate in use")
        assert (await post(url, new.client(new.issue("kube-scheduler"))))[0] == 200
        task.cancel()


async def logged(logs: list[Any], event: str) -> None:
    for _ in range(1000):
        if event in [each["event"] for each in logs]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not logged: {event}")
