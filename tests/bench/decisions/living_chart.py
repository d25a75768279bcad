"""A chart of arrivals and departures: allocated cards and the wait of large pods, for each workload by load."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.decisions import chart
from tests.bench.decisions.living_results import OURS, Row

LARGE: Final = "8"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a column for each workload: above what is not allocated of the offered load, below the wait of 8-card pods.

    Raises:
        OSError: the file cannot be written.
    """
    workloads = list(dict.fromkeys(row.workload for row in rows))
    figure = Figure(figsize=(3.4 * len(workloads), 6.0), layout="constrained")
    panels = figure.subplots(2, len(workloads), squeeze=False, sharex=True)
    for column, workload in enumerate(workloads):
        of_workload = [row for row in rows if row.workload == workload]
        _lines(panels[0][column], [(row.policy, row.load, 100 * row.load - row.allocated) for row in of_workload])
        waits = [(row.policy, row.load, row.waits.get(LARGE)) for row in of_workload]
        _lines(panels[1][column], [(policy, load, wait.mean) for policy, load, wait in waits if wait is not None])
        panels[0][column].set_title(workload)
    panels[0][0].set_ylabel("offered but not allocated (% of all cards)")
    panels[1][0].set_ylabel("mean wait of 8-card pods (lifetimes)")
    panels[0][0].legend(fontsize="small")
    figure.supxlabel("offered load")
    figure.savefig(path, format="png")


def _lines(panel: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    for index, policy in enumerate(dict.fromkeys(name for name, _, _ in points)):
        line = sorted((load, value) for name, load, value in points if name == policy)
        ours = policy == OURS
        color = chart.OURS if ours else chart.OTHERS[index % len(chart.OTHERS)]
        panel.plot(
            [load for load, _ in line],
            [value for _, value in line],
            label=policy,
            color=color,
            linewidth=2.0 if ours else 1.2,
            marker=".",
        )
    panel.grid(alpha=0.3)
