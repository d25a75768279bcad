"""Workloads of Kueue, read into the values that the AdmissionCheck decides."""

import copy
from typing import Any

import pytest

from berth_api import names
from berth_api.values.selectors import Requirement
from berth_operator.core.claims.objects.fields import Field, FieldError
from berth_operator.core.values.pod_admission import PriorityClass
from berth_operator.core.values.quota_workload import CheckState, PodSet, QuotaWorkload
from berth_operator.state.objects import pod_sets, terms, topology_assignments, workloads
from berth_operator.state.objects.pod_sets import MAX_PODS, Templates, UnknownFlavorError
from berth_operator.state.objects.topology_assignments import MAX_DOMAINS
from tests.objects.kueue_objects import (
    CHECK,
    LATER,
    assignment,
    check_state,
    condition,
    flavor,
    pod_set,
    with_quota,
    workload,
)

Raw = dict[str, Any]


def templates(**fields: Any) -> Templates:
    """Return what is known of templates: one flavor without labels."""
    known = {"any": pod_sets.read_flavor(flavor())}
    return Templates(flavors=known | fields.pop("flavors", {}), **fields)


def read(raw: Raw, known: Templates | None = None, ours: tuple[str, ...] = (CHECK,)) -> QuotaWorkload:
    view = workloads.read(
        workloads.transform(copy.deepcopy(raw)), ours, lambda root: pod_sets.read(root, known or templates())
    )
    assert view is not None
    return view.workload


def only_set(raw: Raw, known: Templates | None = None) -> PodSet:
    found = read(raw, known)
    assert found.problem == ""
    [one] = found.pod_sets
    return one


# --- workloads ----------------------------------------------------------------------------------------------


def test_a_workload_with_quota_has_all_its_pods() -> None:
    found = read(with_quota("job", pod_set("a", count=2), pod_set("b"), priority=7))
    assert (found.key, found.uid, found.priority, found.queue) == ("ns/job", "uid-job", 7, "default")
    assert (found.cluster_queue, found.check, found.state) == ("queue", CHECK, CheckState.PENDING)
    assert found.has_quota
    assert not found.admitted
    assert not found.finished
    assert [pod.uid for pod in found.pods] == ["uid-job/a/0", "uid-job/a/1", "uid-job/b/0"]
    assert {pod.namespace for pod in found.pods} == {"ns"}


def test_a_workload_without_quota_has_no_pods() -> None:
    found = read(workload())
    assert not found.has_quota
    assert found.pod_sets == ()
    assert found.problem == ""


def test_a_workload_without_our_check_is_not_read() -> None:
    raw = with_quota(checks=[check_state(name="other")])
    assert workloads.read(workloads.transform(raw), (CHECK,), lambda _: ()) is None


def test_an_evicted_workload_has_no_quota_though_its_pods_still_end() -> None:
    assert not read(with_quota(conditions=[condition("Evicted")])).has_quota
    assert read(with_quota(conditions=[condition("Evicted", status="False")])).has_quota


@pytest.mark.parametrize("kind", ["Admitted", "Finished"])
def test_conditions_are_read(kind: str) -> None:
    raw = with_quota(conditions=[condition(kind)])
    view = workloads.read(raw, (CHECK,), lambda _: ())
    assert view is not None
    assert (view.workload.admitted, view.workload.finished) == (kind == "Admitted", kind == "Finished")


def test_a_workload_that_is_deleted_counts_as_finished() -> None:
    assert read(with_quota(metadata={"deletionTimestamp": LATER})).finished


def test_a_finished_workload_keeps_neither_pod_sets_nor_checks() -> None:
    kept = workloads.transform(with_quota(conditions=[condition("Finished")]))
    assert "podSets" not in kept["spec"]
    assert "admissionChecks" not in kept["status"]


def test_a_waiting_workload_keeps_no_pod_sets() -> None:
    assert "podSets" not in workloads.transform(workload())["spec"]


def test_of_two_checks_of_ours_the_one_that_waits_is_decided() -> None:
    checks = [
        check_state("Ready", name="one"),
        check_state(name="other"),
        check_state("Pending", name="two", retryCount=3),
    ]
    view = workloads.read(workloads.transform(with_quota(checks=checks)), ("one", "two"), lambda _: ())
    assert view is not None
    assert [(check.index, check.name) for check in view.checks] == [(0, "one"), (2, "two")]
    assert (view.workload.check, view.workload.state, view.workload.retries) == ("two", CheckState.PENDING, 3)


# --- pods ---------------------------------------------------------------------------------------------------


def test_a_pod_is_read_as_the_pod_that_will_be_created() -> None:
    [pod] = only_set(with_quota("job", pod_set(metadata={"labels": {"app": "a"}}))).pods
    assert pod.scheduler == names.SCHEDULER
    assert pod.request.devices
    assert pod.request.identity.labels == (("app", "a"),)
    assert pod.request.uninjected == ()


def test_requests_are_completed_from_limits() -> None:
    raw = pod_set()
    del raw["template"]["spec"]["containers"][0]["resources"]["requests"]
    [pod] = only_set(with_quota("job", raw)).pods
    assert pod.request.devices


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({"schedulerName": "other"}, {}),
        ({"requests": {"cpu": "1"}}, {}),
        ({}, {"berth.dev/routing": "disabled"}),
    ],
)
def test_pods_of_other_schedulers_are_not_read(spec: Raw, labels: dict[str, str]) -> None:
    known = templates(namespace_labels=lambda _: labels)
    assert only_set(with_quota("job", pod_set(**spec)), known).pods == ()


def test_words_of_other_systems_are_routed_where_the_namespace_wants_it() -> None:
    raw = with_quota("job", pod_set(requests={"volcano.sh/vgpu-number": "1"}))
    assert only_set(raw).pods == ()
    assert len(only_set(raw, templates(namespace_labels=lambda _: {"berth.dev/routing": "words"})).pods) == 1


def test_flavors_add_their_labels_and_tolerations_each_once() -> None:
    taint = {"key": "gpu", "operator": "Exists"}
    known = templates(flavors={"a100": pod_sets.read_flavor(flavor("a100", {"model": "A100"}, [taint]))})
    own = pod_set(nodeSelector={"zone": "a"}, tolerations=[{"key": "own", "operator": "Exists"}])
    assigned = [{"name": "main", "flavors": {"cpu": "a100", "quota.berth.dev/gpu": "a100"}, "count": 1}]
    [pod] = only_set(workload("job", own, assigned=assigned), known).pods
    assert [(each.key, each.values) for each in pod.request.node_selector] == [("model", ("A100",)), ("zone", ("a",))]
    assert [toleration.key for toleration in pod.request.tolerations] == ["own", "gpu"]


def test_an_unknown_flavor_is_no_fault_of_the_workload() -> None:
    with pytest.raises(UnknownFlavorError):
        read(workload(assigned=[assignment(flavor="later")]))


def test_fewer_pods_of_a_partial_admission_and_of_pods_that_have_ended() -> None:
    raw = workload("job", pod_set(count=5), assigned=[assignment(count=3)])
    assert len(only_set(raw).pods) == 3
    raw["status"]["reclaimablePods"] = [{"name": "main", "count": 2}]
    assert len(only_set(raw).pods) == 1


def test_an_elastic_job_that_shrinks_has_fewer_pods_than_were_assigned() -> None:
    assert len(only_set(workload("job", pod_set(count=2), assigned=[assignment(count=5)])).pods) == 2


def test_an_elastic_job_that_grows_names_the_slice_that_its_pods_name() -> None:
    slices = {pod_sets.SLICE_NAME: "job-1", pod_sets.REPLACEMENT_FOR: "ns/job-2", "other": "x"}
    running = {names.WORKLOAD: "job-1", names.POD_SET: "main"}
    raw = with_quota("job-3", pod_set(count=3, metadata={"annotations": running}), metadata={"annotations": slices})
    found = read(raw)
    assert (found.problem, found.name_in_pods, found.grows) == ("", "job-1", True)
    assert len(list(found.pods)) == 3


def test_what_other_checks_add_to_pods_counts_once_they_are_ready() -> None:
    update = {"name": "main", "nodeSelector": {"pool": "new"}, "tolerations": [{"key": "new", "operator": "Exists"}]}
    others = [check_state(name="provisioning"), check_state("Ready", name="provisioning", podSetUpdates=[update])]
    waiting, ready = (read(with_quota(checks=[check_state(), other])) for other in others)
    assert (waiting.waits_for_others, ready.waits_for_others) == (True, False)
    [pod] = ready.pods
    assert [(each.key, each.values) for each in pod.request.node_selector] == [("pool", ("new",))]
    assert [toleration.key for toleration in pod.request.tolerations] == ["new"]


CLASSES = {
    "high": PriorityClass(value=1000, preempts=False),
    "usual": PriorityClass(value=5, is_default=True),
}


@pytest.mark.parametrize(
    ("spec", "priority", "preempts"),
    [
        ({}, 5, True),
        ({"priorityClassName": "high"}, 1000, False),
        ({"priority": 3}, 3, True),
        ({"priority": 6}, 5, True),
        ({"priorityClassName": "gone"}, 0, False),
        ({"priorityClassName": "gone", "priority": -3}, -3, False),
    ],
)
def test_the_priority_of_pods_is_that_of_their_class(spec: Raw, priority: int, preempts: bool) -> None:
    # The Workload's may be of a WorkloadPriorityClass, which pods do not have.
    raw = with_quota("job", pod_set(**spec), priority=99)
    [pod] = only_set(raw, templates(priority_classes=CLASSES)).pods
    assert (pod.priority, pod.preempts) == (priority, preempts)


def test_claims_that_are_made_with_the_pod_are_read_as_such() -> None:
    raw = pod_set(
        resourceClaims=[{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "c"}],
        volumes=[{"name": "v", "ephemeral": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "p"}}],
    )
    [pod] = only_set(with_quota("job", raw)).pods
    assert [claim.claim for claim in pod.request.claims] == ["", "ns/c"]
    assert [claim.claim for claim in pod.request.mounts.claims] == ["ns/job-main-v", "ns/p"]


def test_members_of_a_gang_are_read_as_such() -> None:
    annotations = {names.POD_GROUP: "team", names.POD_GROUP_MIN_MEMBER: "2"}
    [pod, _] = only_set(with_quota("job", pod_set(count=2, metadata={"annotations": annotations}))).pods
    assert pod.gang is not None
    assert (pod.gang.group, pod.gang.minimum) == ("ns/team", 2)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (pod_set(count=MAX_PODS + 1), f"{MAX_PODS + 1} pods; allowed are at most {MAX_PODS}"),
        (
            pod_set(metadata={"annotations": {names.WORKLOAD: "other"}}),
            f"annotation {names.WORKLOAD} is written by Kueue",
        ),
        (pod_set(nodeSelector={"zone": 1}), "nodeSelector[zone]: 1 is not a string"),
    ],
)
def test_what_cannot_be_read_is_a_problem_that_names_the_field(raw: Raw, problem: str) -> None:
    found = read(with_quota("job", raw))
    assert problem in found.problem
    assert found.pod_sets == ()


def test_an_invalid_request_is_an_error_of_the_pods() -> None:
    [pod] = only_set(with_quota("job", pod_set(requests={"kubernetes.io/gpu": "150"}))).pods
    assert "kubernetes.io/gpu" in pod.error


# --- topology -----------------------------------------------------------------------------------------------

BLOCK, RACK, HOST = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack", "kubernetes.io/hostname"
TWO_RACKS = [({BLOCK: "block-1", RACK: "rack-1"}, 4), ({BLOCK: "block-1", RACK: "rack-2"}, 2)]


def piece(number: int, counts: Raw, *levels: Raw) -> Raw:
    return {"domainCount": number, "podCounts": counts, "valuesPerLevel": list(levels)}


def individual(*roots: str, **affixes: str) -> Raw:
    return {"individual": {"roots": list(roots), **affixes}}


@pytest.mark.parametrize(
    ("levels", "slices", "domains"),
    [  # the examples in Kueue's definition of the field
        (
            [BLOCK, RACK],
            [piece(2, {"individual": [4, 2]}, individual("block-1", "block-1"), individual("rack-1", "rack-2"))],
            TWO_RACKS,
        ),
        (
            [BLOCK, RACK],
            [piece(2, {"individual": [4, 2]}, {"universal": "block-1"}, individual("1", "2", prefix="rack-"))],
            TWO_RACKS,
        ),
        (
            [HOST],
            [
                piece(2, {"universal": 1}, individual("1", "2", prefix="rack-1-node-")),
                piece(1, {"universal": 3}, individual("a", suffix="-b")),
            ],
            [({HOST: "rack-1-node-1"}, 1), ({HOST: "rack-1-node-2"}, 1), ({HOST: "a-b"}, 3)],
        ),
    ],
)
def test_compressed_topology_assignments(levels: list[str], slices: list[Raw], domains: list[Any]) -> None:
    assert list(topology_assignments.read(Field({"levels": levels, "slices": slices}, "t"))) == domains


@pytest.mark.parametrize(
    "slices",
    [
        [piece(MAX_DOMAINS + 1, {"universal": 1}, {"universal": "a"})],
        [piece(0, {"universal": 1}, {"universal": "a"})],
        [piece(2, {"individual": [1]}, {"universal": "a"})],
        [piece(2, {"universal": 1}, individual("a"))],
        [piece(1, {"universal": 1})],
        [piece(1, {"universal": "1"}, {"universal": "a"})],
    ],
)
def test_a_topology_assignment_that_contradicts_itself_is_refused(slices: list[Raw]) -> None:
    with pytest.raises(FieldError):
        list(topology_assignments.read(Field({"levels": [HOST], "slices": slices}, "t")))


def test_pods_select_the_nodes_of_their_topology_domain() -> None:
    domains = {"levels": [HOST], "slices": [piece(2, {"individual": [2, 1]}, individual("a", "b"))]}
    raw = workload("job", pod_set(count=3), assigned=[assignment(count=3, topologyAssignment=domains)])
    pods = only_set(raw).pods
    assert [pod.request.node_selector for pod in pods] == [
        (Requirement(key=HOST, values=("a",)),),
        (Requirement(key=HOST, values=("a",)),),
        (Requirement(key=HOST, values=("b",)),),
    ]
    assert len({pod.uid for pod in pods}) == 3


def test_they_select_them_as_the_pods_will() -> None:
    """Kueue adds the labels to the node selector of a pod, which is read in the order of its keys."""
    domains = {"levels": ["a-rack"], "slices": [piece(1, {"universal": 1}, {"universal": "r"})]}
    raw = workload("job", pod_set(nodeSelector={"zone": "z"}), assigned=[assignment(topologyAssignment=domains)])
    [pod] = only_set(raw).pods
    assert pod.request.node_selector == terms.node_selector({"zone": "z", "a-rack": "r"})


def test_the_pods_that_exist_are_the_owners_of_a_workload() -> None:
    """Kueue adds each pod of a group as an owner, also if another object made the Workload."""
    owners = [{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "l", "uid": "l"}]
    owners += [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name} for name in "ab"]
    raw = with_quota("job")
    raw["metadata"]["ownerReferences"] = owners
    view = workloads.read(workloads.transform(raw), (CHECK,), lambda _: ())
    assert view is not None
    assert view.workload.existing == 2
