"""Extended resources of bound pods that a ResourceClaim provides, which kube-scheduler makes for a DeviceClass."""

from collections.abc import Mapping
from typing import Any

from berth_api import names

Object = Mapping[str, Any]


def without_claimed(pod: Object, spec: Object) -> Object:
    """Return the spec of a bound pod without the resources that its claim provides, for which the claim is charged.

    A pod that Berth bound has no such claim, whatever its status says.
    """
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    if not status or names.EPOCH in (pod["metadata"].get("annotations") or {}):
        return spec
    mapped = {(each["containerName"], each["resourceName"]) for each in status.get("requestMappings") or ()}
    kinds = ("initContainers", "containers")
    return {**spec, **{kind: [_without(each, mapped) for each in spec[kind]] for kind in kinds if spec.get(kind)}}


def _without(container: Object, mapped: set[tuple[str, str]]) -> Object:
    resources = container.get("resources") or {}
    kept = {
        field: {name: amount for name, amount in amounts.items() if (container["name"], name) not in mapped}
        if field in ("requests", "limits") and amounts
        else amounts
        for field, amounts in resources.items()
    }
    return {**container, "resources": kept}
