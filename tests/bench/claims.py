"""Upstream's scheduler_perf for claims, by Berth and by kube-scheduler: `python -m tests.bench.claims --help`.

Both run as programs, alternating, on API servers of their own. The tests of Kubernetes start them, create the pods,
play the driver and run the claim controller. Besides, a bare client makes the same writes without deciding: its rate
is what the API server can do here. Rates and CPU times are those of the pods that upstream measures.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.bench import figures
from tests.upstream import perf
from tests.upstream.perf import BARE, BERTH, KUBE_SCHEDULER, Figures, Workload

ROOT: Final = Path(__file__).parents[2]
SCHEDULERS: Final = (KUBE_SCHEDULER, BERTH, BARE)
WORKLOADS: Final = (
    Workload(package="dra", case="SchedulingWithResourceClaimTemplate", name="2000pods_200nodes"),
    Workload(package="dra", case="SteadyStateClusterResourceClaimTemplate", name="empty_200nodes"),
    Workload(package="dra/prioritizedlist", case="FirstAvailable", name="1000pods_100nodes"),
    Workload(package="dra/extendedresource", case="ExtendedResource_25Classes", name="2000pods_200nodes"),
    Workload(package="dra/extendedresource", case="ImplicitExtendedResource_25Classes", name="2000pods_200nodes"),
)
"""Upstream's of 200 nodes; of `FirstAvailable` upstream has 10 pods only, so this one is ours.

In `half` and `full` of the steady state the test itself allocates claims, so it counts as another scheduler, of whose
pools Berth gives nothing.
"""


def main() -> None:
    """Run the benchmark."""
    options = _arguments()
    figures.say_load()
    chosen = [each for each in WORKLOADS if options.only in str(each)]
    runs: dict[tuple[Workload, str], list[Figures]] = {}
    for number in range(options.runs):
        for workload in chosen:
            for scheduler in SCHEDULERS:
                measured = perf.run(workload, scheduler, options.logs)
                runs.setdefault((workload, scheduler), []).append(measured)
                figures.say(f"{number} {workload} {scheduler}: {measured.rate:.1f} pods/s, {measured.cpu_ms:.2f} ms")
    rows = [row(workload, *(runs[workload, each] for each in SCHEDULERS)) for workload in chosen]
    figures.result({"bench": "claims", "runs": options.runs, "rows": rows})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.claims", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of the names of the workloads to run")
    parser.add_argument("--logs", type=Path, default=ROOT / ".build/upstream/perf", help="folder of the logs")
    return parser.parse_args()


def row(
    workload: Workload, theirs: Sequence[Figures], ours: Sequence[Figures], bare: Sequence[Figures]
) -> dict[str, object]:
    """Return the medians of a workload's runs, and their ratios."""
    rate = _rate(ours)
    return {
        "workload": str(workload),
        "pods_per_s": round(rate, 1),
        "kube_scheduler_pods_per_s": round(_rate(theirs), 1),
        "ratio": round(rate / _rate(theirs), 2),
        "of_ceiling": round(rate / _rate(bare), 2),
        "cpu_ms": round(_cpu_ms(ours), 2),
        "cpu_ratio": round(_cpu_ms(ours) / _cpu_ms(theirs), 2),
    }


def _rate(runs: Sequence[Figures]) -> float:
    return statistics.median(each.rate for each in runs)


def _cpu_ms(runs: Sequence[Figures]) -> float:
    return statistics.median(each.cpu_ms for each in runs)


if __name__ == "__main__":
    main()
