"""A TCP proxy on loopback that delays answers, like an overloaded API server.

with DelayProxy(server=cluster.server) as proxy:
        proxy.seconds = 2.0     # from now on, also for answers that are on their way
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from tests.stand_ins.background import Background

CHUNK: Final = 1 << 16
POLL: Final = 0.01
"""Seconds between checks for a changed delay."""


class DelayProxy(Background):
    """The proxy; a context manager. It passes TLS through unread, so handshakes are delayed, too."""

    def __init__(self, *, server: str) -> None:
        super().__init__(name="delay-proxy")
        self.seconds = 0.0
        self.url = ""
        self._server = urlsplit(server)

    def kubeconfig(self, original: Path) -> Path:
        """Write a copy of a kubeconfig that points to this proxy, next to the original."""
        content = yaml.safe_load(original.read_text())
        for cluster in content["clusters"]:
            cluster["cluster"]["server"] = self.url
        path = original.with_name(f"{original.name}.port-{urlsplit(self.url).port}")
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content))
        return path

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._is_ready()
        await self._stop.wait()
        server.close()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        upstream, to_upstream = await asyncio.open_connection(self._server.hostname, self._server.port)
        try:
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(self._pass_on(client, to_upstream), self._pass_on_late(upstream, to_client))
        except asyncio.CancelledError:
            # Without waiting for what is still to be sent, which would outlive the event loop.
            to_client.transport.abort()
            to_upstream.transport.abort()
            raise
        finally:
            to_client.close()
            to_upstream.close()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK):
            target.write(data)
        target.close()

    async def _pass_on_late(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        reading = asyncio.create_task(_read_into(source, arrived))
        try:
            while True:
                at, data = await arrived.get()
                while asyncio.get_running_loop().time() < at + self.seconds:  # noqa: ASYNC110 - another thread changes it
                    await asyncio.sleep(POLL)
                if not data:
                    break
                target.write(data)
        finally:
            reading.cancel()
            target.close()


async def _read_into(source: asyncio.StreamReader, arrived: asyncio.Queue[tuple[float, bytes]]) -> None:
    data = b"-"
    while data:
        data = await source.read(CHUNK)
        arrived.put_nowait((asyncio.get_running_loop().time(), data))
