"""Run tests so that the verdict depends on the code, not on the machine: `python -m tests.harness.steady ARGUMENTS`.

A test that failed only because a condition was late (`tests.harness.late`) runs once more, alone, after all others.
This is not a second chance for real failures. Four things fail the run at once: a condition that never became true, a
finding of an audit, any other failure, and more than a few late tests.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness import late

MOST_LATE: Final = 3
"""The most late tests of a run: where more are late, something is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of pytest."""

    exit_code: int
    failures: Sequence[dict[str, Any]]


def main() -> int:
    """Run the tests, and those that were late once more; return the exit code."""
    arguments = sys.argv[1:]
    first = _run(arguments)
    if first.exit_code != pytest.ExitCode.TESTS_FAILED:
        return first.exit_code
    if why := refusal(first.failures):
        print(f"steady: not repeated: {why}")
        return first.exit_code
    seconds = {failure["test"]: failure["seconds"] for failure in first.failures}
    print(f"steady: {len(seconds)} late, now repeated alone: {', '.join(seconds)}", flush=True)
    second = _run([*arguments, "--last-failed", "-n0"])
    if second.exit_code:
        print("steady: a late test failed alone, too")
        return second.exit_code
    print("steady: passed; these tests were late (the record in docs/testing.md):")
    for failure in first.failures:
        print(f"  {failure['test']}, {failure['seconds']} s: {failure['message']}")
    return 0


def refusal(failures: Sequence[dict[str, Any]]) -> str:
    """Return why the tests that failed are not repeated; empty if they were late and may have been."""
    if not failures:
        return "the run failed, but no test"
    if other := [failure["test"] for failure in failures if not failure["late"]]:
        return f"failed, and not only late: {', '.join(other)}"
    if unsafe := [failure["test"] for failure in failures if failure["safety"]]:
        return f"late where nothing may be: {', '.join(unsafe)}"
    tests = {failure["test"] for failure in failures}
    return f"{len(tests)} late tests, at most {MOST_LATE} may be" if len(tests) > MOST_LATE else ""


def _run(arguments: Sequence[str]) -> Run:
    with tempfile.TemporaryDirectory(prefix="berth-late-") as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, "-m", "pytest", "-p", late.__name__, *arguments]
        done = subprocess.run(command, check=False, env=os.environ | {late.VARIABLE: str(record)})
        failures = json.loads(record.read_text())["failures"] if record.exists() else []
    return Run(exit_code=done.returncode, failures=failures)


if __name__ == "__main__":
    sys.exit(main())
