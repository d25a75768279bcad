"""`kubectl-berth` ends at once, and nothing that it printed is lost."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (sys.executable, "-m", "berth_kubectl")
VERBS = ("__complete", "")
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def ended(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": BUFFERED, **options}
    return subprocess.run([*PROGRAM, *arguments], text=True, check=False, timeout=60, **streams)


def test_all_that_is_printed_is_read() -> None:
    done = ended(*VERBS)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"explain", "queue", "simulate", ":4"} <= set(done.stdout.split())


def test_an_error_is_read_and_has_its_status() -> None:
    done = ended("explain")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("environment", [BUFFERED, {**BUFFERED, "PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("arguments", [VERBS, ("--help",)])
def test_a_reader_that_has_enough_is_no_error(arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = ended(*arguments, stdout=writer, env=environment)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = ended(*VERBS, stdout=full)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr


def test_completion_of_verbs_loads_no_http() -> None:
    code = "import sys; from berth_kubectl.commands import completing; print('http.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
