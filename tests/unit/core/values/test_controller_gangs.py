"""The gangs that controllers define by what they write on their pods."""

from typing import Any

import pytest

from berth_api import names
from berth_operator.core.values.controller_gangs import (
    MAX_SIZE,
    OWNED,
    LaterPods,
    later,
    replica_of,
    replicas,
    sizes,
)
from berth_operator.core.values.request import Membership
from berth_operator.state.objects import groups, pods
from tests.objects.builders import Raw, pod

LWS = "leaderworkerset.sigs.k8s.io/"
KUEUE = "kueue.x-k8s.io/"


def lws(worker: int, size: str = "4", **annotations: str) -> Raw:
    """Return the metadata that LeaderWorkerSet's controller and webhook write on a pod of `vllm`'s second group."""
    labels = {"name": "vllm", "group-index": "1", "worker-index": str(worker), "group-key": "6a0c"}
    written = {"size": size, **annotations, **({"leader-name": "vllm-1"} if worker else {})}
    return {
        "labels": {f"{LWS}{name}": value for name, value in labels.items()},
        "annotations": {f"{LWS}{name.replace('_', '-')}": value for name, value in written.items()},
    }


def kueue(count: str = "3", **annotations: str) -> Raw:
    written = {"total-count": count, **annotations}
    return {
        "labels": {f"{KUEUE}pod-group-name": "sweep", f"{KUEUE}managed": "true"},
        "annotations": {f"{KUEUE}pod-group-{name.replace('_', '-')}": value for name, value in written.items()},
    }


def owned(kind: str, api: str, name: str = "llm", **labels: str) -> Raw:
    """Return the metadata of a pod that an object of another project controls."""
    owners = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "other"},
        {"apiVersion": api, "kind": kind, "name": name, "uid": "u", "controller": True},
    ]
    return {"labels": labels, "annotations": {}, "metadata": {"ownerReferences": owners}}


def job_set(job: str) -> Raw:
    """Return the metadata of a pod of a JobSet: a Job of Kubernetes controls it."""
    labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": job}
    return owned("Job", "batch/v1", f"train-{job}-0", **labels)


def mpi_labels(role: str) -> dict[str, str]:
    """Return the labels that Kubeflow's MPI operator writes on a pod of the MPIJob `llm`."""
    written = {"operator-name": "mpi-operator", "job-name": "llm", "job-role": role}
    return {f"training.kubeflow.org/{name}": value for name, value in written.items()}


def merged(*parts: Raw) -> Raw:
    return {kind: {name: text for part in parts for name, text in part[kind].items()} for kind in parts[0]}


def gang(kind: str, name: str, minimum: int | None = None, first: int = 0) -> Membership:
    return Membership(group=f"ns/{name}", minimum=minimum, controller=kind, first=first)


GROUP = "LeaderWorkerSet group"
EXPLICIT: Raw = {"labels": {}, "annotations": {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "2"}}
POD_GROUP: Raw = {"labels": {names.POD_GROUP_LABEL: "g"}, "annotations": {}}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param(lws(0), gang(GROUP, "vllm-1", 4), id="leader"),
        pytest.param(lws(3), gang(GROUP, "vllm-1", 4), id="worker"),
        pytest.param(lws(0, size="1"), None, id="a group of one pod"),
        pytest.param(lws(0, exclusive_topology="rack"), gang(GROUP, "vllm-1", 4, 1), id="a leader that comes first"),
        pytest.param(lws(1, size="many"), None, id="no number"),
        pytest.param({"labels": {f"{LWS}name": "vllm"}, "annotations": {f"{LWS}size": "4"}}, None, id="no index"),
        pytest.param(kueue(), gang("Kueue pod group", "sweep", 3), id="a pod group of Kueue"),
        pytest.param(kueue(fast_admission="true", serving="true"), None, id="Kueue's StatefulSet"),
        pytest.param(merged(kueue("4"), lws(2)), gang(GROUP, "vllm-1", 4), id="Kueue's LeaderWorkerSet"),
        pytest.param(merged(lws(0), EXPLICIT), Membership(group="ns/g", minimum=2), id="annotations win"),
        pytest.param(merged(lws(0), POD_GROUP), Membership(group="ns/g"), id="a PodGroup wins"),
        pytest.param(
            {"labels": {"grove.io/podgang": "dynamo-0", "grove.io/podclique": "dynamo-0-decode"}, "annotations": {}},
            gang("PodGang", "dynamo-0"),
            id="Grove",
        ),
        pytest.param(owned("RayCluster", "ray.io/v1"), gang("RayCluster", "llm"), id="Ray"),
        pytest.param(owned("RayCluster", "example.com/v1"), None, id="a kind of this name in another group"),
        pytest.param(owned("PyTorchJob", "kubeflow.org/v1"), gang("PyTorchJob", "llm"), id="PyTorchJob"),
        pytest.param(
            owned("MPIJob", "kubeflow.org/v2beta1", **mpi_labels("worker")), gang("MPIJob", "llm"), id="its worker"
        ),
        pytest.param(
            owned("Job", "batch/v1", **mpi_labels("launcher")),
            gang("MPIJob", "llm.launcher"),
            id="an MPIJob's launcher",
        ),
        pytest.param(job_set("node"), gang("JobSet", "train.node"), id="JobSet"),
        pytest.param({"labels": {"app": "web"}, "annotations": {}}, None, id="any other pod"),
    ],
)
def test_the_gang_of_a_controllers_pod(metadata: Raw, expected: Membership | None) -> None:
    assert groups.of_pod(pod(**metadata)) == expected
    assert pods.pending(pod(**metadata)).gang == expected
    assert pods.charge(pod(**metadata, on="node")).gang == expected
    more = {**metadata.get("metadata", {}), "resourceVersion": "1"}
    ended = pod(**{**metadata, "metadata": more}, status={"phase": "Succeeded"})
    assert groups.of_placed(groups.transform_ended(ended)) == expected


def workers(**fields: Any) -> Raw:
    return {"groupName": "gpu", "replicas": 4, "minReplicas": 1, "maxReplicas": 8, **fields}


def training(**fields: Any) -> Raw:
    return {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}, **fields}


def mpi(count: int, **fields: Any) -> Raw:
    return {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": count}}, **fields}


def job(name: str, replicas: int = 1, **spec: Any) -> Raw:
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


LEAST: Raw = {"runPolicy": {"schedulingPolicy": {"minAvailable": 3}}}


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        pytest.param("RayCluster", {"workerGroupSpecs": [workers(), workers(replicas=2)]}, {"x": 7}, id="Ray"),
        pytest.param("RayCluster", {"workerGroupSpecs": [workers(numOfHosts=2)]}, {"x": 9}, id="Ray's multi-host"),
        pytest.param(
            "RayCluster",
            {"enableInTreeAutoscaling": True, "workerGroupSpecs": [workers(), workers(minReplicas=2, numOfHosts=2)]},
            {"x": 6},
            id="Ray, autoscaled",
        ),
        pytest.param("RayCluster", {"workerGroupSpecs": [workers(replicas=None, minReplicas=2)]}, {"x": 3}, id="min"),
        pytest.param("RayCluster", {"workerGroupSpecs": [workers(replicas=99)]}, {"x": 9}, id="max"),
        pytest.param("RayCluster", {"workerGroupSpecs": [workers(suspend=True)]}, {"x": 1}, id="suspended workers"),
        pytest.param("RayCluster", {}, {"x": 1}, id="a head alone"),
        pytest.param("PyTorchJob", training(), {"x": 4}, id="PyTorchJob"),
        pytest.param("PyTorchJob", training(elasticPolicy={"minReplicas": 2}), {"x": 2}, id="elastic PyTorchJob"),
        pytest.param("PyTorchJob", training(**LEAST), {"x": 3}, id="a job's minAvailable"),
        pytest.param("TFJob", {"tfReplicaSpecs": {"PS": {}, "Worker": {"replicas": 2}}}, {"x": 3}, id="TFJob"),
        pytest.param("MPIJob", mpi(4), {"x": 4, "x.launcher": 1}, id="MPIJob's workers"),
        pytest.param(
            "MPIJob", mpi(4, **LEAST), {"x": 2, "x.launcher": 1}, id="an MPIJob's minAvailable counts the launcher"
        ),
        pytest.param(
            "MPIJob", {"mpiReplicaSpecs": {"Launcher": {}}}, {"x": 0, "x.launcher": 1}, id="MPIJob without workers"
        ),
        pytest.param(
            "JobSet",
            {"replicatedJobs": [job("lead"), job("node", 2, parallelism=4, completions=4, completionMode="Indexed")]},
            {"x.lead": 1, "x.node": 8},
            id="JobSet",
        ),
        pytest.param(
            "PodGang", {"podgroups": [{"name": "decode", "minReplicas": 4}, {"minReplicas": 2}]}, {"x": 6}, id="Grove"
        ),
        pytest.param(GROUP, {"replicas": 2, "leaderWorkerTemplate": {"size": 4}}, {"x": 4}, id="one of all groups"),
        pytest.param("JobSet", {"replicatedJobs": [job("q", parallelism=4, completions=99)]}, {"x.q": 0}, id="a queue"),
        pytest.param(
            "JobSet", {"replicatedJobs": [job("q", MAX_SIZE, parallelism=4)]}, {}, id="more than there can be"
        ),
    ],
)
def test_the_size_in_a_controllers_object(kind: str, spec: Raw, expected: dict[str, int]) -> None:
    assert sizes(OWNED[kind], {"metadata": {"name": "x"}, "spec": spec}) == expected


def test_only_a_leader_worker_set_defines_equal_gangs() -> None:
    counts = {kind: replicas(owners, {"metadata": {"name": "x"}, "spec": {}}) for kind, owners in OWNED.items()}
    assert {kind: count for kind, count in counts.items() if count is not None} == {GROUP: 1}
    assert replicas(OWNED[GROUP], {"metadata": {"name": "x"}, "spec": {"replicas": 10**9}}) == 10**9


@pytest.mark.parametrize(
    ("kind", "group", "expected"),
    [
        (GROUP, "ns/vllm-0", ("ns/vllm", 0)),
        (GROUP, "ns/my-vllm-12", ("ns/my-vllm", 12)),
        (GROUP, "ns/vllm-01", None),
        (GROUP, "ns/vllm-x", None),
        (GROUP, "ns/vllm", None),
        (GROUP, "ns/vllm-²", None),
        ("JobSet", "ns/train-0", None),
        ("Kueue pod group", "ns/sweep-0", None),
        ("", "ns/sweep-0", None),
    ],
)
def test_the_owner_and_number_of_one_of_its_equal_gangs(
    kind: str, group: str, expected: tuple[str, int] | None
) -> None:
    assert replica_of(kind, group) == expected


WORKER: Raw = {"spec": {"containers": []}}


def group_set(**spec: Any) -> Raw:
    return {"leaderWorkerTemplate": {"size": 4, "workerTemplate": WORKER}, **spec}


def after(name: str, on: str, status: str = "Ready", replicas: int = 1, **spec: Any) -> Raw:
    """Return a ReplicatedJob that is created after another."""
    depends = {"dependsOn": [{"name": on, "status": status}]} if on else {}
    return {**job(name, replicas, template=WORKER, **spec), **depends}


def part(name: str, count: int, template: Raw | None = WORKER) -> LaterPods:
    return LaterPods(gang=name, count=count, template=template)


def launched(policy: str = "WaitForWorkersReady", **limits: str) -> Raw:
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    replicas = {"Launcher": {"template": template}, "Worker": {"replicas": 4}}
    return {"launcherCreationPolicy": policy, "mpiReplicaSpecs": replicas}


CARD = {"nvidia.com/gpu": "1"}
RACK = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
BY_SELECTOR = {**RACK, "alpha.jobset.sigs.k8s.io/node-selector": "true"}
CHAIN = [after("a", ""), after("b", "a", replicas=2), after("c", "b")]
IN_ORDER = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}


@pytest.mark.parametrize(
    ("kind", "spec", "annotations", "expected"),
    [
        pytest.param(GROUP, group_set(), {}, {}, id="workers that come with their leader"),
        pytest.param(GROUP, group_set(startupPolicy="LeaderReady"), {}, {"x": (part("x", 3),)}, id="LeaderReady"),
        pytest.param(GROUP, group_set(), {f"{LWS}exclusive-topology": "rack"}, {"x": (part("x", 3),)}, id="a rack"),
        pytest.param("JobSet", {"replicatedJobs": [job("a"), job("b")]}, {}, {}, id="jobs that come together"),
        pytest.param(
            "JobSet",
            {"replicatedJobs": CHAIN},
            {},
            {"x.a": (part("x.b", 2), part("x.c", 1)), "x.b": (part("x.c", 1),)},
            id="dependsOn",
        ),
        pytest.param(
            "JobSet",
            {"replicatedJobs": [after("a", ""), after("b", "")], **IN_ORDER},
            {},
            {"x.a": (part("x.b", 1),)},
            id="InOrder",
        ),
        pytest.param(
            "JobSet", {"replicatedJobs": [after("a", ""), after("b", "a", "Complete")]}, {}, {}, id="after the end"
        ),
        pytest.param(
            "JobSet",
            {"replicatedJobs": [after("a", "", completions=9), after("b", "a", completions=9)]},
            {},
            {},
            id="queues of tasks",
        ),
        pytest.param(
            "JobSet",
            {"replicatedJobs": [after("a", "", replicas=2, parallelism=4), after("b", "a")]},
            RACK,
            {"x.a": (part("x.a", 6, None),)},
            id="the others of each Job, in its own rack",
        ),
        pytest.param("JobSet", {"replicatedJobs": [after("a", "", parallelism=4)]}, BY_SELECTOR, {}, id="selectors"),
        pytest.param(
            "JobSet", {"replicatedJobs": [job(f"j{i}") for i in range(101)], **IN_ORDER}, {}, {}, id="too many jobs"
        ),
        pytest.param(
            "MPIJob",
            launched(**CARD),
            {},
            {"x": (part("x.launcher", 1, launched(**CARD)["mpiReplicaSpecs"]["Launcher"]["template"]),)},
            id="a launcher with a card",
        ),
        pytest.param("MPIJob", launched(cpu="1"), {}, {}, id="a launcher without devices"),
        pytest.param("MPIJob", launched("AtStartup", **CARD), {}, {}, id="a launcher that comes with the workers"),
    ],
)
def test_the_pods_that_come_after_others(
    kind: str, spec: Raw, annotations: Raw, expected: dict[str, tuple[LaterPods, ...]]
) -> None:
    raw = {"metadata": {"name": "x", "annotations": annotations}, "spec": spec}
    assert later(OWNED[kind], raw) == expected


def test_jobs_that_follow_each_other_share_what_comes_later() -> None:
    jobs = [after(f"j{number}", "") for number in range(100)]
    of_jobs = later(OWNED["JobSet"], {"metadata": {"name": "x"}, "spec": {"replicatedJobs": jobs, **IN_ORDER}})
    assert sum(len(parts) for parts in of_jobs.values()) == 4950
    assert len({id(part) for parts in of_jobs.values() for part in parts}) == 99
