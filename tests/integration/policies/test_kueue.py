"""In namespaces that Kueue manages, requests that Kueue cannot count are refused. Kueue itself runs in tests/kueue."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Arena, waiting
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.integration.policies.conftest import ACTIVE_SECONDS

POLICY: Final = Path(__file__).parents[3] / "manifests/components/kueue/policy.yaml"
LABELLED: Final = {"labels": {"genius/gpu-number": "1"}}
MEMORY: Final = "nvidia.com/gpumem"
NVIDIA: Final = "nvidia.com/gpu"
SHARED: Final = "kubernetes.io/gpu.shared"
CONTROLLER: Final = {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": "1", "controller": True}
GATE: Final = {"name": "kueue.x-k8s.io/admission"}
KINDS: Final = {"Job": "batch/v1", "CronJob": "batch/v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1"}


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena) -> Iterator[None]:
    api = arena.cluster.api
    api.merge(f"/api/v1/namespaces/{arena.namespace}", {"metadata": {"labels": {"kueue-managed": "true"}}})
    shipped = [each for each in yaml.safe_load_all(POLICY.read_text()) if each]
    for each in shipped:
        api.apply(each)
    waiting.until(lambda: refusal(arena, "Pod", {}, LABELLED), deadline=ACTIVE_SECONDS, what="the policy")
    yield
    for each in shipped:
        api.delete(api.path_of(each))


@pytest.fixture(scope="module")
def tenant(arena: Arena) -> Iterator[Api]:
    """Return the client of an account that may edit the namespace."""
    account = {"kind": "ServiceAccount", "name": "tenant", "namespace": arena.namespace}
    arena.apply(
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "tenant"},
                "subjects": [account],
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "system:aggregate-to-edit",
                },
            },
        ]
    )
    path = f"/api/v1/namespaces/{arena.namespace}/serviceaccounts/tenant/token"
    token = arena.cluster.api.post(path, {"spec": {}})["status"]["token"]
    client = Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())
    yield client
    client.close()


def held(arena: Arena, name: str, **more: Any) -> Manifest:
    """Return a pod with the gate that Kueue adds."""
    pod: Manifest = arena.pod(name, scheduler_name=arena.scheduler_name, **more)
    return {**pod, "spec": {**pod["spec"], "schedulingGates": [GATE]}}


def workload(arena: Arena, kind: str, limits: dict[str, str], metadata: Manifest) -> Manifest:
    """Return a pod, or a workload with its template; `metadata` is that of the pod or template."""
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    pod = held(arena, "kueue", containers=[container])
    pod = {**pod, "metadata": {**pod["metadata"], **metadata, "namespace": arena.namespace}}
    if kind == "Pod":
        return pod
    labels = {**metadata.get("labels", {}), "app": "kueue"}
    pod["spec"].pop("schedulingGates")
    template: Manifest = {"metadata": {**metadata, "labels": labels}, "spec": pod["spec"]}
    spec: Manifest = {"template": template}
    if kind in ("Job", "CronJob"):
        template["spec"] = {**pod["spec"], "restartPolicy": "Never"}
    else:
        spec["selector"] = {"matchLabels": {"app": "kueue"}}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    head = {"apiVersion": KINDS[kind], "kind": kind, "metadata": {"name": "kueue", "namespace": arena.namespace}}
    return {**head, "spec": spec}


def refusal(arena: Arena, kind: str, limits: dict[str, str], metadata: Manifest) -> str:
    """Return why the API server refuses such an object; empty if it does not."""
    return attempt(arena.cluster.api, workload(arena, kind, limits, metadata))


def attempt(api: Api, made: Manifest) -> str:
    """Return why the API server refuses an object to an account; empty if it does not."""
    path = api.path_of(made).rpartition("/")[0]
    try:
        api.request("POST", path, body=made, query={"dryRun": "All"})
    except ApiError as error:
        return str(error.body["message"])
    return ""


UNCOUNTED: Final[list[tuple[dict[str, str], dict[str, Any], str]]] = [
    ({}, LABELLED, "label genius/gpu-number requests GPUs that Kueue does not count"),
    ({}, {"annotations": {"gpu-fraction": "0.5"}}, "annotation gpu-fraction requests GPUs"),
    ({"nvidia.com/gpucores": "10"}, {}, "nvidia.com/gpucores alone requests all memory"),
    ({"nvidia.com/gpumem-percentage": "0"}, {}, "nvidia.com/gpumem-percentage: 0 requests a GPU"),
]


@pytest.mark.parametrize("kind", ["Pod", *KINDS])
def test_what_kueue_does_not_count_is_refused(arena: Arena, kind: str) -> None:
    for limits, metadata, message in UNCOUNTED:
        assert message in refusal(arena, kind, limits, metadata)


@pytest.mark.parametrize("kind", ["Pod", *KINDS])
def test_what_it_counts_and_what_requests_nothing_is_allowed(arena: Arena, kind: str) -> None:
    for limits in ({}, {NVIDIA: "0"}, {NVIDIA: "1"}, {MEMORY: "3000"}, {MEMORY: "3000", "nvidia.com/gpucores": "10"}):
        assert refusal(arena, kind, limits, {}) == ""


def test_a_label_that_requests_gpus_cannot_be_added_later_and_others_can(arena: Arena) -> None:
    arena.create([held(arena, "plain")])
    with pytest.raises(ApiError, match="label genius/gpu-number requests GPUs"):
        arena.merge("pods", "plain", {"metadata": LABELLED})
    arena.merge("pods", "plain", {"metadata": {"labels": {"harmless": "1"}, "finalizers": ["berth.dev/test"]}})
    arena.merge("pods", "plain", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("kind", ["Pod", *KINDS])
def test_a_number_of_cards_that_is_read_only_next_to_words_of_another_system_is_refused(
    arena: Arena, kind: str
) -> None:
    for words in ({MEMORY: "3000"}, {"nvidia.com/gpumem-percentage": "50"}, {"nvidia.com/priority": "1"}):
        assert f"{SHARED} next to words of another system" in refusal(arena, kind, {SHARED: "8", **words}, {})
    assert refusal(arena, kind, {SHARED: "2", "kubernetes.io/gpu-memory": "8Gi"}, {}) == ""


def test_a_pod_that_admission_has_renamed_is_allowed_if_it_was_counted_in_its_job(arena: Arena) -> None:
    renamed = {SHARED: "2", MEMORY: "3000"}
    assert refusal(arena, "Pod", renamed, {"ownerReferences": [CONTROLLER]}) == ""
    other = {**CONTROLLER, "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}
    assert "next to words of another system" in refusal(arena, "Pod", renamed, {"ownerReferences": [other]})


def test_only_a_controller_may_name_itself_as_the_controller(arena: Arena, tenant: Api) -> None:
    """Kueue holds nothing whose controller it manages, by the name alone."""
    for kind in ("Pod", "Job"):
        made = workload(arena, kind, {}, {})
        assert attempt(tenant, made) == ""
        made["metadata"]["ownerReferences"] = [CONTROLLER]
        assert "only an account that may update finalizers" in attempt(tenant, made)


def test_a_pod_that_kueue_does_not_hold_is_refused(arena: Arena) -> None:
    """It holds pods of a Deployment by an annotation of their template, which anybody can remove from a ReplicaSet."""
    kinds = ("apps/v1", "ReplicaSet"), ("v1", "ReplicationController")
    owners = [{"ownerReferences": [{**CONTROLLER, "apiVersion": version, "kind": kind}]} for version, kind in kinds]
    for owner in ({}, *owners):
        pod = workload(arena, "Pod", {}, owner)
        assert attempt(arena.cluster.api, pod) == ""
        del pod["spec"]["schedulingGates"]
        assert "Kueue does not hold this pod" in attempt(arena.cluster.api, pod)


def test_a_pod_cannot_leave_the_controller_in_which_it_is_counted(arena: Arena) -> None:
    # Owners that exist, as pods of others are deleted, and whose own controllers do not remove pods.
    [of_job] = arena.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})
    of_set = workload(arena, "Deployment", {}, {})
    [of_set] = arena.apply({**of_set, "kind": "ReplicaSet", "spec": {**of_set["spec"], "replicas": 0}})
    for name, owner in (("of-job", of_job), ("of-set", of_set)):
        reference = {key: owner[key] for key in ("apiVersion", "kind")} | {"controller": True}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        pod = held(arena, name)
        arena.create([{**pod, "metadata": {**pod["metadata"], "ownerReferences": [reference]}}])
    with pytest.raises(ApiError, match="so it cannot leave it"):
        arena.merge("pods", "of-job", {"metadata": {"ownerReferences": None}})
    arena.merge("pods", "of-set", {"metadata": {"ownerReferences": None}})


def test_only_kueue_puts_pods_into_groups(arena: Arena) -> None:
    group = {"labels": {"kueue.x-k8s.io/pod-group-name": "group"}}
    assert "only Kueue may label a pod" in refusal(arena, "Pod", {}, group)
    arena.create([held(arena, "alone")])
    with pytest.raises(ApiError, match="only Kueue may label a pod"):
        arena.merge("pods", "alone", {"metadata": group})


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_so_many_pods_that_the_sum_of_their_memory_is_no_number_of_64_bits_are_refused(arena: Arena, kind: str) -> None:
    for count, message in ((100_000, ""), (2**28, "Kueue counts at most 100000 pods")):
        made = workload(arena, kind, {"kubernetes.io/gpu-memory": "64Gi"}, {})
        job = made["spec"]["jobTemplate"] if kind == "CronJob" else made
        job["spec"]["parallelism"] = count
        assert message in attempt(arena.cluster.api, made)
        assert bool(message) == bool(attempt(arena.cluster.api, made))


def test_a_workload_that_is_not_counted_or_not_placed_is_warned_about(arena: Arena) -> None:
    api, unlabelled = arena.cluster.api, f"unlabelled-{arena.id}"
    api.post("/api/v1/namespaces", {"metadata": {"name": unlabelled}})

    def warned(namespace: str, labels: dict[str, str], **spec: str) -> list[str]:
        made = workload(arena, "Job", {NVIDIA: "1"}, {})
        made["metadata"] |= {"namespace": namespace, "labels": labels}
        del made["spec"]["template"]["spec"]["schedulerName"]
        made["spec"]["template"]["spec"] |= spec
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        return api.warnings("POST", path, body=made, query={"dryRun": "All"})

    try:
        queue = {"kueue.x-k8s.io/queue-name": "team"}
        waiting.until(lambda: warned(arena.namespace, {}), deadline=ACTIVE_SECONDS, what="the warnings")
        [message] = warned(arena.namespace, {})
        assert "spec.schedulerName is not set, so kube-scheduler places the pods that request nvidia.com/gpu" in message
        assert warned(arena.namespace, {}, schedulerName="berth-scheduler") == []
        [message] = warned(unlabelled, queue, schedulerName="berth-scheduler")
        assert f'namespace {unlabelled} is not labelled kueue-managed: "true"' in message
        assert warned(unlabelled, {}) == []
    finally:
        api.delete(f"/api/v1/namespaces/{unlabelled}")
