"""A chart of upstream's workloads: pods per second by Berth as a multiple of kube-scheduler's, with a bar for each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from tests.bench.decisions.chart import OURS

INCHES: Final = 0.19
"""Height of a bar."""
LONGEST: Final = 4.0
"""Where longer bars are cut; the figure next to a bar is its own."""


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the ratios of the rows that have one, the lowest first.

    Raises:
        OSError: the file cannot be written.
    """
    found = sorted((each["ratio"], each["workload"].partition("/")[0]) for each in rows if each["ratio"] is not None)
    ratios, names = [ratio for ratio, _ in found], [name for _, name in found]
    figure = Figure(figsize=(8.0, 1.0 + INCHES * len(found)), layout="constrained")
    panel = figure.subplots()
    bars = panel.barh(names, [min(ratio, LONGEST) for ratio in ratios], color=OURS)
    panel.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=2, fontsize="small")
    panel.axvline(1.0, color="#000000", linewidth=1.0)
    panel.set_xlabel("pods a second, kube-scheduler = 1")
    panel.set_xlim(0.0, 1.1 * LONGEST)
    panel.margins(y=0.01)
    panel.tick_params("y", labelsize="small")
    panel.grid(axis="x", alpha=0.3)
    figure.savefig(path, format="png")
