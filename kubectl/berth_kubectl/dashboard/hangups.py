"""Detect that the client of a running watch has closed its connection.

A watch in which nothing changes writes nothing, so its thread would notice only after the next change. Each reload of
the page would leave another idle watch behind.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

PERIOD: Final = 0.25
"""Seconds within which a new watch is looked at."""
Client = tuple[socket.socket, Callable[[], None]]


class Hangups:
    """One thread for the clients of all running watches, which are few."""

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def calling(self, client: socket.socket, hang_up: Callable[[], None]) -> Iterator[None]:
        """Call `hang_up` once if the client closes the connection, or sends anything, while the body runs."""
        number = client.fileno()
        with self._changed:
            self._clients[number] = (client, hang_up)
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._clients.pop(number, None)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._clients and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                clients = dict(self._clients)
            poller = select.poll()
            for number in clients:
                poller.register(number, select.POLLIN)
            for number, _ in poller.poll(PERIOD * 1000):
                with self._changed:
                    if self._clients.get(number) is not clients[number]:
                        continue  # it has ended, and the number may be another connection's now
                    del self._clients[number]
                clients[number][1]()
