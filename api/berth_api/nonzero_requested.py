"""What is assumed of containers that name no cpu or memory, so that a thousand of them do not all seem to be nothing.

Only preferences use it, as kube-scheduler's do; what fits is decided by what is asked.
"""

from collections.abc import Mapping
from typing import Any, Final

from berth_api import resize, resources
from berth_api.resources import CPU, MEMORY

Object = Mapping[str, Any]

DEFAULTS: Final = {CPU: "100m", MEMORY: "200Mi"}
"""For each container that does not name the resource at all; zero is an answer."""


def of_pod(spec: Object, status: Object) -> tuple[int, int]:
    """Give a pod's cpu and memory with what is assumed; the status counts as in `resize.held`."""
    # A pod that says at its own level what it needs is only helped out with what it says nowhere.
    at_pod_level = resize.held(spec, status) if resources.level(spec) else {}
    defaults = {name: amount for name, amount in DEFAULTS.items() if name not in at_pod_level}
    kinds = ("initContainers", "containers")
    filled = {kind: [_filled(container, defaults) for container in spec.get(kind) or ()] for kind in kinds}
    total = resize.held({**spec, **filled}, status)
    return total.get(CPU, 0), total.get(MEMORY, 0)


def _filled(container: Object, defaults: Mapping[str, str]) -> Object:
    resources = container.get("resources") or {}
    return {**container, "resources": {**resources, "requests": {**defaults, **(resources.get("requests") or {})}}}
