"""The auditor of `make bench-teams` finds violations of each of its rules, and nothing in a history without any."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.bench.teams.history import Event, Held, Pod, Shape, Workload
from tests.bench.teams.rules import Audit, Fleet, Quota
from tests.kueue.audit import Amount

CARD = Amount(100, 80 * 2**30)
FLEET = Fleet(
    nodes=["node-0", "node-1"],
    cards=2,
    quotas={
        "team-a": Quota(nominal=Amount(200, 0), limit=Amount(300, 0)),
        "team-b": Quota(nominal=Amount(200, 0), limit=Amount(300, 0)),
    },
)
WORKLOAD = Workload(
    team="team-a",
    name="train",
    uid="train",
    priority=0,
    created="2026-01-01T00:00:00Z",
    requested=Amount(100, 0),
    pods=(Shape(1, 0, by_size=False),),
    has_quota=False,
    is_admitted=False,
    is_evicted=False,
    is_over=False,
    preemptor="",
    is_reclaimed=False,
)
ADMITTED = replace(WORKLOAD, has_quota=True, is_admitted=True)
POD = Pod(
    team="team-a",
    name="train-0",
    unit="",
    workload="train",
    node="",
    held=(),
    amount=Amount(0, 0),
    by_size=False,
    is_over=False,
    is_ending=False,
    is_disrupted=False,
)
BOUND = replace(POD, node="node-0", held=(Held(0, 100),), amount=CARD)


class History:
    """A history that is written by hand."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._revisions = itertools.count(1)

    def add(self, at: float, uid: str, value: Pod | Workload, *, is_gone: bool = False) -> None:
        """Add a revision."""
        self.events.append(Event(at=at, revision=next(self._revisions), uid=uid, value=value, is_gone=is_gone))

    def faults(self) -> dict[str, int]:
        """Return the number of faults of each rule that has some."""
        audit = Audit(FLEET, grace=5.0)
        audit.run(reversed(self.events))
        return {name: len(rule.faults) for name, rule in audit.rules.items() if rule.faults}


@pytest.fixture
def history() -> History:
    """Return a history in which a workload was admitted and bound, and has ended."""
    written = History()
    written.add(0.0, "train", WORKLOAD)
    written.add(1.0, "train", ADMITTED)
    written.add(2.0, "pod", POD)
    written.add(3.0, "pod", BOUND)
    written.add(40.0, "pod", replace(BOUND, is_over=True))
    written.add(41.0, "train", replace(ADMITTED, is_over=True))
    written.add(45.0, "train", replace(ADMITTED, is_over=True), is_gone=True)
    return written


def test_a_history_without_violations_has_no_faults(history: History) -> None:
    assert history.faults() == {}


def test_a_team_that_holds_more_than_its_limit_counts_once_for_each_time(history: History) -> None:
    history.add(50.0, "pod-0", replace(BOUND, workload="", is_ending=True))  # it still holds its card
    for number in range(1, 4):
        history.add(51.0, f"pod-{number}", replace(BOUND, name=f"pod-{number}", workload=""))
    assert history.faults() == {"over_limit": 1}
    history.add(52.0, "pod-0", BOUND, is_gone=True)
    history.add(53.0, "pod-4", replace(BOUND, name="pod-4", workload=""))
    assert history.faults() == {"over_limit": 2}


@pytest.mark.parametrize(("seconds", "faults"), [(29.0, {}), (31.0, {"stranded": 1})])
def test_an_admitted_workload_whose_pod_gets_no_node_is_stranded(
    history: History, seconds: float, faults: dict[str, int]
) -> None:
    other = replace(ADMITTED, name="other", uid="other")
    history.add(50.0, "other", other)
    history.add(50.0, "other-pod", replace(POD, name="other-0", workload="other"))
    history.add(50.0 + seconds, "other-pod", replace(BOUND, name="other-0", workload="other"))
    history.add(200.0, "train", WORKLOAD, is_gone=True)
    assert history.faults() == faults


def test_a_workload_that_is_evicted_again_for_the_same_one_counts(history: History) -> None:
    evicted = replace(ADMITTED, name="victim", uid="victim", is_evicted=True, preemptor="high")
    history.add(50.0, "victim", evicted)
    history.add(51.0, "victim", evicted)  # the same eviction
    history.add(52.0, "victim", replace(ADMITTED, name="victim", uid="victim"))
    history.add(53.0, "victim", replace(evicted, preemptor="other"))
    history.add(54.0, "victim", replace(ADMITTED, name="victim", uid="victim"))
    assert history.faults() == {}
    history.add(55.0, "victim", evicted)
    assert history.faults() == {"evicted_twice": 1}


@pytest.mark.parametrize(("seconds", "faults"), [(24.0, {}), (26.0, {"late_reclaims": 1})])
def test_a_reclaim_that_takes_long_counts(history: History, seconds: float, faults: dict[str, int]) -> None:
    # No quota covers what it requests, so it does not wait in vain.
    lender = replace(WORKLOAD, team="team-b", name="lender", uid="lender", requested=Amount(900, 0))
    history.add(50.0, "lender", lender)
    victim = replace(ADMITTED, name="victim", uid="victim", is_evicted=True, preemptor="lender", is_reclaimed=True)
    history.add(51.0, "victim", victim)
    history.add(51.0 + seconds, "lender", replace(lender, requested=Amount(901, 0)))
    history.add(90.0, "lender", replace(lender, is_over=True))
    assert history.faults() == faults


def _waits_at_the_head(history: History, **fields: Any) -> None:
    head = replace(WORKLOAD, name="head", uid="head", **fields)
    for second in range(50, 90):
        history.add(second, "head", head)


def test_a_head_that_waits_while_quota_and_places_are_free_counts(history: History) -> None:
    _waits_at_the_head(history)
    assert history.faults() == {"waiting_heads": 1}


def test_a_large_workload_that_never_runs_counts(history: History) -> None:
    large = replace(WORKLOAD, name="large", uid="large", pods=64 * WORKLOAD.pods, requested=Amount(6400, 0))
    history.add(50.0, "large", large)
    assert history.faults() == {"large": 1}
    history.add(60.0, "large", replace(large, has_quota=True, is_admitted=True))
    for number in range(64):
        pod = replace(BOUND, name=f"large-{number}", workload="large", team="team-a", amount=Amount(0, 0))
        history.add(61.0, f"large-{number}", pod)
    assert history.faults() == {}
