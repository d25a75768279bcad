"""Each finding of the doctor, caused by one change of a healthy cluster, and its row in the docs."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from berth_api import names
from berth_api.objects import device_text
from berth_kubectl.commands import doctor
from berth_kubectl.doctor import cluster, labels
from berth_kubectl.doctor.checks import CHECKS, Diagnosis, diagnose
from berth_kubectl.doctor.facts import Facts, Finding, Installation
from berth_kubectl.doctor.gathering import gather
from berth_kubectl.errors import ReadError
from berth_kubectl.heavy import definitions
from berth_kubectl.transport.request import Request
from berth_operator.commands.cleanup import installed
from tests.objects.kubectl_objects import condition, raw_card, raw_device, raw_node
from tests.objects.managed_fields import fields_of

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIME = "2025-12-31T23:59:55Z"
LONG_AGO = "2025-12-31T23:50:00Z"
NEW_RIGHTS = {"resources": ["limitranges", "resourcequotas", "priorityclasses"], "verbs": ["list", "watch"]}
Raw = dict[str, Any]
Lists = dict[str, Any]


def lease(name: str, *, renewed: str = TIME, written: str = TIME, **spec: Any) -> Raw:
    return {
        "metadata": {"name": name, "managedFields": [{"manager": "x", "time": written}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 15, "renewTime": renewed, **spec},
    }


def leaves(**record: Raw) -> Raw:
    """Return a LeaderLease with one entry of a list of its record."""
    status = {name: [entry] for name, entry in record.items()}
    return {**lease("berth-operator"), "status": {"version": 1, **status}}


def annotated(name: str, value: str) -> Callable[[Lists], object]:
    """Return a change of the LeaderLease: it has an annotation."""
    leading = lease("berth-operator")
    leading["metadata"]["annotations"] = {name: value}
    return put("leaderleases", leading)


def renewed_by_another() -> Raw:
    """Return a LeaderLease whose first manager wrote it long ago."""
    leading = lease("berth-operator")
    leading["metadata"]["managedFields"].insert(0, {"manager": "kubectl", "time": LONG_AGO})
    return leading


def named(name: str, **fields: Any) -> Raw:
    return {"metadata": {"name": name}, **fields}


def workload(name: str, tag: str) -> Raw:
    return named(name, spec={"template": {"spec": {"containers": [{"image": f"berth.dev/{name}:{tag}"}]}}})


def bound(account: str, namespace: str) -> Raw:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return named(account, roleRef={"name": account}, subjects=[subject])


def plugin_pod(image: str, name: str = "plugin") -> Raw:
    metadata = {"name": "p", "namespace": "gpu"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n", "containers": [{"name": name, "image": image}]},
        "status": {"phase": "Running"},
    }


def agent_pod(started: str = LONG_AGO, phase: str = "Running") -> Raw:
    metadata = {"namespace": "berth-agent-system", "name": "berth-agent-x"}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase, "startTime": started}}


def unpublished(*agents: Raw) -> Callable[[Lists], None]:
    """Return what leaves a Node with GPUs without Device, next to these pods of agents."""

    def change(lists: Lists) -> None:
        put("devices")(lists)
        put("nodes", raw_node("n", labels={"nvidia.com/gpu.present": "true"}))(lists)
        put("agents", *agents)(lists)

    return change


def without_lease(lists: Lists) -> None:
    put("leases")(lists)
    put("agents", agent_pod())(lists)


PROMISED = {
    "kind": "LeaderWorkerSet group",
    "namespace": "ns",
    "name": "y-0",
    "since": "2025-12-31T23:58:00Z",
    "until": "2026-01-01T00:03:00Z",
    "places": [{"name": "y-0", "nodes": [{"node": "b", "pods": 1}, {"node": "a", "pods": 2}]}],
}
REFUSED: Raw = {
    "verb": "create",
    "resource": "pods/binding",
    "code": 422,
    "refuser": "validatingadmissionpolicy/berth-operator-writes",
    "object": "a/p",
    "namespaces": ["a", "b", "c", "d"],
    "since": LONG_AGO,
    "last": TIME,
    "message": "set admission.addedKeys",
}

WAITING: Raw = {"metadata": {"namespace": "ns", "name": "big", "uid": "u"}, "spec": {}, "status": {}}


def rejected(name: str, *, at: str = TIME, **status: Any) -> Raw:
    """Return a pod of ours that kubelet rejected at admission."""
    owner = {"kind": "ReplicaSet", "name": "web-1", "controller": True, "uid": "u"}
    metadata = {
        "namespace": "ns",
        "name": name,
        "labels": {"pod-template-hash": "1"},
        "annotations": {names.EPOCH: "1"},
        "ownerReferences": [owner],
    }
    why = {"reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough resource: cpu"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n"},
        "status": {"phase": "Failed", "startTime": at, **why, **status},
    }


def edited(raw: Raw, *path: str) -> Raw:
    """Return an object without a field."""
    inner = raw
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return raw


IN_VAIN: Raw = {"namespace": "ns", "owner": "u", "count": 2}


def waits(**record: Raw) -> Callable[[Lists], None]:
    """Return what shows a waiting pod, and an entry of the record about it."""

    def show(lists: Lists) -> None:
        put("waiting", WAITING)(lists)
        put("leaderleases", leaves(**record))(lists)

    return show


VIRTUAL = {"nvidia.com/gpu.workload.config": "vm-passthrough", "nvidia.com/gpu.present": "true"}


def left(scheduler: str, created: str = LONG_AGO, **annotations: str) -> Raw:
    """Return a pod that no scheduler has tried."""
    metadata = {"namespace": "ns", "name": "p", "creationTimestamp": created, "annotations": annotations}
    return {"metadata": metadata, "spec": {"schedulerName": scheduler, "containers": [{"name": "c"}]}}


def marked(scheduler: str, **labels: str) -> Raw:
    """Return a pod with labels that its scheduler has tried."""
    pod = tried(left(scheduler))
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}}


OF_AMD = "1 node(s) have GPUs of AMD, which pods request by amd.com/gpu"


def tried(pod: Raw, message: str = "") -> Raw:
    return {**pod, "status": {"conditions": [{**condition("PodScheduled", "False"), "message": message}]}}


def labelled(name: str, **metadata: Mapping[str, str]) -> Raw:
    return {"metadata": {"name": name, **metadata}}


def misspelt_label(lists: Lists) -> None:
    """Change the label of the Node to an unknown value, which its agent reports."""
    put("nodes", raw_node("n", labels={"berth.dev/cards": "claim"}))(lists)
    message = "label berth.dev/cards=claim has no effect: allowed are name"
    reported("ClaimsServed", reason="CardsRefused", message=message)(lists)


def quota(name: str, resource: str) -> Raw:
    return {"metadata": {"namespace": "ml", "name": name}, "spec": {"hard": {resource: "2"}}}


def webhook() -> Raw:
    service = {"namespace": "berth-system", "name": "berth-webhook"}
    return named("berth-injection", webhooks=[{"clientConfig": {"service": service, "caBundle": "Q0E="}}])


def allocated(name: str, manager: str, *, pool: str = "p", **fields: Any) -> Raw:
    """Return a ResourceClaim with a device of a pool that a field manager allocated."""
    written = {"manager": manager, "fieldsV1": {"f:status": {"f:allocation": {}}}}
    result = {"driver": "nic.example.com", "pool": pool, "device": name, **fields}
    return {
        "metadata": {"namespace": "ns", "name": name, "managedFields": [{"manager": "x"}, written]},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def healthy() -> Facts:
    """Return a cluster in which nothing is wrong."""
    endpoints = {"namespace": "berth-system", "name": "w", "labels": {"kubernetes.io/service-name": "berth-webhook"}}
    lists: Lists = {
        "leaderleases": [lease("berth-operator")],
        "leases": [lease("n")],
        "devices": [raw_device("n", raw_card())],
        "nodes": [raw_node("n"), raw_node("plain", capacity={})],
        "pods": [],
        "agents": [],
        "waiting": [],
        "failed": [],
        "customresourcedefinitions": definitions.wanted(),
        "validatingadmissionpolicies": [named(name) for name in cluster.DENYING],
        "validatingadmissionpolicybindings": [
            named(name, spec={"validationActions": ["Deny"], "paramRef": {"name": "berth-operator"}})
            for name in cluster.DENYING
        ],
        "mutatingadmissionpolicies": [named("berth-injection")],
        "mutatingadmissionpolicybindings": [named("berth-injection")],
        "mutatingwebhookconfigurations": [webhook()],
        "validatingwebhookconfigurations": [],
        "services": [{"metadata": {"namespace": "berth-system", "name": "berth-webhook"}, "spec": {}}],
        "endpointslices": [{"metadata": endpoints, "endpoints": [{"conditions": {"ready": True}}]}],
        "apiservices": [
            named(
                "v1.nvidia-gpu-scheduler",
                spec={"group": "nvidia-gpu-scheduler"},
                status={"conditions": [condition("Available")]},
            ),
            named("v1.other", spec={"group": "other"}, status={"conditions": [condition("Available", "False")]}),
        ],
        "deployments": [workload("berth-operator", "1.2.0")],
        "daemonsets": [workload("berth-agent", "v1.2.0")],
        "resourcequotas": [],
        "namespaces": [labelled("ml", labels={"berth.dev/routing": "devices"})],
        "resourceclaims": [allocated("ours", "berth-operator/3"), allocated("theirs", "kube-scheduler", pool="q")],
        "clusterroles": [named("berth-operator", rules=[NEW_RIGHTS]), named("berth-agent")],
        "clusterrolebindings": [bound("berth-operator", "berth-system"), bound("berth-agent", "berth-agent-system")],
    }
    version = {"major": "1", "minor": "36+"}
    return Facts(now=NOW, lists=lists, definitions=definitions.wanted(), version="1.2.0", server_version=version)


def changed(change: Callable[[Lists], object]) -> Diagnosis:
    """Return the diagnosis of a healthy cluster in which something was changed."""
    facts = healthy()
    lists = copy.deepcopy(dict(facts.lists))
    change(lists)
    return diagnose(replace(facts, lists=lists))


def drop(name: str) -> Callable[[Lists], object]:
    return lambda lists: lists.update({name: []})


def put(name: str, *objects: Raw) -> Callable[[Lists], object]:
    return lambda lists: lists.update({name: list(objects)})


def edit(name: str, *path: str | int, to: Any) -> Callable[[Lists], object]:
    def change(lists: Lists) -> None:
        at = lists[name]
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to

    return change


def older(lists: Lists) -> None:
    schema = lists["customresourcedefinitions"][0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["devices"]["items"]["properties"]["encoders"]


HOLDERS = [{"namespace": "a", "name": name} for name in ("y", "x", "x")]


def fallen(ends: str = "UntilReboot", kind: str = "Xid79") -> Raw:
    """Return a GPU with a fault and its summary."""
    message = "Xid 79: GPU has fallen off the bus"
    summary = condition("Healthy", "False", reason=kind, message=message)
    return raw_card(health=False, conditions=[summary, condition(kind, reason=ends, message=message)])


def reported(kind: str, **fields: Any) -> Callable[[Lists], object]:
    """Return what adds a condition to the Device that is False."""
    return lambda lists: lists["devices"][0]["status"]["conditions"].append(condition(kind, "False", **fields))


def written_by(**managers: Raw) -> Callable[[Lists], None]:
    """Return what shows that these managers applied parts of the Device, after its agent."""
    written = {names.AGENT: {"spec": {"driverVersion": "1"}}, names.OPERATOR: {"status": {"gpus": 1}}, **managers}
    fields = [
        {"manager": manager, "operation": "Apply", "fieldsV1": fields_of(applied)}
        for manager, applied in written.items()
    ]
    return lambda lists: lists["devices"][0]["metadata"].update(managedFields=fields)


def no_gpus(lists: Lists) -> None:
    """Make the Device one of a node with NICs alone, whose agent offers nothing."""
    lists["devices"] = [raw_device("n", raw_card(type="rdma"))]
    reported("DevicesOffered", reason="NoDevices")(lists)


def offered(lists: Lists) -> None:
    lists["devices"][0]["status"]["conditions"].append(condition("DevicesOffered"))
    lists["pods"] = [plugin_pod("nvcr.example/nvidia/k8s-device-plugin:v0.17.0@sha256:0")]


TWO_SLICES = ("GPU-0::0", "GPU-0::1")


def two_slices(
    resource: str = "nvidia.com/gpu", ids: Sequence[str] = TWO_SLICES, **annotations: str
) -> Callable[[Lists], None]:
    """Return what shows a pod with two slices, by default of one card, and what it requested."""
    holders = [{"namespace": "a", "name": "x", "id": unit} for unit in ids]
    container = {"name": "c", "resources": {"limits": {resource: "2"}}}
    pod = {"metadata": {"namespace": "a", "name": "x", "annotations": annotations}, "spec": {"containers": [container]}}

    def show(lists: Lists) -> None:
        put("devices", raw_device("n", raw_card(), uses=[{"type": "gpu", "minor": 0, "holders": holders}]))(lists)
        put("sliced", pod)(lists)

    return show


def members(pods: Sequence[tuple[str, Mapping[str, Any]]]) -> Callable[[Lists], None]:
    """Return what shows pods with a slice each of one card; each with its name and metadata."""
    holders = [{"namespace": "a", "name": name, "id": f"GPU-0::{at}"} for at, (name, _) in enumerate(pods)]
    spec = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}

    def show(lists: Lists) -> None:
        put("devices", raw_device("n", raw_card(), uses=[{"type": "gpu", "minor": 0, "holders": holders}]))(lists)
        own = [{"namespace": "a", "name": name, "uid": name, **metadata} for name, metadata in pods]
        put("sliced", *({"metadata": metadata, "spec": spec} for metadata in own))(lists)

    return show


GROUPED: Any = {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}
ALLOWING: Any = {**GROUPED, "annotations": {"berth.dev/gpu-subdevices": "only"}}


def of_record(*others: str) -> Mapping[str, Any]:
    return {"annotations": {"gang.devices.berth.dev/bound-with": " ".join(("2/2/2", *others))}}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([("x", GROUPED), ("y", GROUPED), ("z", {})], "x", id="of one group"),
        pytest.param([("x", of_record("x", "y")), ("y", of_record("y", "x"))], "x", id="that were bound together"),
        pytest.param([("x", {}), ("y", {})], "", id="of no gang"),
        pytest.param([("x", ALLOWING), ("y", ALLOWING)], "", id="that allow it"),
        pytest.param([("x", ALLOWING), ("y", GROUPED)], "y", id="one of which does not"),
    ],
)
def test_members_of_a_gang_with_slices_of_one_card(pods: list[tuple[str, Any]], expected: str) -> None:
    findings = changed(members(pods)).findings
    assert [finding.object for finding in findings] == ([f"pod/a/{expected}"] if expected else [])


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"])
def test_several_slices_of_a_mig_instance(resource: str) -> None:
    [finding] = changed(two_slices(resource, ids=("MIG-1::0", "MIG-1::1"))).findings
    assert finding.message.startswith(f"it requested {resource} and holds 2 slices of MIG instance MIG-1 of GPU 0")
    assert not changed(two_slices(resource, ids=("MIG-1::0", "MIG-2::0"))).findings
    assert not changed(two_slices("nvidia.com/mig-1g.10gb.shared", ids=("MIG-1::0", "MIG-1::1"))).findings


@pytest.mark.parametrize(
    ("takers", "message", "hint"),
    [
        (["default-scheduler"], "taken by pods of default-scheduler", "keep the other scheduler off the node"),
        ([], "lost", "see why its victims do not end, or why its pods fail"),
    ],
)
def test_the_fix_of_a_lost_place_names_another_scheduler_only_if_its_pods_took_it(
    takers: list[str], message: str, hint: str
) -> None:
    place = {"preemptor": "ns/p", "node": "n", "count": 3, "until": "2026-01-01T00:02:00Z", "takers": takers}
    [finding] = changed(put("leaderleases", leaves(lostPlaces=place))).findings
    assert f"3 times the place freed for ns/p was {message}:" in finding.message
    assert finding.fix.endswith(f"# {hint}")


def test_several_slices_of_a_card_are_right_by_their_own_name_or_by_the_annotation() -> None:
    assert not changed(two_slices("nvidia.com/gpu.shared")).findings
    assert not changed(two_slices(**{"berth.dev/gpu-subdevices": "only"})).findings


def test_a_healthy_cluster_gives_no_finding() -> None:
    diagnosis = diagnose(healthy())
    assert (diagnosis.findings, diagnosis.not_checked) == ((), {})
    assert diagnosis.checked == tuple(check.name for check in CHECKS)


@pytest.mark.parametrize(
    ("change", "check", "subject", "message"),
    [
        (drop("leaderleases"), "NoLeader", "leaderlease/berth-operator", "there is no LeaderLease berth-operator"),
        (
            put("leaderleases", lease("berth-operator", holderIdentity="")),
            "NoLeader",
            "leaderlease/berth-operator",
            "released",
        ),
        (
            put("leaderleases", lease("berth-operator", written=LONG_AGO, renewed=LONG_AGO)),
            "NoLeader",
            "leaderlease/berth-operator",
            "not renewed the LeaderLease for 10m",
        ),
        (
            put(
                "leaderleases",
                leaves(
                    lostPlaces={
                        "preemptor": "u/ns/ReplicaSet/web",
                        "node": "n",
                        "count": 3,
                        "until": "2026-01-01T00:02:00Z",
                        "takers": ["default-scheduler"],
                    }
                ),
            ),
            "LostPlaces",
            "node/n",
            "3 times the place freed for ReplicaSet ns/web was taken by pods of default-scheduler: no pods are",
        ),
        (
            put("leaderleases", leaves(refusedWrites=REFUSED)),
            "RefusedWrites",
            "validatingadmissionpolicy/berth-operator-writes",
            "the API server has refused to create pods/binding (422), in a, b, c and more, such as a/p: set admission.",
        ),
        (
            put("leaderleases", leaves(refusedWrites={**REFUSED, "refuser": "", "namespaces": []})),
            "RefusedWrites",
            "apiserver",
            "refused to create pods/binding (422), such as a/p: set",
        ),
        (
            put("failed", *(rejected(name) for name in ("a", "b", "c"))),
            "RejectedPods",
            "node/n",
            "kubelet has rejected 3 pods of Deployment ns/web at admission within 15 minutes, the last with OutOfcpu: ",
        ),
        (drop("leases"), "SilentAgent", "node/n", "has no Lease: nothing"),
        (
            without_lease,
            "SilentAgent",
            "node/n",
            "has no Lease, although its pod berth-agent-x runs; the API server may refuse its writes: nothing",
        ),
        (unpublished(), "NoAgent", "node/n", "has no Device: no agent has reported its GPUs"),
        (unpublished(agent_pod(started=TIME)), "NoAgent", "node/n", "no agent has reported its GPUs"),
        (unpublished(agent_pod(phase="Pending")), "NoAgent", "node/n", "no agent has reported its GPUs"),
        (
            unpublished(agent_pod()),
            "NoDevice",
            "node/n",
            "has no Device, although the agent's pod berth-agent-x runs there: the API server may refuse its writes",
        ),
        (
            annotated(names.HINDRANCE, "denied: list them in admission.addedKeys.bindings"),
            "NoLeader",
            "leaderlease/berth-operator",
            "does not accept the Bindings of the leader (denied: list them in admission.addedKeys.bindings): no pod",
        ),
        (
            annotated(names.EARLIER_STATES, "1"),
            "EarlierState",
            "leaderlease/berth-operator",
            "etcd was restored from a copy: the API server",
        ),
        (
            annotated(names.EARLIER_STATES, "3"),
            "EarlierState",
            "leaderlease/berth-operator",
            "API servers disagree: the API server has",
        ),
        (
            put("leases", lease("n", written=LONG_AGO, renewed=LONG_AGO)),
            "SilentAgent",
            "node/n",
            "not been renewed for 10m: nothing",
        ),
        (
            put("devices", raw_device("n", fallen(), uses=[{"type": "gpu", "minor": 0, "holders": HOLDERS}])),
            "FailedDevice",
            "node/n",
            "GPU 0 GPU-0 is not allocated (UntilReboot: Xid 79: GPU has fallen off the bus); held by a/x, a/y",
        ),
        (
            put("devices", raw_device("n", fallen("UntilReset"))),
            "FailedDevice",
            "node/n",
            "(UntilReset: Xid 79: GPU has fallen off the bus); no pod holds it",
        ),
        (
            put(
                "devices",
                {
                    **raw_device("n"),
                    "status": {
                        "exceeding": [
                            {
                                "type": "gpu",
                                "minor": 1,
                                "namespace": "a",
                                "pod": "x",
                                "podUID": "u",
                                "memory": "9Gi",
                                "limit": "4Gi",
                            }
                        ]
                    },
                },
            ),
            "ExceededShare",
            "pod/a/x",
            "its processes use 9Gi of GPU 1 on n, its share is 4Gi",
        ),
        (
            put(
                "devices",
                {
                    **raw_device("n"),
                    "status": {
                        "unheld": [
                            {
                                "type": "gpu",
                                "minor": 1,
                                "id": "GPU-1",
                                "namespace": "a",
                                "pod": "x",
                                "podUID": "u",
                                "memory": "60Gi",
                            }
                        ]
                    },
                },
            ),
            "CardNotHeld",
            "pod/a/x",
            "its processes use 60Gi of GPU 1 (GPU-1) on n, and it does not hold the card",
        ),
        (
            written_by(argocd={"spec": {"devices": []}}, kubectl={"metadata": {"labels": {"a": "b"}}}),
            "OtherManager",
            "fieldmanager/argocd",
            "it writes Devices, such as spec.devices (n): the agents replace its values",
        ),
        (
            two_slices(),
            "SlicesOfOneCard",
            "pod/a/x",
            "it requested nvidia.com/gpu and holds 2 slices of GPU 0 on n: such a pod would wait now",
        ),
        (
            reported("ResourcesWritten.npu", reason="RefusedByPolicy", message="add example.com/npu"),
            "FalseCondition",
            "device/n",
            "ResourcesWritten.npu is False (RefusedByPolicy: add example.com/npu)",
        ),
        (
            reported("InventoryRead.npu", reason="ReadFailed"),
            "FalseCondition",
            "device/n",
            "InventoryRead.npu is False (ReadFailed)",
        ),
        (
            reported("DevicesOffered", reason="NotRegistered"),
            "FalseCondition",
            "device/n",
            "DevicesOffered is False (NotRegistered)",
        ),
        (
            reported("GivenByName", reason="CardsWithheld", message="gpu 0: device taint a:NoSchedule on d/p/x"),
            "FalseCondition",
            "device/n",
            "GivenByName is False (CardsWithheld: gpu 0: device taint a:NoSchedule on d/p/x)",
        ),
        (reported("Valid", reason="Contradiction"), "FalseCondition", "device/n", "Valid is False (Contradiction)"),
        (
            put("nodes", raw_node("n"), raw_node("g", labels={"nvidia.com/gpu.present": "true"})),
            "NoAgent",
            "node/g",
            "has a label",
        ),
        (
            put("nodes", raw_node("n"), raw_node("g", capacity={"nvidia.com/gpu": "8"})),
            "NoAgent",
            "node/g",
            "offers nvidia.com/gpu",
        ),
        (drop("customresourcedefinitions"), "OldDefinitions", "crd/devices.berth.dev", "is missing"),
        (older, "OldDefinitions", "crd/devices.berth.dev", "it lacks spec.devices[].encoders"),
        (
            drop("validatingadmissionpolicies"),
            "MissingPolicy",
            "validatingadmissionpolicy/berth-fence-marked",
            "policy is missing",
        ),
        (
            drop("validatingadmissionpolicybindings"),
            "MissingPolicy",
            "validatingadmissionpolicy/berth-agents",
            "no ValidatingAdmissionPolicyBinding",
        ),
        (
            edit("validatingadmissionpolicybindings", 0, "spec", "validationActions", to=["Audit"]),
            "MissingPolicy",
            "validatingadmissionpolicy/berth-fence-marked",
            "does not deny",
        ),
        (
            edit("validatingadmissionpolicybindings", 1, "spec", "paramRef", "name", to="b"),
            "MissingPolicy",
            "validatingadmissionpolicy/berth-fence-epoch",
            "names the LeaderLease b",
        ),
        (
            lambda lists: (
                drop("mutatingadmissionpolicybindings")(lists),
                drop("mutatingwebhookconfigurations")(lists),
            ),
            "MissingPolicy",
            "mutatingadmissionpolicy/berth-injection",
            "injects NVIDIA_VISIBLE_DEVICES",
        ),
        (
            drop("endpointslices"),
            "UnreachableWebhook",
            "mutatingwebhookconfiguration/berth-injection",
            "no pod of its Service berth-system/berth-webhook is ready",
        ),
        (
            edit("endpointslices", 0, "endpoints", 0, "conditions", "ready", to=False),
            "UnreachableWebhook",
            "mutatingwebhookconfiguration/berth-injection",
            "no pod of its Service",
        ),
        (drop("services"), "UnreachableWebhook", "mutatingwebhookconfiguration/berth-injection", "does not exist"),
        (
            edit("mutatingwebhookconfigurations", 0, "webhooks", 0, "clientConfig", "caBundle", to=""),
            "UnreachableWebhook",
            "mutatingwebhookconfiguration/berth-injection",
            "no caBundle",
        ),
        (
            edit("apiservices", 0, "status", "conditions", 0, "status", to="False"),
            "UnreachableApi",
            "apiservice/v1.nvidia-gpu-scheduler",
            "cannot reach it (Because)",
        ),
        (offered, "OtherDevicePlugin", "node/n", "NVIDIA's device plugin (pod gpu/p)"),
        (
            put("pods", plugin_pod("example.com/projecthami/hami:v2.5", "device-plugin")),
            "OtherDevicePlugin",
            "node/n",
            "HAMi's device plugin",
        ),
        (
            edit("nodes", 0, "status", "allocatable", to={}),
            "MissingCapacity",
            "node/n",
            "kubernetes.io/gpu: 0, and the Device has 1 healthy GPUs",
        ),
        (
            put(
                "nodes",
                raw_node(
                    "n",
                    capacity={"kubernetes.io/gpu": "100", "nvidia.com/gpu": "8"},
                    allocatable={"kubernetes.io/gpu": "100", "nvidia.com/gpu": "7"},
                ),
            ),
            "MissingCapacity",
            "node/n",
            "nvidia.com/gpu: 7 of 8",
        ),
        (
            put(
                "nodes",
                raw_node(
                    "n",
                    capacity={"kubernetes.io/gpu": "100", "amd.com/cpx_nps4": "8"},
                    allocatable={"kubernetes.io/gpu": "100", "amd.com/cpx_nps4": "7"},
                ),
            ),
            "MissingCapacity",
            "node/n",
            "amd.com/cpx_nps4: 7 of 8",
        ),
        (
            edit("nodes", 0, "metadata", "labels", to={"berth.dev/isolation": "mps"}),
            "NoMps",
            "node/n",
            "its agent offers no berth.dev/mps",
        ),
        (
            put("waiting", left("kai-scheduler", **{"gpu-fraction": "0.5"})),
            "OtherScheduler",
            "pod/ns/p",
            (
                "it has annotation gpu-fraction; "
                "write spec.schedulerName: berth-scheduler, or give a profile of Berth "
                "this name to leave the pods unchanged, and no scheduler has tried it"
            ),
        ),
        (
            put("waiting", left("volcano"), left("volcano")),
            "NoScheduler",
            "scheduler/volcano",
            "no scheduler has tried pod ns/p and 1 more for a minute, and no bound pod has this scheduler name",
        ),
        (
            put("waiting", tried(left("default-scheduler", **{"nvidia.com/use-gputype": "A100"}))),
            "OtherScheduler",
            "pod/ns/p",
            "write spec.schedulerName: berth-scheduler, or give its namespace the label berth.dev/routing: words",
        ),
        (
            put("nodes", raw_node("n", labels={"berth.dev/isolation": "MPS"})),
            "WithoutEffect",
            "node/n",
            "label berth.dev/isolation=MPS has no effect: allowed is mps; did you mean mps?",
        ),
        (
            put("namespaces", labelled("ml", annotations={"berth.dev/routing": "devices"})),
            "WithoutEffect",
            "namespace/ml",
            "annotation berth.dev/routing=devices has no effect: did you mean the label of this name?",
        ),
        (
            edit("devices", 0, "metadata", "annotations", to={"berth.dev/cordoned-device": "0"}),
            "WithoutEffect",
            "device/n",
            "annotation berth.dev/cordoned-device=0 has no effect: did you mean cordoned-devices?",
        ),
        (
            put("waiting", tried(left("default-scheduler", **{"berth.dev/routing": "devices"}))),
            "WithoutEffect",
            "pod/ns/p",
            "annotation berth.dev/routing=devices has no effect: it is a label of Namespaces",
        ),
        (
            put("waiting", *[marked("volcano", **{"berth.dev/gpu-model": "A100"})] * 3),
            "WithoutEffect",
            "pod/ns/p",
            "label berth.dev/gpu-model=A100 has no effect: did you mean the annotation of this name? (and 2 more",
        ),
        (
            misspelt_label,
            "FalseCondition",
            "device/n",
            "label berth.dev/cards=claim has no effect: ",
        ),
        (
            put("resourcequotas", quota("memory", "requests.memory"), quota("gpus", "requests.nvidia.com/gpu")),
            "UncountedGpus",
            "namespace/ml",
            "its ResourceQuota gpus has requests.nvidia.com/gpu: 2, and a ResourceQuota does not count kubernetes.io/",
        ),
        (
            put("resourcequotas", quota("gpus", "requests.amd.com/gpu")),
            "UncountedGpus",
            "namespace/ml",
            "its ResourceQuota gpus has requests.amd.com/gpu: 2, and",
        ),
        (
            put("waiting", *[tried(left("berth-scheduler"), f"0/2 nodes are available: {OF_AMD}, 1 more.")] * 2),
            "OtherVendor",
            "vendor/AMD",
            "pod ns/p and 1 more waits. Nodes have GPUs of AMD, which pods get by amd.com/gpu and not by",
        ),
        (
            put("resourcequotas", quota("gpus", "requests.kubernetes.io/gpu")),
            "UncountedGpus",
            "namespace/ml",
            "its ResourceQuota gpus has requests.kubernetes.io/gpu: 2, and",
        ),
        (
            waits(nodeReservations={"uid": "u", "node": "n", "free": 6, "since": LONG_AGO}),
            "IdleReservation",
            "node/n",
            "6 free device(s) are reserved for pod ns/big, and nothing has been freed for 10m",
        ),
        (
            waits(reservationBackoffs={**IN_VAIN, "until": "2026-01-01T01:00:00Z"}),
            "IdleReservation",
            "pod/ns/big",
            "because pods that hold the rest of a node do not end; the next one may begin at 2026-01-01T01:00:00Z",
        ),
        (
            put("daemonsets", workload("berth-agent", "1.1.0")),
            "VersionSkew",
            "daemonset/berth-agent",
            "1.2.0, the agents 1.1.0",
        ),
        (put("leases", lease("n", renewed="2025-12-31T23:59:25.5Z")), "ClockSkew", "node/n", "29s behind"),
        (
            put("leaderleases", lease("berth-operator", renewed="2026-01-01T00:02:00Z")),
            "ClockSkew",
            "leaderlease/berth-operator",
            "2m5s ahead of",
        ),
        (
            put("clusterrolebindings", bound("berth-operator", "berth-system")),
            "MissingRights",
            "serviceaccount/berth-agent",
            "lacks a ClusterRoleBinding",
        ),
        (
            put(
                "clusterroles",
                named("berth-operator", rules=[{**NEW_RIGHTS, "resources": ["x"]}]),
                named("berth-agent"),
            ),
            "MissingRights",
            "serviceaccount/berth-operator",
            "of an earlier version and does not allow to list limitranges, resourcequotas, priorityclasses",
        ),
        (
            put("leaderleases", leaves(promisedGangs=PROMISED)),
            "KeptPlaces",
            "namespace/ns",
            "3 place(s) on a, b are kept from 2025-12-31T23:58:00Z until 2026-01-01T00:03:00Z for pods that Leader",
        ),
        (
            put("clusterroles", named("berth-agent")),
            "MissingRights",
            "serviceaccount/berth-operator",
            "lacks the ClusterRole",
        ),
    ],
)
def test_what_is_wrong_is_found(change: Callable[[Lists], object], check: str, subject: str, message: str) -> None:
    findings = changed(change).findings
    assert {finding.check for finding in findings} == {check}
    [finding] = [finding for finding in findings if finding.object == subject]
    assert message in finding.message
    assert finding.fix


@pytest.mark.parametrize(
    "change",
    [
        put("pods", plugin_pod("example.com/k8s-device-plugin:v0.17.0")),  # the agent is not the device plugin there
        put("pods", plugin_pod("example.com/projecthami/hami:v2.5", "scheduler-extender")),
        put("mutatingwebhookconfigurations"),
        put("deployments", workload("berth-operator", "latest")),
        lambda lists: (edit("services", 0, "spec", to={"type": "ExternalName"})(lists), drop("endpointslices")(lists)),
        put("leaderleases", renewed_by_another()),
        put("devices", raw_device("n", raw_card(health=False))),
        put("nodes", raw_node("n"), raw_node("v", capacity={"nvidia.com/GA102": "8"}, labels=VIRTUAL)),
        lambda lists: lists.update(waiting=[left("kai-scheduler")], bound=[left("kai-scheduler")]),
        put("waiting", left("kai-scheduler", TIME), left("kai-scheduler", TIME, **{"gpu-fraction": "0.5"})),
        put("waiting", tried(left("kai-scheduler", **{"gpu-fraction": "0.5"})), tried(left("default-scheduler"))),
        put("resourcequotas", quota("memory", "requests.memory"), quota("nics", "requests.nvidia.com/hostdev")),
        waits(nodeReservations={"uid": "u", "node": "n", "free": 6, "since": TIME}),
        waits(nodeReservations={"uid": "u", "node": "n", "free": 0, "since": LONG_AGO}),
        # Once, long ago, bound by another scheduler, evicted, or of two controllers.
        put("failed", rejected("a")),
        put("failed", rejected("a", at="2025-12-31T23:40:00Z"), rejected("b", at="2025-12-31T23:40:00Z")),
        put("failed", *(edited(rejected(name), "metadata", "annotations") for name in ("a", "b"))),
        put("failed", *(rejected(name, message="The node was low on resource: memory.") for name in ("a", "b"))),
        put("failed", *(edited(rejected(name), "metadata", "ownerReferences") for name in ("a", "b"))),
        waits(reservationBackoffs=IN_VAIN),
        waits(reservationBackoffs={**IN_VAIN, "until": LONG_AGO}),
        put("devices", raw_device("n", raw_card(mig={"enabled": True, "instances": []}))),
        put(
            "devices", raw_device("n", raw_card(), raw_card(1), uses=[{"type": "gpu", "minor": 1, "barred": "listed"}])
        ),
        put("leases", lease("n", renewed="2025-12-31T23:59:56.2Z")),
        no_gpus,
    ],
)
def test_what_is_right_is_not_found(change: Callable[[Lists], object]) -> None:
    assert changed(change).findings == ()


def test_versions_of_this_program_and_of_kubernetes() -> None:
    facts = replace(healthy(), version="1.3.0", server_version={"major": "1", "minor": "29"})
    messages = [finding.message for finding in diagnose(facts).findings]
    assert messages == [
        "the operator has the version 1.2.0, this program 1.3.0",
        "Kubernetes 1.29 is too old: Berth needs 1.30, for the policies of the fence",
    ]


def test_a_pool_from_which_two_schedulers_allocate_is_a_finding() -> None:
    ours, theirs = allocated("ours", "berth-operator/3"), allocated("theirs", "kube-scheduler")
    [finding] = changed(put("resourceclaims", ours, theirs)).findings
    assert (finding.check, finding.object) == ("SharedPool", "pool/nic.example.com/p")
    assert "ns/ours, and another scheduler to ns/theirs" in finding.message
    looking = allocated("theirs", "kube-scheduler", adminAccess=True)
    assert changed(put("resourceclaims", ours, looking)).findings == ()


@pytest.mark.parametrize(("roles", "number"), [([], 0), ([named(cluster.ALLOCATING_ROLE)], 1)])
def test_claims_are_read_if_they_may_be_allocated(roles: list[Raw], number: int) -> None:
    asked: list[str] = []

    class Recording(Api):
        def get_all(self, requests: Sequence[Request]) -> list[Any]:
            asked.extend(request.path for request in requests)
            answers = zip(requests, super().get_all(requests), strict=True)
            return [
                {"items": roles} if request.path.endswith("/clusterroles") else answer for request, answer in answers
            ]

    gather(Recording({}), Installation(), definitions=[], version="")
    assert asked.count("/apis/resource.k8s.io/v1/resourceclaims") == number


def test_a_kind_that_is_not_served_is_a_finding_of_its_own() -> None:
    facts = replace(healthy(), lists={**healthy().lists, "leaderleases": []}, unserved=frozenset({"leaderleases"}))
    [finding] = diagnose(facts).findings
    assert (finding.check, finding.fix) == ("NoLeader", "kubectl apply -f crds/")


@pytest.mark.parametrize("name", sorted({need for check in CHECKS for need in check.needs}))
def test_what_may_not_be_read_is_not_checked(name: str) -> None:
    lists = {key: value for key, value in healthy().lists.items() if key != name}
    diagnosis = diagnose(replace(healthy(), lists=lists, unread={name: "forbidden"}))
    assert diagnosis.not_checked == {check.name: "forbidden" for check in CHECKS if name in check.needs}
    assert diagnosis.findings == ()


class Api:
    """Answers every list: with nothing, or with an error."""

    def __init__(self, errors: dict[str, ReadError]) -> None:
        self.server_date = "Thu, 01 Jan 2026 00:00:00 GMT"
        self._errors = errors

    def get_all(self, requests: Sequence[Request]) -> list[Any]:
        """Return an answer for each request."""
        names = [request.path.rpartition("/")[2] for request in requests]
        return [{"major": "1"} if name == "version" else self._errors.get(name, {"items": []}) for name in names]


def gathered(**errors: ReadError) -> Facts:
    return gather(Api(errors), Installation(), definitions=[], version="1.2.0")


def test_the_definition_of_pod_groups_may_be_another_projects() -> None:
    groups = {definition["spec"]["names"]["plural"]: definition["spec"]["group"] for definition in definitions.wanted()}
    assert groups == dict.fromkeys(("devices", "gpupods", "leaderleases"), "berth.dev")


def test_an_error_leaves_out_one_list() -> None:
    facts = gathered(
        devices=ReadError("no", status=403),
        nodes=ReadError("broken", status=500),
        leaderleases=ReadError("no such kind", status=404),
        daemonsets=ReadError("no", status=403),
    )
    assert facts.unread.keys() == {"devices", "nodes", "daemonsets", "pods"}
    assert facts.unread["devices"].startswith('no; this needs the right to list "devices.berth.dev"')
    assert (set(facts.unserved), facts.now, dict(facts.server_version)) == ({"leaderleases"}, NOW, {"major": "1"})
    with pytest.raises(ReadError, match="no answer"):
        gathered(devices=ReadError("no answer"))


@pytest.mark.parametrize("version", ["v1alpha1", "v1\n b/c", None])
@pytest.mark.parametrize("status", [502, 503, 504])
def test_an_api_without_a_server_is_found_before_its_conditions_show_it(status: int, version: str | None) -> None:
    name = "v1alpha1.visibility.berth.dev"
    service = {
        "metadata": {"name": name},
        "spec": {"group": "visibility.berth.dev", "version": version},
        "status": {"conditions": [condition("Available")]},
    }

    class WithService(Api):
        def get_all(self, requests: Sequence[Request]) -> list[Any]:
            answers = zip(requests, super().get_all(requests), strict=True)
            return [
                {"items": [service]} if request.path.endswith("/apiservices") else answer for request, answer in answers
            ]

    def found(error: ReadError | None = None) -> list[Finding]:
        errors = {} if error is None else {quote(str(version), safe=""): error}
        facts = gather(WithService(errors), Installation(), definitions=[], version="")
        return [finding for finding in diagnose(facts).findings if finding.check == "UnreachableApi"]

    [finding] = found(ReadError("no endpoints", status=status))
    assert (finding.object, finding.fix.partition("   ")[0]) == (
        f"apiservice/{name}",
        f"kubectl delete apiservice {name}",
    )
    assert "no endpoints" in finding.message
    assert found() == found(ReadError("no", status=403)) == []


def test_pods_are_read_of_daemon_sets_that_run_device_plugins() -> None:
    selector = {"matchLabels": {"app": "plugin"}}
    container = {"name": "main", "image": "example.com/k8s-device-plugin:v1"}
    metadata = {"name": "plugin", "namespace": "gpu"}
    daemon_set = {
        "metadata": metadata,
        "spec": {"selector": selector, "template": {"spec": {"containers": [container]}}},
    }
    asked: list[Request] = []

    class Recording(Api):
        def get_all(self, requests: Sequence[Request]) -> list[Any]:
            asked.extend(requests)
            answers = super().get_all(requests)
            names = [request.path.rpartition("/")[2] for request in requests]
            return [
                {"items": [daemon_set]} if name == "daemonsets" else answer
                for name, answer in zip(names, answers, strict=True)
            ]

    gather(Recording({}), Installation(), definitions=[], version="")
    assert Request(path="/api/v1/namespaces/gpu/pods", query=(("labelSelector", "app=plugin"),)) in asked


def test_the_text_shows_what_to_type() -> None:
    lines = doctor.text(changed(drop("leases")))
    assert lines[0] == "SilentAgent   node/n"
    assert lines[2].startswith("    try: kubectl get pods -n berth-agent-system")
    assert lines[-1] == f"1 finding; {len(CHECKS)} checks made"


def test_the_policies_are_those_that_are_installed() -> None:
    names = {item.name for item in installed.policies()}
    assert {*cluster.DENYING, cluster.INJECTION} <= names
    assert {item.name for item in installed.callers()} >= {*cluster.WEBHOOKS}


def test_every_check_has_a_row_in_the_docs() -> None:
    page = (ROOT / "docs/doctor.md").read_text()
    rows: Sequence[str] = re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE)
    assert rows == [check.name for check in CHECKS]


@pytest.mark.parametrize(
    ("ends", "fix"),
    [
        (
            "UntilReboot",
            "kubectl drain n --ignore-daemonsets --delete-emptydir-data   # then reboot it, and uncordon it",
        ),
        ("UntilReset", "nvidia-smi --gpu-reset -i GPU-0   # on n, once no pod holds the GPU"),
        ("UntilQuiet", "kubectl get device n -o yaml"),
    ],
)
def test_what_to_do_about_a_failed_device_follows_from_what_ends_its_fault(ends: str, fix: str) -> None:
    (finding,) = changed(put("devices", raw_device("n", fallen(ends)))).findings
    assert finding.fix == fix


def test_a_reset_of_a_card_of_amd_is_not_nvidias() -> None:
    device = raw_device("n", fallen("UntilReset"))
    device["metadata"]["labels"] = {names.VENDOR_LABEL: "amd"}
    (finding,) = changed(put("devices", device)).findings
    assert finding.fix == "modprobe -r amdgpu && modprobe amdgpu   # on n, once no pod holds a GPU of the node"


@pytest.mark.parametrize(
    ("kind", "reason", "fix"),
    [
        (
            "ResourcesWritten.npu",
            "RefusedByPolicy",
            "helm upgrade berth charts/berth --reset-then-reuse-values --set-json operator.pluginResources=",
        ),
        ("ResourcesWritten.npu", "Refused", "kubectl logs -n berth-system -l app.kubernetes.io/name=berth-operator"),
        ("DriverLoaded", "NoDriver", "nvidia-smi   # on n"),
        ("InventoryRead", "CardsUnread", "kubectl get pods -n berth-agent-system -o wide --field-selector"),
        ("AnnotationsRead", "NoSuchDevice", "kubectl edit device n"),
        ("Accounted", "AllocationUnknown", "kubectl get device n -o yaml"),
        ("HeldOnce", "TwoHolders", "kubectl get device n -o yaml   # delete all pods of the card but one"),
        ("BoundByBerth", "AllocationMissing", "kubectl get device n -o yaml   # delete the pods, and let only Berth"),
    ],
)
def test_what_to_do_about_a_condition_follows_from_who_can_end_it(kind: str, reason: str, fix: str) -> None:
    (finding,) = changed(reported(kind, reason=reason)).findings
    assert finding.fix.startswith(fix)


def test_mistakes_of_one_namespace_do_not_fill_the_report() -> None:
    pods = [tried(left("default-scheduler", **{f"berth.dev/{number}": "x"})) for number in range(99)]
    assert len(changed(put("waiting", *pods)).findings) == labels.MAX_MISTAKES


def test_cards_that_a_driver_lists_are_one_finding_for_all_nodes() -> None:
    def withheld(node: str, *others: str) -> Raw:
        device = raw_device(node, raw_card())
        message = "; ".join((f"gpu 0: {device_text.listed_by('gpu.nvidia.com', node)} so kube-scheduler", *others))
        device["status"]["conditions"].append(
            condition("GivenByName", "False", reason="CardsWithheld", message=message)
        )
        return device

    nodes = [f"n{at}" for at in range(6)]
    leases, raw_nodes = put("leases", *map(lease, (*nodes, "t"))), put("nodes", *map(raw_node, (*nodes, "t")))
    tainted = withheld("t", "gpu 1: device taint a:NoSchedule on x")
    devices = put("devices", *map(withheld, nodes), tainted)
    diagnosis = changed(lambda lists: (leases(lists), raw_nodes(lists), devices(lists)))
    own, driver = diagnosis.findings
    assert (own.object, own.check) == ("device/t", "FalseCondition")
    assert driver.object == "driver/gpu.nvidia.com"
    assert driver.message.startswith("GivenByName is False on 6 nodes (n0, n1, n2, n3 and 2 more): the driver lists")


@pytest.mark.parametrize(
    ("role", "served", "checks"),
    [
        ("berth-claims", {"v1": [], "v1beta2": []}, ["NoTaintRules"]),
        ("berth-claims", {"v1": []}, ["NoTaintRules"]),
        ("berth-claims", {"v1": [], "v1beta2": [{"name": "devicetaintrules"}]}, []),
        ("other", {"v1": []}, []),
    ],
)
def test_pools_to_be_tainted_need_the_api(role: str, served: dict[str, list[Raw]], checks: list[str]) -> None:
    class WithRole(Api):
        def get_all(self, requests: Sequence[Request]) -> list[Any]:
            return [
                self._of(request, answer) for request, answer in zip(requests, super().get_all(requests), strict=True)
            ]

        def _of(self, request: Request, answer: Any) -> Any:
            version = request.path.removeprefix("/apis/resource.k8s.io/")
            if request.path.endswith("/clusterroles"):
                return {"items": [named(role)]}
            if version == request.path:
                return answer
            return {"resources": served[version]} if version in served else ReadError("no", status=404)

    facts = gather(WithRole({}), Installation(), definitions=[], version="")
    assert [finding.check for finding in diagnose(facts).findings if finding.check == "NoTaintRules"] == checks


def test_a_driver_that_is_not_loaded_is_one_finding() -> None:
    def change(lists: Lists) -> None:
        reported("DriverLoaded", reason="NoDriver")(lists)
        reported("InventoryRead", reason="NoDriver")(lists)

    (finding,) = changed(change).findings
    assert finding.message.startswith("DriverLoaded is False")


def test_a_device_that_a_person_cordoned_is_no_finding() -> None:
    assert changed(put("devices", raw_device("n", fallen("WhileMeasured", "Cordoned")))).findings == ()
