"""`make demo` in full, as its user runs it. To leave it out: `pytest -k "not make_demo"`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# The session's cluster is not used, but requesting it builds the programs outside of any test's timeout.
@pytest.mark.usefixtures("cluster")
def test_make_demo_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"demo: 8 pods bound, [1-9]\d* devices allocated, 0 conflicts", last)
