"""A test server in a thread leaves no connection behind."""

import asyncio

from tests.background import Background


class Forgetful(Background):
    """Connects to itself, and closes neither end."""

    def __init__(self) -> None:
        super().__init__(name="forgetful")
        self.ends: list[asyncio.StreamWriter] = []

    async def _serve(self) -> None:
        accepted = asyncio.Event()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.ends.append(writer)
            accepted.set()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            self.ends.append(writer)
            await accepted.wait()
            self._is_ready()
            await self._stop.wait()


def test_connections_that_were_forgotten_are_closed() -> None:
    with Forgetful() as running:
        assert not running.ends[0].is_closing()
    assert [each.is_closing() for each in running.ends] == [True, True]
