"""The messages of `make kind` where it cannot start. tests/node/test_trial.py runs its steps."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "demo/kind.sh"
EVERYTHING = ("docker", "kind", "kubectl", "helm")


@pytest.mark.parametrize(
    ("arguments", "there", "message"),
    [
        ([], [], "docker is not installed, or not on PATH; needed are: docker kind kubectl helm"),
        ([], ["docker"], "kind is not installed, or not on PATH; needed are: docker kind kubectl helm"),
        ([], EVERYTHING, "Docker does not answer: start it, and check that you may use it"),
        (["stop"], [], "unknown argument stop; it takes none, or `devcluster`"),
    ],
)
def test_one_line_says_what_is_missing(
    arguments: list[str], there: Sequence[str], message: str, tmp_path: Path
) -> None:
    bash = shutil.which("bash")
    assert bash
    (tmp_path / "dirname").symlink_to(shutil.which("dirname") or "")
    for program in there:
        (tmp_path / program).symlink_to(shutil.which("false") or "")

    done = subprocess.run(
        [bash, SCRIPT, *arguments], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"kind: {message}\n")
