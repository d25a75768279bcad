"""ResourceSlices, ResourceClaims and DeviceTaintRules, as a driver, kube-scheduler and an administrator write them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.claims import ResourceClaims

Raw = dict[str, Any]

NVIDIA_DRIVER: Final = "gpu.nvidia.com"
PCI: Final = "resource.kubernetes.io/pciBusID"


class ClaimsInTurns(ResourceClaims):
    """Applies each event of slices and taint rules as if a turn of the scheduler followed it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._refresh = cluster.refresh_devices

    def put_slice(self, raw: Raw) -> None:
        super().put_slice(raw)
        self._refresh()

    def remove_slice(self, name: str) -> None:
        super().remove_slice(name)
        self._refresh()

    def put_claim(self, raw: Raw) -> None:
        super().put_claim(raw)
        self._refresh()

    def remove_claim(self, key: str) -> None:
        super().remove_claim(key)
        self._refresh()

    def put_rule(self, raw: Raw) -> None:
        super().put_rule(raw)
        self._refresh()

    def remove_rule(self, name: str) -> None:
        super().remove_rule(name)
        self._refresh()


def listed(name: str, attributes: Mapping[str, str | bool] | None = None, **fields: Any) -> Raw:
    """Return a device of a slice."""
    values = {
        key: {"bool" if isinstance(value, bool) else "string": value} for key, value in (attributes or {}).items()
    }
    return {"name": name, "attributes": values, **fields}


def gpu(minor: int, **fields: Any) -> Raw:
    """Return a GPU as NVIDIA's driver lists it: the one with this minor of `tests.objects.builders`."""
    return listed(f"gpu-{minor}", {"type": "gpu", "uuid": f"GPU-{minor}"}, **fields)


def resource_slice(*devices: Raw, node: str = "node", driver: str = NVIDIA_DRIVER, **fields: Any) -> Raw:
    """Return the slice of a pool that has the node's name; `name`, `pool`, `generation` and `count`."""
    pool = {
        "name": fields.get("pool", node),
        "generation": fields.get("generation", 1),
        "resourceSliceCount": fields.get("count", 1),
    }
    return {
        "metadata": {"name": fields.get("name", f"{node}-{driver}")},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)},
    }


def claim(name: str = "c", *, namespace: str = "ns", uid: str = "") -> Raw:
    """Return a claim of one GPU to which nothing is allocated."""
    exactly = {"deviceClassName": NVIDIA_DRIVER}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def allocated(
    name: str, *devices: str, node: str = "node", driver: str = NVIDIA_DRIVER, pods: Sequence[str] = (), **fields: Any
) -> Raw:
    """Return a claim with these devices of the node's pool, reserved for pods by UID; others go into the results."""
    results = [{"request": "gpu", "driver": driver, "pool": node, "device": device, **fields} for device in devices]
    names = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [names]}]},
    }
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
    return {**claim(name), "status": {"allocation": allocation, "reservedFor": reserved}}


def taint(key: str = "example.com/broken", effect: str = "NoSchedule", value: str = "") -> Raw:
    """Return a device taint."""
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def taint_rule(name: str = "r", *, selector: Mapping[str, str] | None, tainted: Raw) -> Raw:
    """Return a DeviceTaintRule; `selector` has `driver`, `pool` and `device`."""
    spec = {"taint": tainted, **({} if selector is None else {"deviceSelector": dict(selector)})}
    return {"metadata": {"name": name}, "spec": spec}
