"""The data that scheduling reads of VolumeClaims, volumes, storage classes, capacities and attachments."""

from dataclasses import dataclass, field
from typing import Final

from berth_api.values.selectors import EVERYTHING, LabelSelector
from berth_operator.core.values.mounts import Attachable
from berth_operator.core.values.request import NodeTerm

Terms = tuple[NodeTerm, ...]
"""Requirements on a node, in terms. At least one term must match."""

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"

MIGRATED: Final = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/azure-file": "",
    "kubernetes.io/vsphere-volume": "",
}
"""In-tree provisioner -> the CSI driver that replaced it, whose limit counts; empty if no limit counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeClaim:
    """A PersistentVolumeClaim."""

    key: str
    """namespace/name."""
    uid: str = ""
    version: str = field(default="", compare=False)
    storage_class: str = ""
    size: int = 0
    has_size: bool = True
    modes: frozenset[str] = frozenset()
    """Access modes."""
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    selector: LabelSelector = EVERYTHING
    volume: str = ""
    """The volume that the claim is bound to or requests by name."""
    bound: bool = False
    """Whether the claim and the volume refer to each other."""
    lost: bool = False
    """Whether the claim's volume no longer exists."""
    deleting: bool = False
    selected_node: str | None = None
    """The node on which a volume is being provisioned."""
    owner: str = ""
    """UID of the object that controls the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A PersistentVolume."""

    name: str
    version: str = field(default="", compare=False)
    storage_class: str = ""
    size: int = 0
    modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    available: bool = False
    deleting: bool = False
    claim: str = ""
    """`claimRef`: namespace/name of the claim that the volume is bound to or reserved for, if any."""
    claim_uid: str = ""
    """The claim's UID; empty while the volume is only reserved for the claim."""
    affinity: Terms | None = None
    """The nodes that can reach the volume; None for all."""
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(topology label, values): a node with such a label must have one of the values."""
    attachable: Attachable | None = None
    csi: bool = False
    """Whether the spec has a `csi` source, instead of an in-tree source that was migrated."""

    def is_for(self, claim: VolumeClaim) -> bool:
        """Return whether the volume is bound to the claim or reserved for it."""
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    """A StorageClass."""

    name: str
    provisioner: str = ""
    delayed: bool = False
    """Whether the binding mode is WaitForFirstConsumer."""
    topologies: Terms | None = None
    """The nodes for which volumes can be provisioned; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A CSIStorageCapacity: how much storage can be provisioned for some nodes."""

    key: str
    storage_class: str
    limit: int | None = None
    """Bytes: the maximum volume size, or the capacity if there is none; None if unknown, which is never enough."""
    capacity: int = 0
    """Bytes that can be provisioned; 0 if unknown."""
    nodes: Terms = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A VolumeAttachment."""

    name: str
    node: str
    driver: str
    volume: str
