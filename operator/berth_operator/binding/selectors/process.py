"""The worker process that evaluates selectors, as the operator sees it."""

import asyncio
import contextlib
import json
import pickle
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from berth_operator.binding.selectors.evaluate import HEADER
from berth_operator.core.claims.selectors import DeviceView

TIMEOUT: Final = 120.0
"""Seconds for a job, which takes a few at most: the process is killed after that."""
MAX_ANSWER: Final = 2**20
"""Bytes."""
MODULE: Final = "berth_operator.binding.selectors.evaluate"


class WorkerError(Exception):
    """The process ended without an answer."""


class StartError(WorkerError):
    """The process could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The results of the process."""

    results: Sequence[bool | str] = ()
    """The value for each of the first devices, or why there is none."""
    invalid: str = ""
    """Why the expression does not compile; empty if it does."""


class SelectorProcess:
    """One process, which is started when it is needed, and again after it has ended."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", MODULE), timeout: float = TIMEOUT) -> None:
        self._command, self._timeout = command, timeout
        self._process: Process | None = None

    async def evaluate(self, expression: str, views: Sequence[DeviceView]) -> Evaluated:
        """Evaluate an expression for devices, one job at a time.

        Raises:
            StartError: there is no process.
            WorkerError: there is no answer; the process is ended.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._ask(pickle.dumps((expression, views)))
        except TimeoutError as error:
            await self.close()
            raise WorkerError(f"no answer within {self._timeout:.0f} s") from error
        except (OSError, ValueError, EOFError) as error:
            await self.close()
            raise WorkerError(f"the worker process ended: {type(error).__name__}") from error
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, job: bytes) -> Evaluated:
        if self._process is None:
            try:
                # Without our environment and standard error: tenants write the expressions.
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}, limit=MAX_ANSWER
                )
            except OSError as error:
                raise StartError(f"the worker process cannot be started: {error}") from error
        process = self._process
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(HEADER.pack(len(job)) + job)
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return Evaluated(**json.loads(line))
