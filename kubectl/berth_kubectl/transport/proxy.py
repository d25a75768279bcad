"""`kubectl proxy` on a Unix socket in a private folder, for commands that need several requests.

The proxy answers only GET requests, and ends with the command.
"""

import contextlib
import http.client
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import orjson

from berth_api.values import decoding
from berth_kubectl.errors import ReadError
from berth_kubectl.transport.kubectl import Kubectl, failure
from berth_kubectl.transport.request import Request

REFUSED: Final = "POST,PUT,PATCH,DELETE,HEAD,OPTIONS,CONNECT,TRACE"
START: Final = 30.0
"""Seconds for the proxy to start, on a busy machine."""
POLL: Final = 0.005
STOP: Final = 5.0
TIMEOUT: Final = 60.0
"""Seconds for an answer."""
WATCH_SECONDS: Final = 300
"""Duration of a watch; then another one continues."""
BUSY_ATTEMPTS: Final = 4
"""How often a request is sent that the API server is too busy for, as it says, or whose kind it is just loading."""
BUSY_SECONDS: Final = 3.0
"""Longest pause between two of them, whatever the API server asks for."""
PARALLEL: Final = 6
"""Requests under way at the same time."""

COMPRESSED: Final = {"Accept-Encoding": "gzip"}
"""Unpacked here, once: kubectl proxy would unpack it and pass on ten times the bytes."""
GZIP: Final = 31
"""zlib's number for its format."""

Object = dict[str, Any]


class Proxy:
    """A running proxy."""

    def __init__(self, socket_path: Path, has_ended: Callable[[], bool] = lambda: False) -> None:
        """Create it with the path of its socket, and what returns whether its process has ended."""
        self.socket = str(socket_path)
        """Where it listens."""
        self.has_ended = has_ended
        self.server_date = ""
        """The API server's clock at its last answer, as in the header `Date`."""

    def get(self, request: Request) -> Any:
        """Return the decoded answer.

        Raises:
            ReadError: there was no answer, or an error.
        """
        for _ in range(BUSY_ATTEMPTS - 1):
            try:
                return self._get(request)
            except ReadError as error:
                if error.status != http.HTTPStatus.TOO_MANY_REQUESTS:
                    raise
                time.sleep(min(error.retry_after or 1.0, BUSY_SECONDS))
        return self._get(request)

    def _get(self, request: Request) -> Any:
        with contextlib.closing(Connection(self.socket, TIMEOUT)) as connection:
            answer = self._send(connection, request, COMPRESSED)
            try:
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise ReadError(f"GET {request.path}: the answer broke off: {error!r}") from error
            return _decoded(request, _unpacked(body) if answer.headers.get("Content-Encoding") == "gzip" else body)

    def get_all(self, requests: Sequence[Request]) -> list[Any]:
        """Return the answer or the ReadError of each request; they are sent in parallel."""
        answers: list[Any] = [None] * len(requests)
        waiting = iter(enumerate(requests))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    index, request = next(waiting, (-1, None))
                if request is None:
                    return
                try:
                    answers[index] = self.get(request)
                except ReadError as error:
                    answers[index] = error

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(PARALLEL, len(requests)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def watch(self, request: Request, version: str) -> Iterator[Object]:
        """Yield the events of one watch, until it ends.

        Raises:
            ReadError: the watch was refused or broke.
        """
        query = (
            *request.query,
            ("watch", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(WATCH_SECONDS)),
        )
        opened = Request(path=request.path, query=(*query, ("allowWatchBookmarks", "true")))
        with contextlib.closing(Connection(self.socket, WATCH_SECONDS + TIMEOUT)) as connection:
            answer = self._send(connection, opened, {})
            try:
                for line in answer:
                    yield _decoded(opened, line)
            except (OSError, http.client.HTTPException) as error:
                raise ReadError(f"GET {opened.path}: the watch broke: {error}") from error

    def _send(self, connection: "Connection", request: Request, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        try:
            connection.request("GET", request.target, headers={"Accept": "application/json", **headers})
            answer = connection.getresponse()
            self.server_date = answer.headers.get("Date", self.server_date)
            if answer.status != http.HTTPStatus.OK:
                raise _refusal(request, answer)
        except (OSError, http.client.HTTPException) as error:
            raise ReadError(f"GET {request.path}: kubectl proxy did not answer: {error!r}") from error
        return answer


class Connection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        """Create a connection to a socket; `timeout` is in seconds, of each wait for the other side."""
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the proxy."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@contextlib.contextmanager
def opened(kubectl: Kubectl, meanwhile: Callable[[], object] = lambda: None) -> Iterator[Proxy]:
    """Run a proxy; `meanwhile` is called while it starts.

    Raises:
        ReadError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="kubectl-berth-") as folder:  # of mode 0700
        path = Path(folder, "api.sock")
        log = Path(folder, "log")
        command = kubectl.command("proxy", f"--unix-socket={path}", f"--reject-methods={REFUSED}")
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            meanwhile()
            deadline = time.monotonic() + START
            while not _listens(path):
                if process.poll() is not None:
                    raise failure(log.read_text(errors="replace"))
                if time.monotonic() > deadline:
                    raise ReadError(f"kubectl proxy did not start within {START:g} s")
                time.sleep(POLL)
            yield Proxy(path, lambda: process.poll() is not None)
        finally:
            process.terminate()
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listens(path: Path) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        return probe.connect_ex(str(path)) == 0


def _unpacked(body: bytes) -> bytes:
    """Return a body that was compressed with gzip."""
    try:
        return zlib.decompress(body, GZIP)
    except zlib.error as error:
        raise ReadError(f"the answer cannot be decompressed: {error}") from error


def _decoded(request: Request, body: bytes) -> Any:
    try:
        return decoding.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReadError(f"GET {request.path}: the answer is not JSON: {error}") from error


def _refusal(request: Request, answer: http.client.HTTPResponse) -> ReadError:
    """Return the error of an answer: the API server's Status, or the proxy's text."""
    status, asked = answer.status, answer.headers.get("Retry-After", "")
    body = answer.read()
    body = _unpacked(body) if answer.headers.get("Content-Encoding") == "gzip" else body
    try:
        problem: Mapping[str, Any] = orjson.loads(body)
        message, reason = str(problem["message"]), str(problem.get("reason", ""))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message, reason = " ".join(body.decode(errors="replace").split())[:500], ""
        if status == http.HTTPStatus.INTERNAL_SERVER_ERROR:  # the proxy had no answer
            return ReadError(f"the API server did not answer: {message}")
    text = message or f"GET {request.path}: HTTP status {status}"
    return ReadError(text, status=status, reason=reason, retry_after=float(asked) if asked.isdecimal() else 0.0)


def server_time(date: str) -> datetime:
    """Return the time of a header `Date`; this machine's if there is none."""
    try:
        return parsedate_to_datetime(date) if date else datetime.now(tz=UTC)
    except ValueError:
        return datetime.now(tz=UTC)
