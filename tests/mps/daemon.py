"""The stand-in daemon as a process of a test."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from berth_agent.vendors.nvidia.isolation.control import PIPE_DIRECTORY
from devcluster import waiting
from devcluster.processes import children
from tests.mps import command, control

PATIENCE: Final = 60.0


class StandIn:
    """A program `nvidia-cuda-mps-control`, and the daemon that it runs.

    Attributes:
        program: the program.
        folder: of the daemon's sockets; its path must be short.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mps"
        self.program = folder / "nvidia-cuda-mps-control"
        python = f"exec {sys.executable} -I -S"
        self.program.write_text(
            f'#!/bin/sh\ntest $# -gt 0 && {python} {control.__file__} "$@"\n{python} {command.__file__}\n'
        )
        self.program.chmod(0o755)
        self._log = folder / "mps.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        started = [str(self.program), "-f", "-multiuser-server"]
        self._process = children.spawn(started, log=self._log, environment={PIPE_DIRECTORY: str(self.folder)})
        waiting.until(self._answers, deadline=PATIENCE, what="the MPS daemon")

    def kill(self) -> None:
        """Kill the daemon; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ask(self, question: str) -> str:
        """Send a command; return what the daemon says, and nothing if there is none."""
        environment = os.environ | {PIPE_DIRECTORY: str(self.folder)}
        done = subprocess.run(
            [self.program], input=question, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def _answers(self) -> bool:
        return bool(self.ask("get_default_active_thread_percentage"))
