"""Parts of Kubernetes objects."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from berth_api.objects.visibility import PodOwner

Object = dict[str, Any]


def name_of(obj: Object) -> str:
    """Return the object's name."""
    return str(obj["metadata"]["name"])


def natural(name: str) -> list[tuple[str, int]]:
    """Return a key that sorts node-2 before node-10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def key_of(obj: Object) -> tuple[str, str]:
    """Return namespace and name of an object."""
    return str(obj["metadata"].get("namespace") or ""), name_of(obj)


def condition(obj: Object, kind: str) -> Mapping[str, Any]:
    """Return one condition of an object; empty if it has none of that type."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def controller_of(pod: Object) -> Mapping[str, Any]:
    """Return the reference to the controller of a pod; empty if it has none."""
    references = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in references if owner.get("controller")), {})


def owner_of(pod: Object) -> PodOwner:
    """Return the controller of a pod: of a ReplicaSet its Deployment or Rollout, by the template's hash in its name."""
    controller = controller_of(pod)
    if not controller:
        return {"kind": "", "name": ""}
    kind, name = str(controller["kind"]), str(controller["name"])
    for label, above in {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}.items():
        template = (pod["metadata"].get("labels") or {}).get(label, "")
        if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
            return {"kind": above, "name": name.removesuffix(f"-{template}")}
    return {"kind": kind, "name": name}


def time_of(text: str) -> datetime | None:
    """Return a time in RFC 3339; None if it cannot be read."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
