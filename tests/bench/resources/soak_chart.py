"""A chart of a long run over minutes: the operator's memory above, the bind latency below."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.decisions.chart import OURS
from tests.bench.resources.soak_verdict import Sample


def draw(samples: Sequence[Sample], path: Path, warm_up: int) -> None:
    """Draw the samples; what is left of the dotted line is the warm-up, of so many replaced pods.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _panel(above, [(sample.at, sample.rss) for sample in samples], "operator's memory (MiB)")
    latencies = [(sample.at, sample.latency) for sample in samples if sample.latency is not None]
    _panel(below, latencies, "median bind latency (ms)")
    warm = next((sample.at for sample in samples if sample.replaced >= warm_up), samples[-1].at)
    for panel in (above, below):
        panel.axvline(warm / 60, color="#999999", linestyle=":")
    below.set_xlabel("minutes")
    figure.savefig(path, format="png")


def _panel(panel: Axes, points: Sequence[tuple[float, float]], label: str) -> None:
    panel.plot([at / 60 for at, _ in points], [value for _, value in points], color=OURS, marker=".", linewidth=1.0)
    panel.set_ylim(0, 1.1 * max(value for _, value in points))
    panel.set_ylabel(label)
    panel.grid(alpha=0.3)
