"""The start of any program: a mistake is one line and status 2."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from berth_agent.configuration.settings import Settings as AgentSettings
from berth_base import start
from berth_base.start import StartError
from berth_operator.apis.serving import listening
from berth_operator.apis.webhook.main import WebhookSettings
from berth_operator.settings.flags import Settings

QUIET = ("--health=", "--metrics-port=0", "--debug-port=0")


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """Return a port on which a process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "arguments", "line"),
    [
        pytest.param(
            Settings,
            ["--lease-duration=5", "--renew-deadline=10"],
            "--lease-duration 5: must be greater than --renew-deadline 10",
            id="lease",
        ),
        pytest.param(
            Settings,
            ["--retry-period=5"],
            "--renew-deadline 10: must be greater than twice --retry-period 5",
            id="retries",
        ),
        pytest.param(Settings, ["--health=foo"], "--health foo: must be http://address:port/path, or empty", id="url"),
        pytest.param(
            Settings,
            ["--health=http://0.0.0.0:99999/healthz"],
            "--health http://0.0.0.0:99999/healthz: must be http://address:port/path, or empty",
            id="port of a url",
        ),
        pytest.param(
            Settings,
            ["--lease-duration=x"],
            "--lease-duration x: Input should be a valid integer, unable to parse string as an integer",
            id="no number",
        ),
        pytest.param(
            Settings,
            ["--log-level=loud"],
            "--log-level loud: Input should be 'debug', 'info', 'warning' or 'error'",
            id="log level",
        ),
        pytest.param(
            Settings, ["--leese=x"], "unrecognized arguments: --leese=x; did you mean --lease?", id="mistyped"
        ),
        pytest.param(Settings, ["--zzz"], "unrecognized arguments: --zzz", id="unknown"),
        pytest.param(Settings, ["--lease"], "argument --lease: expected one argument", id="no value"),
        pytest.param(
            WebhookSettings,
            ["--scheduler-names=a,"],
            "--scheduler-names a,: must be names of schedulers, separated by commas without spaces, such as"
            " berth,berth-spread",
            id="webhook's scheduler names",
        ),
        pytest.param(
            WebhookSettings, ["--prot=1"], "unrecognized arguments: --prot=1; did you mean --port?", id="webhook"
        ),
        pytest.param(
            AgentSettings,
            ["--nod-name=a"],
            "unrecognized arguments: --nod-name=a; did you mean --node-name?",
            id="agent",
        ),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(
    settings: type[Settings | WebhookSettings | AgentSettings], arguments: list[str], line: str
) -> None:
    with pytest.raises(StartError) as refused:
        start.read(settings, arguments)
    assert str(refused.value) == line


def test_a_mistake_in_a_variable_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_AGENT_DISCOVER", "gpu")
    with pytest.raises(StartError, match=r'^BERTH_AGENT_DISCOVER gpu: must be a JSON list, such as \["a", "b"\]$'):
        AgentSettings.read(["--node-name=a"])


@pytest.mark.parametrize("arguments", [[], ["--node-name=b"]])
def test_an_agent_may_be_configured_by_variables(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_AGENT_NODE_NAME", "a")
    monkeypatch.setenv("BERTH_AGENT_DEVICE_PLUGIN", "true")
    settings = AgentSettings.read(arguments)
    assert (settings.node_name, settings.device_plugin) == ("b" if arguments else "a", True)


def test_variables_without_effect_are_found() -> None:
    environment = {
        "BERTH_LEASE": "a",
        "BERTH_LEASE_DURATOIN": "3",
        "BERTH_AGENT_JITTER": "0",
        "BERTH_NVML_STATE": "1",
        "HOME": "/",
    }
    unknown = start.unknown_variables(Settings, environment, others=("BERTH_AGENT_",))
    assert list(unknown) == [("BERTH_LEASE_DURATOIN", "BERTH_LEASE_DURATION"), ("BERTH_NVML_STATE", "")]


# --- ports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--metrics-port={}", "--metrics-port {} on 0.0.0.0: address already in use"),
        ("--debug-port={}", "--debug-port {} on 127.0.0.1: address already in use"),
        ("--extender-port={}", "--extender-port {} on 127.0.0.1: address already in use"),
        (
            "--health=http://127.0.0.1:{}/healthz",
            "--health http://127.0.0.1:{}/healthz on 127.0.0.1: address already in use",
        ),
    ],
)
def test_a_port_in_use_is_named(flag: str, line: str, taken: int) -> None:
    settings = start.read(Settings, [*QUIET, flag.format(taken)])
    with pytest.raises(StartError) as refused:
        listening.check(settings)
    assert str(refused.value) == line.format(taken)


def test_an_address_of_another_machine_is_named() -> None:
    settings = start.read(Settings, ["--health=", "--metrics-port=0", "--debug-address=192.0.2.1"])
    with pytest.raises(StartError, match=r"^--debug-port 10251 on 192\.0\.2\.1: cannot assign requested address$"):
        listening.check(settings)


@pytest.mark.parametrize("of", ["debug", "extender"])
def test_a_missing_certificate_is_named(of: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    arguments = ["--health=", "--metrics-port=0", "--debug-port=0", f"--{of}-port={free}", f"--{of}-certificate=/none"]
    with pytest.raises(StartError, match=rf"^--{of}-certificate /none: no such file or directory$"):
        listening.check(start.read(Settings, arguments))


def test_a_program_may_listen_where_its_predecessor_did() -> None:
    """A connection in TIME_WAIT does not count."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
    listening.check_free("--port", "127.0.0.1", port)


# --- programs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["berth_operator"], "berth-operator"),
        (["berth_operator", "webhook"], "berth-operator webhook"),
        (["berth_operator", "api"], "berth-operator api"),
        (["berth_agent"], "berth-agent"),
    ],
)
def test_every_program_prints_its_version(command: list[str], program: str) -> None:
    ended = run(*command, "--version")
    assert (ended.returncode, ended.stdout) == (0, f"{program} {metadata.version('berth-operator')}\n")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        pytest.param(
            ["berth_operator", "simulat"],
            "berth-operator: unknown command simulat; did you mean simulate? "
            "(allowed are advise, defragment, migrate, simulate, snapshot, webhook, api, cleanup, crds, or none for "
            "the operator)",
            id="mistyped command",
        ),
        pytest.param(
            ["berth_operator", "simulate"],
            "berth-operator simulate: the following arguments are required: -f/--file",
            id="command without its file",
        ),
        pytest.param(
            ["berth_operator", "--config=/none"], "berth-operator: /none: No such file or directory", id="no file"
        ),
        pytest.param(
            ["berth_operator", "--metrics-port={port}", "--health=", "--debug-port=0"],
            "berth-operator: --metrics-port {port} on 0.0.0.0: address already in use",
            id="port in use",
        ),
        pytest.param(
            ["berth_operator", "webhook", "--address=127.0.0.1", "--port={port}"],
            "berth-operator webhook: --port {port} on 127.0.0.1: address already in use",
            id="webhook's port in use",
        ),
        pytest.param(
            ["berth_agent", "--node-name=a", "--log-level=error", "--metrics-port={port}"],
            "berth-agent: --metrics-port {port} on 0.0.0.0: address already in use",
            id="agent's port in use",
        ),
        pytest.param(
            ["berth_agent"],
            "berth-agent: --node-name is needed (or NODE_NAME): the node whose devices this agent publishes",
            id="agent without arguments",
        ),
    ],
)
def test_a_mistake_ends_a_program_with_one_line_and_status_2(command: list[str], line: str, taken: int) -> None:
    ended = run(*(argument.format(port=taken) for argument in command))
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", line.format(port=taken) + "\n")


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["berth_operator", *QUIET], "berth-operator"),
        (["berth_operator", "webhook"], "berth-operator webhook"),
        (["berth_operator", "api"], "berth-operator api"),
        (["berth_agent", "--node-name=a"], "berth-agent"),
    ],
)
def test_a_kubeconfig_that_is_missing_is_one_line_after_the_first(
    command: list[str], program: str, tmp_path: Path
) -> None:
    missing = tmp_path / "kubeconfig"
    ended = run(*command, f"--kubeconfig={missing}", "--log-format=json", **os.environ)
    assert (ended.returncode, ended.stderr) == (2, f"{program}: {missing}: no such kubeconfig\n")
    [started] = [line for line in ended.stdout.splitlines() if '"event": "started"' in line]
    assert f'"version": "{metadata.version("berth-operator")}"' in started
    assert str(missing) in started


@pytest.mark.parametrize(
    "command", [["berth_operator", *QUIET], ["berth_agent", "--node-name=a"]], ids=lambda each: each[0]
)
def test_a_start_that_waits_for_the_api_server_can_be_ended(command: Sequence[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(port=silent.getsockname()[1]))
        program = subprocess.Popen(
            [sys.executable, "-m", *command, f"--kubeconfig={kubeconfig}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with silent.accept()[0]:
            program.send_signal(signal.SIGTERM)
            out, error = program.communicate(timeout=30)
    assert (program.returncode, error, b"exception" in out) == (0, b"", False)


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
