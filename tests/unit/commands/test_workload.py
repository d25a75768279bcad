"""Workload files: the pods that they describe, and the messages for mistakes."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from berth_operator.commands import workload
from berth_operator.commands.errors import InputError
from berth_operator.commands.workload import Admission, WorkloadFile
from berth_operator.state.objects import pods

Raw = dict[str, Any]
CONTAINER = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}
CLASSES = {
    "high": {"metadata": {"name": "high"}, "value": 100, "preemptionPolicy": "Never"},
    "usual": {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True},
}


def made(kind: str = "Pod", name: str = "web", *, spec: Raw | None = None, **metadata: Any) -> Raw:
    """Return a document: a Pod with a container, or another kind with a template of one."""
    pod = {"containers": [CONTAINER]}
    body = {**pod, **(spec or {})} if kind == "Pod" else {"template": {"spec": pod}, **(spec or {})}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": body}


def read(*documents: Any) -> WorkloadFile:
    return workload.read(yaml.safe_dump_all(documents), "w.yaml")


def admitted(parsed: WorkloadFile, namespace: str = "ns", classes: Mapping[str, Raw] = CLASSES) -> list[Raw]:
    rules = Admission(namespace=namespace, schedulers=("berth-scheduler", "other"), priority_classes=classes)
    return [rules.admit(document, pod) for document, pod in parsed.pods]


def names(parsed: WorkloadFile) -> list[str]:
    return [pod["metadata"]["name"] for _, pod in parsed.pods]


# --- the pods of a workload ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(made(), ["web"], id="Pod"),
        pytest.param(made("Deployment"), ["web-0"], id="one replica where none is named"),
        pytest.param(made("Deployment", spec={"replicas": 2}), ["web-0", "web-1"], id="Deployment"),
        pytest.param(made("ReplicaSet", spec={"replicas": 2}), ["web-0", "web-1"], id="ReplicaSet"),
        pytest.param(made("StatefulSet", spec={"replicas": 2}), ["web-0", "web-1"], id="StatefulSet"),
        pytest.param(made("Deployment", spec={"replicas": 0}), [], id="no replicas"),
        pytest.param(made("Job"), ["web-0"], id="Job"),
        pytest.param(made("Job", spec={"parallelism": 3}), ["web-0", "web-1", "web-2"], id="parallel Job"),
        pytest.param(
            made("Job", spec={"parallelism": 3, "completions": 2}), ["web-0", "web-1"], id="never more than all"
        ),
        pytest.param(made("Job", spec={"parallelism": 3, "suspend": True}), [], id="suspended Job"),
        pytest.param(
            {"kind": "List", "items": [made(name="a"), {"kind": "PodList", "items": [made(name="b")]}]},
            ["a", "b"],
            id="List",
        ),
    ],
)
def test_documents_make_pods(document: Raw, expected: list[str]) -> None:
    parsed = read(None, document)
    assert names(parsed) == expected
    assert parsed.notes == []


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("Deployment", {"pod-template-hash": "simulated"}),
        ("StatefulSet", {"statefulset.kubernetes.io/pod-name": "web-0", "apps.kubernetes.io/pod-index": "0"}),
        ("Job", {"batch.kubernetes.io/job-name": "web", "job-name": "web"}),
    ],
)
def test_controllers_label_their_pods(kind: str, labels: Mapping[str, str]) -> None:
    template = {"metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}
    [pod] = admitted(read(made(kind, spec={"template": template}, namespace="theirs")))
    assert pod["metadata"]["labels"] == {"app": "x", **labels}
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert pod["metadata"]["namespace"] == "theirs"


def test_what_else_is_in_a_file_is_kept_apart() -> None:
    group = {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 2}}
    urgent = {"kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 5}
    stateful = made("StatefulSet", spec={"volumeClaimTemplates": [{}]})
    parsed = read(
        made(), group, {"kind": "Service", "metadata": {"name": "s"}}, urgent, made("DaemonSet", "d"), stateful
    )
    assert names(parsed) == ["web", "web-0"]
    assert [body for _, body in parsed.groups] == [group]
    assert parsed.priority_classes == [urgent]
    assert parsed.notes == [
        "w.yaml: document 3: Service s is left out: it makes no pods here",
        "w.yaml: document 5: DaemonSet d is left out: it makes no pods here",
        "w.yaml: document 6: the volumeClaimTemplates of StatefulSet web are left out",
    ]


def test_json_will_do() -> None:
    assert names(
        workload.read('{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}', "-")
    )


# --- what admission adds ------------------------------------------------------------------------------------------


def test_pods_are_as_the_api_server_would_have_them() -> None:
    first, second = admitted(read(made(name="a"), made(name="b", namespace="theirs")))
    assert first["spec"]["schedulerName"] == "berth-scheduler"
    assert first["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": 1}
    assert [pod["metadata"]["namespace"] for pod in (first, second)] == ["ns", "theirs"]
    read_first, read_second = (pods.pending(pods.transform(pod)) for pod in (first, second))
    assert read_first.request.devices.parts[0].count == 1
    assert read_first.created == read_second.created == workload.CREATED
    assert read_first.created > "2026-01-01T00:00:00Z"
    assert read_first.uid != read_second.uid


@pytest.mark.parametrize(
    ("resources", "requests"),
    [
        pytest.param(
            {"requests": {"cpu": 1}, "limits": {"cpu": 2, "memory": "1Gi"}}, {"cpu": 1, "memory": "1Gi"}, id="both"
        ),
        pytest.param({"requests": {"cpu": 0.5}}, {"cpu": 0.5}, id="requests"),
        pytest.param({}, None, id="none"),
    ],
)
def test_what_is_limited_is_requested(resources: Raw, requests: Raw | None) -> None:
    spec = {
        "containers": [{"name": "a", "resources": resources}],
        "initContainers": [{"name": "b", "resources": resources}],
        "resources": resources,
    }
    [pod] = admitted(read(made(spec=spec)))
    for element in (pod["spec"]["containers"][0], pod["spec"]["initContainers"][0], pod["spec"]):
        assert element["resources"].get("requests") == requests


@pytest.mark.parametrize(
    ("spec", "priority", "preempts"),
    [
        pytest.param({}, 7, True, id="the default class"),
        pytest.param({"priorityClassName": "high"}, 100, False, id="its class"),
        pytest.param(
            {"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"}, 100, True, id="its policy"
        ),
        pytest.param({"priority": 3}, 3, True, id="its own"),
    ],
)
def test_priority_comes_from_the_class(spec: Raw, priority: int, *, preempts: bool) -> None:
    [pod] = admitted(read(made(spec=spec)))
    pending = pods.pending(pods.transform(pod))
    assert (pending.priority, pending.preempts) == (priority, preempts)


def test_without_classes_priority_is_zero() -> None:
    [pod] = admitted(read(made()), classes={})
    assert pod["spec"]["priority"] == 0


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [", "w.yaml: not YAML: line 1, column 5: expected", id="no YAML"),
        pytest.param("- a", "w.yaml: document 1: not an object of Kubernetes: it has no kind", id="a list"),
        pytest.param(
            "kind: Pod\n---\nhello", "w.yaml: document 1 (Pod None): metadata: is missing; spec: is missing", id="bare"
        ),
        pytest.param("a: 1", "w.yaml: document 1: not an object of Kubernetes: it has no kind", id="no kind"),
        pytest.param(
            yaml.safe_dump({"kind": "List", "items": [made(), {"a": 1}]}),
            "w.yaml: document 1, items[1]: not an object of Kubernetes",
            id="in a List",
        ),
    ],
)
def test_what_is_no_document_is_reported(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        workload.read(text, "w.yaml")
    assert str(error.value).startswith(message)


CARDS = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "many"}}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(made(spec={"containers": []}), "spec.containers: must have at least 1 item", id="no containers"),
        pytest.param(
            made(spec={"containers": [CARDS]}),
            'spec.containers[0].resources.limits.nvidia.com/gpu: "many" is not a quantity',
            id="no quantity",
        ),
        pytest.param(
            made("Deployment", spec={"replicas": "2"}),
            'spec.replicas: must be a valid integer, not "2"',
            id="text",
        ),
        pytest.param(made("Deployment", spec={"replicas": -1}), "spec.replicas: must be greater than", id="negative"),
        pytest.param(
            made("Job", spec={"template": {"spec": {}}}), "spec.template.spec.containers: is missing", id="template"
        ),
        pytest.param(made(labels={"a": 1}), "metadata.labels.a: must be a valid string, not 1", id="labels"),
        pytest.param(
            made(spec={"nodeSelector": ["a"]}), "spec.nodeSelector: must be an object, not a list", id="selector"
        ),
        pytest.param(
            {"kind": "PodGroup", "metadata": {"name": "web"}, "spec": {"minMember": 0}},
            "spec.minMember: must be greater than or equal to 1, not 0",
            id="group",
        ),
        pytest.param({"kind": "PriorityClass", "metadata": {"name": "web"}}, "value: is missing", id="class"),
        pytest.param(
            {"kind": "Pod", "metadata": {}, "spec": {"containers": [CONTAINER]}}, "metadata.name: is missing", id="name"
        ),
    ],
)
def test_the_field_of_a_mistake_is_named(document: Raw, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(made(name="right"), document)
    title = f"{document['kind']} {document['metadata'].get('name')}"
    assert str(error.value).startswith(f"w.yaml: document 2 ({title}): {message}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"priorityClassName": "hihg"}, 'priorityClassName: "hihg" does not exist; allowed: high, usual', id="class"
        ),
    ],
)
def test_pods_that_would_be_refused_are_reported(spec: Raw, message: str) -> None:
    with pytest.raises(InputError) as error:
        admitted(read(made(spec=spec)))
    assert str(error.value) == f"w.yaml: document 1 (Pod web): spec.{message}"


def test_a_file_of_too_many_pods_is_refused() -> None:
    many = [made("Deployment", f"d{number}", spec={"replicas": workload.MAX_PODS}) for number in range(2)]
    with pytest.raises(InputError, match="more than 100,000 pods"):
        read(*many)
