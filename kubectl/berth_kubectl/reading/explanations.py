"""What the API server itself shows of why a pod waits: its condition and its Events."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from berth_api import allocation, names
from berth_api.admission import routing
from berth_api.objects import device_text
from berth_api.objects.visibility import PodExplanation
from berth_api.words import no_devices
from berth_kubectl.reading.objects import Object, condition, key_of
from berth_kubectl.reading.queue import group_of

ENDED: Final = ("Succeeded", "Failed")


def of_pod(pod: Object, schedulers: Collection[str]) -> PodExplanation:
    """Return an explanation without reasons per node."""
    metadata = pod["metadata"]
    scheduled = condition(pod, "PodScheduled")
    state = state_of(pod, schedulers)
    message = str(scheduled.get("message") or "")
    spec = pod["spec"]
    if state == "NotManaged":
        message = "; ".join(filter(None, (routing.why_not_ours(pod, schedulers), message)))
    elif state == "Bound":
        message = f"bound to {spec['nodeName']}{_devices(pod)}"
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


def _devices(pod: Object) -> str:
    """Return the devices of a bound pod's allocation, in the words of its Event; or why it has none."""
    annotation = (pod["metadata"].get("annotations") or {}).get(names.ALLOCATED, "{}")
    try:
        grants = allocation.parse(annotation)
    except allocation.AllocationError:
        return " with an allocation that cannot be read"
    if grants:
        return f" with {device_text.joined(map(_device, grants))}"
    return f"; {why}" if (why := no_devices.why_none(pod)) else ""


def _device(grant: allocation.Grant) -> str:
    name, share = device_text.of_device(grant.type, grant.minor, grant.id), device_text.of_share(grant)
    return f"{name} ({share})" if share else name


def first_waiting(pods: Iterable[Object]) -> Object | None:
    """Return the pod that is tried first of those that wait: by priority and age."""
    waiting = [pod for pod in pods if is_waiting(pod)]
    return min(waiting, key=_order, default=None)


def is_waiting(pod: Object) -> bool:
    """Return whether a pod has no node yet."""
    return (
        not pod["spec"].get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
        and (pod.get("status") or {}).get("phase") not in ENDED
    )


def _order(pod: Object) -> tuple[int, str, tuple[str, str]]:
    return -pod["spec"].get("priority", 0), pod["metadata"].get("creationTimestamp", ""), key_of(pod)


def members(pods: Iterable[Object], group: str) -> list[Object]:
    """Return the pods of a gang."""
    return [pod for pod in pods if group_of(pod) == group]


def selector(spec: Object) -> str:
    """Return the label selector of a workload as text."""
    labels = spec.get("matchLabels") or {}
    parts = [f"{name}={value}" for name, value in labels.items()]
    return ",".join([*parts, *map(_expression, spec.get("matchExpressions") or ())])


def _expression(expression: Object) -> str:
    key, operator = str(expression["key"]), expression["operator"]
    if operator == "Exists":
        return key
    if operator == "DoesNotExist":
        return f"!{key}"
    return f"{key} {'in' if operator == 'In' else 'notin'} ({','.join(expression.get('values') or ())})"


def events(listed: Sequence[Object]) -> list[dict[str, Any]]:
    """Return the Events of a pod for people: the latest last."""
    return sorted(
        (
            {
                "time": _time(event),
                "type": str(event.get("type") or ""),
                "reason": str(event.get("reason") or ""),
                "message": str(event.get("message") or ""),
                "count": (event.get("series") or {}).get("count") or event.get("count") or 1,
            }
            for event in listed
        ),
        key=lambda event: str(event["time"]),
    )


def _time(event: Object) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
