"""Queue rows from pending pods, used if the visibility API does not give the order."""

from collections.abc import Collection, Iterable
from datetime import datetime

from berth_api import names, resources
from berth_api.objects.visibility import Amounts, QueuedPod
from berth_api.resources import ResourceError
from berth_kubectl.reading.objects import Object, condition, key_of, time_of


def rows(pods: Iterable[Object], *, schedulers: Collection[str], now: datetime) -> list[QueuedPod]:
    """Return a row for each pod of these schedulers that waits, by priority and age: the order is not known."""
    waiting = [
        pod
        for pod in pods
        if pod["spec"].get("schedulerName") in schedulers
        and not pod["spec"].get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
    ]
    queued = []
    for pod in sorted(waiting, key=by_priority_and_age):
        metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
        created = str(metadata.get("creationTimestamp", ""))
        since = time_of(created)
        row: QueuedPod = {
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "creationTimestamp": created,
            },
            "position": 0,
            "state": "gated" if spec.get("schedulingGates") else "",
            "priority": spec.get("priority", 0),
            "waitingSeconds": max(0, int((now - since).total_seconds())) if since else 0,
            "scheduler": spec.get("schedulerName", ""),
            "requests": requests_of(spec),
            "backoffSeconds": 0.0,
            "wakesOn": [],
            "message": str(condition(pod, "PodScheduled").get("message", "")),
            "reservedNode": status.get("nominatedNodeName", ""),
        }
        if group := group_of(pod):
            row["gang"] = {"name": group}
        queued.append(row)
    return queued


def by_priority_and_age(pod: Object) -> tuple[int, str, tuple[str, str]]:
    """Return the order in which pods are tried, as far as their objects show it."""
    return -pod["spec"].get("priority", 0), pod["metadata"].get("creationTimestamp", ""), key_of(pod)


def requests_of(spec: Object) -> Amounts:
    """Return what a pod requests; nothing if it cannot be read."""
    try:
        return resources.total(spec)
    except ResourceError:
        return {}


def group_of(pod: Object) -> str:
    """Return the name of the pod's gang; empty for single pods."""
    labels, annotations = pod["metadata"].get("labels") or {}, pod["metadata"].get("annotations") or {}
    group = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    labelled = (labels.get(names.POD_GROUP_LABEL), labels.get(names.OLD_POD_GROUP_LABEL))
    return next(filter(None, (group, *labelled, annotations.get(names.POD_GROUP))), "")
