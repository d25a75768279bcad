"""The volumes of pods, parsed from the API."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from berth_operator.core.values.mounts import NO_MOUNTS, Attachable, Disk, Mounts, Use
from berth_operator.core.values.storage import MIGRATED
from berth_operator.state.objects import pod_limits

Object = Mapping[str, Any]

_KINDS: Final = {
    "awsElasticBlockStore": ("kubernetes.io/aws-ebs", "volumeID"),
    "gcePersistentDisk": ("kubernetes.io/gce-pd", "pdName"),
    "azureDisk": ("kubernetes.io/azure-disk", "diskURI"),
    "cinder": ("kubernetes.io/cinder", "volumeID"),
    "portworxVolume": ("kubernetes.io/portworx-volume", "volumeID"),
}
"""Volume types that are migrated to CSI -> their in-tree provisioner, and the field that names the disk; the same in
pods and in PersistentVolumes."""
RELEVANT: Final = frozenset({*_KINDS, "persistentVolumeClaim", "ephemeral", "iscsi", "rbd"})
"""Volume types that scheduling depends on."""


def of_pod(pod: Object) -> Mounts:
    """Read the pod's volumes that scheduling depends on."""
    volumes = relevant(pod["spec"])[: pod_limits.MAX_VOLUMES]
    if not volumes:
        return NO_MOUNTS
    uses = {each for volume in volumes for each in _uses(pod, volume)}
    disks = {each for volume in volumes for each in _disks(volume)}
    attachables = {each for volume in volumes if (each := attachable(volume)) is not None}
    return Mounts(
        claims=tuple(sorted(uses, key=lambda each: (each.claim, each.owner))),
        disks=tuple(sorted(disks, key=lambda each: (each.kind, each.id, each.read_only))),
        attachables=tuple(sorted(attachables, key=lambda each: (each.driver, each.handle))),
    )


def relevant(spec: Object) -> list[Object]:
    """Return the volumes that scheduling depends on; most pods have only their token, which is not among them."""
    return [each for each in spec.get("volumes") or () if not RELEVANT.isdisjoint(each)]


def attachable(source: Object) -> Attachable | None:
    """Read the disk of a volume type that is migrated to CSI; None for other types."""
    for kind, (provisioner, name) in _KINDS.items():
        if kind in source:
            return Attachable(driver=MIGRATED[provisioner], handle=source[kind].get(name) or "")
    return None


def _uses(pod: Object, volume: Object) -> Iterator[Use]:
    metadata = pod["metadata"]
    if "persistentVolumeClaim" in volume:
        yield Use(claim=f"{metadata['namespace']}/{volume['persistentVolumeClaim']['claimName']}")
    elif "ephemeral" in volume:
        claim = f"{metadata['namespace']}/{metadata['name']}-{volume['name']}"
        yield Use(claim=claim, owner=metadata["uid"])


def _disks(volume: Object) -> Iterator[Disk]:
    if disk := volume.get("gcePersistentDisk"):
        yield Disk(kind="gce", id=disk["pdName"], read_only=bool(disk.get("readOnly")))
    if disk := volume.get("awsElasticBlockStore"):
        yield Disk(kind="ebs", id=disk["volumeID"])
    if disk := volume.get("iscsi"):
        yield Disk(kind="iscsi", id=disk["iqn"], read_only=bool(disk.get("readOnly")))
    if disk := volume.get("rbd"):
        # Two images with one common monitor count as the same.
        for monitor in disk["monitors"]:
            image = f"{monitor} {disk.get('pool') or 'rbd'} {disk['image']}"
            yield Disk(kind="rbd", id=image, read_only=bool(disk.get("readOnly")))
