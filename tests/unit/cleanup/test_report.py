"""The report of a cleanup about what stays."""

from typing import Any

from berth_operator.commands.cleanup import installed, report
from berth_operator.commands.cleanup.nodes import Plan, Pod

OURS = "devices.berth.dev gpupods.berth.dev leaderleases.berth.dev"


def plan(*pods: str) -> Plan:
    own = tuple(
        Pod(namespace="ns", name=name, uid=name, node="a", requests={}, is_bound_by_berth=True) for name in pods
    )
    kept = {"kubernetes.io/gpu": "50", "kubernetes.io/gpu-memory": "16Gi"}
    return Plan(node="a", version="1", metadata=None, status=None, kept=kept, pods=own)


def test_a_node_that_keeps_capacity_names_amounts_and_pods() -> None:
    start = "node a keeps kubernetes.io/gpu: 50, kubernetes.io/gpu-memory: 16Gi for pods "
    assert report.kept_node(plan("p", "q")) == f"{start}ns/p, ns/q"
    assert report.kept_node(plan(*"abcdefg")) == f"{start}ns/a, ns/b, ns/c, ns/d, ns/e and 2 more"


def test_what_stays_is_said_with_the_reason_and_the_command() -> None:
    lines = "\n".join(report.stays(installed.definitions(), [plan("p")], 3))
    for text in (
        f"to delete both: kubectl delete crd {OURS}\n",
        f"to delete both: kubectl delete crd {installed.POD_GROUP}\n",
        "stays: capacity of 1 node(s), because kubelet",
        "stays: 3 pod(s) that wait for berth-scheduler",
        "stays: annotations of pods",
    ):
        assert text in f"{lines}\n"


def test_what_does_not_stay_is_not_said() -> None:
    lines = "\n".join(report.stays([], [], 0))
    for text in ("crd", "capacity", "wait"):
        assert text not in lines


def test_admission_checks_that_nothing_answers_are_said_with_the_queues_that_wait() -> None:
    checks = [
        {"metadata": {"name": name}, "spec": {"controllerName": controller}}
        for name, controller in (("fits", "berth.dev/fits-devices"), ("unused", "berth.dev/fits-devices"), ("x", "y"))
    ]
    strategies: list[Any] = [{"admissionChecks": [{"name": "x"}, {"name": "fits"}]}, {}, None]
    queues = [
        {"metadata": {"name": f"queue-{number}"}, "spec": {"admissionChecksStrategy": strategy}}
        for number, strategy in enumerate(strategies)
    ]
    [waits, unused] = report.unanswered(checks, queues)
    assert waits == (
        "AdmissionCheck fits, which nothing answers now, so that the ClusterQueues queue-0 admit nothing: take it out"
        " of their spec.admissionChecksStrategy, then: kubectl delete admissionchecks.kueue.x-k8s.io fits"
    )
    assert unused == "AdmissionCheck unused: kubectl delete admissionchecks.kueue.x-k8s.io unused"
    assert f"stays: {waits}" in report.stays([], [], 0, [waits])
