"""What the API server itself shows of why a pod waits: its condition and its Events."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from berth_api import allocation, names
from berth_api.admission import routing
from berth_api.objects import device_text
from berth_api.objects.visibility import PodExplanation
from berth_api.words import no_devices
from berth_kubectl.reading.objects import Object, condition
from berth_kubectl.reading.queue import by_priority_and_age, group_of

ENDED: Final = ("Succeeded", "Failed")


def of_pod(pod: Object, schedulers: Collection[str], now: datetime) -> PodExplanation:
    """Return an explanation without reasons per node."""
    metadata = pod["metadata"]
    scheduled = condition(pod, "PodScheduled")
    state = state_of(pod, schedulers)
    message = str(scheduled.get("message") or "")
    spec = pod["spec"]
    if state == "NotManaged":
        untried = routing.why_untried(pod, now)
        message = "; ".join(filter(None, (routing.why_not_ours(pod, schedulers), untried, message)))
    elif state == "Bound":
        message = f"bound to {spec['nodeName']}"
        try:
            grants = allocation.parse((metadata.get("annotations") or {}).get(names.ALLOCATED, "{}"))
        except allocation.AllocationError:
            message += " with an allocation that cannot be read"
        else:
            # In the words of the pod's Event.
            parts = []
            for grant in grants:
                share = device_text.of_share(grant)
                name = device_text.of_device(grant.type, grant.minor, grant.id)
                parts.append(f"{name} ({share})" if share else name)
            if parts:
                message += f" with {device_text.joined(parts)}"
            elif why := no_devices.why_none(pod):
                message += f"; {why}"
    elif state == "Gated":
        message = f"waits for its scheduling gates: {', '.join(gate['name'] for gate in spec['schedulingGates'])}"
    else:
        message = message or "it has no condition PodScheduled yet: no operator has decided it"
    return {
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "state": state,
        "message": message,
    }


def state_of(pod: Object, schedulers: Collection[str]) -> str:
    """Return the state of a pod, in the words of the visibility API."""
    spec = pod["spec"]
    if spec.get("schedulerName") not in schedulers:
        return "NotManaged"
    if spec.get("nodeName"):
        return "Bound"
    return "Gated" if spec.get("schedulingGates") else "Waiting"


def first_waiting(pods: Iterable[Object]) -> Object | None:
    """Return the pod that is tried first of those that wait: by priority and age."""
    return min(filter(is_waiting, pods), key=by_priority_and_age, default=None)


def is_waiting(pod: Object) -> bool:
    """Return whether a pod has no node yet."""
    return (
        not pod["spec"].get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
        and (pod.get("status") or {}).get("phase") not in ENDED
    )


def members(pods: Iterable[Object], group: str) -> list[Object]:
    """Return the pods of a gang."""
    return [pod for pod in pods if group_of(pod) == group]


def selector(spec: Object) -> str:
    """Return the label selector of a workload as text."""
    labels = spec.get("matchLabels") or {}
    parts = [f"{name}={value}" for name, value in labels.items()]
    for expression in spec.get("matchExpressions") or ():
        key, operator = str(expression["key"]), expression["operator"]
        if operator == "Exists":
            parts.append(key)
        elif operator == "DoesNotExist":
            parts.append(f"!{key}")
        else:
            values = ",".join(expression.get("values") or ())
            parts.append(f"{key} {'in' if operator == 'In' else 'notin'} ({values})")
    return ",".join(parts)


def events(listed: Sequence[Object]) -> list[dict[str, Any]]:
    """Return the Events of a pod for people: the latest last."""
    rows = []
    for event in listed:
        series = event.get("series") or {}
        last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
        rows.append(
            {
                "time": str(last or event["metadata"]["creationTimestamp"]),
                "type": str(event.get("type") or ""),
                "reason": str(event.get("reason") or ""),
                "message": str(event.get("message") or ""),
                "count": series.get("count") or event.get("count") or 1,
            }
        )
    return sorted(rows, key=lambda event: str(event["time"]))
