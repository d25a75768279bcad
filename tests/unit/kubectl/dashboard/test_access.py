"""Access to the dashboard: the cookie, the Host header, methods, and requests of other pages."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from berth_kubectl.dashboard import peers, routes
from berth_kubectl.dashboard.handler import HEADERS
from berth_kubectl.dashboard.login import Login
from tests.programs.dashboard import FLEET, WATCH, Desk, running, whole

READABLE = ("/", "/queue", "/pods/ml/train-0", "/page/index.html", "/api/context", "/api/doctor", FLEET, WATCH)


# --- token and cookie -------------------------------------------------------------------------------------------


def test_the_token_is_exchanged_once_for_a_cookie_and_the_address_is_cleaned(tmp_path: Path) -> None:
    login = Login(8001)
    assert login.exchange(login.token)
    assert not login.exchange(login.token)
    name, *attributes = login.cookie.split("; ")
    assert name.startswith("berth-8001=")
    assert attributes == ["HttpOnly", "SameSite=Strict", "Path=/"]
    with running(tmp_path) as desk:
        again = desk.stranger.open(f"/?token={desk.server.login.token}")
        assert (again.status, again.headers["Set-Cookie"]) == (401, None)
        reopened = desk.client.open(f"/?token={desk.server.login.token}")
        assert (reopened.status, reopened.headers["Location"], reopened.headers["Set-Cookie"]) == (303, "/", None)


def test_only_one_of_many_gets_the_cookie() -> None:
    login, results = Login(1), []
    start = threading.Barrier(20)

    def exchange() -> None:
        start.wait()
        results.append(login.exchange(login.token))

    threads = [threading.Thread(target=exchange) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 19 + [True]


@pytest.mark.parametrize("target", ["/?token=", "/?token=wrong", "/?token=%C3%A4", "/queue?token={}", "/?a=1&token={}"])
def test_a_wrong_token_gives_nothing_and_the_right_one_stays_valid(target: str) -> None:
    login = Login(1)
    wrong = target.format(login.token)
    assert not login.exchange(routes.token(wrong))
    assert login.exchange(login.token)


@pytest.mark.parametrize("target", READABLE)
def test_nothing_can_be_read_without_the_cookie(desk: Desk, target: str) -> None:
    name, _, value = desk.client.cookie.partition("=")
    wrong = ("", f"{name}=", f"{name}=wrong", f"berth={value}", f"{name}x={value}", value, f"{name}={value}x")
    for cookie in wrong:
        answer = desk.stranger.open(target, headers={"Cookie": cookie})
        assert answer.status == 401, cookie
        assert b"Open the address" in answer.read()
    assert desk.upstream.requests == []


def test_a_cookie_that_another_port_set_does_not_log_the_browser_out(desk: Desk) -> None:
    name = desk.client.cookie.partition("=")[0]
    planted = f"theme=dark; {name}=planted; {desk.client.cookie}; {name}=late"
    assert desk.stranger.open("/", headers={"Cookie": planted}).status == 200


# --- Host, methods, other pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:{}", "127.0.0.1", "localhost", "127.0.0.1:1", "[::1]:{}", "0.0.0.0:{}"),
        *("127.0.0.1.evil.example:{}", "localhost.evil.example:{}", "evil.example@127.0.0.1:{}", "127.0.0.1:{}@evil"),
        *("127.1:{}", "2130706433:{}", "127.0.0.1.:{}", "127.0.0.1:0{}", "127.0.0.1:{} evil", "127.0.0.1:{}, evil"),
    ],
)
def test_another_host_is_refused_whatever_else_is_right(desk: Desk, host: str) -> None:
    desk.client.host = host.format(desk.server.port)
    for target in ("/", FLEET, f"/?token={desk.server.login.token}"):
        answer = desk.client.open(target)
        assert (answer.status, answer.headers["Set-Cookie"]) == (421, None)
    assert desk.upstream.requests == []


def test_a_missing_or_repeated_host_is_refused(desk: Desk) -> None:
    own = f"Host: 127.0.0.1:{desk.server.port}\r\n"
    for hosts in ("", own + own, own + "Host: evil.example\r\n"):
        request = f"GET / HTTP/1.1\r\n{hosts}Cookie: {desk.client.cookie}\r\n\r\n"
        assert desk.stranger.raw(request.encode()).startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize("host", ["localhost:{}", "LocalHost:{}", "127.0.0.1:{}"])
def test_its_own_names_are_accepted(desk: Desk, host: str) -> None:
    desk.client.host = host.format(desk.server.port)
    assert desk.client.open("/").status == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "X"]
)
def test_only_get_is_allowed(desk: Desk, method: str) -> None:
    for target in ("/", FLEET, "/api/doctor"):
        answer = desk.client.open(target, method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    assert desk.upstream.requests == []


@pytest.mark.parametrize("header", ["Content-Length: 1", "Content-Length: +0", "Transfer-Encoding: chunked"])
def test_a_request_with_a_body_is_refused_and_ends_the_connection(desk: Desk, header: str) -> None:
    """What follows must not be read as a request."""
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{desk.server.port}\r\nCookie: {desk.client.cookie}\r\n{header}\r\n\r\n"
    answer = desk.stranger.raw(head.encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
        ("cross-site", "navigate", "document", 200),  # a link; the browser leaves the cookie out
        ("same-site", "navigate", "document", 200),
        ("same-site", "cors", "empty", 403),  # a page on another port of this host, with the cookie
        ("same-site", "no-cors", "script", 403),
        ("same-site", "navigate", "iframe", 403),
        ("cross-site", "no-cors", "image", 403),
        ("unheard-of", "cors", "empty", 403),
    ],
)
def test_requests_of_other_pages_are_refused(desk: Desk, site: str, mode: str, dest: str, status: int) -> None:
    sent = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    assert desk.client.get("/api/context", sent)[0] == status


# --- headers ----------------------------------------------------------------------------------------------------


def test_the_headers_are_those_of_the_documents() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert {name: value for name, value in HEADERS.items() if name != "Content-Security-Policy"} == {
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def test_every_answer_has_the_headers(desk: Desk) -> None:
    own = f"Host: 127.0.0.1:{desk.server.port}\r\nCookie: {desk.client.cookie}\r\n"
    desk.upstream.scripts[FLEET] = whole(b"{}")
    long = "x" * 70_000
    requests = {
        f"GET / HTTP/1.1\r\n{own}Connection: close\r\n\r\n": 200,
        f"GET {FLEET} HTTP/1.1\r\n{own}Connection: close\r\n\r\n": 200,
        f"GET /?token=x HTTP/1.1\r\n{own}Connection: close\r\n\r\n": 303,
        "nonsense\r\n\r\n": 400,
        f"GET {FLEET}?limit=1 HTTP/1.1\r\n{own}\r\n": 400,
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{desk.server.port}\r\n\r\n": 401,
        f"GET / HTTP/1.1\r\n{own}Sec-Fetch-Site: same-site\r\n\r\n": 403,
        f"GET /none HTTP/1.1\r\n{own}\r\n": 404,
        f"HEAD / HTTP/1.1\r\n{own}\r\n": 405,
        f"GET /{long} HTTP/1.1\r\n{own}\r\n": 414,
        "GET / HTTP/1.1\r\n\r\n": 421,
        f"GET / HTTP/1.1\r\n{own}Long: {long}\r\n\r\n": 431,
        "GET / HTTP/1.1\r\n" + "A: b\r\n" * 200 + "\r\n": 431,
        "GET / HTTP/0.9\r\n" + "A: b\r\n" * 200 + "\r\n": 431,
        f"GET {FLEET.replace('fleet', 'queue')} HTTP/1.1\r\n{own}Connection: close\r\n\r\n": 502,
        f"GET / HTTP/1.0\r\n{own}\r\n": 505,
        f"GET / HTTP/0.9\r\n{own}\r\n": 505,
        f"GET / HTTP/2.0\r\n{own}\r\n": 505,
    }
    wanted = [f"{name}: {value}" for name, value in HEADERS.items()]
    for request, status in requests.items():
        head = desk.stranger.raw(request.encode()).partition(b"\r\n\r\n")[0].decode().splitlines()
        assert head[0].split()[1] == str(status), request[:80]
        assert [line for line in wanted if line not in head] == [], request[:80]
        assert "Server: berth" in head


def test_answers_repeat_nothing_of_the_request(desk: Desk) -> None:
    """So nothing that a link contains becomes a part of a page."""
    marker = "<script>alert(1)</script>"
    own = f"Host: 127.0.0.1:{desk.server.port}\r\nCookie: {desk.client.cookie}\r\n"
    for request in (
        f"GET /{marker} HTTP/1.1\r\n{own}\r\n",
        f"{marker} / HTTP/1.1\r\n{own}\r\n",
        f"GET {marker}\r\n\r\n",
    ):
        assert marker.encode() not in desk.stranger.raw(request.encode())


# --- users ------------------------------------------------------------------------------------------------------

LINE = "   0: {} {} 01 00000000:00000000 00:00000000 00000000 {:>5}        0 12345 1 0000000000000000 20 4 30 10 -1\n"
HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
CLIENT, SERVER = ("127.0.0.1", 40000), ("127.0.0.1", 8001)


@pytest.mark.parametrize("prefix", ["", "0000000000000000FFFF0000"])
@pytest.mark.skipif(sys.byteorder != "little", reason="the table is in the machine's byte order")
def test_the_user_of_a_connection(tmp_path: Path, prefix: str) -> None:
    table = tmp_path / "tcp"
    ends = f"{prefix}0100007F:9C40", f"{prefix}0100007F:1F41"
    own_end = LINE.format(*reversed(ends), 1000)
    table.write_text(HEADING + own_end + LINE.format(*ends, 1001))
    assert peers.user_of(CLIENT, SERVER, [tmp_path / "none", table]) == 1001
    assert peers.user_of(CLIENT, ("127.0.0.1", 8002), [table]) is None
    assert peers.user_of(CLIENT, SERVER, [tmp_path / "none"]) is None


@pytest.mark.parametrize(
    ("own", "environment", "users"),
    [
        (1000, {}, {0, 1000}),
        (1000, {"SUDO_UID": "1001"}, {0, 1000}),  # anybody can set it
        (0, {}, {0}),
        (0, {"SUDO_UID": "1001"}, {0, 1001}),
        (0, {"SUDO_UID": "-1"}, {0}),
    ],
)
def test_who_may_connect(own: int, environment: dict[str, str], users: set[int]) -> None:
    assert peers.allowed(own, environment) == users


@pytest.mark.skipif(not peers.TABLES[0].exists() or os.getuid() != 0, reason="only root can connect as another user")
def test_another_user_gets_no_answer(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, socket, sys\n"
        "os.setuid(int(sys.argv[2]))\n"
        "with socket.socket() as connection:\n"  # create_connection would load modules that the other user cannot read
        "    try:\n"
        f"        connection.connect(('127.0.0.1', {desk.server.port}))\n"
        "        connection.sendall(sys.argv[1].encode())\n"
        "        print(connection.recv(100))\n"
        "    except ConnectionError:\n"
        "        print(b'')\n"
    )
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{desk.server.port}\r\nCookie: {desk.client.cookie}\r\n\r\n"

    def connect(user: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", code, request, str(user)], capture_output=True, text=True, check=True
        ).stdout

    assert connect(0).startswith("b'HTTP/1.1 200 OK")
    assert [connect(65534) for _ in range(2)] == ["b''\n"] * 2
    message = "refused a connection of another user, with the id 65534; this is reported once\n"
    assert capfd.readouterr().err == message
