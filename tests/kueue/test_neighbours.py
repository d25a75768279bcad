"""JobSet, LeaderWorkerSet and Kubeflow's trainer: what Kueue holds, and how Berth places it."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster import Cluster
from devcluster.control_plane.api import ApiError
from tests.kueue.audit import Amount
from tests.kueue.team import RUNS_ON, Team, spec

NVIDIA = "nvidia.com/gpu"
HUNDREDTHS = "kubernetes.io/gpu"
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
POD_GROUP = "scheduling.x-k8s.io/pod-group"
UNCOUNTED = "label genius/gpu-number requests GPUs that Kueue does not count"
LABELS = {"genius/gpu-number": "1"}


def _job(limits: dict[str, str], *, pods: int = 1, **metadata: Any) -> dict[str, Any]:
    """Return the spec of a Job."""
    template = {
        "metadata": {"annotations": RUNS_ON, **metadata},
        "spec": {**spec(limits), "restartPolicy": "Never"},
    }
    return {"parallelism": pods, "completions": pods, "template": template}


# --- JobSet ---------------------------------------------------------------------------------------------------------


def test_a_job_set_is_counted_as_it_is_charged(team_a: Team) -> None:
    team_a.job_set("train", {"driver": _job({HUNDREDTHS: "50"}), "workers": _job({NVIDIA: "1"}, pods=3)})
    team_a.wait_bound(4)
    row = team_a.rows()["train"]
    assert (row.counted, row.charged.hundredths, row.fault()) == (Amount(350, 0), 350, "")


def test_a_job_set_waits_until_there_is_quota_for_all_of_it(team_a: Team) -> None:
    team_a.job("first", {NVIDIA: "1"})
    team_a.wait_bound(1)
    team_a.job_set("train", {"driver": _job({NVIDIA: "1"}), "workers": _job({NVIDIA: "1"}, pods=3)})
    assert "insufficient unused quota for quota.berth.dev/gpu" in team_a.wait_reason("train")
    assert len(team_a.pods()) == 1
    team_a.delete_job("first")
    team_a.wait_bound(4)


def test_a_job_set_whose_template_requests_by_label_is_refused(team_a: Team) -> None:
    with pytest.raises(ApiError, match=UNCOUNTED):
        team_a.job_set("train", {"driver": _job({}), "workers": _job({}, labels=LABELS)})


# --- LeaderWorkerSet ------------------------------------------------------------------------------------------------


def test_each_group_of_a_leader_worker_set_is_counted_as_it_is_charged(team_a: Team) -> None:
    team_a.leader_worker_set("serve", {NVIDIA: "1"}, groups=2, size=2)
    team_a.wait_bound(4)
    rows = team_a.rows().values()
    assert [(row.counted, row.charged.hundredths, row.fault()) for row in rows] == 2 * [(Amount(200, 0), 200, "")]


def test_a_group_of_a_leader_worker_set_waits_until_there_is_quota_for_all_of_it(team_a: Team) -> None:
    team_a.job("first", {NVIDIA: "1"})
    team_a.wait_bound(1)
    team_a.leader_worker_set("serve", {NVIDIA: "1"}, groups=2, size=2)
    assert "insufficient unused quota for quota.berth.dev/gpu" in team_a.wait_reason("serve")
    team_a.wait_bound(3)
    assert sorted(_groups(team_a).values()) == [2]
    team_a.delete_job("first")
    team_a.wait_bound(4)


def test_a_leader_worker_set_whose_template_requests_by_label_is_refused(team_a: Team) -> None:
    template = {"size": 2, "workerTemplate": {"metadata": {"labels": LABELS}, "spec": spec({})}}
    resource = team_a.api.resource("leaderworkersets")
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "serve"},
        "spec": {"leaderWorkerTemplate": template},
    }
    with pytest.raises(ApiError, match=UNCOUNTED):
        team_a.api.post(resource.path(namespace=team_a.namespace), body)


@pytest.mark.usefixtures("unchecked", "one_card_for_a_second_group")
def test_the_groups_of_a_leader_worker_set_are_gangs(team_a: Team) -> None:
    """LWS writes a PodGroup of Volcano's for each, if its Configuration says so: a group gets all its cards or none."""
    team_a.leader_worker_set("serve", {NVIDIA: "1"}, groups=2, size=2)
    team_a.until(lambda: _message(team_a, "fit"), "a group to be refused")
    assert sorted(_groups(team_a).values()) == [2]
    assert len(team_a.pods()) == 4


def _groups(team: Team) -> Counter[str]:
    """Return how many bound pods each group of a LeaderWorkerSet has."""
    return Counter(pod["metadata"]["labels"][GROUP] for pod in team.bound() if GROUP in pod["metadata"]["labels"])


def _message(team: Team, text: str) -> str:
    conditions = [each for pod in team.pods() for each in pod.get("status", {}).get("conditions", ())]
    messages = [each.get("message", "") for each in conditions if each["type"] == "PodScheduled"]
    return next((message for message in messages if text in message), "")


@pytest.fixture
def one_card_for_a_second_group(running: Cluster) -> Iterator[None]:
    """Hold five of eight cards by a pod that Kueue does not hold."""
    pods = running.api.resource("pods").path(namespace="default")
    for name, count in (("four", "4"), ("one", "1")):
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        running.api.post(pods, {**head, "spec": spec({NVIDIA: count})})
    yield
    running.api.delete(pods, grace_seconds=0)


# --- Kubeflow's trainer ---------------------------------------------------------------------------------------------


def test_a_train_job_is_counted_as_it_is_charged_and_is_a_gang(team_a: Team) -> None:
    team_a.runtime("torch")
    team_a.train_job("train", {NVIDIA: "1"}, runtime="torch", pods=3)
    pods = team_a.wait_bound(3)
    row = team_a.rows()["train"]
    assert (row.counted, row.charged.hundredths, row.fault()) == (Amount(300, 0), 300, "")
    assert {pod["metadata"]["labels"][POD_GROUP] for pod in pods} == {"train"}


def test_a_train_job_waits_until_there_is_quota_for_all_of_it(team_a: Team) -> None:
    team_a.runtime("torch")
    team_a.job("first", {NVIDIA: "2"})
    team_a.wait_bound(1)
    team_a.train_job("train", {NVIDIA: "1"}, runtime="torch", pods=3)
    assert "insufficient unused quota for quota.berth.dev/gpu" in team_a.wait_reason("train")
    assert len(team_a.pods()) == 1
    team_a.delete_job("first")
    team_a.wait_bound(3)


def test_a_train_job_whose_runtime_requests_by_label_gets_no_pods(team_a: Team) -> None:
    """The policy does not read runtimes, but the JobSet that the trainer makes of one."""
    team_a.runtime("labelled", labels=LABELS)
    team_a.train_job("train", {}, runtime="labelled", pods=1)
    team_a.until(lambda: UNCOUNTED in _trainer_log(team_a), "the trainer to be refused a JobSet")
    assert (team_a.objects("jobsets"), team_a.pods()) == ([], [])


def _trainer_log(team: Team) -> str:
    return (team.folder / "trainer.log").read_text(errors="replace")
