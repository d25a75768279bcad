"""Answer the requests of one connection."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import Any, Final, Protocol

from berth_kubectl.dashboard import routes
from berth_kubectl.dashboard.connections import Connections
from berth_kubectl.dashboard.files import INDEX, File
from berth_kubectl.dashboard.hangups import Hangups
from berth_kubectl.dashboard.health import Health
from berth_kubectl.dashboard.login import Login
from berth_kubectl.dashboard.relay import Answer, Relay, RelayError
from berth_kubectl.dashboard.routes import RefusedError

MAX_REQUEST: Final = 65536
"""Bytes of a request with its headers. Cookies of servers on other ports are sent, too."""
TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""
LOGIN_NEEDED: Final = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>kubectl berth dashboard</title>
<p>This browser is not logged in. Open the address that <code>kubectl berth dashboard</code> printed; it works once.</p>
<p>If you have just opened it by a link on another page, <a href="/">continue</a>.</p>
</html>
"""
"""Browsers leave the cookie out if another site's link led here, so the page has a link of its own."""


class Dashboard(Protocol):
    """What the handlers of all connections share."""

    hosts: frozenset[str]
    """Allowed values of the header `Host`."""
    login: Login
    files: Mapping[str, File]
    context: bytes
    """The answer to `/api/context`."""
    health: Health
    relay: Relay
    connections: Connections
    hangups: Hangups


class Handler(BaseHTTPRequestHandler):
    """Handles one connection, in a thread of its own."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # answers to older requests need headers, too
    disable_nagle_algorithm = True
    dashboard: Dashboard

    def handle_one_request(self) -> None:
        """Read a request and answer it."""
        whole, self.rfile = self.rfile, _Limited(self.rfile)  # type: ignore[assignment] # parts of the interface
        try:
            self.command, self.requestline, self.request_version = "", "", self.default_request_version
            try:
                self.raw_requestline = self.rfile.readline()
            except LineTooLong:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
                return
            if not self.raw_requestline:
                self.close_connection = True
            elif self.parse_request():
                self.dashboard.connections.busy(self.connection)
                self._answer()
                self.dashboard.connections.idle(self.connection)
        except OSError:  # the client is gone or does not read; a relayed answer must not look complete
            self.close_connection = True
        finally:
            self.rfile = whole

    def _answer(self) -> None:
        try:
            self._check()
            target = self.requestline.split()[1]  # the base class changes it: `//a` would be `/a`
            if token := routes.token(target):
                # A token is exchanged once; a browser that has the cookie may open the address again.
                if self.dashboard.login.exchange(token):
                    self._send(
                        HTTPStatus.SEE_OTHER, TEXT, b"", {"Location": "/", "Set-Cookie": self.dashboard.login.cookie}
                    )
                elif self._is_logged_in:
                    self._send(HTTPStatus.SEE_OTHER, TEXT, b"", {"Location": "/"})
                else:
                    self._refuse(HTTPStatus.UNAUTHORIZED, LOGIN_NEEDED, HTML)
                return
            if not self._is_logged_in:
                self._refuse(HTTPStatus.UNAUTHORIZED, LOGIN_NEEDED, HTML)
                return
            wanted = routes.route(target)
            match wanted:
                case routes.PageView():
                    self._send_file(INDEX)
                case routes.PageFile(path=path):
                    self._send_file(path)
                case routes.Context():
                    self._send(HTTPStatus.OK, JSON, self.dashboard.context)
                case routes.Doctor():
                    result = self.dashboard.health.result()
                    self._send(result.status, JSON, result.body)
                case routes.Relayed():
                    gzip = "gzip" in self.headers.get("Accept-Encoding", "")
                    with (
                        self.dashboard.relay.answer(wanted, gzip=gzip) as answer,
                        self.dashboard.hangups.calling(self.connection, answer.break_off),
                    ):
                        chunked = answer.length is None
                        framing = (
                            {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(answer.length)}
                        )
                        self._send_head(answer.status, {**answer.headers, **framing})
                        try:
                            for piece in _pieces(answer):
                                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                            if chunked:
                                self.wfile.write(b"0\r\n\r\n")
                        except RelayError:  # the head is sent: the client learns it by the missing end
                            self.close_connection = True
        except RefusedError as error:
            self._refuse(error.status, f"{error}\n".encode(), TEXT, error.headers)
        except RelayError as error:
            headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
            self._send(error.status, JSON, error.body, headers)

    def _check(self) -> None:
        """Raise RefusedError for a request that no page of this server sends."""
        if self.request_version != self.protocol_version:
            self.request_version = self.protocol_version  # to an older one the base class sends no headers
            raise RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is served")
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.dashboard.hosts:
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, "open the address that kubectl berth dashboard printed")
        if self.command != "GET":
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is allowed", {"Allow": "GET"})
        if "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0":
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a request must have no body")
        # Only the dashboard's page may send requests, or a user who opens it. The cookie does not show it: a page on
        # another port of this host belongs to the same site. Older browsers send none of these headers.
        site, mode, dest = (self.headers.get(f"Sec-Fetch-{name}", "") for name in ("Site", "Mode", "Dest"))
        if (mode, dest) != ("navigate", "document") and site not in ("", "none", "same-origin"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "another page sent this request")

    @property
    def _is_logged_in(self) -> bool:
        return self.dashboard.login.is_valid(self.headers.get_all("Cookie") or [])

    def _send_file(self, path: str) -> None:
        file = self.dashboard.files.get(path)
        if file is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "the page has no such file")
        self._send(HTTPStatus.OK, file.content_type, file.body)

    # --- answers ------------------------------------------------------------------------------------------------

    def _refuse(
        self, status: HTTPStatus, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an error and close the connection, on which a body may follow that was not read."""
        self.close_connection = True
        self._send(status, content_type, body, {**(headers or {}), "Connection": "close"})

    def _send(
        self, status: HTTPStatus, content_type: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        self._send_head(status, {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        own = {"Server": self.version_string(), "Date": self.date_time_string(), **HEADERS}
        for name, value in {**own, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    # --- the base class -----------------------------------------------------------------------------------------

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send the error of a request that cannot be parsed, without anything that it contains."""
        self.request_version, status = self.protocol_version, HTTPStatus(code)
        self._refuse(status, f"{status.phrase}\n".encode(), TEXT)

    def handle_expect_100(self) -> bool:
        """Send nothing before the request was checked; a request with a body is refused anyway."""
        return True

    def version_string(self) -> str:
        """Return the header `Server`."""
        return "berth"

    def log_message(self, *_: Any) -> None:
        """Write no log: standard error is the user's terminal."""


class _Limited:
    """The reading end of a connection for one request, which may have only so many bytes."""

    def __init__(self, source: BufferedIOBase) -> None:
        self._source, self._left = source, MAX_REQUEST

    def readline(self, size: int = -1) -> bytes:
        """Return a line; it is cut off, and so an error, at the limit."""
        line = self._source.readline(min(self._left + 1, size) if size >= 0 else self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("the request")
        return line


def _pieces(answer: Answer) -> Iterator[bytes]:
    """Yield the body of an answer as it arrives.

    Raises:
        RelayError: it breaks off.
    """
    left = answer.length
    while left != 0 and (piece := answer.read()):
        yield piece
        left = None if left is None else left - len(piece)
    if left:
        raise RelayError(HTTPStatus.BAD_GATEWAY, "", "the answer broke off")
