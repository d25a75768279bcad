"""`make demo ARGS=--page` in full, as its user runs it. To leave it out: `pytest -k "not make_demo"`."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.programs.dashboard import Client

ROOT = Path(__file__).parents[2]
SECTIONS = [
    "1. Exact cards and shares",
    "2. A gang: four workers start together, or none does",
    "3. A pod that waits, and why",
    "4. A node dies and comes back",
]
ADDRESS = "http://127.0.0.1:"
LINES = 60
"""Of which a terminal shows all without much scrolling."""


# The session's cluster is not used, but requesting it builds the programs outside of any test's timeout.
@pytest.mark.usefixtures("cluster")
def test_make_demo_shows_four_things_and_serves_its_page_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "demo", "--page"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as demo:
        assert demo.stdout is not None
        lines = []
        try:
            for line in demo.stdout:
                lines.append(line.rstrip())
                if ADDRESS in line:
                    break
            port, _, token = lines[-1].removeprefix(ADDRESS).partition("/?token=")
            with contextlib.closing(Client(port=int(port))) as browser:
                assert browser.log_in(token).get("/")[0] == HTTPStatus.OK
        finally:
            os.killpg(demo.pid, signal.SIGINT)  # as Ctrl-C does
            rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, rest
    text = "\n".join(lines)
    assert re.search(r"^demo: 10 pods bound, [1-9]\d* devices allocated, 0 conflicts$", text, re.MULTILINE), text
    assert [line for line in lines if re.match(r"\d\. ", line)] == SECTIONS
    assert len(lines) < LINES
