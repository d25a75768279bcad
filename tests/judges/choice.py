"""Which judge runs next, and which findings block. Pure functions of the record."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tests.judges.table import Judge

Result = Literal["passed", "failed", "known", "unfinished", "skipped"]
"""`known`: it failed with the same seed on the landing before, too. `skipped`: the run had no time left."""
RAN: Final = frozenset({"passed", "failed", "known"})
DUE: Final = 15
"""Landings after which a judge is due, whatever a change touches."""
OLDEST: Final = 20
"""Landings within which each judge must have run."""
TOLERATED: Final = 3
"""Landings for which a known failure does not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A line of the record."""

    landing: int
    """The number of the landing that it judges. The record counts them, because Git does not show where one ends."""
    commit: str
    judge: str
    """Empty if none ran."""
    seed: int
    result: Result
    minutes: int
    manual: bool = False
    """Whether a contributor ran it, and not CI. The lines of CI number the landings."""


def current(runs: Sequence[Run]) -> int:
    """Return the number of the landing that is being made."""
    return 1 + max((run.landing for run in runs if not run.manual), default=0)


def latest(runs: Sequence[Run]) -> Mapping[str, Run]:
    """Return the latest run of each judge that has run."""
    return {run.judge: run for run in runs if run.result in RAN}


def ages(judges: Sequence[Judge], runs: Sequence[Run]) -> dict[str, int]:
    """Return for each judge how many landings it has not judged; the record begins after landing 0."""
    landing, last = current(runs), latest(runs)
    return {judge.name: landing - (last[judge.name].landing if judge.name in last else 0) for judge in judges}


def choose(judges: Sequence[Judge], runs: Sequence[Run], changed: Collection[str]) -> Judge:
    """Return the judge for a change of these files: one that is due, else the oldest that it concerns, else the oldest.

    One judge runs in each landing. So a judge is also due if it would be too late once all older ones have run.
    """
    age = ages(judges, runs)
    by_age = sorted(judges, key=lambda judge: -age[judge.name])
    if any(age[judge.name] + place >= DUE for place, judge in enumerate(by_age)):
        return by_age[0]
    return next((judge for judge in by_age if judge.concerns(changed)), by_age[0])


def known(runs: Sequence[Run]) -> dict[str, int]:
    """Return the judges whose latest run found a known failure, and the landing in which the failure was found."""
    since: dict[str, int] = {}
    for run in runs:
        if run.result == "known":
            since.setdefault(run.judge, run.landing)
        elif run.result in RAN:
            since.pop(run.judge, None)
    return since


def blocks(judge: str, runs: Sequence[Run]) -> bool:
    """Return whether a failure that the landing before has, too, is known for too long."""
    landing = current(runs)
    return landing - known(runs).get(judge, landing) >= TOLERATED


def problems(judges: Sequence[Judge], runs: Sequence[Run]) -> Iterator[str]:
    """Yield what forbids to land."""
    for name, age in ages(judges, runs).items():
        if age > OLDEST:
            yield f"{name} has not run for {age} landings, at most {OLDEST} are allowed: run it, and record the result"
    for name, landing in known(runs).items():
        if blocks(name, runs):
            yield f"{name} has failed since landing {landing}, and {TOLERATED} landings were tolerated: mend it"
