"""Kueue's quotas for workloads of Berth: Kueue counts at least what Berth charges, and the excess waits."""

import pytest

from devcluster.control_plane.api import ApiError
from tests.kueue.audit import Amount
from tests.kueue.team import Team

NVIDIA = "nvidia.com/gpu"
HUNDREDTHS = "kubernetes.io/gpu"
RATIO = "kubernetes.io/gpu-memory-ratio"
MEMORY = "kubernetes.io/gpu-memory"
GIB = 2**30
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def test_a_job_is_admitted_and_its_pod_is_bound_by_berth(team_a: Team) -> None:
    team_a.job("one", {NVIDIA: "1"})
    [pod] = team_a.wait_bound(1)
    assert ALLOCATED in pod["metadata"]["annotations"]
    assert pod["spec"]["nodeSelector"] == {"node.koordinator.sh/gpu-model": "NVIDIA-A100-SXM4-80GB"}
    assert team_a.rows()["one"].counted == Amount(100, 0)


def test_a_job_over_the_quota_waits_until_there_is_quota_again(team_a: Team) -> None:
    team_a.job("first", {NVIDIA: "1"}, pods=4)
    team_a.wait_bound(4)
    team_a.job("second", {HUNDREDTHS: "50"})
    assert "insufficient unused quota for quota.berth.dev/gpu in flavor a100" in team_a.wait_reason("second")
    assert len(team_a.pods()) == 4
    team_a.delete_job("first")
    # One pod of the first Job may be left for a moment.
    team_a.until(lambda: [each["metadata"]["generateName"] for each in team_a.bound()] == ["second-"], "the second Job")


def test_kueue_counts_each_workload_as_berth_charges_it_or_more(team_a: Team) -> None:
    requests: dict[str, tuple[dict[str, str], Amount, int]] = {
        "card": ({NVIDIA: "1"}, Amount(100, 0), 100),
        "share": ({HUNDREDTHS: "30"}, Amount(30, 0), 30),
        "ratio": ({"koordinator.sh/gpu-memory-ratio": "20"}, Amount(20, 0), 20),
        "both": ({RATIO: "20", "kubernetes.io/gpu-core": "10"}, Amount(30, 0), 20),
        "bytes": ({MEMORY: "8Gi"}, Amount(0, 8 * GIB), 10),
        "hami": ({"nvidia.com/gpumem": "8192"}, Amount(0, 8 * GIB), 10),
        "hami-share": ({"nvidia.com/gpumem-percentage": "25"}, Amount(25, 0), 25),
        "aliyun": ({"aliyun.com/gpu-mem": "8"}, Amount(0, 8 * GIB), 10),
    }
    for name, (limits, _, _) in requests.items():
        team_a.job(name, limits)
    team_a.wait_bound(len(requests))
    rows = team_a.rows()
    assert {name: row.counted for name, row in rows.items()} == {name: each[1] for name, each in requests.items()}
    assert {name: row.charged.hundredths for name, row in rows.items()} == {
        name: each[2] for name, each in requests.items()
    }
    assert [fault for row in rows.values() if (fault := row.fault())] == []


def test_a_request_by_bytes_is_refused_by_a_queue_without_quota_for_it(team_b: Team) -> None:
    team_b.job("bytes", {MEMORY: "8Gi"})
    assert "resource quota.berth.dev/gpu-memory unavailable in ClusterQueue" in team_b.wait_reason("bytes")
    assert team_b.pods() == []


def test_a_pod_that_names_no_queue_is_held_until_there_is_quota(team_b: Team) -> None:
    team_b.pod("first", {NVIDIA: "2"})
    team_b.wait_bound(1)
    team_b.pod("second", {NVIDIA: "1"})
    assert "insufficient unused quota" in team_b.wait_reason("second")
    [pod] = [pod for pod in team_b.pods() if pod["metadata"]["name"] == "second"]
    assert "kueue.x-k8s.io/admission" in [gate["name"] for gate in pod["spec"]["schedulingGates"]]
    with pytest.raises(ApiError, match="only Kueue may remove its scheduling gates"):
        team_b.api.merge("/api/v1/namespaces/team-b/pods/second", {"spec": {"schedulingGates": None}})


def test_a_pod_that_admission_renames_is_refused_where_kueue_counts_it_alone(team_a: Team) -> None:
    limits = {NVIDIA: "2", "nvidia.com/gpumem": "1024"}
    with pytest.raises(ApiError, match="next to words of another system requests GPUs that Kueue does not count"):
        team_a.pod("renamed", limits)
    team_a.job("template", limits)
    team_a.wait_bound(1)
    row = team_a.rows()["template"]
    assert (row.counted, row.fault()) == (Amount(200, 2 * GIB), "")


def test_pods_of_a_deployment_beyond_the_quota_wait_and_a_changed_replica_set_gets_none(team_b: Team) -> None:
    team_b.replicated("Deployment", "server", {NVIDIA: "1"}, pods=3)
    team_b.until(lambda: len(team_b.pods()) == 3, "the pods of the Deployment")
    team_b.until(lambda: len(team_b.bound()) == 2, "two pods to be bound")
    team_b.update("deployments", "server", {"spec": {"paused": True}})  # so that it lets its ReplicaSet be
    name = team_b.replica_set()["metadata"]["name"]
    without = {"spec": {"template": {"metadata": {"annotations": {"kueue.x-k8s.io/pod-suspending-parent": None}}}}}
    team_b.update("replicasets", name, without)
    for pod in team_b.pods():
        if pod not in team_b.bound():
            team_b.api.delete(f"/api/v1/namespaces/team-b/pods/{pod['metadata']['name']}", grace_seconds=0)

    def message() -> str:
        return " ".join(each["message"] for each in team_b.replica_set()["status"].get("conditions", ()))

    team_b.until(lambda: "Kueue does not hold this pod" in message(), "the ReplicaSet to create no pod")
    assert len(team_b.pods()) == 2


def test_a_stateful_set_is_held_until_there_is_quota_for_all_its_pods(team_b: Team) -> None:
    team_b.job("first", {NVIDIA: "1"})
    team_b.wait_bound(1)
    team_b.replicated("StatefulSet", "server", {NVIDIA: "1"}, pods=2)
    assert "insufficient unused quota" in team_b.wait_reason("server")
    team_b.delete_job("first")
    assert {pod["metadata"]["name"] for pod in team_b.wait_bound(2)} == {"server-0", "server-1"}


def test_a_pod_of_a_job_cannot_leave_it(team_b: Team) -> None:
    """Neither by hand, nor when the Job is deleted without its pods: Kueue would give its quota to others."""
    team_b.job("first", {NVIDIA: "2"})
    [pod] = team_b.wait_bound(1)
    with pytest.raises(ApiError, match="so it cannot leave it"):
        team_b.update("pods", pod["metadata"]["name"], {"metadata": {"ownerReferences": None}})
