"""Wait for the kernel's event `WEDGED`, by which it says that a card needs a reset (Linux 6.15 and later).

The kernel sends its events to all network namespaces of its first user namespace, where every process may receive
them. No privilege is needed. If the socket cannot be opened, or its buffer was too small, events are lost, and are not
sent again.
"""

import asyncio
import re
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import structlog

PROTOCOL: Final = 15
"""NETLINK_KOBJECT_UEVENT."""
KERNEL: Final = 1
"""The group of the kernel's own events; udev sends to another."""
MAX_BYTES: Final = 8192
BUFFER: Final = 1 << 20
MAX_AT_ONCE: Final = 256
"""Messages that are received before other work gets its turn."""
MAX_METHODS: Final = 128
_CARD: Final = re.compile(r"/([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/drm/card[0-9]+")

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Wedged(NamedTuple):
    """An event of a card."""

    address: str
    """Its PCI address."""
    methods: str
    """What may recover it: `none`, or `rebind,bus-reset`."""


class EventSource(Protocol):
    """Where the kernel's messages come from."""

    def fileno(self) -> int:
        """Return its file, which can be read when there is a message."""
        ...

    def receive(self) -> bytes | None:
        """Return the next message; empty if it does not count; None if there is none.

        Raises:
            OSError: messages were lost, or no more come.
        """
        ...

    def close(self) -> None:
        """Receive nothing from now on."""
        ...


class KernelEvents:
    """The kernel's messages.

    Raises:
        OSError: they cannot be received.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, PROTOCOL)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._socket.bind((0, KERNEL))

    def fileno(self) -> int:
        """Return its file."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Return the next message; empty if it is not the kernel's."""
        try:
            message, (sender, _) = self._socket.recvfrom(MAX_BYTES)
        except BlockingIOError:
            return None
        return message if sender == 0 else b""

    def close(self) -> None:
        """Receive nothing from now on."""
        self._socket.close()


def wedged(message: bytes) -> Wedged | None:
    """Return the event that a message is; None for all others."""
    lines = message.decode(errors="replace").split("\0")
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    card = _CARD.search(values.get("DEVPATH", ""))
    methods = values.get("WEDGED", "")
    if card is None or not methods.isprintable() or not methods or values.get("SUBSYSTEM") != "drm":
        return None
    return Wedged(card[1], methods[:MAX_METHODS])


class EventListener:
    """Passes events on, in the loop that runs when it is created."""

    def __init__(self, report: Callable[[Wedged], object], *, open_source: Callable[[], EventSource]) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._source: EventSource | None = None
        try:
            self._source = open_source()
        except OSError as error:
            _log.warning("events of GPUs are not received; their health comes from readings alone", error=str(error))
            return
        self._loop.add_reader(self._source.fileno(), self._receive)

    def close(self) -> None:
        """Pass nothing on from now on."""
        if self._source:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._source.fileno())
            self._source.close()
            self._source = None

    def _receive(self) -> None:
        for _ in range(MAX_AT_ONCE):
            try:
                message = self._source.receive() if self._source else None
            except OSError as error:
                # ENOBUFS: the next message can be received again.
                _log.warning("events of GPUs were lost", error=str(error))
                return
            if message is None:
                return
            if event := wedged(message):
                _log.warning("GPU is wedged", address=event.address, methods=event.methods)
                self._report(event)
