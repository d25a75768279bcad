"""Programs that end no later than the process that started them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

EXEC_CHILD: Final = Path(__file__).with_name("exec_child.py")
STOP_SECONDS: Final = 5.0


def spawn(command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a program that the kernel kills with this process; its output is appended to a file."""
    # -I -S: the wrapper needs nothing of site-packages, and starts in half the time without.
    wrapper = [sys.executable, "-I", "-S", str(EXEC_CHILD), str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*wrapper, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )


def stop_all(children: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ask programs to end, and kill those that still run after a while."""
    stopping = list(children)
    for child in stopping:
        child.terminate()
    end = time.monotonic() + STOP_SECONDS
    for child in stopping:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
