"""Run `migrate` for both programs: read sources, write answers, report progress, return the exit status."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TextIO

import orjson
import yaml

from berth_api import words
from berth_api.values.printing import printable
from berth_api.words import UnitError
from berth_operator.commands.errors import InputError
from berth_operator.commands.migrate import live, manifests, pieces, reports, sources, takeover, workloads
from berth_operator.commands.migrate.live import ListedKind, Lists
from berth_operator.commands.migrate.manifests import Migrated, MigrationAnswer, Problem
from berth_operator.commands.migrate.reports import Summary
from berth_operator.commands.migrate.sources import Source
from berth_operator.commands.migrate.workloads import Goal, MigrationResult

LIVE: Final = "the cluster"
_STEP: Final = 0.1
"""Seconds between two updates of the progress bar."""
_WIDTH: Final = 30
_LONG: Final = 2**16


Read = Callable[[Sequence[ListedKind]], Lists]
"""Lists kinds of the live cluster."""


@dataclass(slots=True, kw_only=True)
class Streams:
    """Where answers and notes go."""

    form: str
    quiet: bool
    out: TextIO
    err: TextIO

    def note(self, text: str) -> None:
        """Write a line on standard error."""
        if not self.quiet:
            self.err.write(f"{text}\n")


def goal(scheduler: str, units: str) -> Goal:
    """Return what manifests are rewritten for.

    Raises:
        InputError: a unit is not valid.
    """
    try:
        return Goal(scheduler=scheduler, units=words.read_units(units))
    except UnitError as error:
        raise InputError(f"--memory-units: {error}") from error


def run(options: argparse.Namespace, read: Read) -> int:
    """Answer the command line; `read` lists kinds of the live cluster. Return the exit status.

    Raises:
        InputError: the command line is not valid.
    """
    to = Streams(form=options.output, quiet=options.quiet, out=sys.stdout, err=sys.stderr)
    wanted = goal(options.scheduler_name, options.memory_units or "")
    if options.in_place and (not options.file or sources.STANDARD_INPUT in options.file):
        raise InputError("--in-place needs files: name them by --file")
    if options.takeover:
        if options.file:
            raise InputError("--cluster and --file: allowed is one of them")
        return of_cluster(read(live.TAKEOVER), to)
    if options.file:
        return of_files(options.file, wanted, to, in_place=options.in_place)
    return of_lists(read, wanted, to)


# --- files ----------------------------------------------------------------------------------------------------


def of_files(named: Sequence[str], wanted: Goal, to: Streams, *, in_place: bool = False) -> int:
    """Migrate files; return the exit status."""
    files = sources.found(named)
    tally, writer, progress = Summary(), _Writer(to), _Progress(to, len(files))
    writer.begin()
    for number, source in enumerate(files):
        progress.show(number)
        tally.files += 1
        problem, content, text = None, b"", ""
        try:
            content = source.read()
            text = content.decode()
        except OSError as error:
            problem = Problem(file=source.name, message=error.strerror or str(error))
        except UnicodeDecodeError as error:
            before = content[: error.start]
            line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
            problem = Problem(file=source.name, message=f"not UTF-8: {error.reason}", line=line, column=column)
        if problem is not None:
            migrated = Migrated(text="", answers=(), problems=(problem,))
            progress.clear()
        elif pieces.is_relevant(content):
            migrated = manifests.migrate(source.name, text, wanted)
            progress.clear()
        else:
            tally.without_words += 1
            migrated = Migrated(text=text, answers=(), problems=())
        for answer in migrated.answers:
            tally.outcomes[answer.workload.outcome] += 1
            writer.answer(answer)
        for problem in migrated.problems:
            tally.problems += 1
            writer.problem(problem)
        if in_place:
            tally.problems += _replaced(source, migrated, writer)
        elif to.form == "yaml":
            writer.manifest(migrated.text)
    progress.clear()
    writer.end(tally)
    return tally.status


def _replaced(source: Source, migrated: Migrated, writer: "_Writer") -> int:
    """Write a file that has changed; return the number of problems."""
    changed = (MigrationResult.REWRITTEN, MigrationResult.PARTLY)
    if source.path is None or not any(answer.workload.outcome in changed for answer in migrated.answers):
        return 0
    path = source.path.resolve()  # a link stays one
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(migrated.text.encode())
        aside.chmod(path.stat().st_mode)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        writer.problem(Problem(file=source.name, message=f"cannot be written: {error.strerror}"))
        return 1
    return 0


# --- the live cluster -----------------------------------------------------------------------------------------


def of_lists(read: Read, wanted: Goal, to: Streams) -> int:
    """Migrate the workloads of the live cluster; return the exit status."""
    tally, writer = Summary(), _Writer(to)
    lists, classes = read(live.WORKLOADS), Lists()
    if any(map(workloads.priority_class, live.bodies(lists))):  # not every user may list them
        classes = read((live.PRIORITY_CLASSES,))
    if live.PRIORITY_CLASSES in classes.objects:
        names = frozenset(obj["metadata"]["name"] for obj in classes.of(live.PRIORITY_CLASSES.plural))
        wanted = replace(wanted, priority_classes=names)
    writer.begin()
    for body in live.bodies(lists):
        done = workloads.rewrite(body, wanted)
        for workload in done.workloads:
            tally.outcomes[workload.outcome] += 1
            writer.answer(MigrationAnswer(file=LIVE, line=0, workload=workload))
        if to.form == "yaml" and done.workloads:
            writer.manifest(live.text(done.body))
    for name, why in {**lists.unread, **classes.unread}.items():
        tally.problems += 1
        writer.problem(Problem(file=name, message=why))
    writer.end(tally)
    return tally.status


def of_cluster(lists: Lists, to: Streams) -> int:
    """Write how to move the live cluster; return the exit status."""
    planned = takeover.plan(lists)
    if to.form == "json":
        to.out.write(_json(takeover.report(planned)) + "\n")
    elif to.form == "yaml":
        to.out.write(yaml.safe_dump(takeover.report(planned), sort_keys=False, allow_unicode=True, width=_LONG))
    else:
        to.out.writelines(f"{printable(line)}\n" for line in takeover.lines(planned))
    return reports.NOT_READ if lists.unread else reports.DONE


# --- output ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Writer:
    """Writes answers one by one, so that memory does not grow with their number."""

    to: Streams
    problems: list[Problem] = field(default_factory=list)
    count: int = 0

    def begin(self) -> None:
        if self.to.form == "json":
            self.to.out.write('{"workloads": [')

    def answer(self, answer: MigrationAnswer) -> None:
        if self.to.form == "json":
            self.to.out.write(("," if self.count else "") + "\n" + _json(reports.of_answer(answer)))
            self.count += 1
        elif self.to.form == "yaml":
            if answer.workload.outcome in (MigrationResult.PARTLY, MigrationResult.IMPOSSIBLE):
                self.to.note(reports.line_of(answer))
        else:
            self.to.out.write(reports.line_of(answer) + "\n")

    def problem(self, problem: Problem) -> None:
        self.problems.append(problem)
        if self.to.form != "json":
            self.to.err.write(reports.line_of_problem(problem) + "\n")

    def manifest(self, text: str) -> None:
        """Write a manifest, apart from the one before it."""
        if not text.strip():
            return
        if self.count and not text.startswith("---"):
            self.to.out.write("---\n")
        self.to.out.write(text if text.endswith("\n") else f"{text}\n")
        self.count += 1

    def end(self, tally: Summary) -> None:
        if self.to.form == "json":
            rest = {"problems": [reports.of_problem(problem) for problem in self.problems], "summary": tally.report()}
            self.to.out.write("\n]," + _json(rest)[1:] + "\n")
        elif self.to.form == "yaml":
            self.to.note(tally.summary)
        else:
            self.to.out.write(f"{tally.summary}\n")


def _json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()


class _Progress:
    """A bar on standard error, if that is a terminal and answers do not go there, too."""

    def __init__(self, to: Streams, total: int) -> None:
        self._err, self._total = to.err, total
        self._is_shown = not to.quiet and to.err.isatty()
        self._next, self._is_there = 0.0, False

    def show(self, done: int) -> None:
        """Show how many files are done, at most ten times a second."""
        if self._is_shown and (now := time.monotonic()) >= self._next:
            filled = _WIDTH * done // max(self._total, 1)
            self._err.write(f"\r[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{self._total} files")
            self._err.flush()
            self._next, self._is_there = now + _STEP, True

    def clear(self) -> None:
        """Remove the bar before other lines."""
        if self._is_there:
            self._err.write("\r\033[K")
            self._err.flush()
            self._is_there = False
