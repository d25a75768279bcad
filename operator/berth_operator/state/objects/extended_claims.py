"""Extended resources of pods that may get or have a ResourceClaim, created for a DeviceClass."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from berth_api import names
from berth_api.resources import Container
from berth_operator.core.claims.objects.extended import CLASS_PREFIX, ExtendedRequest

Object = Mapping[str, Any]

_NATIVE: Final = "kubernetes.io/"
_QUOTA: Final = "requests."


def is_extended(name: str) -> bool:
    """Return whether a DeviceClass may provide a resource, as kube-scheduler's IsDRAExtendedResourceName."""
    if name.startswith(CLASS_PREFIX):
        return True
    return "/" in name and _NATIVE not in name and not name.startswith(_QUOTA)


def requested(containers: Sequence[Container], resources: Collection[str]) -> Iterator[ExtendedRequest]:
    """Yield what containers request of these resources, in the order of init containers and containers."""
    for position, container in enumerate(containers):
        for place, name in enumerate(sorted(container.requests)):
            if name in resources:
                yield ExtendedRequest(
                    resource=name,
                    container=container.name,
                    position=position,
                    place=place,
                    amount=container.requests[name],
                    short_lived=container.init and not container.sidecar,
                )


def names_claim(pod: Object) -> bool:
    """Return whether a waiting pod's status names a claim of an earlier attempt to bind it, which is deleted by now."""
    return bool((pod.get("status") or {}).get("extendedResourceClaimStatus")) and not pod["spec"].get("nodeName")


def without_claimed(pod: Object, spec: Object) -> tuple[Object, Object]:
    """Return the spec and the status of a bound pod without the resources that its claim provides.

    The claim is charged for these. For a pod that Berth bound, they are what the Binding records, whatever its status
    shows.
    """
    annotations, status = pod["metadata"].get("annotations") or {}, pod.get("status") or {}
    if names.EPOCH in annotations:
        recorded = {
            key.removesuffix(names.BY_CLASS_SUFFIX): value.split(",")
            for key, value in annotations.items()
            if key.endswith(names.BY_CLASS_SUFFIX)
        }
        mapped = {(container, resource) for container, resources in recorded.items() for resource in resources}
    else:
        mappings = (status.get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
        mapped = {(mapping["containerName"], mapping["resourceName"]) for mapping in mappings}
    if not mapped:
        return spec, status

    def cleared(fields: Object, gone: Collection[str]) -> Object:
        """Return a container, its status or the pod's without these resources."""
        kept = dict(fields)
        if fields.get("resources"):
            kept["resources"] = {
                kind: _without(amounts, gone) if kind in ("requests", "limits") and amounts else amounts
                for kind, amounts in fields["resources"].items()
            }
        if fields.get("allocatedResources"):
            kept["allocatedResources"] = _without(fields["allocatedResources"], gone)
        return kept

    def in_containers(fields: Object, *kinds: str) -> dict[str, Any]:
        return {
            kind: [
                cleared(one, {resource for container, resource in mapped if container == one["name"]})
                for one in fields[kind]
            ]
            for kind in kinds
            if fields.get(kind)
        }

    # kubelet reports what is allocated to containers, and their sum for the pod. On one node, a resource is provided by
    # a class or by a device plugin, so the sum is of one of them.
    of_pod = cleared(status, {resource for _, resource in mapped})
    return (
        {**spec, **in_containers(spec, "initContainers", "containers")},
        {**of_pod, **in_containers(status, "initContainerStatuses", "containerStatuses")},
    )


def _without(amounts: Object, gone: Collection[str]) -> Object:
    return {name: amount for name, amount in amounts.items() if name not in gone}
