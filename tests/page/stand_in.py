"""A stand-in for `kubectl proxy` and its API server: the rows of a scene on a Unix socket, and failures on demand."""

import contextlib
import json
import re
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from tests.page import rows
from tests.page.rows import Rows
from tests.page.scene import Change, Scene

API: Final = "/apis/visibility.berth.dev/v1alpha1/"
PATH: Final = re.compile(r"(?:namespaces/(?P<namespace>[^/]+)/)?(?P<plural>fleet|queue|holders)")
EXPLAINED: Final = re.compile(r"namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)/explanation")
REASONS: Final = {403: "Forbidden", 404: "NotFound", 410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable"}
NAMED: Final = "metadata.name="
"""The only field selector that the page uses."""
COMPRESSED: Final = 128 * 1024
"""Bytes from which lists are compressed."""

Explained = Callable[[str, str], Any]
"""Returns the explanation of a namespace's pod, None if there is no such pod."""


def status(code: int, message: str) -> dict[str, Any]:
    """Return a Status object of Kubernetes."""
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**head, "message": message, "reason": REASONS.get(code, ""), "code": code}


EXPIRED: Final = status(410, "too old resource version: 1 (2)")


class StandIn:
    """The server, which can be stopped and started again; a context manager."""

    def __init__(self, folder: Path, scene: Scene, documents: Mapping[str, Any] | None = None) -> None:
        """Create it; `documents` has what other paths answer."""
        self.socket, self.scene = folder / "api.sock", scene
        self.rows = {
            "fleet": Rows("fleet", scene.fleet.values()),
            "queue": Rows("queue", scene.queue),
            "holders": Rows("holders", scene.holders.values()),
        }
        self.documents = dict(documents or {})
        self.refusals: dict[str, dict[str, Any]] = {}
        """Regular expression of paths below the API -> the Status with which they are refused."""
        self.explained: Explained = scene.explanation
        self.requests: list[str] = []
        """Paths with queries, as they were asked for."""
        self.generation = 0
        """Watches of an earlier one end."""
        self.farewell = b""
        """What they send at last."""
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def start(self) -> None:
        """Listen."""
        self.socket.unlink(missing_ok=True)
        self._server = _Server(str(self.socket), self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and break all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.cut()
            self.socket.unlink(missing_ok=True)

    def refuse(self, path: str, code: int, message: str = "") -> None:
        """Refuse paths that match a regular expression, and end the watches."""
        self.refusals[path] = status(code, message)
        self.end_watches()

    def accept(self) -> None:
        """Refuse nothing any more."""
        self.refusals.clear()

    def expire(self) -> None:
        """End all watches, because their versions are too old."""
        self.end_watches(rows.error(EXPIRED))

    def end_watches(self, farewell: bytes = b"") -> None:
        """End all watches, with a frame or without."""
        self.farewell = farewell
        self.generation += 1

    def change(self, changes: Iterable[Change]) -> None:
        """Apply changes of the scene."""
        by_kind: dict[str, list[tuple[str, Any]]] = {}
        for plural, kind, row in changes:
            by_kind.setdefault(plural, []).append((kind, row))
        for plural, some in by_kind.items():
            self.rows[plural].change(some)

    def count(self, path: str, *, watch: bool) -> int:
        """Return how many lists, or watches, of a path were asked for."""
        asked = [each for each in self.requests if urlsplit(each).path == API + path]
        return sum(("watch=" in each) == watch for each in asked)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, path: str, stand_in: StandIn) -> None:
        self.stand_in = stand_in
        self._connections: set[socket.socket] = set()
        super().__init__(path, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing when a client disconnects."""

    def cut(self) -> None:
        """Break all connections."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Answer a request."""
        stand_in, address = self.server.stand_in, urlsplit(self.path)
        stand_in.requests.append(self.path)
        path = address.path.removeprefix(API)
        refused = next((each for pattern, each in stand_in.refusals.items() if re.fullmatch(pattern, path)), None)
        if refused is not None:
            self._json(refused, refused["code"])
        elif listed := PATH.fullmatch(path):
            self._rows(stand_in, listed["plural"], listed["namespace"] or "", parse_qs(address.query))
        elif explained := EXPLAINED.fullmatch(path):
            self._found(stand_in.explained(explained["namespace"], explained["name"]))
        else:
            self._found(stand_in.documents.get(address.path))

    def _rows(self, stand_in: StandIn, plural: str, namespace: str, query: Mapping[str, list[str]]) -> None:
        kind = stand_in.rows[plural]
        if query.get("watch"):
            self._watch(stand_in, kind, namespace, query)
            return
        selected = query.get("fieldSelector", [""])[0]
        if selected:
            self._send(kind.named(selected.removeprefix(NAMED)))
            return
        plain, compressed = kind.listed(namespace)
        if "gzip" in self.headers.get("Accept-Encoding", "") and len(plain) > COMPRESSED:
            self._send(compressed, encoding="gzip")
        else:
            self._send(plain)

    def _watch(self, stand_in: StandIn, kind: Rows, namespace: str, query: Mapping[str, list[str]]) -> None:
        generation, version = stand_in.generation, int(query.get("resourceVersion", ["0"])[0] or 0)
        if 0 < version < kind.oldest:
            self._json(EXPIRED, EXPIRED["code"])
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if not version or query.get("sendInitialEvents"):
            version = kind.version
            self._chunk(kind.initial(namespace) + kind.bookmark(ends_initial=True))
        while stand_in.generation == generation and not self._is_left():
            version, lines = kind.after(version, namespace)
            self._chunk(lines)
        self._chunk(stand_in.farewell)
        self.wfile.write(b"0\r\n\r\n")

    def _is_left(self) -> bool:
        """Return whether the client is gone."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")
            self.wfile.flush()

    def _found(self, document: Any) -> None:
        if document is None:
            self._json(status(404, "the server could not find the requested resource"), 404)
        else:
            self._json(document, 200)

    def _json(self, document: Any, code: int) -> None:
        self._send(json.dumps(document).encode(), code)

    def _send(self, body: bytes, code: int = 200, encoding: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Log nothing."""
