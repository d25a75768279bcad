"""Claims, volumes and what provides them: what scheduling reads of each."""

from dataclasses import dataclass, field
from typing import Final

from berth_api.selectors import EVERYTHING, LabelSelector
from berth_operator.core.values.mounts import Attachable
from berth_operator.core.values.request import NodeTerm

Terms = tuple[NodeTerm, ...]
"""Conditions on a node of which one must hold."""

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
"""Names of provisioners that Kubernetes itself once had -> the driver whose limit counts; none for the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
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
    """The volume that it is bound to, or wants."""
    bound: bool = False
    """Whether both sides are."""
    lost: bool = False
    """Whether its volume is gone."""
    deleting: bool = False
    selected_node: str | None = None
    """The node for which a volume is being made."""
    owner: str = ""
    """UID of the object that controls it."""


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
    """The claim that it is for, if any."""
    claim_uid: str = ""
    """That claim's UID; a volume that a user set aside for a claim has none yet."""
    affinity: Terms | None = None
    """Nodes from which it can be reached; None for all."""
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(topology label, values) of which a node that has such labels must have one."""
    attachable: Attachable | None = None
    csi: bool = False
    """Whether it says so itself, and was not one of Kubernetes' own kinds."""

    def is_for(self, claim: Claim) -> bool:
        """Return whether it is bound to the claim or set aside for it."""
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    """A StorageClass."""

    name: str
    provisioner: str = ""
    delayed: bool = False
    """Whether claims wait for their first consumer."""
    topologies: Terms | None = None
    """Nodes for which volumes can be made; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A CSIStorageCapacity: how much can be made for some nodes."""

    key: str
    storage_class: str
    limit: int | None = None
    """The largest volume, or else all that is left; None for unknown, which is not enough."""
    nodes: Terms = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A VolumeAttachment."""

    name: str
    node: str
    driver: str
    volume: str
