"""`python -m tests.fuzz`: fuzz all parsers for some minutes. Each finding is a line in the form of a seed."""

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import orjson
import structlog
from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.target import Target, check, encoded
from tests.fuzz.targets import TARGETS

EXAMPLES: Final = 200
"""Inputs of a parser in one turn."""


class FailedError(Exception):
    """A parser failed; the cause is its error."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def turn(target: Target, number: int) -> FailedError | None:
    """Try a parser with inputs that the number determines; return the smallest that fails."""

    @seed(number)
    @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(target.inputs)
    def each(value: Any) -> None:
        try:
            check(target, value)
        except Exception as error:
            raise FailedError(value) from error

    try:
        each()
    except FailedError as failed:
        return failed
    return None


def place(error: BaseException | None) -> str:
    """Return the type of an error and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1] if error else None
    return f"{type(error).__name__} in {frame.filename if frame else '?'}:{frame.lineno if frame else 0}"


def fuzz(targets: Iterable[Target], minutes: float, start: int) -> tuple[Counter[str], dict[str, set[str]]]:
    """Fuzz parsers in turns until the time is over; return the number of turns and the places of errors of each."""
    turns: Counter[str] = Counter()
    found: dict[str, set[str]] = {}
    ends = time.monotonic() + 60 * minutes
    while time.monotonic() < ends:
        for target in targets:
            failed = turn(target, start + turns[target.name])
            turns[target.name] += 1
            if failed is not None and (at := place(failed.__cause__)) not in found.setdefault(target.name, set()):
                found[target.name].add(at)
                finding = {
                    "target": target.name,
                    "error": f"{at}: {failed.__cause__}"[:500],
                    "seed": encoded(failed.value),
                }
                print(orjson.dumps(finding, default=repr).decode(), flush=True)
            if time.monotonic() >= ends:
                break
    return turns, found


def main() -> int:
    """Run, and print the sums; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument(
        "targets", nargs="*", choices=TARGETS, metavar="target", help=f"{', '.join(TARGETS)}; all by default"
    )
    given_options = parser.parse_args()
    # What parsers log is of no interest, and standard output is for findings.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chosen = [TARGETS[name] for name in given_options.targets or TARGETS]
    turns, found = fuzz(chosen, given_options.minutes, given_options.seed)
    findings = sum(map(len, found.values()))
    figures = {"targets": len(turns), "inputs": EXAMPLES * sum(turns.values()), "findings": findings}
    print(orjson.dumps({**figures, "minutes": given_options.minutes, "seed": given_options.seed}).decode())
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
