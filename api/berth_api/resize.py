"""What a bound pod takes of its node while it is resized in place.

A resize changes the spec at once, and the running containers later or never. Until they agree, a container takes the
most of what its spec asks, what kubelet has allocated to it and what it really has. A resize that kubelet calls
infeasible will not come, so the spec does not count. The same holds for requests at the pod's level.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from berth_api import resources
from berth_api.resources import Amounts, Container

Object = Mapping[str, Any]

READS: Final = ("containerStatuses", "initContainerStatuses", "conditions", "resources", "allocatedResources")
"""The fields of a pod's status that count here."""


def held(spec: Object, status: Object) -> Amounts:
    """Give what a bound pod takes of its node.

    Raises:
        ResourceError: as `resources.total`.
    """
    infeasible = _is_infeasible(status)
    statuses = _by_name(status)
    parts = [
        replace(container, requests=_most(container.requests, statuses.get(container.name), infeasible=infeasible))
        if _counts(container)
        else container
        for container in resources.containers(spec)
    ]
    pod_level = resources.level(spec)
    most = _most(pod_level, status, infeasible=infeasible)
    return resources.completed(resources.combined(parts), {name: most.get(name, 0) for name in pod_level}, spec)


def _counts(part: Container) -> bool:
    """Leave out init containers that end: they run before anything could resize them."""
    return part.sidecar or not part.init


def _most(requests: Mapping[str, int], status: Object | None, *, infeasible: bool) -> Amounts:
    """Give the most of what is asked, allocated and real, where kubelet has told it."""
    if status is None or status.get("resources") is None:
        return dict(requests)
    real = resources.amounts(status["resources"].get("requests"), "status.resources.requests")
    allocated = resources.amounts(status.get("allocatedResources"), "status.allocatedResources")
    most = resources.highest(real, allocated)
    return most if infeasible else resources.highest(requests, most)


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
