"""When parked classes are decided again because their reason may be outdated, and how much time this takes."""

from collections.abc import Iterator

import pytest

from berth_operator.binding.review import CALM, INTERVAL, KEPT, MAX_SAVED, SHARE, Review
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import waiting

IDLE = 30.0
"""Seconds after which the time for reviews has been saved up."""


class Loop:
    """The scheduling loop, with a clock that advances by what decisions and other tasks take."""

    def __init__(self, classes: int, *, decision: float, others: float = 0.0) -> None:
        """Park as many pods of different classes; both durations are in seconds, `others` is for each turn."""
        self.now, self._decision, self._others = 0.0, decision, others
        self.cluster = Cluster(grace=1e9, clock=lambda: self.now)
        self.review = Review(self.cluster)
        self.decided: list[tuple[float, str]] = []
        for number in range(classes):
            self.cluster.waker.put(pod(number))
        self._decide_all()
        self.now += IDLE
        list(self.turns(IDLE))
        self.decided.clear()

    def turns(self, seconds: float) -> Iterator[float]:
        """Run for some seconds, and yield the time before each turn."""
        end = self.now + seconds
        while self.now < end:
            yield self.now
            if self.review.wakes_one():
                self._decide_all()
                self.now += self._others
            else:
                self.now += min(end - self.now, 1.0, max(0.001, self.review.due_in()))

    def _decide_all(self) -> None:
        while (unit := self.cluster.queue.pop(self.now)) is not None:
            self.decide(unit)

    def decide(self, unit: PendingPod | Gang) -> None:
        """Decide a unit, which fits nowhere."""
        self.now += self._decision
        self.decided.append((self.now, unit.uid))
        self.cluster.queue.park(unit, Failure(message="no", wakes_on=Change(0)))
        self.review.spend(unit.class_key, self._decision)


def pod(number: int) -> PendingPod:
    return waiting(f"p{number}", PodRequest(resources=(("cpu", number + 1),)))


def test_the_time_of_other_tasks_is_not_taken_from_reviews() -> None:
    loop = Loop(200, decision=0.0002, others=0.01)
    loop.cluster.waker.record_change()
    list(loop.turns(3.0))
    assert len(loop.decided) == 200


def test_after_a_storm_every_class_is_decided_once_and_at_once() -> None:
    loop = Loop(600, decision=0.0002)
    for _ in range(160):
        loop.cluster.waker.record_change()
        list(loop.turns(0.25))
    end = loop.now - 0.25
    list(loop.turns(30.0))
    assert sorted(uid for at, uid in loop.decided if at > end) == sorted(pod(number).uid for number in range(600))
    assert max(at for at, _ in loop.decided) <= end + CALM + 600 * 0.0002 + 0.1


def test_time_is_kept_for_the_end_of_a_storm() -> None:
    loop = Loop(3000, decision=0.002)
    for _ in range(160):
        loop.cluster.waker.record_change()
        list(loop.turns(0.25))
    loop.decided.clear()
    list(loop.turns(CALM + KEPT + 0.1))
    assert len(loop.decided) >= KEPT / 0.002


@pytest.mark.parametrize("calm", [False, True])
def test_reviews_take_a_twentieth_of_the_time(*, calm: bool) -> None:
    loop = Loop(3000, decision=0.005)
    loop.cluster.waker.record_change()
    for _ in loop.turns(60.0):
        if not calm:
            loop.cluster.waker.record_change()
    spent = 0.005 * len(loop.decided)
    assert 0.9 * 60 / SHARE <= spent <= 60 / SHARE + MAX_SAVED + 0.01


def test_while_the_state_keeps_changing_a_class_is_decided_every_four_seconds() -> None:
    loop = Loop(10, decision=0.0002)
    for _ in range(200):
        loop.cluster.waker.record_change()
        list(loop.turns(0.2))
    assert 10 * 40 / INTERVAL - 10 <= len(loop.decided) <= 10 * 40 / INTERVAL + 10


def test_the_longest_parked_class_comes_first() -> None:
    loop = Loop(3, decision=0.0002)
    loop.cluster.queue.wake_class(pod(0).class_key)
    again = loop.cluster.queue.pop(loop.now)
    assert again is not None
    loop.decide(again)
    loop.decided.clear()
    loop.cluster.waker.record_change()
    list(loop.turns(1.0))
    assert [uid for _, uid in loop.decided] == [pod(number).uid for number in (1, 2, 0)]


def test_a_pod_renews_its_class_only_while_there_is_time() -> None:
    loop = Loop(1, decision=0.0)
    loop.cluster.waker.record_change()
    loop.review.renew(pod(0).class_key)
    loop.review.spend(pod(0).class_key, 1.0)
    woken = loop.cluster.queue.pop(loop.now)
    assert woken is not None
    loop.decide(woken)
    loop.review.renew(pod(0).class_key)
    assert loop.cluster.queue.pop(loop.now) is None
