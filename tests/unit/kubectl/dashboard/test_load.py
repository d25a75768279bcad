"""Clients that take too much: hundreds of connections, slow ones, and large answers that they do not read."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from berth_kubectl.dashboard.connections import Connections
from berth_kubectl.dashboard.handler import HEADERS
from devcluster import waiting
from tests.programs.dashboard import FLEET, PATIENCE, Desk, running, whole

HUNDREDS = 200
LIMIT = 8


@contextlib.contextmanager
def opened(port: int, beginnings: Sequence[bytes]) -> Iterator[list[socket.socket]]:
    """Open a connection for each beginning of a request, and send that."""
    with contextlib.ExitStack() as stack:
        clients = []
        for data in beginnings:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            client.sendall(data)
            clients.append(client)
        yield clients


def test_hundreds_of_idle_connections_keep_no_one_out(tmp_path: Path) -> None:
    beginnings = [b"", b"GET / HTTP/1.1\r\nHost: "] * (HUNDREDS // 2)
    with running(tmp_path, connections=LIMIT) as desk, opened(desk.server.port, beginnings) as clients:
        assert desk.client.get("/")[0] == 200
        assert len(desk.server.connections) <= LIMIT
        assert [client.recv(1) for client in clients[:2]] == [b"", b""]  # they made room
        assert threading.active_count() < HUNDREDS


def test_if_all_connections_are_busy_the_next_one_gets_an_answer(tmp_path: Path) -> None:
    release = threading.Event()

    def diagnose() -> dict[str, Any]:
        assert release.wait(PATIENCE)
        return {"findings": []}

    with running(tmp_path, diagnose, connections=LIMIT) as desk:
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(desk.client.get("/api/doctor")[0])) for _ in range(LIMIT)
        ]
        for thread in threads:
            thread.start()
        waiting.until(lambda: desk.server.connections.count_busy() == LIMIT, what="busy connections", poll=0.01)
        head = desk.stranger.raw(b"").decode().splitlines()
        assert head[0] == "HTTP/1.1 503 Service Unavailable"
        assert {f"{name}: {value}" for name, value in HEADERS.items()} <= set(head)
        release.set()
        for thread in threads:
            thread.join()
        assert statuses == [200] * LIMIT


def test_a_connection_on_which_nothing_arrives_is_closed(tmp_path: Path) -> None:
    with running(tmp_path, seconds=0.05) as desk, opened(desk.server.port, [b"GET / HT"]) as [client]:
        assert client.recv(1) == b""


def test_a_reader_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    broken = threading.Event()

    def endless(connection: socket.socket) -> None:
        try:
            whole(b"x" * 50_000_000)(connection)
        except OSError:
            broken.set()
            raise

    with running(tmp_path, seconds=0.2) as desk:
        desk.upstream.scripts[FLEET] = endless
        own = f"Host: 127.0.0.1:{desk.server.port}\r\nCookie: {desk.client.cookie}\r\n"
        with opened(desk.server.port, [f"GET {FLEET} HTTP/1.1\r\n{own}\r\n".encode()]):
            assert broken.wait(PATIENCE)
            desk.client.close()
            waiting.until(lambda: len(desk.server.connections) == 0, what="its end", poll=0.01)


def test_requests_on_one_connection_are_answered_one_after_the_other(desk: Desk) -> None:
    own = f"Host: 127.0.0.1:{desk.server.port}\r\nCookie: {desk.client.cookie}\r\n"
    answers = desk.stranger.raw(f"GET / HTTP/1.1\r\n{own}\r\n".encode() * 50 + b"\r\n")
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 50


def test_the_end_waits_for_connections_under_way_for_a_while() -> None:
    connections = Connections(1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(PATIENCE)
        assert connections.admit(ours)
        ending = threading.Thread(target=connections.shut_all, args=(PATIENCE,))
        ending.start()
        assert theirs.recv(1) == b""
        ending.join(0.1)
        assert ending.is_alive()
        connections.remove(ours)
        ending.join()
        connections.shut_all(PATIENCE)  # none is left
