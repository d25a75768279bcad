"""Each server of the operator and the agent, if its address is unspecified, has clients by IPv4 and by IPv6."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from berth_base import metrics_server, sockets, start
from berth_client.errors import Unreachable
from berth_client.lists import StreamedLists
from berth_client.versions import Versions
from berth_operator.apis.debug_api.debug_server import DebugApi
from berth_operator.apis.extender.extender_server import ExtenderServer
from berth_operator.apis.list_watch.main import ApiSettings, ListWatchService
from berth_operator.apis.serving import certificates, listening
from berth_operator.apis.serving.certificates import Files
from berth_operator.apis.serving.connections import Connections
from berth_operator.apis.serving.tls import ServedCertificate
from berth_operator.apis.webhook.webhook_server import WebhookServer
from berth_operator.controllers.handlers.thread import KopfThread
from tests.component.process.test_kopf_thread import are_served, memo
from tests.harness.ipv6 import needs_ipv6

SOON = 30.0
"""Seconds for the start of a server on a busy machine."""
UNUSED: Any = None


class Away:
    """An API server that answers only about its front proxy, which it does not have."""

    def __init__(self) -> None:
        self.versions, self.streamed_lists = Versions(), StreamedLists()

    async def stream(self, path: str, *_: Any, **_more: Any) -> AsyncIterator[bytes]:
        raise Unreachable(f"watch {path}: no answer")
        yield b""

    async def get(self, _path: str) -> dict[str, Any]:
        return {}

    async def request(self, method: str, path: str, **_: Any) -> Any:
        raise Unreachable(f"{method} {path}: no answer")


def certificate_in(folder: Path) -> Path:
    pair = certificates.issue("127.0.0.1", datetime.now(UTC), timedelta(days=1))
    (folder / "tls.pem").write_bytes(pair.certificate + pair.key)
    return folder / "tls.pem"


async def metrics(address: str, port: int, _folder: Path) -> None:
    async def render() -> bytes:
        return b""

    async with metrics_server.serving(render, address=address, port=port):
        await asyncio.Event().wait()


async def health(address: str, port: int, folder: Path) -> None:
    host = f"[{address}]" if ":" in address else address
    kopf = KopfThread(memo=memo(folder, health=f"http://{host}:{port}/healthz"), are_served=are_served)
    try:
        await kopf.run()
    finally:
        await kopf.stop()


async def debug_api(address: str, port: int, _folder: Path) -> None:
    await DebugApi(snapshots=UNUSED, guard=None, address=address).serve(port, None)


async def extender(address: str, port: int, _folder: Path) -> None:
    await ExtenderServer(leads=lambda: False).serve(address, port, None)


async def visibility(address: str, port: int, folder: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate_in(folder))
    served = Connections(tls=tls, limit=8, serve=asyncio.Protocol, refusal=b"", count_refused=lambda: None)
    async with served.listening(address, port):
        await asyncio.Event().wait()


async def webhook(address: str, port: int, folder: Path) -> None:
    certificate = ServedCertificate(source=Files(certificate=certificate_in(folder)), period=60.0, settle=0.0)
    await WebhookServer(certificate=certificate, responders={}).serve(address, port)


async def list_watch(address: str, port: int, folder: Path) -> None:
    file = certificate_in(folder)
    flags = [f"--address={address}", f"--port={port}", f"--certificate={file}", f"--key={file}"]
    api: Any = Away()
    await ListWatchService(start.read(ApiSettings, flags), api).serve()


Serve = Callable[[str, int, Path], Coroutine[Any, Any, None]]
SERVERS: tuple[Serve, ...] = (metrics, health, debug_api, extender, visibility, webhook, list_watch)


@contextlib.asynccontextmanager
async def serving(serve: Serve, address: str, folder: Path) -> AsyncIterator[int]:
    """Run a server on a free port, which is yielded at once."""
    with sockets.listener(address, 0) as free:
        port: int = free.getsockname()[1]
    task = asyncio.create_task(serve(address, port, folder))
    try:
        yield port
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def reach(host: str, port: int) -> None:
    async with asyncio.timeout(SOON):
        while True:
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(0.01)


@needs_ipv6
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])  # noqa: S104 - both families are what this is about
@pytest.mark.parametrize("serve", SERVERS, ids=lambda serve: str(serve.__name__))
async def test_an_unspecified_address_is_reached_by_both_families(serve: Serve, address: str, tmp_path: Path) -> None:
    async with serving(serve, address, tmp_path) as port:
        for host in ("127.0.0.1", "::1"):
            await reach(host, port)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])  # noqa: S104 - see above
async def test_without_ipv6_there_is_ipv4(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with sockets.listener(address, 0) as listener:
        assert listener.family == socket.AF_INET
        await reach("127.0.0.1", listener.getsockname()[1])


@needs_ipv6
@pytest.mark.parametrize(("address", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("localhost", "127.0.0.2")])
async def test_another_address_is_the_only_one(address: str, other: str) -> None:
    with sockets.listener(address, 0) as listener:
        port = listener.getsockname()[1]
        await reach(address, port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(other, port)


@needs_ipv6
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_that_one_family_has_in_use_is_not_free(family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(start.StartError) as refused:
            listening.check_free(f"--port {port}", "0.0.0.0", port)  # noqa: S104 - it is not free
    assert str(refused.value) == f"--port {port} on 0.0.0.0: address already in use"
