"""`kubectl berth dashboard` as a process, and its decisions before it serves."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from berth_kubectl import arguments
from berth_kubectl.commands import dashboard
from berth_kubectl.dashboard.relay import Relay
from berth_kubectl.dashboard.supervision import LONGEST_PAUSE, POLL, supervise
from berth_kubectl.errors import CommandError, ReadError
from berth_kubectl.transport.proxy import Proxy
from devcluster import waiting
from tests.programs.dashboard import BASE, FLEET, Client

KUBECTL = f"""\
#!{sys.executable}
import http.server, json, os, socketserver, sys

with open(os.environ["CALLS"], "a") as calls:
    calls.write(f"{{os.getpid()}} {{' '.join(sys.argv[1:])}}\\n")
if "config" in sys.argv:
    cluster = {{"server": "https://jane:secret@10.0.0.1:6443", "certificate-authority-data": "DATA+OMITTED"}}
    context = {{"name": "prod", "context": {{"cluster": "c", "user": "jane", "namespace": "ml"}}}}
    user = {{"name": "jane", "user": {{"token": "REDACTED"}}}}
    clusters = [{{"name": "c", "cluster": cluster}}]
    print(json.dumps({{"current-context": "prod", "contexts": [context], "clusters": clusters, "users": [user]}}))
    sys.exit()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({{"path": self.path, "items": []}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return ""

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

Server(next(arg for arg in sys.argv if arg.startswith("--unix-socket=")).partition("=")[2], Handler).serve_forever()
"""


class Program:
    """The command, with a stand-in for kubectl."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        script = folder / "kubectl-stand-in"
        script.write_text(KUBECTL)
        script.chmod(0o755)
        self.environment = {**os.environ, "BERTH_KUBECTL": str(script), "CALLS": str(self.calls), "TMPDIR": str(folder)}

    @contextlib.contextmanager
    def running(self, *flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
        """Yield the process and the line that it printed."""
        command = [sys.executable, "-m", "berth_kubectl", "dashboard", *flags]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        ) as process:
            try:
                assert process.stdout is not None
                yield process, process.stdout.readline().strip()
            finally:
                process.terminate()  # in order, so that its proxy ends, too
                process.wait(60)

    def proxies(self) -> list[int]:
        """Return the process ids of the proxies that were started."""
        lines = self.calls.read_text().splitlines()
        return [int(line.split()[0]) for line in lines if " proxy " in line]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@contextlib.contextmanager
def client_of(address: str) -> Iterator[Client]:
    """Yield a browser that opened an address."""
    port, _, token = address.removeprefix("http://127.0.0.1:").partition("/?token=")
    with contextlib.closing(Client(port=int(port))) as client:
        yield client.log_in(token)


def is_gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_an_address_and_runs_until_a_signal(program: Program, number: signal.Signals) -> None:
    with program.running("--context=prod", "--as=jane") as (process, address), client_of(address) as client:
        status, context = client.json("/api/context")
        assert (status, context.pop("started")[:2], context.pop("version")) == (200, "20", "0.1.0")
        assert context == {"context": "prod", "server": "https://10.0.0.1:6443", "namespace": "ml"}
        assert client.json(FLEET) == (200, {"path": FLEET, "items": []})
        status, diagnosis = client.json("/api/doctor")
        assert (status, diagnosis["kind"], "NoLeader" in diagnosis["checked"]) == (200, "Diagnosis", True)
        assert {"findings", "notChecked", "read"} < set(diagnosis)
        [proxy] = program.proxies()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert is_gone(proxy)
    assert [path.name for path in program.folder.iterdir() if path.is_dir()] == []
    calls = [line.partition(" ")[2] for line in program.calls.read_text().splitlines()]
    assert calls[0] == "--context=prod --as=jane config view --output=json"
    assert calls[1].startswith("--context=prod --as=jane proxy --unix-socket=")
    assert len(calls) == 2


def test_a_proxy_that_was_killed_is_started_again(program: Program) -> None:
    with program.running("-n", "team") as (_, address), client_of(address) as client:
        assert client.json("/api/context")[1]["namespace"] == "team"
        os.kill(program.proxies()[0], signal.SIGKILL)
        waiting.until(lambda: client.json(FLEET)[0] == HTTPStatus.BAD_GATEWAY, what="the failure", poll=0.01)
        assert client.get("/")[0] == 200
        waiting.until(lambda: client.json(f"{BASE}/queue")[0] == 200, what="another proxy", poll=0.05)
        assert len(program.proxies()) == 2


def test_a_port_that_is_taken_is_one_line(program: Program) -> None:
    with program.running() as (_, address):
        port = address.removeprefix("http://127.0.0.1:").partition("/")[0]
        with program.running("--port", port) as (second, line):
            out, err = second.communicate(timeout=60)
    assert (second.returncode, line, out) == (2, "", "")
    assert err == f"error: port {port} of 127.0.0.1: Address already in use; --port names another one\n"


def test_garbage_is_collected_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands are short and go without."""
    monkeypatch.setenv("BERTH_KUBECTL", "/nowhere/kubectl")
    gc.disable()
    try:
        with pytest.raises(CommandError, match="was not found"):
            dashboard.run(arguments.parse(["dashboard"]))
        assert gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("port", ["0", "80", "1023", "65536", "-1", "a", "٣٠٠٠", ""])
def test_ports_that_are_not_allowed(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["dashboard", f"--port={port}"])
    assert "allowed are 1024 to 65535" in capsys.readouterr().err


# --- what the page shows of kubectl's configuration -------------------------------------------------------------


CONFIGURATION = {
    "current-context": "prod",
    "contexts": [
        {"name": "prod", "context": {"cluster": "one", "user": "jane", "namespace": "ml"}},
        {"name": "<b>", "context": {"cluster": "two", "user": "jane"}},
        {"name": "bare", "context": None},
    ],
    "clusters": [
        {"name": "one", "cluster": {"server": "https://jane:pa55@10.0.0.1:6443"}},
        {"name": "two", "cluster": {"server": "https://[fd00::1]/k8s"}},
    ],
    "users": [{"name": "jane", "user": {"token": "t0ken", "exec": {"env": [{"value": "s3cret"}]}}}],
}


@pytest.mark.parametrize(
    ("configuration", "flags", "expected"),
    [
        ({}, "", ("", "", "default")),
        ({"contexts": None, "clusters": None, "current-context": ""}, "", ("", "", "default")),
        (CONFIGURATION, "", ("prod", "https://10.0.0.1:6443", "ml")),
        (CONFIGURATION, "-n team", ("prod", "https://10.0.0.1:6443", "team")),
        (CONFIGURATION, "--context=<b>", ("<b>", "https://[fd00::1]/k8s", "default")),
        (CONFIGURATION, "--context=bare", ("bare", "", "default")),
        (CONFIGURATION, "--context=nowhere", ("nowhere", "", "default")),
        (CONFIGURATION, "--cluster=two", ("prod", "https://[fd00::1]/k8s", "ml")),
        (CONFIGURATION, "--server=https://a:b@c:1/d", ("prod", "https://c:1/d", "ml")),
    ],
)
def test_the_context_has_no_credentials(
    configuration: dict[str, Any], flags: str, expected: tuple[str, str, str]
) -> None:
    described = dashboard.described(configuration, arguments.parse(["dashboard", *flags.split()]))
    assert described == dict(zip(("context", "server", "namespace"), expected, strict=True))


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ""}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"BROWSER": "/usr/bin/helper"}, True),
        ("darwin", {}, True),
    ],
)
def test_no_browser_is_opened_in_the_terminal(platform: str, environment: dict[str, str], expected: bool) -> None:
    assert dashboard.can_open(platform, environment) == expected


# --- the proxy --------------------------------------------------------------------------------------------------


class Proxies:
    """Opens proxies that last for some checks, or fail; records what the supervision does."""

    def __init__(self, *lasting: int | None) -> None:
        self.lasting, self.relay, self.log = [*lasting], Relay(), list[object]()

    @contextlib.contextmanager
    def open(self) -> Iterator[Proxy]:
        checks = self.lasting.pop(0)
        if checks is None:
            raise ReadError("it did not start")
        self.log.append("open")
        answers = iter([False] * checks)
        yield Proxy(Path("/nowhere"), lambda: next(answers, True))
        self.log.append("closed")

    def wait(self, seconds: float) -> bool:
        """Stop after the last proxy."""
        if seconds != POLL:
            self.log.append(seconds)
        return not self.lasting

    def supervise(self) -> None:
        supervise(self.open, self.relay, started=lambda: self.log.append("started"), wait=self.wait)


def test_a_proxy_that_ends_is_followed_by_another() -> None:
    proxies = Proxies(2, None, None, None, None, None, 2, None, 2)
    proxies.supervise()
    assert proxies.log == [
        *("open", "started", "closed", 1.0),
        *(2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE),
        *("open", "closed", 1.0, 2.0),
        *("open", "closed"),
    ]
    with pytest.raises(CommandError, match="does not run"):
        _ = proxies.relay.proxy


def test_a_first_proxy_that_does_not_start_ends_the_command() -> None:
    proxies = Proxies(None, 1)
    with pytest.raises(ReadError, match="it did not start"):
        proxies.supervise()
    assert proxies.log == []
