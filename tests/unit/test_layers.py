"""The guard of the first layer: a compiled program does not start in it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import layers


@pytest.fixture
def etcd(tmp_path: Path) -> Path:
    """Return a compiled program called as one of a cluster's."""
    return Path(shutil.copy(shutil.which("true") or "", tmp_path / "etcd"))


@pytest.mark.parametrize("wrapper", [[], [sys.executable, "-c", "pass"]], ids=["by itself", "by a wrapper"])
def test_a_compiled_program_fails_the_test_that_starts_it(etcd: Path, wrapper: list[str]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"starts etcd: tests/unit and tests/component start no compiled"):
        subprocess.run([*wrapper, str(etcd)], check=True)


def test_no_handler_of_errors_hides_it(etcd: Path) -> None:
    def start() -> None:
        try:
            subprocess.run([str(etcd)], check=True)
        except Exception:  # noqa: BLE001 - as a program might
            return

    with pytest.raises(pytest.fail.Exception):
        start()


def test_a_script_that_plays_a_program_runs(tmp_path: Path) -> None:
    script = tmp_path / "etcd"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o700)

    assert subprocess.run([str(script)], check=True).returncode == 0


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("unit/core/test_x.py", True),
        ("component/test_x.py", True),
        ("integration/test_x.py", False),
        ("../x.py", False),
    ],
)
def test_the_folder_says_the_layer(file: str, *, first: bool) -> None:
    assert layers.is_first((layers.TESTS / file).resolve()) is first
