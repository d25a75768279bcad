"""A forked process equals what Python would have started: arguments, variables, output and exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import forking
from tests.programs.forking import Forked

PROGRAM = """
import os, sys
print(__name__, sys.argv[1:], os.environ["OWN"], "berth_operator.app" in sys.modules, "berth_agent.app" in sys.modules)
print("an error", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "small.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    return "small"


def test_it_has_arguments_variables_and_a_log_and_ends_with_its_exit_code(program: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    forked = Forked(["-m", program, "--one", "two"], log=log, environment={"OWN": "1"})
    assert forked.wait() == 3
    assert log.read_text() == "before\n__main__ ['--one', 'two'] 1 True True\nan error\n"
    forked.kill()  # what has ended gets no signal


def test_only_what_would_be_the_same_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: str, **environment: str) -> forking.Forked | subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *arguments, "--help"]
        program = forking.spawn(command, log=tmp_path / "log", environment=environment)
        assert program.wait() == 0
        return program

    assert isinstance(started("berth_operator", BERTH_LOG_FORMAT="json"), Forked)
    assert isinstance(started("berth_operator", "webhook"), subprocess.Popen)
    assert isinstance(started("berth_operator", LD_PRELOAD=""), subprocess.Popen)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert isinstance(started("berth_operator"), subprocess.Popen)
