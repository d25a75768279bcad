"""Add the resource by which a container gets the device files of its pod's RDMA NICs.

`manifests/base/injection.yaml` has the same rule in CEL.
"""

from typing import Final

from berth_api import names
from berth_api.admission.injection import Object, all_containers, requests_any, with_containers

RESOURCES: Final = frozenset(prefix + names.RDMA for prefix in (names.PREFIX, names.OTHER_PREFIX))
"""A container that requests one of these gets device files."""


def with_device_files(pod: Object) -> Object:
    """Return a pod whose containers that request NICs also request one unit of the agent's resource."""
    spec = pod["spec"]
    changed = (
        (kind, number, _with_unit(container))
        for kind, number, container in all_containers(spec)
        if requests_any(container, RESOURCES.__contains__)
    )
    return {**pod, "spec": with_containers(spec, changed)}


def _with_unit(container: Object) -> Object:
    amounts = container["resources"]
    one = {names.RDMA_RESOURCE: "1"}
    return {
        **container,
        "resources": {**amounts, **{kind: {**(amounts.get(kind) or {}), **one} for kind in ("requests", "limits")}},
    }
