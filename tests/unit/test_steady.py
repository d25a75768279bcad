"""The runner of `make e2e` on real sessions of pytest: when it repeats tests that were late, and when it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LATE = """
import pathlib
import pytest
from devcluster.waiting import WaitError

def late(name, *, times=1):
    "Fail as a late wait does, so often."
    count = pathlib.Path(__file__).with_name(name)
    seen = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (seen + 1))
    if seen < times:
        raise WaitError(f"waited for {name}", late=True)

def test_passes():
    pass
"""
ONE = "\ndef test_late():\n    late('one')\n"
FOUR = "".join(f"\ndef test_{number}():\n    late('{number}')\n" for number in range(4))
CASES = {
    "one late test": (ONE, 0, "steady: passed; these tests were late"),
    "never true": (
        "\ndef test_never():\n    raise WaitError('never', late=False)\n",
        1,
        "failed, and not only late: test_it.py::test_never",
    ),
    "late twice": ("\ndef test_late():\n    late('one', times=2)\n", 1, "a late test failed alone, too"),
    "too many": (FOUR, 1, "4 late tests, at most 3 may be"),
    "an audit": (ONE.replace("def", "@pytest.mark.safety\ndef"), 1, "late where nothing may be"),
}


@pytest.mark.parametrize("case", CASES)
def test_only_a_late_test_runs_once_more(case: str, tmp_path: Path) -> None:
    body, exit_code, shown = CASES[case]
    (tmp_path / "test_it.py").write_text(LATE + body)
    command = [sys.executable, "-m", "tests.harness.steady", "-q", "-p", "xdist"]
    command += [f"--rootdir={tmp_path}", str(tmp_path)]
    quick = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-c /dev/null"}
    done = subprocess.run(command, cwd=ROOT, env=quick, capture_output=True, text=True, check=False)
    assert (done.returncode, shown in done.stdout) == (exit_code, True), done.stdout
    assert ("now repeated alone" in done.stdout) == (case in ("one late test", "late twice"))
