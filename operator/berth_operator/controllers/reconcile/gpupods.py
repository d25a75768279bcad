"""The status of a GpuPod: whether its pod holds what it was allocated; and which GpuPods are of no pod.

An agent can create a GpuPod with the name of a pod that runs on another node, which keeps the agent of that node from
creating the right one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from berth_api import names
from berth_api.values import keys
from berth_operator.state.cache.views import GpuPodView
from berth_operator.state.objects.kubelet import UNREADABLE, Consistency


def path(name: str) -> str:
    """Return the path of a GpuPod."""
    namespace, own = keys.split(name)
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.GPUPODS}/{own}"


def pod_path(name: str) -> str:
    """Return the path of the pod with a GpuPod's name."""
    namespace, own = keys.split(name)
    return f"/api/v1/namespaces/{namespace}/pods/{own}"


def is_misplaced(view: GpuPodView, pod: Mapping[str, Any]) -> bool:
    """Return whether a GpuPod names another UID or node than the pod of its name, read at quorum."""
    actual = view.record.actual
    if actual.node == UNREADABLE:
        return False  # a later version of its agent wrote it
    return (actual.uid, actual.node) != (pod["metadata"]["uid"], pod["spec"].get("nodeName"))


def patch(view: GpuPodView, now: Callable[[], str]) -> dict[str, Any] | None:
    """Return the merge patch of the GpuPod's condition, with its UID; None if nothing has to be written."""
    before = next((each for each in view.record.conditions if each.get("type") == names.CONSISTENT), {})
    if view.consistency is None or view.consistency == tuple(
        before.get(name) for name in ("status", "reason", "message")
    ):
        return None
    others = [each for each in view.record.conditions if each.get("type") != names.CONSISTENT]
    since = before.get("lastTransitionTime") if before.get("status") == view.consistency[0] else now()
    return {
        "metadata": {"uid": view.record.uid},
        "status": {"conditions": [*others, _condition(view.consistency, since or now())]},
    }


def _condition(consistency: Consistency, since: str) -> dict[str, str]:
    status, reason, message = consistency
    return {
        "type": names.CONSISTENT,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }
