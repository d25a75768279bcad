"""Teams that borrow, and third-party checks next to Berth's: the setups in docs/kueue.md beyond hard quotas."""

from collections.abc import Iterator
from typing import Any

import pytest

from devcluster import Cluster
from tests.kueue.team import CHECK, WORKLOADS, Team, apply_queues, entry, hold, node_names, release

CARDS = "nvidia.com/gpu"
TIME = "2026-01-01T00:00:00Z"
KUEUE = "kueue.x-k8s.io/v1beta2"
OTHER = "creates-nodes"


@pytest.fixture
def guarantees(running: Cluster) -> Iterator[None]:
    """Change the queues so that the teams borrow from each other, as in the example."""
    apply_queues(running, "guarantees")
    yield
    apply_queues(running, "quotas")


@pytest.mark.usefixtures("guarantees")
def test_a_team_borrows_what_is_free_and_gives_it_back(team_a: Team, team_b: Team) -> None:
    for number in range(7):
        team_b.job(f"job-{number}", {CARDS: "1"})
    team_b.wait_bound(6)
    team_a.job("owner", {CARDS: "1"}, pods=4)
    team_a.wait_bound(4)
    team_b.wait_bound(2)
    team_b.clear()
    team_a.job("over-its-limit", {CARDS: "2"})
    assert "insufficient" in team_a.wait_reason("over-its-limit")
    team_a.job("borrowed", {CARDS: "1"})
    team_a.wait_bound(5)


@pytest.fixture
def other_check(running: Cluster) -> Iterator[None]:
    """Add a second check to the first team's queue; its controller is the test."""
    head = {"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": OTHER}}
    running.api.apply({**head, "spec": {"controllerName": f"test.berth.dev/{OTHER}"}})
    condition = {"type": "Active", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": TIME}
    running.api.merge(f"/apis/{KUEUE}/admissionchecks/{OTHER}/status", {"status": {"conditions": [condition]}})
    strategy = {"admissionChecks": [{"name": name} for name in (CHECK, OTHER)]}
    running.api.merge(f"/apis/{KUEUE}/clusterqueues/team-a", {"spec": {"admissionChecksStrategy": strategy}})
    yield
    apply_queues(running, "quotas")
    release(running)


@pytest.mark.usefixtures("other_check")
def test_berth_decides_once_another_check_has_created_nodes(running: Cluster, team_a: Team, team_b: Team) -> None:
    nodes = node_names(running)
    for node in nodes:
        hold(running, node, f"on-{node}", {CARDS: "4"})
    team_a.job("train", {CARDS: "1"})
    checks = team_a.until(lambda: _reserved(team_a), "quota, and both checks")
    # Berth sees this one later.
    team_b.job("other", {CARDS: "1"})
    team_b.until(lambda: entry(team_b, "other").get("message"), "the reason of a workload without another check")
    assert (entry(team_a, "train")["state"], entry(team_a, "train")["message"]) == ("Pending", "")
    release(running)
    update = {"name": "main", "nodeSelector": {"kubernetes.io/hostname": nodes[1]}}
    ready = [
        {**each, "state": "Ready", "podSetUpdates": [update]} if each["name"] == OTHER else each for each in checks
    ]
    [workload] = team_a.workloads()
    path = f"{WORKLOADS.format(team_a.namespace)}/{workload['metadata']['name']}/status"
    running.api.merge(path, {"status": {"admissionChecks": ready}})
    [pod] = team_a.wait_bound(1)
    assert pod["spec"]["nodeName"] == nodes[1]
    assert entry(team_a, "train")["message"] == f"places on {nodes[1]}"


def _reserved(team: Team) -> list[dict[str, Any]]:
    """Return the checks of the only workload once it has quota and two of them."""
    for workload in team.workloads():
        status = workload.get("status", {})
        if "admission" in status and len(status.get("admissionChecks", ())) == 2:
            return list(status["admissionChecks"])
    return []
