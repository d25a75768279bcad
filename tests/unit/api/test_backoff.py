"""Pauses that double up to a bound."""

import pytest

from berth_api.values.backoff import ExponentialBackoff

BACKOFF = ExponentialBackoff(first=2.0, longest=60.0)


@pytest.mark.parametrize(("failures", "seconds"), [(-1, 0), (0, 0), (1, 2), (2, 4), (5, 32), (6, 60), (10**6, 60)])
def test_the_pause_doubles_with_each_failure(failures: int, seconds: float) -> None:
    assert BACKOFF.after(failures) == seconds


def test_a_pause_follows_another_as_after_one_more_failure() -> None:
    pause = 0.0
    for failures in range(1, 10):
        pause = BACKOFF.following(pause)
        assert pause == BACKOFF.after(failures)
