"""The web server, on loopback only."""

import contextlib
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from berth_kubectl.dashboard import files, handler, peers
from berth_kubectl.dashboard.connections import Connections
from berth_kubectl.dashboard.hangups import Hangups
from berth_kubectl.dashboard.health import Health
from berth_kubectl.dashboard.login import Login
from berth_kubectl.dashboard.relay import Relay
from berth_kubectl.errors import CommandError

HOST: Final = "127.0.0.1"
POLL: Final = 0.1
"""Seconds after which the server notices that it is to end."""
STOP: Final = 5.0
"""Seconds for the threads of connections to end."""
BUSY: Final = "".join(
    f"{line}\r\n"
    for line in (
        "HTTP/1.1 503 Service Unavailable",
        *(f"{name}: {value}" for name, value in handler.HEADERS.items()),
        "Connection: close",
        "Content-Length: 0",
        "",
    )
).encode()
"""The answer if all connections are busy; it is sent without reading a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What clients may take."""

    connections: int = 64
    """A browser opens six to one host; each takes a thread."""
    seconds: float = 30.0
    """Within which a client has to send some of its request, or to take a piece of its answer."""


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread for each connection; `http.server.HTTPServer` would look up the host's name by DNS."""

    daemon_threads = True
    allow_reuse_address = True  # the port of a dashboard that has just ended
    request_queue_size = 64

    def __init__(
        self,
        port: int,
        *,
        context: Mapping[str, str],
        diagnose: Callable[[], dict[str, Any]],
        relay: Relay,
        limits: Limits = Limits(),
    ) -> None:
        """Listen on a port, 0 for a free one; `context` is the answer to `/api/context`.

        Raises:
            CommandError: the port cannot be used.
        """
        self.files, self.context = files.read(), orjson.dumps(context)
        self.health, self.relay = Health(diagnose), relay
        self.connections, self.hangups = Connections(limits.connections), Hangups()
        self._users, self._has_refused = peers.allowed(os.getuid(), os.environ), False
        own_handler = type("Handler", (handler.Handler,), {"dashboard": self, "timeout": limits.seconds})
        try:
            super().__init__((HOST, port), own_handler)
        except OSError as error:
            raise CommandError(f"port {port} of {HOST}: {error.strerror}; --port names another one") from error
        self.port: int = self.socket.getsockname()[1]
        self.hosts = frozenset({f"{HOST}:{self.port}", f"localhost:{self.port}"})
        self.login = Login(self.port)

    @property
    def address(self) -> str:
        """Return what to open in a browser."""
        return f"http://{HOST}:{self.port}/?token={self.login.token}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve while the body runs, then close."""
        thread = threading.Thread(target=self.serve_forever, args=(POLL,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.connections.shut_all(STOP)
            self.hangups.close()
            self.server_close()

    # --- the base classes ---------------------------------------------------------------------------------------

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Return whether the connection is of a user who may connect; report the first one who may not."""
        user = peers.user_of(client_address, (HOST, self.port))
        if user is None or user in self._users:
            return True
        if not self._has_refused:
            self._has_refused = True
            sys.stderr.write(f"refused a connection of another user, with the id {user}; this is reported once\n")
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, if there is room."""
        if self.connections.admit(request):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.send(BUSY, socket.MSG_DONTWAIT)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a bug of the server on standard error; a connection that breaks is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
