"""The status of Kubernetes' PodGroups: the condition that kube-scheduler writes, field by field."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from berth_api import names
from berth_api.values import keys
from berth_operator.core.decision.messages import SCHEDULER_ERROR, UNSCHEDULABLE
from berth_operator.state.cache.views import GroupView
from berth_operator.state.objects.kubernetes_groups import SCHEDULED

EMPTY: Final = {"status": "", "reason": "", "message": "", "observedGeneration": 0}
"""The fields of the condition, with the meaning of an absent field."""

Object = Mapping[str, Any]


def path(view: GroupView) -> str:
    """Return the path of a PodGroup's status."""
    namespace, own = keys.split(view.group.name)
    kind = view.kind
    return f"/apis/{kind.group}/{kind.version}/namespaces/{namespace}/{names.POD_GROUPS}/{own}/status"


def wanted(view: GroupView) -> dict[str, Any]:
    """Return the fields of the condition; empty if the group was not decided yet."""
    reason, message = view.unscheduled
    if view.counts.formed:
        reason, message = "Scheduled", ""
    elif view.problem:
        reason, message = SCHEDULER_ERROR, view.problem
    elif not reason:
        return {}
    elif reason != SCHEDULER_ERROR:
        # kube-scheduler has two reasons; what a pod's condition says beyond them is in the message.
        reason = UNSCHEDULABLE
    return {
        "status": "True" if reason == "Scheduled" else "False",
        "reason": reason,
        "message": message,
        "observedGeneration": view.metadata.get("generation") or 0,
    }


def shows(view: GroupView, condition: Object) -> bool:
    """Return whether the PodGroup shows the fields. A PodGroup that was once scheduled is never unschedulable again."""
    shown = _shown(view)
    if not condition or (shown.get("status") == "True" and condition["status"] != "True"):
        return True
    return all((shown.get(name) or EMPTY[name]) == condition[name] for name in EMPTY)


def patch(view: GroupView, condition: Object, now: Callable[[], str]) -> dict[str, Any]:
    """Return the merge patch for a status, of the version that was read: it has all conditions, also of others."""
    shown = _shown(view)
    since = shown.get("lastTransitionTime") if shown.get("status") == condition["status"] else None
    others = [condition for condition in view.status.get("conditions") or () if condition["type"] != SCHEDULED]
    written = {"type": SCHEDULED, **condition, "lastTransitionTime": since or now()}
    version = {"uid": view.group.uid, "resourceVersion": view.metadata["resourceVersion"]}
    return {"metadata": version, "status": {"conditions": [*others, written]}}


def _shown(view: GroupView) -> Object:
    conditions = view.status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == SCHEDULED), {})
