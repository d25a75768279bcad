import subprocess
import sys
from pathlib import Path

import pytest

from berth_agent.__main__ import main
from berth_agent.configuration.settings import Settings
from berth_base.start import StartError


def test_the_node_name_comes_from_the_downward_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node-7")
    assert Settings().node_name == "node-7"


def test_variables_set_what_options_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_AGENT_POLL_INTERVAL", "3")
    monkeypatch.setenv("BERTH_AGENT_NODE_NAME", "a")
    settings = Settings(_cli_parse_args=["--node-name", "b"])
    assert (settings.poll_interval, settings.node_name) == (3.0, "b")


def test_the_mig_strategy_comes_as_nvidias_plugin_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(node_name="a").mig_strategy == "mixed"
    monkeypatch.setenv("MIG_STRATEGY", "single")
    assert Settings(node_name="a").mig_strategy == "single"
    monkeypatch.setenv("BERTH_AGENT_MIG_STRATEGY", "none")
    assert Settings(node_name="a").mig_strategy == "none"
    monkeypatch.setenv("BERTH_AGENT_MIG_STRATEGY", "x")
    with pytest.raises(StartError, match="Input should be 'none', 'single' or 'mixed'"):
        Settings.read(["--node-name", "a"])


def test_the_health_checks_come_as_nvidias_plugin_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(node_name="a").checks.counts(79)
    monkeypatch.setenv("DP_DISABLE_HEALTHCHECKS", "xids")
    monkeypatch.setenv("DP_ENABLE_HEALTHCHECKS", "13")
    checks = Settings(node_name="a").checks
    assert [checks.counts(xid) for xid in (79, 13)] == [False, True]
    assert Settings(node_name="a", disable_healthchecks="48").checks.counts(79)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            ["--node-name", "a", "--fleet-tokens", "/t"], "--fleet-tokens needs --inventory simulated", id="tokens"
        ),
        pytest.param(["--inventory", "simulated"], "--fleet is needed with --inventory simulated", id="no fleet"),
        pytest.param(["--node-name", "a", "--poll-interval", "0"], "--poll-interval 0: Input should be", id="zero"),
        pytest.param(["--node-name", "a", "--lease-duration", "10"], "--lease-duration must exceed", id="lease"),
        pytest.param(["--node-name", "a", "--mps", "--truth", "false"], "--mps needs --truth", id="mps without pods"),
        pytest.param(
            ["--node-name", "a", "--dra", "true", "--device-plugin", "true", "--admission", "false"],
            "--dra with --device-plugin needs --admission",
            id="two givers without a mirror",
        ),
        pytest.param(
            ["--inventory", "simulated", "--fleet", "/none.yaml", "--hami-core", "/lib"],
            "--mps, --hami-core, --nics and --dra are not supported with --inventory simulated",
            id="limits without containers",
        ),
        pytest.param(
            ["--node-name", "a", "--disable-healthchecks", "79,x"],
            'DP_DISABLE_HEALTHCHECKS: "x" is no Xid; allowed are',
            id="no xid",
        ),
        pytest.param(
            ["--node-name", "a", "--fpga-ids", "xilinx"], "--fpga-ids xilinx: must be four hexa", id="no vendor"
        ),
        pytest.param(["--node-name", "a", "--discover", "npu"], "--discover npu: Input should be", id="no such type"),
    ],
)
def test_a_mistake_in_the_settings_is_one_plain_line(options: list[str], expected: str) -> None:
    with pytest.raises(StartError) as refused:
        Settings.read(options)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param([], "--node-name is needed (or NODE_NAME)", id="settings"),
        pytest.param(["--inventory", "simulated", "--fleet", "/none.yaml"], "/none.yaml: No such file", id="no file"),
        pytest.param(["--node-name", "a", "--kubeconfig", "/none"], "/none: no such kubeconfig", id="no kubeconfig"),
        pytest.param(
            ["--node-name", "a", "--device-plugin", "--config-file", "/none.yaml"],
            "/none.yaml: No such file or directory",
            id="no options",
        ),
        pytest.param(["--node-name", "a"], "no --kubeconfig, and no pod either", id="outside a pod"),
    ],
)
def test_a_mistake_ends_the_agent_with_one_plain_line(
    options: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(sys, "argv", ["berth-agent", *options, "--sysfs-root", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n")) == (2, 1)
    assert error.startswith("berth-agent: ")
    assert expected in error


def test_help_lists_every_setting_with_its_reason() -> None:
    command = [sys.executable, "-m", "berth_agent", "--help"]
    text = " ".join(subprocess.check_output(command, env={}, text=True).split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description
