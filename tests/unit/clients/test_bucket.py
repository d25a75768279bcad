"""How often the bucket allows an action."""

import pytest

from berth_operator.clients.bucket import Bucket


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_seconds_worth_may_be_done_at_once() -> None:
    bucket = Bucket(rate=5.0, clock=Clock())
    assert [bucket.delay() for _ in range(5)] == [0.0] * 5


def test_then_each_waits_for_its_token() -> None:
    bucket = Bucket(rate=5.0, clock=Clock())
    assert [bucket.delay() for _ in range(8)][5:] == pytest.approx([0.2, 0.4, 0.6])


def test_tokens_come_back_with_time() -> None:
    clock = Clock()
    bucket = Bucket(rate=5.0, clock=clock)
    for _ in range(5):
        bucket.delay()
    clock.now = 0.4
    assert [bucket.delay() for _ in range(3)] == pytest.approx([0.0, 0.0, 0.2])


def test_a_quiet_hour_saves_up_no_more_than_a_second() -> None:
    clock = Clock()
    bucket = Bucket(rate=5.0, clock=clock)
    clock.now = 3600.0
    assert [bucket.delay() > 0 for _ in range(6)] == [False] * 5 + [True]


def test_over_time_the_rate_holds() -> None:
    clock = Clock()
    bucket = Bucket(rate=20.0, clock=clock)
    for _ in range(1000):
        clock.now += bucket.delay()
    assert clock.now == pytest.approx((1000 - 20) / 20)
