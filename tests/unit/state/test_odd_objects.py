"""An object of any shape ends no watch: definitions of other versions, and of other projects, have other fields."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from berth_api import names
from berth_api.words import KUBERNETES_GROUPS, TABLE
from berth_client.reflector import Sink, Source
from berth_operator.core.values.controller_gangs import OWNED
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.objects import groups
from berth_operator.state.objects.pod_sets import Templates
from berth_operator.state.watches import admission_rules, gang_owners, kueue, sinks, sources
from berth_operator.state.watches.kueue import QuotaObjects
from berth_operator.state.watches.pod_watches import ALIVE, ENDED, pods_where
from berth_operator.state.watches.storage import Storage
from tests.fuzz import inputs
from tests.objects.builders import (
    GPU,
    Raw,
    device,
    entry,
    every_pod,
    gpu_pod,
    half,
    held,
    kubernetes_group,
    lease,
    node,
    owner,
    pod,
    pod_group,
)
from tests.objects.kueue_objects import CHECK, CONTROLLER, flavor, with_quota
from tests.objects.resource_claims import allocated, gpu, resource_slice, taint, taint_rule
from tests.objects.volumes import raw_claim, raw_class, raw_volume

LWS: Final = "leaderworkerset.sigs.k8s.io/"
_TERM: Final = {
    "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]},
    "topologyKey": "kubernetes.io/hostname",
}
_STATUS: Final = {
    "phase": "Running",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    "containerStatuses": [
        {"name": "main", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "2"}}
    ],
}
_NODE_TERMS: Final = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}


def a_pod(name: str, **fields: Any) -> Raw:
    """Return a pod with most fields that are read, as a member of a gang of its controller."""
    labels = {f"{LWS}name": "serve", f"{LWS}group-index": "0"}
    annotations = {names.EPOCH: "1", f"{LWS}size": "2"}
    return pod(
        name,
        {GPU: "50", "cpu": "500m"},
        labels=labels,
        annotations=annotations,
        metadata={"ownerReferences": [owner("set", "StatefulSet")]},
        priority=5,
        tolerations=[{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
        nodeSelector={"a": "b"},
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM]}},
        resourceClaims=[{"name": "c", "resourceClaimName": "c"}],
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        **fields,
    )


_TEMPLATE: Final = {"metadata": {"labels": {"a": "b"}}, "spec": a_pod("of-template")["spec"]}
_JOB: Final = {
    "name": "a",
    "replicas": 2,
    "dependsOn": [{"name": "a", "status": "Ready"}],
    "template": {"spec": {"parallelism": 2, "completions": 2, "template": _TEMPLATE}},
}
_POLICY: Final = {"runPolicy": {"schedulingPolicy": {"minAvailable": 3}}, "elasticPolicy": {"minReplicas": 1}}
_OWNERS: Final[Mapping[str, Raw]] = {
    "LeaderWorkerSet group": {
        "replicas": 2,
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {"size": 4, "workerTemplate": _TEMPLATE},
    },
    "JobSet": {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": [_JOB, {**_JOB, "name": "b"}]},
    "PodGang": {"podgroups": [{"minReplicas": 2}]},
    "RayCluster": {"workerGroupSpecs": [{"minReplicas": 1, "maxReplicas": 4, "replicas": 2, "numOfHosts": 1}]},
    "MPIJob": {
        **_POLICY,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "mpiReplicaSpecs": {"Worker": {"replicas": 2}, "Launcher": {"template": _TEMPLATE}},
    },
    "PyTorchJob": {**_POLICY, "pytorchReplicaSpecs": {"Worker": {"replicas": 2}}},
    "TFJob": {**_POLICY, "tfReplicaSpecs": {"Worker": {"replicas": 2}}},
    "JAXJob": {**_POLICY, "jaxReplicaSpecs": {"Worker": {"replicas": 2}}},
    "PaddleJob": {**_POLICY, "paddleReplicaSpecs": {"Worker": {"replicas": 2}}},
    "XGBoostJob": {**_POLICY, "xgbReplicaSpecs": {"Worker": {"replicas": 2}}},
}
_RULE: Final = taint_rule(selector={"driver": "d"}, tainted=taint())
_BODIES: Final[Mapping[str, Raw]] = {
    "nodes": node("node", spec={"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}),
    "devices": {**device("node", entry(0)), "status": {"held": [held("pod", "GPU-0")], "conditions": []}},
    "gpu pods": gpu_pod("pod", "GPU-0"),
    "leases": lease("node"),
    "namespaces": {},
    "services": {"spec": {"selector": {"a": "b"}}},
    "budgets": {
        "spec": {"selector": _TERM["labelSelector"]},
        "status": {"disruptionsAllowed": 1, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}},
    },
    "claims": raw_claim(
        "c", spec={"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"], "selector": {}}
    ),
    "volumes": raw_volume(
        "v",
        spec={
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"name": "c", "namespace": "ns", "uid": "u"},
            "nodeAffinity": {"required": _NODE_TERMS},
        },
    ),
    "storage classes": raw_class("local"),
    "storage capacities": {"storageClassName": "made", "capacity": "1Gi", "nodeTopology": _TERM["labelSelector"]},
    "storage drivers": {"spec": {"storageCapacity": True}},
    "volume limits": {"spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 5}}]}},
    "volume attachments": {
        "spec": {"attacher": "d", "nodeName": "node", "source": {"persistentVolumeName": "v"}},
        "status": {"attached": True},
    },
    "resource slices": resource_slice(gpu(0, taints=[taint()], capacity={"memory": {"value": "1Gi"}})),
    "device classes": {
        "spec": {"selectors": [{"cel": {"expression": "true"}}], "config": [{"opaque": {"parameters": {}}}]}
    },
    "resource claims": allocated("c", "gpu-0", pods=["u"]),
    "device taint rules": _RULE,
    "device taint rules of v1beta2": _RULE,
    "workloads": with_quota(),
    "resource flavors": flavor(labels={"a": "b"}, tolerations=[{"key": "a"}]),
    "admission checks": {
        "spec": {"controllerName": CONTROLLER},
        "status": {"conditions": [{"type": "Active", "status": "True"}]},
    },
    "priority classes": {"value": 5, "globalDefault": True, "preemptionPolicy": "Never"},
    "limit ranges": {
        "spec": {
            "limits": [
                {
                    "type": "Container",
                    "default": {"cpu": "1"},
                    "defaultRequest": {"cpu": "500m"},
                    "min": {"cpu": "1m"},
                    "max": {"cpu": "8"},
                    "maxLimitRequestRatio": {"cpu": "4"},
                }
            ]
        }
    },
    "resource quotas": {
        "spec": {
            "hard": {"requests.cpu": "8"},
            "scopes": ["Terminating"],
            "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]},
        },
        "status": {"used": {"requests.cpu": "1"}},
    },
    "waiting pods": a_pod("waiting"),
    "bound pods": a_pod("bound", on="node", allocated=half(), status=_STATUS),
    "ended pods": a_pod("ended", on="node", status={"phase": "Failed"}),
    **{
        sources.name_of(kind): kubernetes_group("g", minimum=2) if kind == KUBERNETES_GROUPS else pod_group("g", 2)
        for kind in TABLE.pod_groups
    },
    **{f"owners of kind {kind}": {"spec": spec} for kind, spec in _OWNERS.items()},
}
"""Kind -> an object with most fields that are read."""
NAMES: Final = {"nodes": "node", "devices": "node", "leases": "node", "admission checks": CHECK}


class Watches:
    """All watches, and the state that they feed."""

    def __init__(self) -> None:
        self.cluster = Cluster(grace=20.0, clock=lambda: 100.0, tenants=Tenants())
        templates = self.cluster.gangs.templates = Templates()
        to = Storage(self.cluster)
        others = sources.except_pods(to, node_selector="", agent_namespace="berth")
        alive, sink = pods_where(ALIVE), every_pod(self.cluster)
        ended = replace(pods_where(ENDED), transform=groups.transform_ended), sinks.ended_pods(self.cluster)
        self.watches: Mapping[str, tuple[Source, Sink]] = {
            **others,
            **dict(kueue.sources(QuotaObjects(self.cluster, templates))),
            **admission_rules.sources(self.cluster.admission_rules),
            **dict(gang_owners.sources(self.cluster, {owners.group for owners in OWNED.values()})),
            "waiting pods": (alive, sink),
            "bound pods": (alive, sink),
            "ended pods": ended,
        }
        for kind in ("nodes", "devices", "resource flavors", "admission checks"):
            self.put(kind, whole(kind))

    def put(self, kind: str, obj: Raw) -> None:
        source, sink = self.watches[kind]
        sink.apply("MODIFIED", source.transformed(obj))

    def delete(self, kind: str, obj: Raw) -> None:
        source, sink = self.watches[kind]
        sink.apply("DELETED", source.transformed(obj))


def with_metadata(kind: str, body: Raw) -> Raw:
    """Return an object with valid metadata, which the API server ensures for all kinds."""
    name = NAMES.get(kind, "o")
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "1"}
    return {**body, "metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z", **body.get("metadata", {})}}


def whole(kind: str) -> Raw:
    """Return a valid object of a kind."""
    return copy.deepcopy(with_metadata(kind, _BODIES[kind]))


@st.composite
def odd(draw: inputs.Draw, kind: str) -> Raw:
    """Draw an object of a kind with changes anywhere outside its metadata."""
    valid = whole(kind)
    body = draw(inputs.near({key: value for key, value in valid.items() if key != "metadata"}))
    drawn = {**body, "metadata": valid["metadata"]} if isinstance(body, dict) else valid
    if "pods" in kind and kind != "gpu pods":
        # The API server gives every pod a spec, and a bound pod stays bound.
        spec = drawn.get("spec")
        drawn["spec"] = {**(spec if isinstance(spec, dict) else {}), "schedulerName": "berth-scheduler"}
        if kind != "waiting pods":
            drawn["spec"]["nodeName"] = "node"
    return drawn


def test_the_objects_are_of_all_kinds() -> None:
    assert Watches().watches.keys() == _BODIES.keys()


@pytest.mark.parametrize("kind", _BODIES)
@settings(max_examples=20)
@given(data=st.data())
def test_an_object_of_any_shape_ends_no_watch(kind: str, data: st.DataObject) -> None:
    watches, good = Watches(), whole(kind)
    drawn = data.draw(odd(kind))
    # The log lines are slow to render.
    with capture_logs():
        if data.draw(st.booleans()):
            watches.put(kind, good)
        watches.put(kind, drawn)
        if kind == "bound pods":
            assert watches.cluster.fleet.charges["uid-bound"].node == "node"
        watches.put(kind, good)
        watches.delete(kind, drawn)
        assert "uid-bound" not in watches.cluster.fleet.charges


def deep() -> Any:
    """Return JSON as deep as it is decoded."""
    value: Any = "x"
    for _ in range(1000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("owners of kind LeaderWorkerSet group", {"spec": {"leaderWorkerTemplate": "x"}}),
        ("owners of kind JobSet", {"spec": {"replicatedJobs": [None]}}),
        ("owners of kind JobSet", {"spec": {"replicatedJobs": [{"name": deep()}]}}),
        ("owners of kind RayCluster", {"spec": {"workerGroupSpecs": 1}}),
        ("pod groups", {"spec": "x"}),
        ("pod groups of scheduling.k8s.io", {}),
        ("admission checks", {}),
        ("admission checks", {"spec": {"controllerName": CONTROLLER}, "status": {"conditions": [None]}}),
        ("nodes", {"status": {"conditions": [{}]}}),
        ("leases", {"spec": {"leaseDurationSeconds": "x"}}),
        ("waiting pods", {"spec": {"containers": ["x"], "schedulerName": "berth-scheduler"}}),
    ],
)
def test_it_is_logged(kind: str, body: Raw) -> None:
    watches = Watches()
    with capture_logs() as logs:
        watches.put(kind, with_metadata(kind, body))
    assert [line["event"] for line in logs] == ["object cannot be read"]
    assert logs[0]["error"]


def test_a_minimum_of_any_depth_is_a_problem_of_the_group() -> None:
    raw = with_metadata("pod groups", {"spec": {"minMember": deep()}})
    assert len(groups.group(raw).problem) < 200


def test_a_workload_of_any_shape_hides_no_other_object() -> None:
    """Each flavor and each check is read again with all Workloads."""
    watches, workload = Watches(), with_quota()
    workload["spec"]["podSets"][0]["name"] = deep()
    watches.put("workloads", with_metadata("workloads", workload))
    with capture_logs() as logs:
        watches.put("resource flavors", with_metadata("resource flavors", flavor(labels={"a": "c"})))
    assert not logs
