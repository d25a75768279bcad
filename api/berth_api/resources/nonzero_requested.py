"""The cpu and memory that scores count for containers without a request, as kube-scheduler's NonZeroRequested.

Without them, a node with a thousand of these containers would look empty. Filters count only requests.
"""

from collections.abc import Mapping
from typing import Any, Final

from berth_api import resources
from berth_api.resources import CPU, MEMORY, resize

Object = Mapping[str, Any]

DEFAULTS: Final = {CPU: "100m", MEMORY: "200Mi"}
"""For each container that does not name the resource; an explicit zero stays zero."""


def of_pod(spec: Object, status: Object, *, by_sums: bool = True) -> tuple[int, int]:
    """Return the cpu (thousandths of a core) and memory (bytes) of a pod; the status counts as in `resize.held`."""
    # Requests at the pod's level replace those of its containers; only what they leave out has a default.
    at_pod_level = resize.held(spec, status, by_sums=by_sums) if resources.level(spec) else {}
    defaults = {name: amount for name, amount in DEFAULTS.items() if name not in at_pod_level}
    kinds = ("initContainers", "containers")
    filled = {kind: [_filled(container, defaults) for container in spec.get(kind) or ()] for kind in kinds}
    total = resize.held({**spec, **filled}, status, by_sums=by_sums)
    return total.get(CPU, 0), total.get(MEMORY, 0)


def _filled(container: Object, defaults: Mapping[str, str]) -> Object:
    resources = container.get("resources") or {}
    return {**container, "resources": {**resources, "requests": {**defaults, **(resources.get("requests") or {})}}}
