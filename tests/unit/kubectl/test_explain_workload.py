"""`explain` of a Workload of Kueue: place in the queue, quota and devices, and what could not be read."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from berth_kubectl import arguments
from berth_kubectl.commands import explain, explaining
from berth_kubectl.errors import CommandError, ReadError
from berth_kubectl.reading.session import Session
from berth_kubectl.transport.request import Request
from tests.objects import kueue_objects
from tests.objects.kueue_objects import admission_check, check_state, condition, with_quota, workload

Raw = dict[str, Any]

GROUP = "/apis/kueue.x-k8s.io/v1beta2"
MISSING = ReadError("the server could not find the requested resource", status=404)
FORBIDDEN = ReadError("clusterqueues is forbidden", status=403)
REFUSED = "couldn't assign flavors to pod set main: insufficient unused quota"
QUEUE = {"metadata": {"name": "default", "namespace": "ns"}, "spec": {"clusterQueue": "team-a"}}
RESOURCE = {"name": "quota.berth.dev/gpu", "nominalQuota": "400"}
CLUSTER_QUEUE = {
    "metadata": {"name": "team-a"},
    "spec": {"resourceGroups": [{"flavors": [{"name": "a100", "resources": [RESOURCE]}]}]},
    "status": {
        "flavorsReservation": [{"name": "a100", "resources": [{"name": "quota.berth.dev/gpu", "total": "350"}]}],
        "conditions": [{"type": "Active", "status": "True"}],
    },
}


class Server:
    """Answers by path."""

    server_date = ""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers

    def get_all(self, requests: Sequence[Request]) -> list[Any]:
        return [self._answers.get(request.path, MISSING) for request in requests]


def answers(*workloads: Raw, checks: Sequence[Raw] = (), **more: Any) -> dict[str, Any]:
    """Return what an API server with Kueue answers; `more` has other objects by plural."""
    collection = f"{GROUP}/namespaces/ns/workloads"
    return {
        collection: {"items": list(workloads)},
        **{f"{collection}/{workload['metadata']['name']}": workload for workload in workloads},
        f"{GROUP}/namespaces/ns/localqueues/default": more.get("localqueues", QUEUE),
        f"{GROUP}/clusterqueues/team-a": more.get("clusterqueues", CLUSTER_QUEUE),
        f"{GROUP}/clusterqueues/queue": more.get("clusterqueues", CLUSTER_QUEUE),
        f"{GROUP}/admissionchecks": {"items": list(checks)},
        "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/ns/localqueues/default/pendingworkloads": more.get(
            "pending", MISSING
        ),
    }


def explained(known: Mapping[str, Any], name: str = "job") -> tuple[list[str], list[str]]:
    """Return the printed lines, and the notes."""
    session = Session(api=Server(known), namespace="ns")
    answer = explain.explain(session, explain.target(f"workload/{name}"), frozenset())
    return explaining.text(answer.explanation, subject=answer.subject), session.notes


def waiting(name: str = "job", **fields: Any) -> Raw:
    refused = {**condition("QuotaReserved", status="False"), "message": REFUSED}
    return workload(name, conditions=[refused], checks=[], **fields)


def test_a_workload_that_waits_for_quota() -> None:
    others = [waiting("high", priority=5), waiting("later", metadata={"creationTimestamp": kueue_objects.LATER})]
    lines, notes = explained(answers(waiting(), *others))
    assert lines == [
        "Workload:    ns/job",
        "State:       Pending",
        f"Message:     {REFUSED}",
        "Queue:       LocalQueue default of ClusterQueue team-a",
        "Position:    2 of 3 in the LocalQueue, by priority and age",
        "Quota:       350 of 400 quota.berth.dev/gpu of flavor a100 are reserved in the queue",
    ]
    assert [note.partition(":")[0] for note in notes] == ["not shown"], "Kueue's visibility API is not served"


def test_the_position_is_that_of_the_visibility_api_of_kueue() -> None:
    listed = {"metadata": {"name": "job"}, "positionInClusterQueue": 4, "positionInLocalQueue": 1}
    lines, notes = explained(answers(waiting(), pending={"items": [listed]}))
    assert "Position:    5 in the ClusterQueue, 2 in the LocalQueue" in lines
    assert notes == []


def test_a_workload_that_waits_for_devices() -> None:
    message = "0/2 nodes are available: 2 node(s) have too few free GPUs."
    checks = [check_state("Retry", message=message, requeueAfterSeconds=30), check_state(name="other")]
    lines, _ = explained(answers(with_quota(checks=checks), checks=[admission_check()]))
    assert lines[1:3] == ["State:       QuotaReserved", "Message:     waits for the AdmissionChecks fits, other"]
    assert f"Devices:     AdmissionCheck fits is Retry (again after 30 s): {message}" in lines
    assert "Check:       AdmissionCheck other is Pending" in lines


@pytest.mark.parametrize(
    ("raw", "state"),
    [
        (with_quota(conditions=[condition("Admitted")]), "Admitted"),
        (with_quota(conditions=[condition("Admitted"), condition("Finished")]), "Finished"),
        (with_quota(conditions=[condition("Evicted")]), "Evicted"),
        (workload(active=False, conditions=[condition("Evicted")]), "Inactive"),
        (workload(), "Pending"),
    ],
)
def test_states(raw: Raw, state: str) -> None:
    assert explained(answers(raw))[0][1] == f"State:       {state}"


def test_what_may_not_be_read_is_named_and_the_rest_is_shown() -> None:
    lines, notes = explained(answers(waiting(), clusterqueues=FORBIDDEN, pending={"items": []}))
    assert "Queue:       LocalQueue default of ClusterQueue team-a" in lines
    [note] = notes
    assert "clusterqueues.kueue.x-k8s.io team-a" in note
    assert "kueue-clusterqueue-viewer-role" in note


def test_a_queue_that_is_not_active_says_why() -> None:
    inactive = {"type": "Active", "status": "False", "message": "references inactive AdmissionCheck(s): fits"}
    queue = {**CLUSTER_QUEUE, "status": {"conditions": [inactive]}}
    lines, _ = explained(answers(waiting(), clusterqueues=queue))
    assert "the ClusterQueue is not active: references inactive AdmissionCheck(s): fits" in lines[3]


def test_without_kueue_the_error_says_so() -> None:
    with pytest.raises(CommandError, match="workload/job: the API server serves no Workloads"):
        explained({})


def test_a_workload_that_does_not_exist_is_another_error() -> None:
    with pytest.raises(ReadError, match="could not find"):
        explained(answers(), "none")


@pytest.mark.parametrize("words", [["workload/job"], ["workload", "job"], ["kwl/job"], ["WORKLOADS", "job"]])
def test_kind_and_name_are_one_word_or_two(words: list[str]) -> None:
    assert arguments.parser("explain").parse_args(words).target == explain.Target(kind="workload", name="job")
