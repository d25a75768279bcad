"""The share of all cards that a policy gets allocated: `python -m tests.bench.decisions.quality --help`.

The protocol is the one of the published runs (docs/placement-quality.md). Each seed shuffles the pods of a trace. It
repeats or thins them out until they request 1.3 times all cards, and lets them arrive one by one. No pod leaves. A pod
that fits nowhere is dropped but counts as arrived. The core's own `decide` places the pods. The result is the mean
share of all cards that is allocated when 90, 100 or 130 % have arrived.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod
from tests.bench import figures
from tests.bench.decisions import baselines, chart, openb
from tests.bench.decisions.openb import Task, Trace

LOADS: Final = (90, 100, 130)
"""Loads to report: cards arrived, in hundredths of all cards."""
OURS: Final = "ours"
POLICIES: Final = (*baselines.NAMES, OURS)
SEEDS: Final = "42-51"


@dataclass(slots=True)
class Run:
    """The result of one replay."""

    took: list[float] = field(default_factory=list)
    """Milliseconds of each placement: the decision and its charge."""
    _sums: dict[int, tuple[float, int]] = field(default_factory=dict)

    def record(self, arrived: float, allocated: float) -> None:
        """Record a pod's arrival, in shares of all cards."""
        total, count = self._sums.get(round(100 * arrived), (0.0, 0))
        self._sums[round(100 * arrived)] = (total + 100 * allocated, count + 1)

    @property
    def curve(self) -> dict[int, float]:
        """Return for each hundredth of all cards arrived the mean share allocated, over the pods of that hundredth."""
        return {load: total / count for load, (total, count) in self._sums.items()}


def main() -> None:
    """Run the benchmark."""
    options = _arguments()
    traces = [openb.read(each) for each in options.trace] or list(openb.published())
    if not options.trace and openb.folder() is None:
        figures.say(
            "BERTH_TRACE_DIR is not set: using a generated trace, whose figures are not comparable with published ones"
        )
    replays = {trace.name: dict(_measured(trace, options.policy, options.seeds)) for trace in traces}
    if options.chart is not None:
        chart.draw(replays, options.chart)
    _show(replays)
    figures.result(summary(replays))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.decisions.quality", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a file of pods, instead of all")
    parser.add_argument("--seeds", type=seed_range, default=seed_range(SEEDS), help="such as 42-51 or 42")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="instead of all; may be repeated")
    parser.add_argument("--chart", type=Path, help="a PNG to draw: allocated against arrived")
    parsed = parser.parse_args()
    parsed.policy = parsed.policy or list(POLICIES)
    return parsed


def seed_range(text: str) -> list[int]:
    """Return the seeds of a range such as 42-51, or of one number."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _measured(trace: Trace, policies: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, list[Run]]]:
    for name in policies:
        began = time.monotonic()
        runs = [replay(trace, name, seed) for seed in seeds]
        means = ", ".join(f"{_mean(runs, load)} at {load}" for load in LOADS)
        figures.say(f"{trace.name} {name}: {means} %, {time.monotonic() - began:.0f} s")
        yield name, runs


def replay(trace: Trace, name: str, seed: int, ratio: float = 1.3) -> Run:
    """Replay a trace's pods in the order of a seed, and place them by a policy.

    The typical mix is known in advance, to Berth's policy and to FGD.
    """
    rng = random.Random(seed)
    requests = {task: task.request for task in set(trace.tasks)}
    tasks = openb.arrivals(trace, rng, ratio)
    fleet = openb.fleet(trace.machines, rng)
    for task in trace.tasks:
        fleet.pod_mix.see(requests[task])
    policy = Policy() if name == OURS else baselines.policy(name, trace.tasks, seed)
    run, hopeless, capacity, arrived, allocated = Run(), set[Task](), trace.capacity, 0, 0
    for serial, task in enumerate(tasks):
        arrived += task.size
        # Nothing is released, so a class that did not fit does not fit later; the queue parks such classes, too.
        if task not in hopeless:
            pod = PendingPod(uid=str(serial), namespace="openb", name=f"pod-{serial}", request=requests[task])
            if place(fleet, pod, policy, run):
                allocated += task.size
            else:
                hopeless.add(task)
        run.record(arrived / capacity, allocated / capacity)
    return run


def place(fleet: Fleet, pod: PendingPod, policy: Policy, run: Run) -> bool:
    """Decide and charge a pod, and return whether it was placed."""
    began = time.perf_counter()
    outcome = decide(fleet, pod, policy)
    if isinstance(outcome, Failure):
        return False
    fleet.charge(outcome.charge)
    run.took.append(1000 * (time.perf_counter() - began))
    return True


# --- results ----------------------------------------------------------------------------------------------------


def summary(replays: Mapping[str, Mapping[str, Sequence[Run]]]) -> dict[str, Any]:
    """Return the figures of all traces and policies."""
    traces = {
        trace: {name: {str(load): _mean(runs, load) for load in LOADS} for name, runs in by_policy.items()}
        for trace, by_policy in replays.items()
    }
    ours = [took for by_policy in replays.values() for run in by_policy.get(OURS, ()) for took in run.took]
    return {
        "bench": "quality",
        "traces": traces,
        "p50_ms": round(figures.quantile(ours, 0.5), 3) if ours else None,
    }


def _mean(runs: Sequence[Run], load: int) -> float | None:
    """Return the mean over the runs; None for a load that no run reached."""
    values = [run.curve[load] for run in runs if load in run.curve]
    return round(statistics.fmean(values), 3) if values else None


def _show(replays: Mapping[str, Mapping[str, Sequence[Run]]]) -> None:
    table = Table(title="cards allocated (%) when so many (%) have arrived, mean (deviation) over the seeds")
    for heading in ("trace", "policy", *(f"{load} %" for load in LOADS)):
        table.add_column(heading, justify="left" if heading in ("trace", "policy") else "right")
    for trace, by_policy in replays.items():
        for name, runs in by_policy.items():
            table.add_row(trace, name, *(_cell(runs, load) for load in LOADS))
        table.add_section()
    Console(width=100).print(table)


def _cell(runs: Sequence[Run], load: int) -> str:
    values = [run.curve[load] for run in runs if load in run.curve]
    return f"{statistics.fmean(values):.2f} ({statistics.pstdev(values):.2f})" if values else "-"


if __name__ == "__main__":
    main()
