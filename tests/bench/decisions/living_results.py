"""The results of simulations: what was allocated, which pods waited how long, and Berth's lead over the baselines."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol, Self

from rich.console import Console
from rich.table import Table

from tests.bench import figures
from tests.bench.decisions.openb import Task
from tests.bench.decisions.simulation import Pod, Run

OURS: Final = "ours"
CONSTRAINED: Final = "constrained"
SIZES: Final = ("none", "share", "1", "2", "4", "8", CONSTRAINED)
"""Pods without cards, with a share of one, with so many; and, once more, those that accept only some models."""
ENOUGH: Final = 20
"""Fewer pods of a size say too little about their waits to be compared."""


class Cell(Protocol):
    """What was simulated."""

    @property
    def workload(self) -> str:
        """Return the name of the workload."""

    @property
    def load(self) -> float:
        """Return the offered load."""

    @property
    def policy(self) -> str:
        """Return the name of the policy."""


@dataclass(slots=True)
class Waits:
    """The pods of one size that arrived while it was measured."""

    pods: int = 0
    waited: list[float] = field(default_factory=list)
    """Mean lifetimes for those that had to wait; so far, for those that still wait at the end."""

    def add(self, other: Self) -> None:
        """Add the pods of another simulation."""
        self.pods += other.pods
        self.waited += other.waited


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one simulation."""

    allocated: float
    """Percent of all cards, on average over time."""
    backlog: float
    """Percent of all cards that waiting pods requested, on average over time."""
    took: float
    """Median milliseconds of a decision and its charge."""
    sizes: Mapping[str, Waits]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Return an outcome from its `asdict`."""
        return cls(**{**raw, "sizes": {size: Waits(**waits) for size, waits in raw["sizes"].items()}})


def outcome(run: Run, *, capacity: int, start: float, end: float) -> Outcome:
    """Return the outcome of a run, for pods that arrived from `start` on."""
    sizes: defaultdict[str, Waits] = defaultdict(Waits)
    for pod in run.pods:
        if pod.at >= start:
            for size in _sizes(pod.task):
                _count(sizes[size], pod, end)
    return Outcome(
        allocated=100 * run.allocated / capacity,
        backlog=100 * run.waiting / capacity,
        took=statistics.median(run.took) if run.took else 0.0,
        sizes=dict(sizes),
    )


def _sizes(task: Task) -> tuple[str, ...]:
    size = "none" if not task.cards else "share" if task.milli < 1000 else str(task.cards)
    return (size, CONSTRAINED) if task.models else (size,)


def _count(waits: Waits, pod: Pod, end: float) -> None:
    waits.pods += 1
    if pod.placed != pod.at:
        waits.waited.append((end if pod.placed is None else pod.placed) - pod.at)


# --- by cell and policy -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The waits of the pods of one size: percent that had to wait, and mean lifetimes over all of them."""

    pods: int
    part: float
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy on one workload at one load, over all seeds."""

    workload: str
    load: float
    policy: str
    allocated: float
    backlog: float
    took: float
    waits: Mapping[str, Wait]


def rows(outcomes: Iterable[tuple[Cell, Outcome]]) -> list[Row]:
    """Return a row for each workload, load and policy: means over the seeds, and the waits of all their pods."""
    grouped: defaultdict[tuple[str, float, str], list[Outcome]] = defaultdict(list)
    for cell, result in outcomes:
        grouped[cell.workload, cell.load, cell.policy].append(result)
    return [
        Row(
            workload=workload,
            load=load,
            policy=policy,
            allocated=round(statistics.fmean(each.allocated for each in results), 3),
            backlog=round(statistics.fmean(each.backlog for each in results), 3),
            took=round(statistics.median(each.took for each in results), 3),
            waits=_pooled(results),
        )
        for (workload, load, policy), results in grouped.items()
    ]


def _pooled(results: Sequence[Outcome]) -> dict[str, Wait]:
    pooled = {size: Waits() for size in SIZES}
    for result in results:
        for size, waits in result.sizes.items():
            pooled[size].add(waits)
    return {size: _wait(waits) for size, waits in pooled.items() if waits.pods}


def _wait(waits: Waits) -> Wait:
    every = [0.0] * (waits.pods - len(waits.waited)) + waits.waited
    return Wait(
        pods=waits.pods,
        part=round(100 * len(waits.waited) / waits.pods, 2),
        mean=round(statistics.fmean(every), 4),
        p50=round(figures.quantile(every, 0.5), 4),
        p99=round(figures.quantile(every, 0.99), 4),
    )


# --- Berth against the baselines --------------------------------------------------------------------------------


def summary(table: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of a run.

    `mean_ahead` is against the baseline that allocates most on average over the cells; `worst_allocated` against the
    one that allocates most in each cell; `worst_wait` is the mean wait of a size against the one with the shortest in
    each cell.
    """
    cells = _by_cell(table)
    ours = [(by_policy[OURS], _others(by_policy)) for by_policy in cells.values() if OURS in by_policy]
    compared = [(row, others) for row, others in ours if others]
    return {
        "bench": "living",
        "cells": len(cells),
        "mean_ahead": _mean_ahead(compared) if compared else None,
        "worst_allocated": min((_ahead(*each) for each in compared), default=None),
        "worst_wait": max((_longer(*each) for each in compared), default=None),
        "p50_ms": round(statistics.median(row.took for row, _ in ours), 3) if ours else None,
        "table": [asdict(row) for row in table],
    }


def _by_cell(table: Iterable[Row]) -> dict[tuple[str, float], dict[str, Row]]:
    cells: defaultdict[tuple[str, float], dict[str, Row]] = defaultdict(dict)
    for row in table:
        cells[row.workload, row.load][row.policy] = row
    return cells


def _others(by_policy: Mapping[str, Row]) -> list[Row]:
    return [row for name, row in by_policy.items() if name != OURS]


def _mean_ahead(compared: Sequence[tuple[Row, Sequence[Row]]]) -> float:
    sums: defaultdict[str, float] = defaultdict(float)
    for _, others in compared:
        for row in others:
            sums[row.policy] += row.allocated
    return round((sum(row.allocated for row, _ in compared) - max(sums.values())) / len(compared), 3)


def _ahead(row: Row, others: Iterable[Row]) -> float:
    return round(row.allocated - max(each.allocated for each in others), 3)


def _longer(row: Row, others: Iterable[Row]) -> float:
    shortest: dict[str, float] = {}
    for other in others:
        for size, wait in other.waits.items():
            shortest[size] = min(wait.mean, shortest.get(size, wait.mean))
    longer = (wait.mean - shortest[size] for size, wait in row.waits.items() if wait.pods >= ENOUGH)
    return round(max(longer, default=0.0), 4)


def show(table: Sequence[Row]) -> None:
    """Print the table; for each size the percent that waited and the mean wait."""
    shown = Table(title="allocated and waiting (% of all cards); by size: pods that waited (%), mean wait (lifetimes)")
    for heading in ("workload", "load", "policy", "allocated", "waiting", *SIZES[1:]):
        shown.add_column(heading, justify="left" if heading in ("workload", "policy") else "right")
    for row in table:
        waits = (row.waits.get(size) for size in SIZES[1:])
        cells = ("-" if each is None else f"{each.part:.1f} {each.mean:.3f}" for each in waits)
        shown.add_row(row.workload, f"{row.load:.2f}", row.policy, f"{row.allocated:.2f}", f"{row.backlog:.2f}", *cells)
    Console(width=150).print(shown)
