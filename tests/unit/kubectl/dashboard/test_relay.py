"""The relay between the browser and `kubectl proxy`: unchanged answers, watches frame by frame, and failures."""

import gzip
import http.client
import json
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import waiting
from tests.programs.dashboard import (
    BASE,
    FLEET,
    PATIENCE,
    WATCH,
    Desk,
    Script,
    running,
    send_chunk,
    start_chunks,
    whole,
)

FRAME = b'{"type":"ADDED","object":{"metadata":{"name":"<b>n</b>"}}}\n'


@pytest.fixture
def feed(desk: Desk) -> "Feed":
    return Feed(desk)


class Feed:
    """A watch whose pieces the test sends; None breaks it off, b"" ends it."""

    def __init__(self, desk: Desk) -> None:
        self.pieces: queue.Queue[bytes | None] = queue.Queue()
        desk.upstream.scripts[FLEET] = self._send

    def _send(self, connection: socket.socket) -> None:
        start_chunks(connection)
        while (piece := self.pieces.get(timeout=PATIENCE)) is not None:
            send_chunk(connection, piece)
            if not piece:
                return


def until_client_closes(connection: socket.socket) -> None:
    """Send the head of a watch, and wait until the dashboard hangs up."""
    start_chunks(connection)
    wait_for_end(connection)


def wait_for_end(connection: socket.socket) -> None:
    connection.settimeout(PATIENCE)
    connection.recv(1)


# --- answers that are read whole --------------------------------------------------------------------------------


DATE = "Sun, 22 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden", "404 Not Found", "410 Gone", "429 Too Many", "503 No"])
def test_answers_are_relayed_as_they_are(desk: Desk, status: str) -> None:
    body = json.dumps({"kind": "Status", "message": "<b>ä</b>"}).encode()
    desk.upstream.scripts[FLEET] = whole(body, status, Retry_After="7", Date=DATE)
    answer = desk.client.open(FLEET)
    assert answer.headers.get_all("Date") == [DATE]  # the API server's clock
    assert (answer.status, answer.read()) == (int(status[:3]), body)
    assert (answer.headers["Content-Type"], answer.headers["Retry-After"]) == ("application/json", "7")


def test_the_cluster_gets_the_query_and_nothing_of_the_browser(desk: Desk) -> None:
    desk.upstream.scripts[f"{BASE}/holders"] = whole(b"{}")
    target = f"{BASE}/holders?fieldSelector=metadata.namespace%3Dml&resourceVersion=5"
    secrets = {"Authorization": "Bearer stolen", "Impersonate-User": "admin", "X-Forwarded-For": "1.2.3.4"}
    assert desk.client.get(target, {**secrets, "User-Agent": "browser"})[0] == 200
    [request] = desk.upstream.requests
    assert request.lower().splitlines() == [
        f"get {target.lower()} http/1.1",
        "host: localhost",
        "accept-encoding: identity",
        "accept: application/json",
    ]


def test_the_browser_gets_no_header_of_the_cluster(desk: Desk) -> None:
    desk.upstream.scripts[FLEET] = whole(
        b"{}",
        Set_Cookie="session=1",
        WWW_Authenticate="Basic",
        Access_Control_Allow_Origin="*",
        Audit_Id="1",
        Authorization="Bearer secret",
        Content_Security_Policy="default-src *",
        Retry_After="soon",
        Date="<now>",
    )
    headers = desk.client.open(FLEET).headers
    passed = {"Content-Type", "Content-Length"}
    own = {"Server", "Date", *(name for name, _ in desk.client.open("/none").headers.items())} - {"Connection"}
    assert set(headers) == passed | own
    assert headers.get_all("Content-Security-Policy") == desk.client.open("/").headers.get_all(
        "Content-Security-Policy"
    )


def test_a_compressed_list_is_not_unpacked_on_the_way(desk: Desk) -> None:
    packed = gzip.compress(b'{"items":[]}')
    desk.upstream.scripts[FLEET] = whole(packed, Content_Encoding="gzip")
    answer = desk.client.open(FLEET, headers={"Accept-Encoding": "gzip, deflate, br"})
    assert (answer.headers["Content-Encoding"], answer.read()) == ("gzip", packed)
    assert "accept-encoding: gzip\r\n" in desk.upstream.requests[0].lower()


def test_a_body_longer_than_its_length_is_cut(desk: Desk) -> None:
    """What follows would be the answer to the next request on the connection."""
    arrived = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{")
        arrived.wait(PATIENCE)
        connection.sendall(b"}HTTP/1.1 200 OK\r\n\r\nevil")

    desk.upstream.scripts[FLEET] = script
    own = f"Host: 127.0.0.1:{desk.server.port}\r\nCookie: {desk.client.cookie}\r\n"
    with socket.create_connection(("127.0.0.1", desk.server.port), timeout=PATIENCE) as connection:
        connection.sendall(f"GET {FLEET} HTTP/1.1\r\n{own}\r\nGET /none HTTP/1.1\r\n{own}\r\n".encode())
        answers = b""
        while not answers.endswith(b"\r\n\r\n{"):
            answers += connection.recv(65536)
        arrived.set()
        answers += b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"evil" not in answers
    assert b"\r\n\r\n{}HTTP/1.1 404 Not Found\r\n" in answers


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (lambda connection: connection.close(), "kubectl proxy did not answer"),
        (lambda connection: connection.sendall(b"nonsense\r\n\r\n"), "kubectl proxy did not answer"),
        (
            whole(b"dial tcp 10.0.0.1:443:\n refused", "500 Error", Content_Type="text/plain"),
            "dial tcp 10.0.0.1:443: refused",
        ),
        (whole(b"<h1>Log in</h1>", Content_Type="text/html"), "HTTP status 200 without JSON"),
        (whole(b"{}", "302 Found", Location="https://login.example"), "HTTP status 302 without JSON"),
        (whole(b"{}", Content_Encoding="br"), "unknown Content-Encoding"),
        (whole(b"x" * 10**6, "500 Error", Content_Type="text/plain"), "x" * 500),
    ],
)
def test_no_answer_is_a_status_that_says_so(desk: Desk, script: Script, message: str) -> None:
    desk.upstream.scripts[FLEET] = script
    status, body = desk.client.json(FLEET)
    assert (status, body["kind"], body["reason"], body["code"]) == (502, "Status", "Unreachable", 502)
    assert message in body["message"]
    assert len(body["message"]) < 600


@pytest.mark.parametrize(
    ("line", "reason", "text"),
    [
        ("404 Not Found", "NotFound", "404 page not found"),  # the API server, for an API that it does not serve
        ("503 Service Unavailable", "ServiceUnavailable", "service unavailable"),  # for one without servers
        ("403 Forbidden", "Forbidden", "Forbidden"),  # kubectl proxy
        ("401 Unauthorized", "Unauthorized", "Unauthorized"),
        ("429 Too Many Requests", "TooManyRequests", "Too many requests, please try again later."),
    ],
)
def test_a_refusal_without_json_keeps_its_status(desk: Desk, line: str, reason: str, text: str) -> None:
    desk.upstream.scripts[FLEET] = whole(f"{text}\n".encode(), line, Content_Type="text/plain; charset=utf-8")
    status, body = desk.client.json(FLEET)
    assert (status, body["code"], body["reason"], body["message"]) == (int(line[:3]), int(line[:3]), reason, text)


def test_without_a_proxy_the_cluster_is_unreachable_until_there_is_one(desk: Desk) -> None:
    desk.upstream.scripts[FLEET] = whole(b"{}")
    proxy = desk.relay.proxy
    desk.relay.use(None)
    assert desk.client.json(FLEET)[1]["reason"] == "Unreachable"
    assert desk.client.get("/")[0] == 200
    desk.relay.use(proxy)
    assert desk.client.json(FLEET) == (200, {})


@pytest.mark.parametrize("head", ["Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n9\r\n"])
def test_a_list_that_breaks_off_does_not_look_complete(desk: Desk, head: str) -> None:
    text = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{head}"
    desk.upstream.scripts[FLEET] = lambda connection: connection.sendall(text.encode())
    answer = desk.client.open(FLEET)
    with pytest.raises(http.client.IncompleteRead):
        answer.read()


# --- watches ----------------------------------------------------------------------------------------------------


def test_a_watch_arrives_frame_by_frame(desk: Desk, feed: Feed) -> None:
    answer = desk.client.open(WATCH, headers={"Accept-Encoding": "gzip"})
    assert "accept-encoding: identity\r\n" in desk.upstream.requests[0].lower()  # no frame waits for a block to fill
    for number in range(3):
        frame = FRAME.replace(b"n", b"%d" % number)
        feed.pieces.put(frame)
        assert answer.readline() == frame  # before the next one was sent
    feed.pieces.put(b"")
    assert answer.read() == b""


def test_a_frame_that_arrives_in_pieces_is_passed_on_in_pieces(desk: Desk, feed: Feed) -> None:
    answer = desk.client.open(WATCH)
    for piece in (FRAME[:7], FRAME[7:]):
        feed.pieces.put(piece)
        assert answer.read(len(piece)) == piece
    feed.pieces.put(b"")
    assert answer.read() == b""


def test_a_watch_that_breaks_off_within_a_frame_does_not_look_complete(desk: Desk, feed: Feed) -> None:
    answer = desk.client.open(WATCH)
    feed.pieces.put(FRAME + FRAME[:7])
    assert answer.readline() == FRAME
    feed.pieces.put(None)
    with pytest.raises(http.client.IncompleteRead) as broken:
        answer.read()
    assert broken.value.partial == FRAME[:7]


def test_a_refused_watch_is_relayed_and_takes_no_place(tmp_path: Path) -> None:
    with running(tmp_path, watches=1) as desk:
        desk.upstream.scripts[FLEET] = whole(b'{"kind":"Status","code":403}', "403 Forbidden")
        assert [desk.client.json(WATCH)[0] for _ in range(3)] == [403] * 3


def test_a_refused_watch_gives_its_place_back_before_its_answer_is_read(tmp_path: Path) -> None:
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"

    def unfinished(connection: socket.socket) -> None:
        connection.sendall(head)
        wait_for_end(connection)

    with running(tmp_path, watches=1) as desk:
        desk.upstream.scripts[FLEET] = unfinished
        assert [desk.client.open(WATCH).status for _ in range(2)] == [403, 403]


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Desk]:
    with running(tmp_path, watches=3) as desk:
        desk.upstream.scripts[FLEET] = until_client_closes
        yield desk


def test_watches_are_limited_and_their_places_are_given_back(few: Desk) -> None:
    """A reload of the page closes watches in which nothing happens: that must be noticed at once."""
    for _ in range(3):
        assert [few.client.open(WATCH).status for _ in range(3)] == [200] * 3
        refused = few.client.open(WATCH)
        status = json.loads(refused.read())
        assert (refused.status, refused.headers["Retry-After"], status["reason"]) == (429, "5", "TooManyRequests")
        assert few.client.get("/")[0] == 200
        few.client.close()
        waiting.until(lambda: len(few.server.connections) == 0, what="the places", poll=0.01)


def test_a_client_that_hangs_up_ends_the_watch_at_the_cluster(few: Desk) -> None:
    ended = threading.Event()

    def watched(connection: socket.socket) -> None:
        until_client_closes(connection)
        ended.set()

    few.upstream.scripts[FLEET] = watched
    assert few.client.open(WATCH).status == 200
    few.client.close()
    assert ended.wait(PATIENCE)


def test_the_end_of_the_server_ends_all_watches(tmp_path: Path) -> None:
    with running(tmp_path) as desk:
        desk.upstream.scripts[FLEET] = until_client_closes
        answers = [desk.client.open(WATCH) for _ in range(5)]
    assert len(desk.server.connections) == 0
    for answer in answers:
        with pytest.raises((http.client.IncompleteRead, ConnectionError, ValueError)):
            raise ValueError(answer.read())
