"""The volumes of pods, parsed from the API."""

from collections.abc import Mapping
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
    metadata = pod["metadata"]
    uses: set[Use] = set()
    disks: set[Disk] = set()
    attachables: set[Attachable] = set()
    for volume in volumes:
        if "persistentVolumeClaim" in volume:
            uses.add(Use(claim=f"{metadata['namespace']}/{volume['persistentVolumeClaim']['claimName']}"))
        elif "ephemeral" in volume:
            claim = f"{metadata['namespace']}/{metadata['name']}-{volume['name']}"
            uses.add(Use(claim=claim, owner=metadata["uid"]))
        if disk := volume.get("gcePersistentDisk"):
            disks.add(Disk(kind="gce", id=disk["pdName"], read_only=bool(disk.get("readOnly"))))
        if disk := volume.get("awsElasticBlockStore"):
            disks.add(Disk(kind="ebs", id=disk["volumeID"]))
        if disk := volume.get("iscsi"):
            disks.add(Disk(kind="iscsi", id=disk["iqn"], read_only=bool(disk.get("readOnly"))))
        if disk := volume.get("rbd"):
            # Two images with one common monitor count as the same.
            for monitor in disk["monitors"]:
                image = f"{monitor} {disk.get('pool') or 'rbd'} {disk['image']}"
                disks.add(Disk(kind="rbd", id=image, read_only=bool(disk.get("readOnly"))))
        if (migrated := attachable(volume)) is not None:
            attachables.add(migrated)
    return Mounts(
        claims=tuple(sorted(uses, key=lambda use: (use.claim, use.owner))),
        disks=tuple(sorted(disks, key=lambda disk: (disk.kind, disk.id, disk.read_only))),
        attachables=tuple(sorted(attachables, key=lambda attached: (attached.driver, attached.handle))),
    )


def relevant(spec: Object) -> list[Object]:
    """Return the volumes that scheduling depends on; most pods have only their token, which is not among them."""
    return [volume for volume in spec.get("volumes") or () if not RELEVANT.isdisjoint(volume)]


def attachable(source: Object) -> Attachable | None:
    """Read the disk of a volume type that is migrated to CSI; None for other types."""
    for kind, (provisioner, name) in _KINDS.items():
        if kind in source:
            return Attachable(driver=MIGRATED[provisioner], handle=source[kind].get(name) or "")
    return None
