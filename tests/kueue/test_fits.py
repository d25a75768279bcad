"""The AdmissionCheck with Kueue: a workload that fits only by sums of quota is not admitted before it has places."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster import Cluster, waiting
from tests.kueue.team import Team, entry, node_names

CARDS = "nvidia.com/gpu"
QUEUE = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/team-a"
STRANDED_SECONDS = 5.0
"""A pod that has no node by then would not get one."""


@pytest.fixture
def plenty(running: Cluster) -> Iterator[None]:
    """Raise the quota of the first team above the cards that there are."""
    before = running.api.get(QUEUE)["spec"]
    resources = {**before["resourceGroups"][0]["flavors"][0], "resources": _much(before)}
    group = {**before["resourceGroups"][0], "flavors": [resources]}
    running.api.merge(QUEUE, {"spec": {"resourceGroups": [group]}})
    yield
    strategy = before["admissionChecksStrategy"]
    running.api.merge(
        QUEUE, {"spec": {"resourceGroups": before["resourceGroups"], "admissionChecksStrategy": strategy}}
    )


def _much(queue: dict[str, Any]) -> list[dict[str, Any]]:
    resources = queue["resourceGroups"][0]["flavors"][0]["resources"]
    return [{**each, "nominalQuota": "2000" if each["name"] != "memory" else "1Ti"} for each in resources]


@pytest.fixture
def fragmented(running: Cluster, team_b: Team) -> None:
    """Leave three of four cards free on each node."""
    for name, node in zip(("left", "right"), node_names(running), strict=True):
        team_b.job(name, {CARDS: "1"}, node=node)
    team_b.wait_bound(2)


def nodes_of(pods: list[dict[str, Any]]) -> Counter[str]:
    return Counter(pod["spec"]["nodeName"] for pod in pods)


def of(job: str, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == job]


@pytest.mark.usefixtures("plenty", "fragmented")
def test_a_job_without_a_place_waits_with_the_reason_and_others_go_on(team_a: Team, team_b: Team) -> None:
    team_a.job("big", {CARDS: "4"})
    message = team_a.until(lambda: str(entry(team_a, "big").get("message", "")), "the reason of the check")
    assert message.startswith("0/2 nodes are available: ")
    team_a.job("bigger", {CARDS: "4"}, pods=2)
    team_a.until(lambda: entry(team_a, "bigger").get("requeueAfterSeconds"), "the quota to be returned")
    team_a.job("small", {CARDS: "1"})
    [pod] = team_a.wait_bound(1)
    assert team_a.pods() == [pod], "no pod of the other Jobs exists"
    for name in ("left", "right"):
        team_b.delete_job(name)
    # One of the nodes is empty now.
    team_a.until(lambda: of("big", team_a.bound()), "the big job to run")


@pytest.mark.usefixtures("plenty", "fragmented")
def test_without_the_check_the_same_job_is_admitted_and_holds_its_quota_in_vain(team_a: Team) -> None:
    team_a.api.merge(QUEUE, {"spec": {"admissionChecksStrategy": None}})
    team_a.job("big", {CARDS: "4"})
    team_a.until(team_a.pods, "the pod of the Job")
    assert not waiting.within(team_a.bound, seconds=STRANDED_SECONDS, poll=0.5)


def test_pods_come_to_the_nodes_that_were_promised(team_a: Team) -> None:
    team_a.job("train", {CARDS: "2"}, pods=2)
    pods = team_a.wait_bound(2)
    message = entry(team_a, "train")["message"]
    named = {node: 2 if f"{node} (2 pods)" in message else 1 for node in nodes_of(pods) if node in message}
    assert named == dict(nodes_of(pods))
    assert {pod["metadata"]["annotations"]["berth.dev/pod-set"] for pod in pods} == {"main"}


@pytest.mark.usefixtures("plenty")
def test_a_job_that_no_node_could_take_is_rejected(team_a: Team) -> None:
    team_a.job("never", {CARDS: "5"})

    def is_inactive() -> bool:
        return any(each["spec"].get("active") is False for each in team_a.workloads())

    team_a.until(is_inactive, "Kueue to deactivate the Workload")
    assert team_a.pods() == []
