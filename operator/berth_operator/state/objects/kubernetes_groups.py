"""Kubernetes' own PodGroups (`scheduling.k8s.io`), which `spec.schedulingGroup` of pods names.

A group with the basic policy needs a single member.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from berth_operator.core.queue.gang_tracker import Group

Object = Mapping[str, Any]

SCHEDULED: Final = "PodGroupInitiallyScheduled"
"""The type of the condition that says whether the members that are needed were scheduled once."""

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
    name = f"{metadata['namespace']}/{metadata['name']}"
    unsupported = next(_unsupported(spec), "")
    problem = f"PodGroup {name}: {unsupported}, which Berth does not support" if unsupported else ""
    return Group(
        name=name,
        uid=metadata["uid"],
        minimum=((spec.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount") or 1,
        created=metadata.get("creationTimestamp") or "",
        formed=any(_is_scheduled(condition) for condition in status.get("conditions") or ()),
        problem=problem,
        is_kubernetes=True,
        priority=spec.get("priority") or 0,
        topology_key=next(_topology_keys(spec), ""),
        leaves_whole="all" in (spec.get("disruptionMode") or {}),
    )


def _is_scheduled(condition: Object) -> bool:
    return (condition["type"], condition["status"]) == (SCHEDULED, "True")


def _topology_keys(spec: Object) -> Iterator[str]:
    """Yield the keys of the constraints; the API allows one."""
    return (str(each["key"]) for each in (spec.get("schedulingConstraints") or {}).get("topology") or ())


def _unsupported(spec: Object) -> Iterator[str]:
    if spec.get("parentCompositePodGroupName"):
        yield "spec.parentCompositePodGroupName makes it a part of a CompositePodGroup"
    if spec.get("resourceClaims"):
        yield "spec.resourceClaims reserves ResourceClaims for the group"
