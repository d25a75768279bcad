"""The allocated share of all cards while pods arrive and end, and which pods wait.

Run `python -m tests.bench.decisions.living --help`. Each cell is a workload at an offered load: the cards that all pods
would hold on average if none had to wait, as a fraction of all cards. Pods arrive at random (Poisson), run for a
lifetime and end. Pods that fit nowhere wait in the operator's queue. All times are in mean lifetimes.
docs/placement-quality.md describes the protocol.
"""

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from berth_operator.core.decision.policy import ALWAYS, CARD_STRATEGIES, NODE_STRATEGIES, Policy
from tests.bench import figures
from tests.bench.decisions import baselines, living_chart, living_results, occupancy, openb, quality, simulation, stream
from tests.bench.decisions.living_results import OURS, Outcome
from tests.bench.decisions.openb import Machine, Trace
from tests.bench.decisions.simulation import Simulation

LOADS: Final = (0.80, 0.85, 0.90, 0.95)
BASELINES: Final = ("fgd", "bestfit", "firstfit", "packing")
STRATEGIES: Final = ("MostAllocated", "LeastAllocated")
"""Profiles of Berth that use both strategies of this name."""
POLICIES: Final = (*BASELINES, *STRATEGIES, OURS)
CHANGE: Final = ">"
"""Between two traces: the mix changes from one to the other in the middle of the time that is measured."""
TIMED: Final = "+times"
"""After a trace: lifetimes of the trace instead of exponential ones."""
WORKLOADS: Final = (*openb.PUBLISHED, f"default{TIMED}", f"default{CHANGE}multigpu30")
SCARCE: Final = ("cpu250", "cpu300", "gpuspec10", "multigpu50")
"""Workloads that run short of cpu, of a model, or of nodes for 8-card pods; with `--scarce`, instead of the others."""
SCARCE_LOADS: Final = (0.90, 0.95)
GENERATED: Final = "generated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation: a workload at a load, under one policy, with one seed."""

    workload: str
    load: float
    policy: str
    seed: int
    scale: int = 2
    """The fleet has one of so many nodes of each type."""
    warm: float = 1.5
    """Mean lifetimes before the measurement starts."""
    horizon: float = 4.0
    """Mean lifetimes that are measured."""

    @property
    def end(self) -> float:
        """Return when the simulation ends."""
        return self.warm + self.horizon

    def phases(self) -> list[tuple[float, str]]:
        """Return (when it begins, name of the trace) for each mix."""
        names = self.workload.removesuffix(TIMED).split(CHANGE)
        return list(zip((0.0, self.warm + self.horizon / 2), names, strict=False))


def main() -> None:
    """Run the benchmark."""
    options = _arguments()
    if openb.folder() is None:
        figures.say("BERTH_TRACE_DIR is not set: using a generated trace, which has no constraints and no times")
    figures.say_load()
    cells, began = _cells(options), time.monotonic()
    rows = living_results.rows(_simulated(cells, options.jobs, options.cache))
    figures.say(f"{len(cells)} simulations in {time.monotonic() - began:.0f} s")
    if options.chart is not None:
        living_chart.draw(rows, options.chart)
    living_results.show(rows)
    figures.result(living_results.summary(rows))


def _arguments() -> argparse.Namespace:
    known = (GENERATED,) if openb.folder() is None else WORKLOADS
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.decisions.living", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--workload", action="append", help=f"instead of {', '.join(known)}; may be repeated")
    parser.add_argument("--load", type=float, action="append", help="instead of .80, .85, .90, .95; may be repeated")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="instead of all; may be repeated")
    parser.add_argument("--seeds", type=quality.seed_range, help="such as 1-5 or 1; default 1-2, with --scarce 1-3")
    parser.add_argument("--scarce", action="store_true", help=f"only {', '.join(SCARCE)}, at .90 and .95")
    parser.add_argument("--quick", action="store_true", help="one workload, load and seed on a quarter of the nodes")
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the results of the baselines")
    parser.add_argument("--chart", type=Path, help="a PNG to draw")
    parsed = parser.parse_args()
    if parsed.quick:
        parsed.workload, parsed.load, parsed.seeds = parsed.workload or known[:1], parsed.load or [0.9], [1]
    if parsed.scarce:
        parsed.workload = parsed.workload or SCARCE
        parsed.load, parsed.seeds = parsed.load or SCARCE_LOADS, parsed.seeds or quality.seed_range("1-3")
    parsed.workload, parsed.load = parsed.workload or known, parsed.load or LOADS
    parsed.seeds = parsed.seeds or quality.seed_range("1-2")
    parsed.policy = parsed.policy or POLICIES
    return parsed


def _cells(options: argparse.Namespace) -> list[Cell]:
    size: dict[str, Any] = {"scale": 4, "warm": 1.0, "horizon": 2.0} if options.quick else {}
    return [
        Cell(workload=workload, load=load, policy=policy, seed=seed, **size)
        for workload in options.workload
        for load in options.load
        for policy in options.policy
        for seed in options.seeds
    ]


# --- simulations ------------------------------------------------------------------------------------------------


def _simulated(cells: Sequence[Cell], jobs: int, cache: Path | None) -> Iterator[tuple[Cell, Outcome]]:
    """Simulate all cells in processes, and yield the outcomes in the order of the cells."""
    with ProcessPoolExecutor(jobs) as pool:
        for cell, outcome in zip(cells, pool.map(_cached, cells, [cache] * len(cells)), strict=True):
            figures.say(
                f"{cell.workload} {cell.load:.2f} {cell.policy} seed {cell.seed}: {outcome.allocated:.2f} % allocated"
            )
            yield cell, outcome


def _cached(cell: Cell, folder: Path | None) -> Outcome:
    """Return the outcome of a cell; those of baselines are kept in a folder."""
    if folder is None or cell.policy not in BASELINES:
        return simulate(cell)
    file = folder / f"{cell.workload}-{cell.load}-{cell.policy}-{cell.seed}-{_digest(cell)}.json"
    if file.exists():
        return Outcome.parse(json.loads(file.read_text()))
    outcome = simulate(cell)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(outcome)))
    return outcome


_SOURCES: Final[Sequence[ModuleType]] = (baselines, openb, stream, simulation, occupancy, living_results)
"""What a baseline's outcome depends on, besides the filters of the core."""


def _digest(cell: Cell) -> str:
    """Return a digest of everything that a baseline's outcome depends on."""
    sources = [Path(str(each.__file__)).read_text() for each in _SOURCES]
    traces = [trace(name) for _, name in cell.phases()]
    return hashlib.sha256(repr((cell, traces, sources)).encode()).hexdigest()[:16]


def simulate(cell: Cell) -> Outcome:
    """Simulate one cell; every placement is audited.

    Raises:
        OSError: a trace cannot be read.
        ValueError: a trace is invalid, or has no times.
        AuditError: a placement does not fit.
    """
    phases = [(begins, trace(name)) for begins, name in cell.phases()]
    timed = cell.workload.endswith(TIMED)
    machines = scaled(phases[0][1].machines, cell.scale)
    capacity = 1000 * sum(each.cards for each in machines)
    arrivals = stream.arrivals(
        [(begins, stream.mix(each, timed=timed)) for begins, each in phases],
        load=cell.load,
        capacity=capacity,
        end=cell.end,
        rng=random.Random(cell.seed),
    )
    policies = [(begins, policy(cell.policy, each, cell.seed)) for begins, each in phases]
    run = Simulation(machines, policies if cell.policy == "fgd" else policies[:1], cell.seed).run(
        arrivals, start=cell.warm, end=cell.end
    )
    return living_results.outcome(run, capacity=capacity, start=cell.warm, end=cell.end)


@lru_cache(maxsize=len(openb.PUBLISHED))
def trace(name: str) -> Trace:
    """Return a trace of BERTH_TRACE_DIR, or the generated one.

    Raises:
        OSError: the trace cannot be read.
        ValueError: the trace is invalid, or BERTH_TRACE_DIR is not set.
    """
    if name == GENERATED:
        return openb.generated()
    if (folder := openb.folder()) is None:
        raise ValueError(f"set BERTH_TRACE_DIR to the folder with the trace {name}")
    return openb.read(folder / f"openb_pod_list_{name}.csv")


def scaled(machines: Sequence[Machine], scale: int) -> list[Machine]:
    """Return one of `scale` machines of each type, as nearly as whole numbers allow."""
    by_type = sorted(machines, key=lambda each: (each.model, each.cards, each.cpu, each.memory, each.name))
    return by_type[scale // 2 :: scale]


def policy(name: str, known: Trace, seed: int) -> Policy:
    """Return a policy by name; `known` is the trace whose mix FGD knows in advance."""
    if name == OURS:
        return Policy()
    if name in STRATEGIES:
        weights = {**ALWAYS, **NODE_STRATEGIES[name], **CARD_STRATEGIES[name]}
        return Policy(weights=tuple(weights.items()), card_strategy=name)
    return baselines.policy(name, known.tasks, seed)


if __name__ == "__main__":
    main()
