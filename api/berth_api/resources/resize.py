"""What a bound pod uses of its node while it is resized in place.

A resize changes the spec at once, and the running containers later or never. Until they agree, the pod counts with the
largest of its spec's requests, kubelet's allocation and its actual resources. From Kubernetes 1.37 on, this is the
largest of the sums over containers. Before 1.37, it is the largest for each container. A resize that kubelet calls
infeasible will not happen, so the spec does not count. The same applies to requests at the pod's level.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, Final

from berth_api import resources
from berth_api.resources import Amounts, Container

Object = Mapping[str, Any]

READS: Final = ("containerStatuses", "initContainerStatuses", "conditions", "resources", "allocatedResources")
"""The fields of a pod's status that are read here."""


def held(spec: Object, status: Object, *, by_sums: bool = True) -> Amounts:
    """Return a bound pod's use of its node. `by_sums`: compute it as Kubernetes 1.37 and later do, else as before.

    Raises:
        ResourceError: as `resources.total`.
    """
    return _held_by_sums(spec, status) if by_sums else _held_by_containers(spec, status)


# --- from 1.37 on -----------------------------------------------------------------------------------------------


def _held_by_sums(spec: Object, status: Object) -> Amounts:
    infeasible = _is_infeasible(status)
    # The containers' totals: requested, unless the resize is infeasible, allocated, and actual.
    parts, statuses = resources.containers(spec), _by_name(status)
    requested = [] if infeasible else [resources.combined(parts)]
    allocated, actual = _allocated(status), _actual(status)
    if allocated is not None and actual is not None:
        sums = [*requested, allocated, actual]
    elif requested and not statuses:
        sums = requested
    else:
        known = [_known(part, statuses.get(part.name) or {}, infeasible=infeasible) for part in parts]
        totals = (
            resources.combined(replace(part, requests=requests) for part, requests in zip(parts, amounts, strict=True))
            for amounts in zip(*known, strict=True)
        )
        sums = [*requested, *totals]
    needed = _highest(sums)
    level = resources.level(spec)
    if level and status.get("resources") is not None:
        level = _highest([{} if infeasible else level, _actual(status) or {}, _allocated(status) or {}])
        level = {name: amount for name, amount in level.items() if resources.is_of_pod_level(name)}
    return resources.completed(needed, level, spec)


def _known(part: Container, status: Object, *, infeasible: bool) -> tuple[Amounts, Amounts]:
    """Return a container's allocated and actual amounts. If kubelet does not report them, its requests count."""
    allocated, actual = _allocated(status), _actual(status)
    if allocated is None:
        allocated = {} if infeasible else dict(part.requests)
    return allocated, allocated if actual is None else actual


def _highest(lists: Iterable[Mapping[str, int]]) -> Amounts:
    return reduce(resources.highest, lists, Amounts())


# --- before 1.37 ------------------------------------------------------------------------------------------------


def _held_by_containers(spec: Object, status: Object) -> Amounts:
    infeasible = _is_infeasible(status)
    statuses = _by_name(status)
    # Init containers, except sidecars, end before a resize.
    parts = [
        replace(container, requests=_largest(container.requests, statuses.get(container.name), infeasible=infeasible))
        if container.sidecar or not container.init
        else container
        for container in resources.containers(spec)
    ]
    pod_level = resources.level(spec)
    largest = _largest(pod_level, status, infeasible=infeasible)
    return resources.completed(resources.combined(parts), {name: largest.get(name, 0) for name in pod_level}, spec)


def _largest(requests: Mapping[str, int], status: Object | None, *, infeasible: bool) -> Amounts:
    """Return the largest of the requested, allocated and actual amounts, as far as kubelet reports them."""
    if status is None or status.get("resources") is None:
        return dict(requests)
    largest = resources.highest(_actual(status) or {}, _allocated(status) or {})
    return largest if infeasible else resources.highest(requests, largest)


# --- what kubelet reports ---------------------------------------------------------------------------------------


def _actual(status: Object) -> Amounts | None:
    """Return the actual amounts of a container or pod; None if they are not reported."""
    raw = (status.get("resources") or {}).get("requests")
    return resources.amounts(raw, "status.resources.requests") if raw else None


def _allocated(status: Object) -> Amounts | None:
    """Return the allocated amounts of a container or pod; None if they are not reported."""
    raw = status.get("allocatedResources")
    return resources.amounts(raw, "status.allocatedResources") if raw else None


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
