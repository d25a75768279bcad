"""Relay requests to `kubectl proxy`. Lists and explanations are passed on unchanged, watches as they arrive."""

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from berth_kubectl.dashboard import statuses
from berth_kubectl.dashboard.routes import Relayed
from berth_kubectl.errors import ReadError
from berth_kubectl.transport.proxy import Connection, Proxy

TIMEOUT: Final = 60.0
"""Seconds that an answer may pause."""
WATCH_TIMEOUT: Final = 3600 + TIMEOUT
"""The same for a watch, in which nothing may change; the visibility API ends it after an hour at the latest."""
MAX_WATCHES: Final = 16
BUSY_SECONDS: Final = 5
"""After how many seconds a client may ask again for a watch that was one too many."""
PIECE: Final = 65536
"""Bytes that are passed on at once."""
LONGEST_MESSAGE: Final = 500
REDIRECTED: Final = 3
"""Hundreds of the HTTP status: a redirection is for people, from a proxy that wants a login."""
PASSED: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }
)
"""Statuses that keep their meaning without a Status document."""
JSON: Final = "application/json"
_DATE: Final = re.compile(r"[A-Za-z]{3}, [0-9]{2} [A-Za-z]{3} [0-9]{4} [0-9:]{8} GMT")


class RelayError(Exception):
    """There is no answer to relay."""

    def __init__(self, status: HTTPStatus, reason: str, message: str, *, retry_after: int = 0) -> None:
        """Create the error with the parts of its Status document; `retry_after` is in seconds, 0 if not known."""
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.body = statuses.status(status, reason, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The beginning of an answer, with what reads the rest."""

    status: int
    headers: Mapping[str, str]
    """The headers that are passed on."""
    length: int | None
    """Bytes of the body; None if not known."""
    read: Callable[[], bytes]
    """Returns what has arrived; empty at the end. Raises RelayError if the answer breaks off."""
    break_off: Callable[[], None]
    """Ends a `read` that waits in another thread."""


class Relay:
    """Sends requests to the proxy that runs now."""

    def __init__(self, max_watches: int = MAX_WATCHES) -> None:
        """Create it without a proxy."""
        self._proxy: Proxy | None = None
        self._max_watches = max_watches
        self._watches = threading.BoundedSemaphore(max_watches)

    def use(self, proxy: Proxy | None) -> None:
        """Use another proxy from now on; None if none runs."""
        self._proxy = proxy

    @property
    def proxy(self) -> Proxy:
        """Return the proxy that runs.

        Raises:
            ReadError: none runs.
        """
        if self._proxy is None:
            raise ReadError("kubectl proxy does not run; it is being started")
        return self._proxy

    @contextlib.contextmanager
    def answer(self, wanted: Relayed, *, gzip: bool) -> Iterator[Answer]:
        """Send a request and yield its answer.

        Raises:
            RelayError: there is none, or there are too many watches.
        """
        with self._place(wanted) as place, contextlib.closing(self._connection(wanted)) as connection:
            headers = {"Accept": JSON, **({"Accept-Encoding": "gzip"} if gzip and not wanted.watch else {})}
            try:
                connection.request("GET", wanted.request.target, headers=headers)
                connected = connection.sock  # the connection drops it with the last answer
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise _unreachable(f"kubectl proxy did not answer: {error!r}") from error
            if answer.status != HTTPStatus.OK:
                place.close()  # it is no watch: a client that has read it may ask again at once
            with answer:
                yield _checked(answer, connected)

    def _connection(self, wanted: Relayed) -> Connection:
        try:
            return Connection(self.proxy.socket, WATCH_TIMEOUT if wanted.watch else TIMEOUT)
        except ReadError as error:
            raise _unreachable(str(error)) from error

    def _place(self, wanted: Relayed) -> contextlib.ExitStack:
        """Take one of the places for watches; the stack gives it back."""
        place = contextlib.ExitStack()
        if wanted.watch:
            if not self._watches.acquire(blocking=False):
                message = (
                    f"{self._max_watches} watches are running, which is the limit; close other windows of the dashboard"
                )
                raise RelayError(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", message, retry_after=BUSY_SECONDS)
            place.callback(self._watches.release)
        return place


def _checked(answer: http.client.HTTPResponse, connected: socket.socket) -> Answer:
    """Return what is passed on of an answer: JSON, and a few headers.

    The date is the API server's, by whose clock objects have their times.
    """
    if answer.headers.get_content_type() != JSON or answer.status // 100 == REDIRECTED:
        try:
            text = (
                answer.read1(PIECE).decode(errors="replace")
                if answer.headers.get_content_type() == "text/plain"
                else ""
            )
        except (OSError, http.client.HTTPException):
            text = ""
        message = " ".join(text.split())[:LONGEST_MESSAGE] or f"HTTP status {answer.status} without JSON"
        if answer.status in PASSED:
            status = HTTPStatus(answer.status)
            raise RelayError(status, status.phrase.replace(" ", ""), message)
        raise _unreachable(f"the API server did not answer: {message}")
    encoding, pause, date = (answer.headers.get(name, "") for name in ("Content-Encoding", "Retry-After", "Date"))
    if encoding not in ("", "gzip"):
        raise _unreachable("the API server's answer has an unknown Content-Encoding")
    headers = {"Content-Type": JSON}
    headers |= {"Content-Encoding": encoding} if encoding else {}
    headers |= {"Retry-After": pause} if pause.isdecimal() else {}
    headers |= {"Date": date} if _DATE.fullmatch(date) else {}

    def read() -> bytes:
        try:
            return answer.read1(PIECE)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable("the answer broke off") from error

    def break_off() -> None:
        with contextlib.suppress(OSError):  # it has ended
            connected.shutdown(socket.SHUT_RDWR)

    return Answer(status=answer.status, headers=headers, length=answer.length, read=read, break_off=break_off)


def _unreachable(message: str) -> RelayError:
    return RelayError(HTTPStatus.BAD_GATEWAY, statuses.UNREACHABLE, message)
