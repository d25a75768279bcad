"""`explain` of workloads whose pods are not created, as their controllers report it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from berth_kubectl.commands import explain, explaining
from berth_kubectl.errors import CommandError, ReadError
from berth_kubectl.reading.session import Session
from berth_kubectl.transport.request import Request
from tests.objects.kubectl_objects import raw_pod

SELECTOR = {"matchLabels": {"app": "chat"}}
REFUSAL = 'pods "chat-5d-x" is forbidden: invalid request: kubernetes.io/gpu: 150; allowed are multiples of 100'
FAILED = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": REFUSAL}
SUSPENDED = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
EVENT = {
    "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "type": "Warning", "reason": "FailedCreate",
    "message": f"Error creating: {REFUSAL}", "count": 14, "lastTimestamp": "2026-01-01T00:01:00Z",
}  # fmt: skip
NO_API = ReadError("the server could not find the requested resource", status=404)


class Server:
    """Answers by the last part of a path, and Events by the UID of their object."""

    server_date = ""

    def __init__(self, answers: Mapping[str, Any], events: Mapping[str, Any]) -> None:
        self._answers, self._events = answers, events

    def get_all(self, requests: Sequence[Request]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Any:
        name = request.path.rpartition("/")[2]
        if name == "events":
            uid = dict(request.query)["fieldSelector"].removeprefix("involvedObject.uid=")
            return {"items": self._events.get(uid, [])}
        return self._answers.get(name, NO_API)


def workload(name: str = "chat", *conditions: Any, owner: str = "", **spec: Any) -> dict[str, Any]:
    references = [{"uid": owner, "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": references}
    return {"metadata": metadata, "spec": {"selector": SELECTOR, **spec}, "status": {"conditions": [*conditions]}}


def explained(target: str, *pods: Any, events: Mapping[str, Any] | None = None, **answers: Any) -> list[str]:
    """Return the printed lines, where the visibility API is not served."""
    server = Server({"pods": {"items": pods}, "replicasets": {"items": []}, **answers}, events or {})
    session = Session(api=server, namespace="team")
    answer = explain.explain(session, explain.target(target), frozenset({"berth-scheduler"}))
    return [*answer.summary, *explaining.text(answer.explanation, answer.events, subject=answer.subject)]


def test_the_refusal_of_a_deployments_pods_is_quoted() -> None:
    old = workload("chat-4c", FAILED, owner="uid-chat", replicas=0)
    new = workload("chat-5d", FAILED, owner="uid-chat", replicas=2)
    sets = {"items": [old, new, workload("other", FAILED, owner="uid-other", replicas=1)]}
    lines = explained(
        "deployment/chat", chat=workload("chat", FAILED), replicasets=sets, events={"uid-chat-5d": [EVENT]}
    )
    assert lines == [
        "Deployment:  team/chat",
        "State:       NoPods",
        f"Message:     ReplicaSet chat-5d: ReplicaFailure (FailedCreate): {REFUSAL}",
        "",
        "Events:",
        "",
        "LAST                   TYPE      REASON         COUNT   MESSAGE",
        "2026-01-01T00:01:00Z   Warning   FailedCreate   14      as the message above",
    ]


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("rs/chat", workload("chat", FAILED), f"ReplicaSet chat: ReplicaFailure (FailedCreate): {REFUSAL}"),
        ("job/chat", workload("chat", SUSPENDED, suspend=True), "Job chat: Suspended (JobSuspended): Job suspended"),
        ("job/chat", workload("chat", suspend=True), "Job chat: spec.suspend is true"),
        ("sts/chat", workload("chat"), f"FailedCreate: Error creating: {REFUSAL}"),
        ("deploy/chat", workload("chat", replicas=0), "Deployment chat: spec.replicas is 0"),
        ("ds/chat", workload("chat"), f"FailedCreate: Error creating: {REFUSAL}"),
    ],
)
def test_what_controllers_report(target: str, body: Any, message: str) -> None:
    lines = explained(target, chat=body, events={"uid-chat": [EVENT]})
    assert lines[1:3] == ["State:       NoPods", f"Message:     {message}"]


def test_a_controller_that_has_said_nothing() -> None:
    assert explained("sts/chat", chat=workload("chat"))[2] == "Message:     its controller has created no pod yet"


def test_a_refusal_is_quoted_beside_the_pods_that_there_are() -> None:
    there = raw_pod("chat-x", spec={"nodeName": "n"})
    lines = explained("rs/chat", there, chat=workload("chat", FAILED), **{"chat-x": there})
    assert lines[:3] == [
        "replicaset/chat: its only pod does not wait",
        f"ReplicaSet chat: ReplicaFailure (FailedCreate): {REFUSAL}",
        "",
    ]
    assert lines[3] == "Pod:         team/chat-x"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_suspended_job_whose_queue_is_not_there(*, is_there: bool) -> None:
    job = workload("chat", SUSPENDED, suspend=True)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-queue"}
    queues = {"team-queue": {"metadata": {"name": "team-queue"}}} if is_there else {}
    message = explained("job/chat", chat=job, **queues)[2]
    assert ("nothing resumes it: there is no LocalQueue team-queue, which its label" in message) is not is_there
    assert message.endswith("Job chat: Suspended (JobSuspended): Job suspended")


def test_a_word_that_only_pods_may_have_is_named() -> None:
    body, there = workload("chat"), raw_pod("chat-x", spec={"nodeName": "n"})
    body["metadata"]["annotations"] = {"scheduling.volcano.sh/group-min-member": "2"}
    lines = explained("job/chat", there, chat=body, **{"chat-x": there})
    assert lines[1] == (
        "annotation scheduling.volcano.sh/group-min-member of the Job has no effect; "
        "write the annotations berth.dev/pod-group and berth.dev/pod-group-min-member on the pods"
    )


def test_a_gang_without_pods_is_an_error() -> None:
    with pytest.raises(CommandError, match="podgroup/ring has no pods in the namespace team"):
        explained("podgroup/ring")
