"""The verdict on a long run, and its chart."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import soak_chart, soak_verdict
from tests.bench.soak_verdict import LATENCY, MEMORY, Sample, TooShortError, Verdict, trend

Line = Callable[[float], float]
HALF_AN_HOUR = 1800
WARM = 900
WARM_UP = 9000
"""Replaced pods."""


def run(rss: Line = lambda _: 200.0, latency: Line = lambda _: 10.0, seconds: int = HALF_AN_HOUR) -> list[Sample]:
    """Return the samples of a run that replaces ten pods a second; the first 900 s are the warm-up."""
    moments = range(10, seconds + 1, 10)
    return [Sample(at=at, replaced=10 * at, rss=rss(at), latency=latency(at)) for at in moments]


def judge(samples: list[Sample], warm_up: int = WARM_UP) -> Verdict:
    return soak_verdict.judge(samples, warm_up)


def rising(per_hour: float, base: float = 200.0) -> Line:
    return lambda at: base + per_hour * at / 3600


def noisy(line: Line, width: float) -> Line:
    """Return a line with the remainders of multiples of a prime as noise."""
    return lambda at: line(at) + width * (at * 7919 % 1009 / 504.5 - 1)


def warming(at: float) -> float:
    return 100.0 + min(at, 890.0) / 2


@pytest.mark.parametrize(
    ("samples", "problems"),
    [
        pytest.param(run(), [], id="level"),
        pytest.param(run(rss=rising(MEMORY.slope - 1)), [], id="within the bound"),
        pytest.param(run(rss=rising(MEMORY.slope + 5)), ["memory"], id="memory grows"),
        pytest.param(run(rss=rising(-500)), [], id="memory falls"),
        pytest.param(run(latency=rising(2 * LATENCY.slope + 5)), ["bind latency"], id="latency grows"),
        pytest.param(run(rss=rising(200), latency=rising(200)), ["memory", "bind latency"], id="both grow"),
        pytest.param(run(rss=warming), [], id="growth in the warm-up does not count"),
        pytest.param(run(rss=noisy(lambda _: 200.0, 20)), [], id="noise is no growth"),
        pytest.param(run(rss=noisy(rising(100), 10)), ["memory"], id="growth shows through noise"),
        pytest.param(run(rss=rising(100), seconds=WARM + 180), [], id="three minutes show less than the noise"),
        pytest.param(run(rss=rising(1000), seconds=WARM + 180), ["memory"], id="three minutes show a fast leak"),
        pytest.param(run(latency=lambda at: 2000.0 if at % 100 == 0 else 10.0), [], id="outliers do not count"),
    ],
)
def test_a_slope_beyond_its_bound_is_a_problem(samples: list[Sample], problems: list[str]) -> None:
    found = judge(samples).problems
    assert [each.partition(":")[0] for each in found] == problems


def test_a_problem_names_the_slope_and_the_bound() -> None:
    (problem,) = judge(run(rss=rising(120))).problems
    assert problem == (
        "memory: +120.0 MiB per hour (+30.0 MiB in this run); allowed are 30 MiB per hour, or 8 MiB in all"
    )


def test_samples_without_binds_have_no_latency() -> None:
    samples = [replace(sample, latency=None) if sample.at % 20 else sample for sample in run()]
    assert judge(samples).latency.slope == 0


def test_a_run_that_is_too_short_has_no_verdict() -> None:
    with pytest.raises(TooShortError, match="5 samples after the first 9000 replaced pods"):
        judge(run(seconds=WARM + 40))
    assert not judge(run(seconds=WARM + 40), warm_up=1000).problems


def test_the_trend_of_a_line_is_its_slope() -> None:
    found = trend((at, 3 * at) for at in (0.0, 1800.0, 3600.0))
    assert (found.slope, found.growth) == (3 * soak_verdict.HOUR, 3 * soak_verdict.HOUR)


def test_the_chart_is_a_png(tmp_path: Path) -> None:
    soak_chart.draw(run(rss=warming), tmp_path / "soak.png", WARM_UP)
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
