"""The verdict on a long run, and its chart."""

from collections.abc import Callable

import pytest

from tests.bench.resources import soak_verdict
from tests.bench.resources.soak_verdict import LATENCY, MEMORY, Sample, Verdict

Line = Callable[[float], float]
HALF_AN_HOUR = 1800
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


@pytest.mark.parametrize(
    ("samples", "problems"),
    [
        pytest.param(run(), [], id="level"),
        pytest.param(run(rss=rising(MEMORY.slope + 5)), ["memory"], id="memory grows"),
        pytest.param(run(latency=rising(2 * LATENCY.slope + 5)), ["bind latency"], id="latency grows"),
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
