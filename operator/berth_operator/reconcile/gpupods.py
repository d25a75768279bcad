"""The status of a GpuPod: whether its pod holds what it was allocated."""

from collections.abc import Callable
from typing import Any

from berth_api import keys, names
from berth_operator.state.kubelet import Consistency
from berth_operator.state.views import GpuPodView


def path(name: str) -> str:
    """Return the path of a GpuPod's status."""
    namespace, own = keys.split(name)
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.GPUPODS}/{own}/status"


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
