"""Pods that request no device: why they hold none, and which of their fields suggest that they should."""

import re
from collections.abc import Mapping
from typing import Any, Final

from berth_api import names, resources
from berth_api.request import genius, mistakes, nearest
from berth_api.request.amounts import is_device
from berth_api.request.kinds import BUILT_IN, Kinds
from berth_api.resources import quantity
from berth_api.words import misspelt

Object = Mapping[str, Any]

_CARDS: Final = re.compile("[1-9][0-9]{0,3}")
ABOUT_DEVICES: Final = (
    names.ALLOCATE_HINT,
    names.JOINT_ALLOCATE,
    names.PARTITION_SPEC,
    names.MIN_GPU_MEMORY,
    names.GPU_TOPOLOGY,
    names.GPU_TOPOLOGY_POLICY,
    names.GPU_SUBDEVICES,
    names.MIXED_GPUS,
    names.ISOLATION_KEY,
    names.MODEL_EXACT,
    names.MODEL_GLOBS,
)
"""Annotations that have an effect only on a pod that requests devices."""


def why_none(pod: Object, kinds: Kinds = BUILT_IN) -> str:
    """Return why a pod holds no device, with the parts of it that look like a request; empty if it requests one.

    If the pod has ResourceClaims, the devices are those of the claims, which are named.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if claims := _claims(pod):
        plural = "s" if len(claims) > 1 else ""
        return f"its devices are those of ResourceClaim{plural} {', '.join(claims)}"
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    requested = resources.total(resources.from_limits(spec))
    if any(amount and is_device(name, kinds) for name, amount in requested.items()):
        return ""
    if any(label in labels for label in genius.LABELS):
        return ""
    seen = []
    # Containers that request 0 devices.
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        written = container.get("resources") or {}
        for name, amount in {**(written.get("limits") or {}), **(written.get("requests") or {})}.items():
            if is_device(name, kinds) and not quantity.parse(str(amount)):
                seen.append(f"container {container['name']} has {name}: {amount}")
    seen += [f"annotation {name} has no effect without a request" for name in ABOUT_DEVICES if name in annotations]
    # Annotations with the name of a GPU resource. `warnings.yaml` asks this in CEL.
    cards = {name: value for name, value in annotations.items() if name.endswith(("/gpu", "/gpus"))}
    for name, value in cards.items():
        meant = nearest.in_hundredths(int(value) if _CARDS.fullmatch(value) else None)
        seen.append(f"annotation {name}: did you mean the resource {meant}?")
    seen += [*misspelt.questions(annotations, labels), *mistakes.visible_devices(spec, 0)]
    return "it holds no device, because it requests none" + (f": {'; '.join(seen)}" if seen else "")


def _claims(pod: Object) -> list[str]:
    """Return the names of a pod's ResourceClaims, or its own names for claims that are not made yet."""
    status = pod.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()}
    claims = [
        str(each.get("resourceClaimName") or made.get(each["name"]) or each["name"])
        for each in pod["spec"].get("resourceClaims") or ()
    ]
    extended = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    return [*claims, *([str(extended)] if extended else [])]
