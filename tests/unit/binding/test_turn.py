"""What may be decided in one turn of the loop, and which share of the time costly decisions get."""

from collections.abc import Callable

import pytest

from berth_operator.binding.turn import BATCH, MAX_SAVED, MAX_SECONDS, SHARE, Turn
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import NVIDIA, Raw, pod

LASTING = 60.0
SHORT = 0.001
"""Seconds of a decision that is not costly."""


def claiming(name: str = "claiming", **fields: int) -> Raw:
    """Return a pod whose decision may take long."""
    return pod(name, {}, resourceClaims=[{"name": "c", "resourceClaimName": "c"}], **fields)


class Loop:
    """A queue of pods that fit nowhere, and the loop that decides them, in virtual time."""

    def __init__(self, *pods: Raw) -> None:
        self.now = 0.0
        self.cluster = Cluster(grace=1e9, clock=lambda: self.now)
        for raw in pods:
            self.cluster.put_pending(raw)
        self.turn = Turn(self.cluster, cpu=lambda: self.now)
        self.taken: dict[str, float] = {}
        """Pod -> the seconds that its decisions took."""

    def run(self, seconds: Callable[[str], float]) -> int:
        """Run a turn, in which a pod's decision takes these seconds; return the number of decisions."""
        decided = 0
        self.turn.begin()
        while not self.turn.is_over() and (unit := self.turn.next_unit()) is not None:
            name = unit.key.removeprefix("ns/")
            with self.turn.deciding(unit):
                self.now += seconds(name)
            self.taken[name] = self.taken.get(name, 0.0) + seconds(name)
            self.cluster.queue.put_back(unit)
            decided += 1
        self.turn.end()
        return decided


@pytest.mark.parametrize("decision", [0.0005, 0.003, 0.02])
def test_costly_decisions_get_a_tenth_of_the_time_while_others_wait(decision: float) -> None:
    loop = Loop(claiming(), pod("other", {NVIDIA: "1"}))
    while loop.now < LASTING:
        loop.run(lambda name: decision if name == "claiming" else SHORT)
    assert loop.taken["claiming"] == pytest.approx(LASTING / SHARE, abs=MAX_SAVED + decision + 0.1)


def test_costly_decisions_get_all_of_the_time_while_no_other_waits() -> None:
    loop = Loop(claiming())
    while loop.now < 1.0:
        loop.run(lambda _: 0.02)
    assert loop.taken["claiming"] == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("priority", [0, 10])
def test_only_a_costly_decision_of_a_higher_priority_than_all_others_is_made_in_advance(priority: int) -> None:
    loop = Loop(claiming(priority=priority), pod("other", {NVIDIA: "1"}))
    costly = 2 * MAX_SAVED
    while "claiming" not in loop.taken:
        loop.run(lambda _: costly)
    loop.run(lambda _: costly)
    assert (loop.taken["claiming"] > costly) == (priority > 0)


def test_a_turn_ends_after_a_batch() -> None:
    loop = Loop(pod("p", {NVIDIA: "1"}))
    assert loop.run(lambda _: 0.0) == BATCH


def test_a_turn_ends_when_its_time_is_over_after_one_decision_at_least() -> None:
    loop = Loop(pod("p", {NVIDIA: "1"}))
    assert loop.run(lambda _: MAX_SECONDS / 4) == 4
    assert loop.run(lambda _: 2 * MAX_SECONDS) == 1
    loop.turn.begin()
    loop.now += 2 * MAX_SECONDS
    assert not loop.turn.is_over()
