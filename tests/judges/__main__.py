"""Run a judge after both layers of tests, and record what judges found: `python -m tests.judges run|record|page`."""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.judges import choice, record
from tests.judges.choice import Result, Run
from tests.judges.table import JUDGES, Judge

LIMIT: Final = 20
"""Minutes for a judge, with the build of its programs."""
LATEST: Final = 55
"""Minutes of CI's run after which no judge starts: CI ends it after 90, and machines differ by a factor of two."""
END: Final = 85
"""Minutes of CI's run after which nothing runs on the landing before."""
STOP: Final = 60
"""Seconds for a judge to stop its programs."""
SEEDS: Final = 1000
BEFORE: Final = record.ROOT / ".build/landing-before"


def main() -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.judges", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the judge of this commit")
    run.add_argument("--elapsed", type=int, default=0, help="minutes that CI's run has taken")
    add = commands.add_parser("record", help="add a run to the record, and write the page")
    add.add_argument("commit")
    add.add_argument("judge", choices=["none", *(judge.name for judge in JUDGES)])
    add.add_argument("seed", type=int)
    add.add_argument("result", choices=["passed", "failed", "known", "unfinished", "skipped"])
    add.add_argument("minutes", type=int)
    add.add_argument("--manual", action="store_true", help="it was not CI that ran the judge")
    page = commands.add_parser("page", help="write the page of the record")
    page.add_argument("--check", action="store_true", help="fail if the page differs, or a judge is too old")
    arguments = parser.parse_args()
    if arguments.command == "run":
        return _run(arguments.elapsed)
    if arguments.command == "record":
        return _record(arguments)
    return _page(is_check=arguments.check)


def _record(arguments: argparse.Namespace) -> int:
    record.add(
        Run(
            landing=choice.current(record.read()),
            commit=_git("rev-parse", arguments.commit),
            judge="" if arguments.judge == "none" else arguments.judge,
            seed=arguments.seed,
            result=arguments.result,
            minutes=arguments.minutes,
            manual=arguments.manual,
        )
    )
    return _page(is_check=False)


def _page(*, is_check: bool) -> int:
    runs = record.read()
    text = record.page(runs)
    if not is_check:
        record.PAGE.write_text(text)
        return 0
    found = list(choice.problems(JUDGES, runs))
    if record.PAGE.read_text() != text:
        found.append("docs/judges.md differs from the record: run `.venv/bin/python -m tests.judges page`")
    for problem in found:
        print(f"judges: {problem}", file=sys.stderr)
    return bool(found)


def _run(elapsed: int) -> int:
    begun, runs, commit = time.monotonic() - 60 * elapsed, record.read(), _git("rev-parse", "HEAD")
    if elapsed >= LATEST:
        print(f"judges: skipped, because this run has taken {elapsed} minutes, and no judge starts after {LATEST}")
        _print_command(commit, "none", 0, "skipped", 0)
        return 0
    before = _landing_before(runs)
    judge = choice.choose(JUDGES, runs, _git("diff", "--name-only", before, commit).splitlines())
    seed = 1 + int(commit[:8], 16) % SEEDS
    result, minutes = _judged(judge, seed, folder=record.ROOT, limit=LIMIT)
    if result == "failed":
        left = END - round((time.monotonic() - begun) / 60)
        if left > 0 and _judged_before(judge, seed, commit=before, limit=min(LIMIT, left)) == "failed":
            result = "known"
    _print_command(commit, judge.name, seed, result, minutes)
    if result == "known" and choice.blocks(judge.name, runs):
        print(f"judges: {judge.name} has failed for more than {choice.TOLERATED} landings; it blocks now")
        return 1
    return result == "failed"


def _landing_before(runs: Sequence[Run]) -> str:
    """Return the commit of the latest landing in the record if it is an ancestor, else the parent commit."""
    commit = next((run.commit for run in reversed(runs) if not run.manual), "HEAD^")
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    is_ancestor = subprocess.run(command, cwd=record.ROOT, check=False, capture_output=True).returncode == 0
    return _git("rev-parse", commit if is_ancestor else "HEAD^")


def _judged_before(judge: Judge, seed: int, *, commit: str, limit: int) -> Result:
    print(f"judges: {judge.name} failed; the same seed runs on the landing before, {commit[:8]}", flush=True)
    _git("worktree", "add", "--force", "--detach", str(BEFORE), commit)
    try:
        return _judged(judge, seed, folder=BEFORE, limit=limit)[0]
    finally:
        _git("worktree", "remove", "--force", str(BEFORE))


def _judged(judge: Judge, seed: int, *, folder: Path, limit: int) -> tuple[Result, int]:
    """Run a judge for some minutes at most; return its result, and how many it took."""
    command, begun = judge.command(seed), time.monotonic()
    print(f"judges: {shlex.join(command)}, at most {limit} minutes", flush=True)
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as process:
        try:
            code: int | None = process.wait(60 * limit)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP)
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)
    result: Result = "unfinished" if code is None else "failed" if code else "passed"
    minutes = round((time.monotonic() - begun) / 60)
    print(f"judges: {judge.name} {result} after {minutes} minutes", flush=True)
    return result, minutes


def _print_command(commit: str, judge: str, seed: int, result: str, minutes: int) -> None:
    print(
        f"judges: the next landing runs: python -m tests.judges record {commit[:12]} {judge} {seed} {result} {minutes}"
    )


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=record.ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
