"""Extended resources of pods that may get or have a ResourceClaim, created for a DeviceClass."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from berth_api import names
from berth_api.resources import Container
from berth_operator.core.dra.extended import CLASS_PREFIX, ExtendedRequest

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


def without_claimed(pod: Object, spec: Object) -> Object:
    """Return the spec of a bound pod without the resources that its claim provides, for which the claim is charged.

    For a pod that Berth bound, these are the resources that the Binding records, whatever its status shows.
    """
    annotations = pod["metadata"].get("annotations") or {}
    if names.EPOCH in annotations:
        recorded = {
            key.removesuffix(names.BY_CLASS_SUFFIX): value.split(",")
            for key, value in annotations.items()
            if key.endswith(names.BY_CLASS_SUFFIX)
        }
        mapped = {(container, resource) for container, resources in recorded.items() for resource in resources}
    else:
        status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
        mappings = status.get("requestMappings") or ()
        mapped = {(mapping["containerName"], mapping["resourceName"]) for mapping in mappings}
    if not mapped:
        return spec
    kept = dict(spec)
    for kind in ("initContainers", "containers"):
        if not spec.get(kind):
            continue
        kept[kind] = []
        for container in spec[kind]:
            fields = dict(container.get("resources") or {})
            for field in ("requests", "limits"):
                if amounts := fields.get(field):
                    gone = {name for name in amounts if (container["name"], name) in mapped}
                    fields[field] = {name: amount for name, amount in amounts.items() if name not in gone}
            kept[kind].append({**container, "resources": fields})
    return kept
