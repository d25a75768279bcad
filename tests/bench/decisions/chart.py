"""A chart of allocation against arrived load: one panel for each trace, one line for each policy."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure


class Run(Protocol):
    """The result of one replay."""

    @property
    def curve(self) -> Mapping[int, float]:
        """Return the curve: hundredths of all cards arrived -> allocated."""


FROM: Final = 80
COLUMNS: Final = 3
OTHERS: Final = ("#999999", "#bcbd22", "#17becf", "#9467bd", "#2ca02c", "#ff7f0e")
OURS: Final = "#d62728"


def draw(runs: Mapping[str, Mapping[str, Sequence[Run]]], path: Path) -> None:
    """Draw the mean curves of all runs of each policy on each trace.

    Raises:
        OSError: the file cannot be written.
    """
    rows = -(-len(runs) // COLUMNS)
    figure = Figure(figsize=(4.2 * min(len(runs), COLUMNS), 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, min(len(runs), COLUMNS), squeeze=False, sharex=True).flat
    for panel, (trace, by_policy) in zip(panels, runs.items(), strict=False):
        _panel(panel, trace, by_policy)
    figure.supxlabel("cards arrived (% of all)")
    figure.supylabel("cards allocated (% of all)")
    figure.savefig(path, format="png")


def _panel(panel: Axes, trace: str, by_policy: Mapping[str, Sequence[Run]]) -> None:
    for index, (name, runs) in enumerate(by_policy.items()):
        curves, ours = [run.curve for run in runs], name == "ours"
        mean = {load: statistics.fmean(curve[load] for curve in curves) for load in _loads(curves)}
        color = OURS if ours else OTHERS[index % len(OTHERS)]
        panel.plot(list(mean), list(mean.values()), label=name, color=color, linewidth=2.0 if ours else 1.2)
    panel.set_title(trace)
    panel.set_xlim(FROM, 130)
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small", loc="lower right")


def _loads(curves: Sequence[Mapping[int, float]]) -> list[int]:
    """Return the loads from `FROM` on that all curves reached."""
    reached = set.intersection(*(set(curve) for curve in curves))
    return sorted(load for load in reached if load >= FROM)
