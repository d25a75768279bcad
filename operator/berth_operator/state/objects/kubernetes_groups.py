"""Kubernetes' own PodGroups (`scheduling.k8s.io`), which `spec.schedulingGroup` of pods names.

A group with the basic policy needs a single member.
"""

from collections.abc import Mapping
from typing import Any, Final

from berth_api.values import keys
from berth_operator.core.queue.gang_tracker import Group

Object = Mapping[str, Any]

SCHEDULED: Final = "PodGroupInitiallyScheduled"
"""The type of the condition that records whether the needed members were scheduled once."""

READ: Final = (
    "schedulingPolicy",
    "schedulingConstraints",
    "disruptionMode",
    "priority",
    "parentCompositePodGroupName",
    "resourceClaims",
)
"""The fields of the spec that are read."""


def name_in(spec: Object) -> str:
    """Return the name of the PodGroup that a pod's spec names; empty if it names none."""
    return str((spec.get("schedulingGroup") or {}).get("podGroupName") or "")


def group(raw: Object) -> Group:
    """Read a PodGroup; `problem` names a field that Berth does not support."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    name = keys.of(raw)
    unsupported = ""
    if spec.get("parentCompositePodGroupName"):
        unsupported = "spec.parentCompositePodGroupName makes it a part of a CompositePodGroup"
    elif spec.get("resourceClaims"):
        unsupported = "spec.resourceClaims reserves ResourceClaims for the group"
    conditions = [(condition["type"], condition["status"]) for condition in status.get("conditions") or ()]
    # The API allows one.
    constraints = (spec.get("schedulingConstraints") or {}).get("topology") or ()
    return Group(
        name=name,
        uid=metadata["uid"],
        minimum=((spec.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount") or 1,
        created=metadata.get("creationTimestamp") or "",
        formed=(SCHEDULED, "True") in conditions,
        problem=f"PodGroup {name}: {unsupported}, which Berth does not support" if unsupported else "",
        is_kubernetes=True,
        priority=spec.get("priority") or 0,
        topology_key=next((str(constraint["key"]) for constraint in constraints), ""),
        leaves_whole="all" in (spec.get("disruptionMode") or {}),
    )
