"""Build VolumeClaims, volumes and classes with defaults, as the core's values or as the API server's objects.

By default, everything has the class "local". The class has no provisioner, and its claims wait for the first consumer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.mounts import Attachable, Disk, Mounts, PodVolumes, Use
from berth_operator.core.values.request import NodeTerm, PodRequest
from berth_operator.core.values.storage import Capacity, StorageClass, Volume, VolumeClaim
from tests.objects.builders import GI, Raw, asks, charge, label

LOCAL = StorageClass(name="local", provisioner="kubernetes.io/no-provisioner", delayed=True)
MADE = StorageClass(name="made", provisioner="csi.example", delayed=True)
AT_ONCE = StorageClass(name="at-once", provisioner="csi.example")
DRIVER = "csi.example"


# --- values of the core -----------------------------------------------------------------------------------------


def claim(name: str = "claim", **fields: Any) -> VolumeClaim:
    """Return a claim of 10 GiB that waits for its first consumer."""
    base = {"key": f"ns/{name}", "uid": f"uid-{name}", "storage_class": "local", "size": 10 * GI}
    return VolumeClaim(**{**base, "modes": frozenset({"ReadWriteOnce"}), **fields})


def bound(name: str = "claim", to: str = "volume", **fields: Any) -> VolumeClaim:
    """Return a claim that is bound."""
    return claim(name, volume=to, bound=True, **fields)


def volume(name: str = "volume", *, on: Sequence[str] | None = None, **fields: Any) -> Volume:
    """Return a volume of 10 GiB that is not bound; `on` names the zones of the nodes that reach it."""
    base = {"name": name, "storage_class": "local", "size": 10 * GI, "available": True}
    return Volume(**{**base, "modes": frozenset({"ReadWriteOnce"}), "affinity": zoned(on), **fields})


def zoned(zones: Sequence[str] | None) -> tuple[NodeTerm, ...] | None:
    """Return terms that match the nodes of some zones."""
    return None if zones is None else (NodeTerm(labels=(label("zone", "In", *zones),)),)


def capacity(limit: int | None, zone: str, storage_class: str = "made") -> Capacity:
    """Return the capacity that is left in a zone."""
    return Capacity(
        key=f"ns/{storage_class}-{zone}",
        storage_class=storage_class,
        limit=limit,
        capacity=limit or 0,
        nodes=zoned([zone]) or (),
    )


def mounts(*claims: str, own: Mapping[str, str] | None = None, disks: Sequence[Disk] = ()) -> Mounts:
    """Return the volumes of a pod; `own` are claims of ephemeral volumes, with the pod's UID."""
    uses = [Use(claim=f"ns/{name}") for name in claims]
    uses += [Use(claim=f"ns/{name}", owner=owner) for name, owner in (own or {}).items()]
    return Mounts(claims=tuple(uses), disks=tuple(disks))


def wants(*claims: str, **fields: Any) -> PodRequest:
    """Return a pod that mounts these claims."""
    return replace(asks(), mounts=mounts(*claims, **fields))


def holds(name: str, *claims: str, node: str = "node", chosen: PodVolumes | None = None, **fields: Any) -> Charge:
    """Return a placed pod that mounts these claims."""
    return charge(name, node=node, mounts=mounts(*claims, **fields), volumes=chosen or PodVolumes())


def csi(handle: str, driver: str = DRIVER) -> Attachable:
    """Return a CSI volume as its driver identifies it."""
    return Attachable(driver=driver, handle=handle)


def put(fleet: Fleet, *objects: object, limits: Mapping[str, int] | None = None) -> Fleet:
    """Add classes, claims, volumes and capacities to the fleet; `limits` of the driver by node."""
    store = fleet.volumes
    for obj in (LOCAL, MADE, AT_ONCE, *objects):
        match obj:
            case StorageClass():
                store.put_class(obj)
            case VolumeClaim():
                store.put_claim(obj)
            case Volume():
                store.put_volume(obj)
            case Capacity():
                store.put_capacity(obj)
    for node, number in (limits or {}).items():
        store.put_drivers(node, {DRIVER: number})
    return fleet


# --- objects of the API server ----------------------------------------------------------------------------------


def raw_claim(name: str = "claim", *, version: int = 1, **fields: Any) -> Raw:
    """Return a PersistentVolumeClaim; `spec`, `status`, and metadata such as `annotations`."""
    spec = {
        "storageClassName": "local",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }
    return _object(name, version, {**spec, **fields.pop("spec", {})}, namespace="ns", **fields)


def raw_volume(name: str = "volume", *, version: int = 1, **fields: Any) -> Raw:
    """Return a PersistentVolume."""
    spec = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}}
    status = fields.pop("status", {"phase": "Available"})
    return _object(name, version, {**spec, **fields.pop("spec", {})}, status=status, **fields)


def raw_class(name: str = "local", **fields: Any) -> Raw:
    """Return a StorageClass."""
    base = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    return {"metadata": {"name": name}, **base, **fields}


def _object(name: str, version: int, spec: Raw, *, status: Raw | None = None, **metadata: Any) -> Raw:
    base = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**base, **metadata}, "spec": spec, "status": status or {}}
