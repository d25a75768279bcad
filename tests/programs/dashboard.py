"""What tests of the dashboard use: its server, a client, and an upstream on a Unix socket for `kubectl proxy`."""

import contextlib
import http.client
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from berth_kubectl.dashboard.dashboard_server import Limits, Server
from berth_kubectl.dashboard.relay import Relay
from berth_kubectl.transport.proxy import Proxy

BASE: Final = "/apis/visibility.berth.dev/v1alpha1"
FLEET: Final = f"{BASE}/fleet"
WATCH: Final = f"{FLEET}?watch=true"
CONTEXT: Final = {"context": "prod", "server": "", "namespace": "ml", "version": "0.1.0", "started": ""}
PATIENCE: Final = 60.0
"""Seconds for what takes milliseconds."""

Script = Callable[[socket.socket], None]
"""Answers one request, as bytes on the connection."""


def whole(body: bytes, status: str = "200 OK", **headers: str) -> Script:
    """Return what sends an answer with its length."""
    named = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return lambda connection: connection.sendall(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)


def start_chunks(connection: socket.socket) -> None:
    """Send the head of a watch."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")


def send_chunk(connection: socket.socket, data: bytes) -> None:
    """Send a piece of a watch; an empty one ends it."""
    connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))


class Upstream(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers each path by its script, and records what it was asked for."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Upstream)
        self.path = path
        self.scripts: dict[str, Script] = {}
        self.requests: list[str] = []
        """The heads of requests."""

    @property
    def targets(self) -> list[str]:
        """Return paths and queries of the requests."""
        return [head.split()[1] for head in self.requests]


class _Upstream(socketserver.StreamRequestHandler):
    server: Upstream

    def handle(self) -> None:
        lines = []
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            lines.append(line)
        head = b"".join(lines).decode()
        if not head:  # a probe
            return
        self.server.requests.append(head)
        script = self.server.scripts[head.split()[1].partition("?")[0]]
        with contextlib.suppress(OSError):  # the dashboard hung up
            script(self.connection)


@dataclass(slots=True, kw_only=True)
class Client:
    """A browser, or something that poses as one."""

    port: int
    cookie: str = ""
    host: str = ""
    open_ends: list[http.client.HTTPConnection | http.client.HTTPResponse] = field(default_factory=list)
    """What `close` closes; an answer can outlive its connection."""

    def open(
        self, target: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request; return the answer, whose body may not have arrived."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self.open_ends.append(connection)
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        own = {"Host": self.host or f"127.0.0.1:{self.port}", "Cookie": self.cookie, **(headers or {})}
        for name, value in own.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        self.open_ends.append(answer)
        return answer

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        answer = self.open(target, headers=headers)
        return answer.status, answer.read()

    def json(self, target: str) -> Any:
        """Return status and decoded body."""
        status, body = self.get(target)
        return status, json.loads(body)

    def log_in(self, token: str) -> "Client":
        """Exchange a token."""
        answer = self.open(f"/?token={token}")
        assert answer.status == 303
        self.cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        return self

    def raw(self, data: bytes) -> bytes:
        """Send bytes; return all that comes back until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def close(self) -> None:
        """Close all connections."""
        while self.open_ends:
            self.open_ends.pop().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A running dashboard with its upstream."""

    server: Server
    upstream: Upstream
    relay: Relay
    client: Client
    """Logged in."""
    stranger: Client
    """Without a cookie."""


@contextlib.contextmanager
def running(folder: Path, diagnose: Callable[[], dict[str, Any]] = dict, **limits: float) -> Iterator[Desk]:
    """Run a dashboard; `limits` are fields of `Limits`, and `watches`."""
    watches = int(limits.pop("watches", 16))
    with Upstream(folder / "api.sock") as upstream:
        thread = threading.Thread(target=upstream.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        relay = Relay(watches)
        relay.use(Proxy(upstream.path))
        server = Server(0, context=CONTEXT, diagnose=diagnose, relay=relay, limits=Limits(**limits))  # type: ignore[arg-type]
        client, stranger = Client(port=server.port), Client(port=server.port)
        try:
            with server.serving(), contextlib.closing(client), contextlib.closing(stranger):
                client.log_in(server.login.token)
                yield Desk(server=server, upstream=upstream, relay=relay, client=client, stranger=stranger)
        finally:
            upstream.shutdown()
            thread.join()
