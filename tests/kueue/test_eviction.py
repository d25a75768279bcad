"""Kueue evicts workloads for quota, Berth evicts pods for places: neither takes what the other has already taken."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster import Cluster
from tests.bench.teams import history as teams_history
from tests.bench.teams.history import Event, Pod, Workload
from tests.kueue.team import CARD, Team, spec

NVIDIA = "nvidia.com/gpu"
HOLD = "test.berth.dev/hold"
"""A finalizer of pods, which terminate until it is taken away."""
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
WATCHED = ("/api/v1/pods", "/apis/kueue.x-k8s.io/v1beta2/workloads")
READ_SECONDS = 3
"""In which the API server sends what has happened since a version."""


@pytest.fixture
def cohort(running: Cluster) -> Iterator[None]:
    """Put the teams into a cohort with reclaim; six of eight cards are for them."""
    assert CARD == teams_history.CARD
    preemption = {"reclaimWithinCohort": "Any"}
    for team in ("team-a", "team-b"):
        running.api.merge(f"{QUEUES}/{team}", {"spec": {"cohortName": "all", "preemption": preemption}})
    pods = running.api.resource("pods").path(namespace="default")
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "others"}}
    running.api.post(pods, {**head, "spec": spec({NVIDIA: "2"})})
    yield
    running.api.delete(pods, grace_seconds=0)
    for team in ("team-a", "team-b"):
        running.api.merge(f"{QUEUES}/{team}", {"spec": {"cohortName": None, "preemption": None}})


class _History:
    """What happens to pods and Workloads from now on."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api
        self._versions = {path: self._api.get(path, limit="1")["metadata"]["resourceVersion"] for path in WATCHED}

    def read(self) -> list[Event]:
        events: list[Event] = []
        for path, version in self._versions.items():
            watched = self._api.watch(path, version=version, seconds=READ_SECONDS)
            events += [teams_history.parse(raw, 0.0) for raw in watched]
        return sorted(events, key=lambda event: event.revision)


@pytest.mark.usefixtures("unchecked", "cohort")
def test_a_team_that_takes_its_quota_back_evicts_each_workload_once_and_no_pod_in_addition(
    running: Cluster, team_a: Team, team_b: Team
) -> None:
    """The pods have one priority, so Berth evicts none, even while those that Kueue evicts still hold their cards."""
    try:
        for number in range(6):
            team_b.job(f"borrower-{number}", {NVIDIA: "1"}, finalizers=[HOLD])
        team_b.wait_bound(6)
        history = _History(running)
        team_a.job("lender", {NVIDIA: "1"}, pods=4)
        team_a.until(lambda: len(team_a.pods()) == 4, "the lender to be admitted")
        team_a.until(lambda: all(map(_waits, team_a.pods())), "its pods to wait for cards")
        assert len(team_b.bound()) == 2
    finally:
        for pod in team_b.objects("pods"):
            team_b.update("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
    team_a.wait_bound(4)
    assert "insufficient" in team_b.until(lambda: _pending(team_b), "the evicted Jobs to wait for quota")
    events = history.read()
    assert Counter(_evictions(events).values()) == {1: 4}
    assert [event for event in events if isinstance(event.value, Pod) and event.value.is_disrupted] == []
    assert len(team_b.bound()) == 2


def _waits(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def _pending(team: Team) -> str:
    """Return Kueue's message for Jobs without quota, once four of them have none."""
    conditions = [each for workload in team.workloads() for each in workload.get("status", {}).get("conditions", ())]
    messages = [each["message"] for each in conditions if each["type"] == "QuotaReserved" and each["status"] == "False"]
    return messages[0] if len(messages) == 4 else ""


def _evictions(events: list[Event]) -> Counter[str]:
    """Return how often each Workload was evicted."""
    evicted: set[str] = set()
    times: Counter[str] = Counter()
    for event in events:
        if not isinstance(event.value, Workload):
            continue
        if event.value.is_evicted and event.uid not in evicted:
            times[event.uid] += 1
        (evicted.add if event.value.is_evicted else evicted.discard)(event.uid)
    return times
