"""Processes of this machine that hold a card: `tests.gpu.client`, started and ended by a test."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.gpu.look import ROOT

PATIENCE: Final = 120.0

Seen = dict[str, Any]


class Client(NamedTuple):
    """A process, and what it sees of the cards."""

    pid: int
    seen: Seen


@contextlib.contextmanager
def client(mebibytes: int, **variables: str) -> Iterator[Client]:
    """Run a process that allocates so much memory of its first card, and holds it until the end of the block."""
    command = [sys.executable, "-m", "tests.gpu.client", str(mebibytes)]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Client(process.pid, json.loads(process.stdout.readline()))
        process.terminate()
        process.wait(PATIENCE)
