"""Send commands to NVIDIA's MPS daemon with its program `nvidia-cuda-mps-control`."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
PATIENCE: Final = 8.0
"""Seconds within which the daemon must answer, which takes milliseconds unless the node is overloaded. Kubelet waits 30
for all that precedes a start."""
MAX_SHOWN: Final = 200
"""Characters of an answer that an error shows."""


class ControlError(Exception):
    """The daemon does not answer, or refuses a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsControl:
    """The program, and the folder with the daemon's sockets."""

    program: str
    folder: Path

    async def send(self, *commands: str) -> str:
        """Send commands to the daemon; return its answer to all of them.

        Raises:
            ControlError: it does not answer in time, or the program fails.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                self.program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, PIPE_DIRECTORY: str(self.folder)},
            )
        except OSError as error:
            raise ControlError(f"{self.program} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(PATIENCE):
                output, _ = await process.communicate("".join(f"{command}\n" for command in commands).encode())
        except TimeoutError:
            raise ControlError(f"no answer within {PATIENCE:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        answer = output.decode(errors="replace").strip()
        if process.returncode:
            raise ControlError(answer[:MAX_SHOWN] or f"exit status {process.returncode}")
        return answer
