"""The auditor of `make bench-teams` finds what violates each of its rules, and nothing in a history without it."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.bench import teams_history
from tests.bench.teams_history import Event, Held, Pod, Shape, Workload
from tests.bench.teams_rules import Audit, Fleet, Quota
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


def test_bytes_are_compared_with_the_quota_of_bytes(history: History) -> None:
    history.add(50.0, "other", replace(BOUND, workload="", by_size=True))
    assert history.faults() == {"over_limit": 1}


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


def test_a_pod_that_waits_until_the_end_counts_and_an_evicted_one_does_not(history: History) -> None:
    for name, evicted in (("other", False), ("evicted", True)):
        history.add(50.0, name, replace(ADMITTED, name=name, uid=name, is_evicted=evicted))
        history.add(50.0, f"{name}-pod", replace(POD, name=name, workload=name))
    history.add(200.0, "pod", BOUND, is_gone=True)
    assert history.faults() == {"stranded": 1}


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


def test_a_pod_that_the_scheduler_evicts_while_kueue_evicts_its_workload_counts_once(history: History) -> None:
    history.add(50.0, "other-pod", replace(BOUND, workload="other", is_disrupted=True))
    assert history.faults() == {}
    victim = replace(ADMITTED, name="victim", uid="victim", is_evicted=True, preemptor="high")
    pod = replace(BOUND, workload="victim")
    history.add(51.0, "victim", victim)
    history.add(52.0, "victim-pod", replace(pod, is_disrupted=True))
    history.add(53.0, "victim-pod", replace(pod, is_disrupted=True, is_ending=True))
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


def test_a_head_may_wait_for_quota(history: History) -> None:
    history.add(49.0, "others", replace(ADMITTED, name="others", uid="others", requested=Amount(250, 0)))
    _waits_at_the_head(history)
    assert history.faults() == {}


def test_a_head_may_wait_for_a_node_with_so_many_free_cards(history: History) -> None:
    for node in FLEET.nodes:
        history.add(49.0, node, replace(BOUND, node=node, workload="", amount=Amount(50, 0)))
    _waits_at_the_head(history, pods=(Shape(2, 0, by_size=False),), requested=Amount(200, 0))
    assert history.faults() == {}


def test_a_head_with_quota_waits_if_it_is_not_admitted(history: History) -> None:
    _waits_at_the_head(history, has_quota=True, requested=Amount(300, 0))
    assert history.faults() == {"waiting_heads": 1}


def test_another_workload_at_the_head_begins_to_wait_again(history: History) -> None:
    for second in range(50, 100):
        name = "first" if second < 75 else "second"
        history.add(second, name, replace(WORKLOAD, name=name, uid=name))
        if second == 75:
            history.add(second, "first", WORKLOAD, is_gone=True)
    assert history.faults() == {}


def test_a_large_workload_that_never_runs_counts(history: History) -> None:
    large = replace(WORKLOAD, name="large", uid="large", pods=64 * WORKLOAD.pods, requested=Amount(6400, 0))
    history.add(50.0, "large", large)
    assert history.faults() == {"large": 1}
    history.add(60.0, "large", replace(large, has_quota=True, is_admitted=True))
    for number in range(64):
        pod = replace(BOUND, name=f"large-{number}", workload="large", team="team-a", amount=Amount(0, 0))
        history.add(61.0, f"large-{number}", pod)
    assert history.faults() == {}


# --- reading --------------------------------------------------------------------------------------------------------

GRANT = '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"30","koordinator.sh/gpu-memory-ratio":"20"}}]}'


def test_a_pod_is_read() -> None:
    raw = {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "labels": {"bench.berth.dev/unit": "unit-1"},
            "namespace": "team-a",
            "uid": "u",
            "resourceVersion": "7",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"scheduling.koordinator.sh/device-allocated": GRANT, "kueue.x-k8s.io/workload": "job-p"},
        },
        "spec": {"nodeName": "node-0", "containers": [{"resources": {"limits": {"kubernetes.io/gpu-memory": "8Gi"}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}]},
    }
    event = teams_history.parse({"type": "MODIFIED", "object": raw}, at=1.0)
    pod = Pod(
        team="team-a",
        name="p",
        unit="unit-1",
        workload="job-p",
        node="node-0",
        held=(Held(1, 30),),
        amount=Amount(30, 0),
        by_size=True,
        is_over=False,
        is_ending=True,
        is_disrupted=True,
    )
    assert event == Event(at=1.0, revision=7, uid="u", value=pod)


def test_a_workload_is_read() -> None:
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    reclaimed = "Preempted to accommodate a workload (UID: x, JobUID: y) due to reclamation within the cohort; path"
    raw: dict[str, Any] = {
        "kind": "Workload",
        "metadata": {
            "name": "w",
            "namespace": "team-b",
            "uid": "u",
            "resourceVersion": "8",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"priority": 5, "podSets": [{"name": "main", "count": 2, "template": template}]},
        "status": {
            "resourceRequests": [{"name": "main", "resources": {"cpu": "1", "quota.berth.dev/gpu": "400"}}],
            "conditions": [
                {"type": "QuotaReserved", "status": "False"},
                {"type": "Evicted", "status": "True"},
                {"type": "Preempted", "status": "True", "message": reclaimed},
            ],
        },
    }
    value = teams_history.parse({"type": "DELETED", "object": raw}, at=1.0).value
    assert value == Workload(
        team="team-b",
        name="w",
        uid="u",
        priority=5,
        created="2026-01-01T00:00:00Z",
        requested=Amount(400, 0),
        pods=2 * (Shape(2, 0, by_size=False),),
        has_quota=False,
        is_admitted=False,
        is_evicted=True,
        is_over=False,
        preemptor="x",
        is_reclaimed=True,
    )


@pytest.mark.parametrize(
    ("limits", "shape"),
    [
        ({"nvidia.com/gpu": "4"}, Shape(4, 0, by_size=False)),
        ({"kubernetes.io/gpu": "30"}, Shape(0, 30, by_size=False)),
        ({"kubernetes.io/gpu-memory-ratio": "20", "kubernetes.io/gpu-core": "10"}, Shape(0, 20, by_size=False)),
        ({"nvidia.com/gpumem-percentage": "25"}, Shape(0, 25, by_size=False)),
        ({"nvidia.com/gpumem": "8192"}, Shape(0, 10, by_size=True)),
        ({"aliyun.com/gpu-mem": "8"}, Shape(0, 10, by_size=True)),
        ({}, Shape(0, 0, by_size=False)),
    ],
)
def test_requests_are_read(limits: dict[str, str], shape: Shape) -> None:
    assert teams_history.shape({"containers": [{"resources": {"limits": limits}}]}) == shape
