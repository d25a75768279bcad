"""Workloads, ResourceFlavors and AdmissionChecks of Kueue, as Kueue and administrators write them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Raw = dict[str, Any]

API: Final = "kueue.x-k8s.io/v1beta2"
CONTROLLER: Final = "berth.dev/fits-devices"
CHECK: Final = "fits"
FLAVOR: Final = "any"
TIME: Final = "2026-01-02T03:04:05Z"
LATER: Final = "2026-01-02T03:04:06Z"


def pod_set(name: str = "main", *, count: int = 1, metadata: Raw | None = None, **spec: Any) -> Raw:
    """Return a pod set of pods that request one card each, unless `requests` says otherwise."""
    requests = spec.pop("requests", {"kubernetes.io/gpu": "100"})
    container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
    template = {"metadata": metadata or {}, "spec": {"containers": [container], "restartPolicy": "Never", **spec}}
    return {"name": name, "count": count, "template": template}


def check_state(state: str = "Pending", *, name: str = CHECK, message: str = "", **fields: Any) -> Raw:
    """Return an entry of `status.admissionChecks`."""
    return {"name": name, "state": state, "message": message, "lastTransitionTime": TIME, **fields}


def condition(kind: str, *, status: str = "True", since: str = TIME) -> Raw:
    """Return a condition of a Workload."""
    return {"type": kind, "status": status, "reason": kind, "message": "", "lastTransitionTime": since}


def assignment(name: str = "main", *, flavor: str = FLAVOR, **fields: Any) -> Raw:
    """Return what Kueue assigned to a pod set; without a flavor, no resource is covered."""
    return {"name": name, "flavors": {"quota.berth.dev/gpu": flavor} if flavor else {}, **fields}


def workload(
    name: str = "job",
    *pod_sets: Raw,
    checks: Sequence[Raw] | None = None,
    assigned: Sequence[Raw] | None = None,
    conditions: Sequence[Raw] = (),
    **fields: Any,
) -> Raw:
    """Return a Workload of the namespace `ns`; it has quota once there are assignments."""
    sets = list(pod_sets) or [pod_set()]
    status: Raw = {"admissionChecks": [check_state()] if checks is None else list(checks)}
    if assigned is not None:
        status["admission"] = {"clusterQueue": "queue", "podSetAssignments": list(assigned)}
        conditions = [condition("QuotaReserved"), *conditions]
    status["conditions"] = list(conditions)
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": TIME,
            **fields.pop("metadata", {}),
        },
        "spec": {"podSets": sets, "queueName": "default", "priority": 0, "active": True, **fields},
        "status": status,
    }


def with_quota(name: str = "job", *pod_sets: Raw, **fields: Any) -> Raw:
    """Return a Workload with quota of the flavor for all its pod sets."""
    sets = list(pod_sets) or [pod_set()]
    return workload(name, *sets, assigned=[assignment(each["name"], count=each["count"]) for each in sets], **fields)


def flavor(name: str = FLAVOR, labels: Mapping[str, str] | None = None, tolerations: Sequence[Raw] = ()) -> Raw:
    """Return a ResourceFlavor."""
    spec = {"nodeLabels": dict(labels or {}), "tolerations": list(tolerations)}
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def admission_check(name: str = CHECK, *, controller: str = CONTROLLER, **spec: Any) -> Raw:
    """Return an AdmissionCheck."""
    return {
        "apiVersion": API,
        "kind": "AdmissionCheck",
        "metadata": {"name": name, "resourceVersion": "1", "generation": 1},
        "spec": {"controllerName": controller, **spec},
    }
