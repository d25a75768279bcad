"""Whether memory or latency grows without end: slopes of samples after a warm-up. Pure functions."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

HOUR: Final = 3600.0
MIN_SAMPLES: Final = 6
"""After the warm-up, for a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One moment of a run."""

    at: float
    """Seconds since the start of the run."""
    replaced: int
    """Pods that were replaced so far."""
    rss: float
    """Resident memory of the operator in MiB."""
    latency: float | None
    """Median of the pods that were bound since the sample before, in milliseconds; None if none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much one figure may grow."""

    slope: float
    """Units per hour."""
    noise: float
    """Units by which it changes anyway: a smaller growth from the warm-up to the end does not count."""


MEMORY: Final = Bound(slope=30.0, noise=8.0)
"""In MiB: a leak of 0.5 KiB for each of 60,000 pods an hour."""
LATENCY: Final = Bound(slope=40.0, noise=20.0)
"""In milliseconds. The machine's other work changes the latency by more than the operator does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How one figure changed after the warm-up."""

    slope: float
    """Units per hour."""
    growth: float
    """Units from the warm-up to the end, by the slope."""

    def is_within(self, bound: Bound) -> bool:
        """Return whether it grew no more than allowed."""
        return self.slope <= bound.slope or self.growth <= bound.noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a run."""

    memory: Trend
    latency: Trend

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what grew more than allowed, with the bound; empty if nothing did."""
        rows = (("memory", self.memory, MEMORY, "MiB"), ("bind latency", self.latency, LATENCY, "ms"))
        return tuple(
            f"{name}: {trend.slope:+.1f} {unit} per hour ({trend.growth:+.1f} {unit} in this run); "
            f"allowed are {bound.slope:g} {unit} per hour, or {bound.noise:g} {unit} in all"
            for name, trend, bound, unit in rows
            if not trend.is_within(bound)
        )


class TooShortError(ValueError):
    """The run ended before the memory says anything; the text names what it lacks."""


def judge(samples: Sequence[Sample], warm_up: int) -> Verdict:
    """Return the verdict on a run, by its samples after so many replaced pods.

    Raises:
        TooShortError: there are too few of them.
    """
    warm = [sample for sample in samples if sample.replaced >= warm_up]
    if len(warm) < MIN_SAMPLES:
        raise TooShortError(
            f"{len(warm)} samples after the first {warm_up} replaced pods, the warm-up; needed are "
            f"{MIN_SAMPLES}: run it longer, or with more pods"
        )
    latencies = ((sample.at, sample.latency) for sample in warm if sample.latency is not None)
    return Verdict(memory=trend((sample.at, sample.rss) for sample in warm), latency=trend(latencies))


def trend(points: Iterable[tuple[float, float]]) -> Trend:
    """Return the trend of (seconds, value): the median slope of all pairs, which single outliers do not change."""
    listed = sorted(points)
    slopes = [(late - early) / (end - start) for (start, early), (end, late) in combinations(listed, 2) if end > start]
    slope = statistics.median(slopes) * HOUR if slopes else 0.0
    return Trend(slope=slope, growth=slope * (listed[-1][0] - listed[0][0]) / HOUR if listed else 0.0)
