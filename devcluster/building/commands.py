"""Commands that must succeed."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster.errors import DevclusterError

LAST_LINES: Final = 20


def run(
    command: Sequence[str | Path],
    *,
    input: str | None = None,  # noqa: A002 - as subprocess names it
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output; raise DevclusterError with its last lines if it fails."""
    completed = subprocess.run(command, input=input, env=environment, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        tail = "\n".join((completed.stderr or completed.stdout).splitlines()[-LAST_LINES:])
        raise DevclusterError(f"{Path(command[0]).name} failed with status {completed.returncode}:\n{tail}")
    return completed.stdout
