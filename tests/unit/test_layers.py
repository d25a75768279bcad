"""The guard of the first layer: a compiled program does not start in it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def etcd(tmp_path: Path) -> Path:
    """Return a compiled program called as one of a cluster's."""
    return Path(shutil.copy(shutil.which("true") or "", tmp_path / "etcd"))


@pytest.mark.parametrize("wrapper", [[], [sys.executable, "-c", "pass"]], ids=["by itself", "by a wrapper"])
def test_a_compiled_program_fails_the_test_that_starts_it(etcd: Path, wrapper: list[str]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"starts etcd: tests/unit and tests/component start no compiled"):
        subprocess.run([*wrapper, str(etcd)], check=True)
