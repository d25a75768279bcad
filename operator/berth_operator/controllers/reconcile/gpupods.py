"""The status of a GpuPod: whether its pod holds what it was allocated. Also finds GpuPods that belong to no pod.

With an agent's stolen token, an attacker can create GpuPods for pods on other nodes and for pods that do not exist.
"""

from collections.abc import Callable, Mapping
from typing import Any

from berth_api import names
from berth_api.values import keys
from berth_operator.state.cache.views import GpuPodView
from berth_operator.state.objects.kubelet import UNREADABLE


def path(name: str) -> str:
    """Return the path of a GpuPod."""
    namespace, own = keys.split(name)
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.GPUPODS}/{own}"


def pod_path(view: GpuPodView) -> str:
    """Return the path of the pod of a GpuPod's name."""
    namespace, own = keys.split(view.record.actual.pod)
    return f"/api/v1/namespaces/{namespace}/pods/{own}"


def may_be_orphan(view: GpuPodView) -> bool:
    """Return whether its pod has to be read. An unreadable GpuPod, of a later version, does not show its pod."""
    return not view.is_of_known_pod and view.record.actual.node != UNREADABLE


def is_orphan(view: GpuPodView, pod: Mapping[str, Any] | None) -> bool:
    """Return whether the pod of a GpuPod's name, read at quorum, does not exist or has another UID or node."""
    actual = view.record.actual
    return pod is None or (actual.uid, actual.node) != (pod["metadata"]["uid"], pod["spec"].get("nodeName"))


def patch(view: GpuPodView, now: Callable[[], str]) -> dict[str, Any] | None:
    """Return the merge patch of the GpuPod's condition, with its UID; None if nothing has to be written."""
    before = next((condition for condition in view.record.conditions if condition.get("type") == names.CONSISTENT), {})
    if view.consistency is None:
        return None
    status, reason, message = view.consistency
    written = {"status": status, "reason": reason, "message": message}
    if all(before.get(name) == value for name, value in written.items()):
        return None
    others = [condition for condition in view.record.conditions if condition.get("type") != names.CONSISTENT]
    since = (before.get("lastTransitionTime") if before.get("status") == status else None) or now()
    condition = {"type": names.CONSISTENT, **written, "lastTransitionTime": since}
    return {"metadata": {"uid": view.record.uid}, "status": {"conditions": [*others, condition]}}
