"""gRPC at Unix sockets, by grpclib: calls that fail in one way, and servers that leave nothing open."""

import asyncio
import socket
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakSet

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import Connection, H2Protocol
from grpclib.server import Server
from h2.connection import H2Connection
from h2.exceptions import H2Error

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

CALLS: Final = 1000
"""Calls that one connection serves: h2 remembers each one that ended, 10 MB of them in a day of one per second."""


class CallError(Exception):
    """The other side does not answer, or refuses; the text is its own where it said one."""


async def call(method: UnaryUnaryMethod[Asked, Answer], request: Asked, *, seconds: float) -> Answer:
    """Ask, and wait so long for the answer.

    Raises:
        CallError: there is none.
    """
    try:
        async with asyncio.timeout(seconds):
            # When a connection breaks, grpclib cancels the task that waits and never takes that back: it gets its own.
            return await asyncio.create_task(method(request))
    except TimeoutError:
        raise CallError(f"no answer within {seconds:g} s") from None
    except GRPCError as error:
        raise CallError(error.message or error.status.name) from error
    except (OSError, StreamTerminatedError, H2Error) as error:
        raise CallError(str(error)) from error
    except AttributeError as error:
        # grpclib takes a connection apart that ends, and may be about to say the first word on it.
        if not isinstance(error.obj, Connection | H2Connection):
            raise
        raise CallError("Connection lost") from error


class Line:
    """A connection that is kept from call to call, and made anew when the other side comes back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel = Channel(path=str(path))
        self._left = CALLS

    def channel(self) -> Channel:
        """Give the channel for the next call; the one before must have ended."""
        if not self._left:
            self.close()
            self._channel, self._left = Channel(path=str(self._path)), CALLS
        self._left -= 1
        return self._channel

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


class Listener(Server):
    """A server that ends its connections with itself.

    grpclib's leaves that to the clients, and asyncio's forgets a connection that comes at the last moment.
    """

    def listen(self, path: Path) -> None:
        """Serve a socket.

        Raises:
            OSError: it cannot be served.
        """
        self._connections: WeakSet[H2Protocol] = WeakSet()
        self._arriving: set[asyncio.Task[None]] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(str(path))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def shut(self) -> None:
        """Take no more connections than there are."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        await asyncio.gather(*self._arriving)

    def drop(self) -> None:
        """Close all connections after what was said on them, and end the calls that they carry."""
        for each in self._connections:
            each.processor.close()

    def _accept(self) -> None:
        try:
            arrived, _ = self._socket.accept()
        except BlockingIOError:  # it is gone again
            return
        task = asyncio.create_task(self._take(arrived))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _take(self, arrived: socket.socket) -> None:
        arrived.settimeout(0)
        _, connection = await asyncio.get_running_loop().connect_accepted_socket(self._protocol_factory, arrived)
        self._connections.add(connection)
