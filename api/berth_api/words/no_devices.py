"""Pods that request no device: why they hold none, and which of their fields suggest that they should."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from berth_api import names, resources
from berth_api.request import genius, mistakes
from berth_api.request.amounts import is_device
from berth_api.request.kinds import BUILT_IN, Kinds
from berth_api.resources import quantity
from berth_api.words import misspelt

Object = Mapping[str, Any]

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
    """Return why a pod holds no device, with the parts of it that look like a request; empty if it requests one."""
    metadata, spec = pod["metadata"], pod["spec"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    if _requests_any(spec, kinds) or any(label in labels for label in genius.LABELS):
        return ""
    questions = (*misspelt.questions(annotations, labels), *mistakes.visible_devices(spec, 0))
    seen = "; ".join((*_zeros(spec, kinds), *_without_effect(annotations), *_like_resources(annotations), *questions))
    return "it holds no device, because it requests none" + (f": {seen}" if seen else "")


def _requests_any(spec: Object, kinds: Kinds) -> bool:
    requested = resources.total(resources.from_limits(spec))
    return any(amount and is_device(name, kinds) for name, amount in requested.items())


def _zeros(spec: Object, kinds: Kinds) -> Iterator[str]:
    """Yield the devices for which a container requests 0."""
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        written = container.get("resources") or {}
        for name, amount in {**(written.get("limits") or {}), **(written.get("requests") or {})}.items():
            if is_device(name, kinds) and not quantity.parse(str(amount)):
                yield f"container {container['name']} has {name}: {amount}"


def _like_resources(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield a question for each annotation with the name of a GPU resource. `warnings.yaml` asks it in CEL."""
    for name in annotations:
        if name.endswith(("/gpu", "/gpus")):
            yield f"annotation {name}: did you mean the resource {names.PREFIX}{names.GPU}?"


def _without_effect(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield the annotations about devices."""
    for name in ABOUT_DEVICES:
        if name in annotations:
            yield f"annotation {name} has no effect without a request"
