"""VolumeClaims, volumes, storage classes and drivers, parsed from the API."""

from collections.abc import Mapping
from typing import Any, Final

from berth_api.resources import quantity
from berth_api.values import keys
from berth_api.values.selectors import DOES_NOT_EXIST, IN, LabelSelector, Requirement
from berth_operator.core.filters.volume_zones import LABELS
from berth_operator.core.values.mounts import Attachable
from berth_operator.core.values.request import NodeTerm
from berth_operator.core.values.storage import Attachment, Capacity, StorageClass, Terms, Volume, VolumeClaim
from berth_operator.state.objects import mounts, terms

Object = Mapping[str, Any]

CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
BOUND_ANNOTATION: Final = "pv.kubernetes.io/bind-completed"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"

_ALWAYS: Final = Requirement(key="", operator=DOES_NOT_EXIST)
"""Matches every node, since no label has an empty key."""
_NEVER: Final = Requirement(key="")


def claim(raw: Object) -> VolumeClaim:
    """Read a PersistentVolumeClaim."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    requests = (spec.get("resources") or {}).get("requests") or {}
    volume = spec.get("volumeName") or ""
    owners = metadata.get("ownerReferences") or ()
    return VolumeClaim(
        key=keys.of(raw),
        uid=metadata["uid"],
        version=metadata.get("resourceVersion") or "",
        storage_class=_class_name(annotations, spec),
        size=quantity.parse(requests.get("storage", 0)),
        has_size="storage" in requests,
        modes=frozenset(spec.get("accessModes") or ()),
        volume_mode=spec.get("volumeMode") or "Filesystem",
        attributes_class=spec.get("volumeAttributesClassName") or "",
        selector=_selector(spec.get("selector") or {}),
        volume=volume,
        bound=bool(volume) and BOUND_ANNOTATION in annotations,
        lost=(raw.get("status") or {}).get("phase") == "Lost",
        deleting=bool(metadata.get("deletionTimestamp")),
        selected_node=annotations.get(SELECTED_NODE),
        owner=next((str(owner["uid"]) for owner in owners if owner.get("controller")), ""),
    )


def volume(raw: Object) -> Volume:
    """Read a PersistentVolume."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    labels, ref = metadata.get("labels") or {}, spec.get("claimRef") or {}
    affinity: Terms | None = None
    if (required := (spec.get("nodeAffinity") or {}).get("required")) is not None:
        read = [terms.node_term(term) for term in required.get("nodeSelectorTerms") or ()]
        # For volumes, kube-scheduler evaluates conditions on the node's name against an empty name.
        affinity = tuple(
            NodeTerm(labels=(*term.labels, *(_NEVER if name.operator == IN else _ALWAYS for name in term.names)))
            for term in read
        )
    zones = ((name, tuple(sorted({value.strip() for value in labels.get(name, "").split("__")}))) for name in LABELS)
    csi = spec.get("csi")
    return Volume(
        name=metadata["name"],
        version=metadata.get("resourceVersion") or "",
        storage_class=_class_name(metadata.get("annotations") or {}, spec),
        size=quantity.parse((spec.get("capacity") or {}).get("storage", 0)),
        modes=frozenset(spec.get("accessModes") or ()),
        volume_mode=spec.get("volumeMode") or "Filesystem",
        attributes_class=spec.get("volumeAttributesClassName") or "",
        labels=tuple(sorted(labels.items())),
        available=(raw.get("status") or {}).get("phase") == "Available",
        deleting=bool(metadata.get("deletionTimestamp")),
        claim=f"{ref.get('namespace')}/{ref.get('name')}" if ref else "",
        claim_uid=ref.get("uid") or "",
        affinity=affinity,
        # A label with an empty value in its list is ignored.
        zones=tuple((name, values) for name, values in zones if all(values)),
        attachable=mounts.attachable(spec)
        if csi is None
        else Attachable(driver=csi["driver"], handle=csi["volumeHandle"]),
        csi="csi" in spec,
    )


def storage_class(raw: Object) -> StorageClass:
    """Read a StorageClass."""
    topologies = raw.get("allowedTopologies") or ()
    read = (
        NodeTerm(
            labels=tuple(
                Requirement(key=expression["key"], values=tuple(sorted(expression["values"])))
                for expression in topology.get("matchLabelExpressions") or ()
            )
        )
        for topology in topologies
    )
    return StorageClass(
        name=raw["metadata"]["name"],
        provisioner=raw.get("provisioner") or "",
        delayed=raw.get("volumeBindingMode") == "WaitForFirstConsumer",
        topologies=tuple(read) if topologies else None,
    )


def capacity(raw: Object) -> Capacity:
    """Read a CSIStorageCapacity."""
    limit, nodes = raw.get("maximumVolumeSize", raw.get("capacity")), raw.get("nodeTopology")
    return Capacity(
        key=keys.of(raw),
        storage_class=raw["storageClassName"],
        limit=None if limit is None else quantity.parse(limit),
        capacity=quantity.parse(raw.get("capacity", 0)),
        # Without requirements it matches all nodes, not none.
        nodes=() if nodes is None else (NodeTerm(labels=(*_selector(nodes).requirements, _ALWAYS)),),
    )


def tracks_capacity(raw: Object) -> bool:
    """Return whether a CSIDriver tracks storage capacity."""
    return bool((raw.get("spec") or {}).get("storageCapacity"))


def is_required_on_nodes(raw: Object) -> bool:
    """Return whether pods wait for a node with the driver of a CSIDriver."""
    return bool((raw.get("spec") or {}).get("preventPodSchedulingIfMissing"))


def drivers(raw: Object) -> dict[str, int | None]:
    """Read {driver: volumes that the node can hold} from a CSINode; None if there is no limit."""
    installed = (raw.get("spec") or {}).get("drivers") or ()
    return {driver["name"]: (driver.get("allocatable") or {}).get("count") for driver in installed}


def attachment(raw: Object) -> Attachment | None:
    """Read a VolumeAttachment; None for an inline volume, which has no PersistentVolume."""
    spec = raw.get("spec") or {}
    name = (spec.get("source") or {}).get("persistentVolumeName")
    if not name or not spec.get("attacher"):
        return None
    return Attachment(
        name=raw["metadata"]["name"],
        node=spec.get("nodeName") or "",
        driver=spec["attacher"],
        volume=name,
    )


def _class_name(annotations: Mapping[str, str], spec: Object) -> str:
    name: str = annotations.get(CLASS_ANNOTATION, spec.get("storageClassName") or "")
    return name


def _selector(raw: Object) -> LabelSelector:
    exact = (Requirement(key=key, values=(value,)) for key, value in sorted((raw.get("matchLabels") or {}).items()))
    return LabelSelector(
        requirements=(*exact, *map(terms.requirement, raw.get("matchExpressions") or ())),
    )
