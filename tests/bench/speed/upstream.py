"""Upstream's scheduler_perf, by Berth and by kube-scheduler: `python -m tests.bench.speed.upstream --help`.

Both run as programs, alternating, on their own API servers. Kubernetes' tests start them, create the pods, simulate
drivers and run Kubernetes' controllers. In addition, a bare client makes the same writes without deciding. Its rate is
the API server's limit on this machine. Rates and CPU times are for the pods that upstream measures.
"""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench import figures
from tests.bench.speed import upstream_chart
from tests.upstream import perf
from tests.upstream.perf import BARE, BERTH, KUBE_SCHEDULER, Figures, Workload

ROOT: Final = Path(__file__).parents[3]
CLAIMS: Final = "dra"
"""The package with those of ResourceClaims, and their packages below it."""

Runs = Mapping[str, Sequence[Figures]]
"""What the runs of a workload measured, by the name of the scheduler; nothing of one that failed."""


def main() -> None:
    """Run the benchmark."""
    options = _arguments()
    figures.say_load()
    rows = []
    for workload in perf.workloads():
        if options.only in str(workload) and (workload.package.startswith(CLAIMS) or not options.claims):
            runs = _measure(workload, options.runs if workload.repeated else 1, options.logs)
            rows.append(row(workload, runs))
            figures.say(str(rows[-1]))
    if options.chart is not None:
        upstream_chart.draw(rows, options.chart)
    figures.result({"bench": "upstream", "runs": options.runs, **summary(rows), "rows": rows})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speed.upstream", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of the workloads that are repeated")
    parser.add_argument("--only", default="", help="a part of the names of the workloads to run")
    parser.add_argument(
        "--claims", action="store_true", help="only those with ResourceClaims, of which some are repeated"
    )
    parser.add_argument("--logs", type=Path, default=ROOT / ".build/upstream/perf", help="folder of the logs")
    parser.add_argument("--chart", type=Path, help="a PNG to draw")
    return parser.parse_args()


def _measure(workload: Workload, runs: int, logs: Path) -> Runs:
    """Run each scheduler in turn."""
    measured: dict[str, list[Figures]] = {KUBE_SCHEDULER: [], BERTH: []}
    if workload.has_ceiling:
        measured[BARE] = []
    for number in range(runs):
        for scheduler, results in measured.items():
            try:
                results.append(perf.run(workload, scheduler, logs))
            except RuntimeError as error:
                figures.say(f"{number} {workload} {scheduler}: {error}")
            else:
                last = results[-1]
                figures.say(f"{number} {workload} {scheduler}: {last.rate:.1f} pods/s, {last.cpu_ms:.2f} ms")
    return measured


def row(workload: Workload, runs: Runs) -> dict[str, Any]:
    """Return the medians of a workload's runs, and their ratios; without those of a scheduler that failed."""
    rates = {name: statistics.median(each.rate for each in results) for name, results in runs.items() if results}
    cpu = {name: statistics.median(each.cpu_ms for each in results) for name, results in runs.items() if results}
    return {
        "workload": str(workload),
        "pods_per_s": _rounded(rates.get(BERTH), 1),
        "kube_scheduler_pods_per_s": _rounded(rates.get(KUBE_SCHEDULER), 1),
        "ratio": _ratio(rates, BERTH, KUBE_SCHEDULER),
        "of_ceiling": _ratio(rates, BERTH, BARE),
        "cpu_ms": _rounded(cpu.get(BERTH), 2),
        "cpu_ratio": _ratio(cpu, BERTH, KUBE_SCHEDULER),
    }


def _ratio(values: Mapping[str, float], one: str, other: str) -> float | None:
    return round(values[one] / values[other], 2) if one in values and other in values else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians and the worst of the rows that have them, and which workloads have no ratio."""
    rows = list(rows)
    found = {
        name: [each[name] for each in rows if each[name] is not None] for name in ("ratio", "cpu_ratio", "of_ceiling")
    }
    return {
        "median_ratio": _median(found["ratio"]),
        "worst_ratio": min(found["ratio"], default=None),
        "cpu_ratio": _median(found["cpu_ratio"]),
        "of_ceiling": _median(found["of_ceiling"]),
        "failed": [each["workload"] for each in rows if each["ratio"] is None],
    }


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


if __name__ == "__main__":
    main()
