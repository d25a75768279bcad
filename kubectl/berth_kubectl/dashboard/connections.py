"""The open connections: how many there are, and which one is closed if there are too many."""

import contextlib
import socket
import threading


class Connections:
    """Connections in the order in which they became idle; one that waits for its answer is not idle."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[socket.socket, None] = {}
        self._busy: set[socket.socket] = set()
        self._lock = threading.Condition()

    def __len__(self) -> int:
        with self._lock:
            return len(self._idle) + len(self._busy)

    def count_busy(self) -> int:
        """Return how many connections wait for their answers."""
        with self._lock:
            return len(self._busy)

    def admit(self, connection: socket.socket) -> bool:
        """Return whether there is room for a new connection; the one that is idle longest makes room.

        Clients that open connections and send nothing, or send slowly, cannot keep others out by that.
        """
        with self._lock:
            full = len(self._idle) + len(self._busy) >= self._limit
            if full and not self._idle:
                return False
            if full:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                _shut(oldest)
            self._idle[connection] = None
            return True

    def busy(self, connection: socket.socket) -> None:
        """Record that a whole request has arrived."""
        with self._lock:
            if connection in self._idle:
                del self._idle[connection]
                self._busy.add(connection)

    def idle(self, connection: socket.socket) -> None:
        """Record that the answer was sent."""
        with self._lock:
            if connection in self._busy:
                self._busy.remove(connection)
                self._idle[connection] = None

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that is about to be closed."""
        with self._lock:
            self._idle.pop(connection, None)
            self._busy.discard(connection)
            self._lock.notify_all()

    def shut_all(self, seconds: float) -> None:
        """Shut all connections, and wait at most so many seconds for their threads, which end by that."""
        with self._lock:
            for connection in (*self._idle, *self._busy):
                _shut(connection)
            self._lock.wait_for(lambda: not self._idle and not self._busy, seconds)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client was faster
        connection.shutdown(socket.SHUT_RDWR)
