"""The client's own rules. The integration tests show its use of a server."""

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devcluster.control_plane.api import ETCD_TIMED_OUT, ETCD_TRIES, Api, ApiError
from tests.stand_ins.certificates import Authority

Answer = tuple[int, dict[str, Any]]

SLOW: Answer = (500, {"kind": "Status", "message": ETCD_TIMED_OUT, "code": 500})
EXISTS: Answer = (409, {"kind": "Status", "reason": "AlreadyExists", "message": "it exists", "code": 409})
NODE = {"metadata": {"name": "a"}}
EVENT: Answer = (200, {"kind": "Event", "message": ETCD_TIMED_OUT})
MADE: Answer = (200, {"metadata": {"name": "a", "uid": "made"}})


@contextlib.contextmanager
def answering(answers: Sequence[Answer], folder: Path) -> Iterator[tuple[Api, list[str]]]:
    """Serve answers in turn; yield a client of the server, and the requests."""
    left, seen = list(answers), list[str]()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(f"{self.command} {self.path}")
            status, body = left.pop(0)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *_: Any) -> None:
            pass

    authority = Authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        api = Api(server=f"https://127.0.0.1:{server.server_port}", token="", ca=authority.file.read_text())
        try:
            yield api, seen
        finally:
            api.close()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("server", ["https://192.0.2.1:6443", "https://[2001:db8::1]:6443", "https://127.0.0.1"])
def test_only_a_port_on_loopback_is_accepted(server: str) -> None:
    with pytest.raises(ValueError, match="not on loopback"):
        Api(server=server, token="", ca="")


@pytest.mark.parametrize(
    ("answers", "last"),
    [((SLOW, SLOW, MADE), "POST /api/v1/nodes"), ((SLOW, EXISTS, MADE), "GET /api/v1/nodes/a")],
    ids=["not executed", "executed"],
)
def test_a_request_is_sent_again_if_etcd_had_no_time(answers: Sequence[Answer], last: str, tmp_path: Path) -> None:
    with answering(answers, tmp_path) as (api, seen):
        assert api.post("/api/v1/nodes", NODE)["metadata"]["uid"] == "made"
    assert (len(seen), seen[-1]) == (3, last)


@pytest.mark.parametrize(("answer", "tries"), [(SLOW, ETCD_TRIES), (EXISTS, 1)], ids=["no time", "another made it"])
def test_what_lasts_is_reported(answer: Answer, tries: int, tmp_path: Path) -> None:
    with answering([answer] * tries, tmp_path) as (api, seen):
        with pytest.raises(ApiError, match=answer[1]["message"]):
            api.post("/api/v1/nodes", NODE)
        assert len(seen) == tries


def test_an_object_with_such_a_message_is_no_error(tmp_path: Path) -> None:
    with answering([EVENT], tmp_path) as (api, seen):
        assert api.get("/api/v1/namespaces/ns/events/a")["kind"] == "Event"
    assert len(seen) == 1
