"""Run the operator and record how long its event loop was held: `python -m tests.bench.cluster.probe FILE ARGUMENTS…`.

A timer of the loop itself fires every TICK seconds. Between two of its ticks, the loop's thread computed one turn, or
several that no timer could enter. This is at most a tick more than the longest turn. Processor time is recorded, which
other programs on the machine do not lengthen. FILE gets a line for each interval that took over NOTABLE seconds.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import uvloop

from berth_operator.commands import operate

TICK: Final = 0.002
NOTABLE: Final = 0.004

_new_event_loop = uvloop.new_event_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One time in which the loop entered no timer."""

    at: float
    """Its end, by the monotonic clock in seconds, which all programs of a machine share."""
    seconds: float


def read(file: Path) -> list[Held]:
    """Return what was recorded so far."""
    lines = (line.split() for line in file.read_text().splitlines() if line.count(" ") == 1)
    return [Held(at=float(at), seconds=float(seconds)) for at, seconds in lines]


class _Ticks:
    def __init__(self, loop: asyncio.AbstractEventLoop, file: TextIO) -> None:
        self._loop, self._file = loop, file
        self._used = time.thread_time()

    def tick(self) -> None:
        """Record what the thread used since the last tick."""
        used = time.thread_time()
        if used - self._used > NOTABLE:
            print(f"{time.monotonic():.4f} {used - self._used:.4f}", file=self._file, flush=True)
        self._used = time.thread_time()
        self._loop.call_later(TICK, self.tick)


def main() -> None:
    """Run the operator's process with a loop that is measured."""
    name, *arguments = sys.argv[1:]
    with Path(name).open("w") as file:

        def measured() -> uvloop.Loop:
            loop = _new_event_loop()
            loop.call_soon(_Ticks(loop, file).tick)
            return loop

        uvloop.new_event_loop = measured  # the library's: the operator asks it for its only loop
        operate.main(arguments)


if __name__ == "__main__":
    main()
