"""What a bound pod uses of its node while it is resized in place.

A resize changes the spec immediately, and the running containers later or never. Until they agree, a container counts
with the largest of its spec's requests, what kubelet has allocated to it and what it actually has. A resize that
kubelet calls infeasible will not happen, so the spec does not count. The same is true for requests at the pod's level.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from berth_api import resources
from berth_api.resources import Amounts, Container

Object = Mapping[str, Any]

READS: Final = ("containerStatuses", "initContainerStatuses", "conditions", "resources", "allocatedResources")
"""The fields of a pod's status that are read here."""


def held(spec: Object, status: Object) -> Amounts:
    """Return what a bound pod uses of its node.

    Raises:
        ResourceError: as `resources.total`.
    """
    infeasible = _is_infeasible(status)
    statuses = _by_name(status)
    parts = [
        replace(container, requests=_largest(container.requests, statuses.get(container.name), infeasible=infeasible))
        if _counts(container)
        else container
        for container in resources.containers(spec)
    ]
    pod_level = resources.level(spec)
    largest = _largest(pod_level, status, infeasible=infeasible)
    return resources.completed(resources.combined(parts), {name: largest.get(name, 0) for name in pod_level}, spec)


def _counts(part: Container) -> bool:
    """Return whether a container can be resized: init containers end before that."""
    return part.sidecar or not part.init


def _largest(requests: Mapping[str, int], status: Object | None, *, infeasible: bool) -> Amounts:
    """Return the largest of what is requested, allocated and actual, as far as kubelet reports it."""
    if status is None or status.get("resources") is None:
        return dict(requests)
    real = resources.amounts(status["resources"].get("requests"), "status.resources.requests")
    allocated = resources.amounts(status.get("allocatedResources"), "status.allocatedResources")
    largest = resources.highest(real, allocated)
    return largest if infeasible else resources.highest(requests, largest)


def _by_name(status: Object) -> dict[str, Object]:
    statuses: Iterable[Object] = (
        *(status.get("containerStatuses") or ()),
        *(status.get("initContainerStatuses") or ()),
    )
    return {entry["name"]: entry for entry in statuses}


def _is_infeasible(status: Object) -> bool:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodResizePending":
            return bool(condition.get("reason") == "Infeasible")
    return False
