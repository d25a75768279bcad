"""VolumeClaims, volumes, storage classes and drivers, parsed from the API."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from berth_api.resources import quantity
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


def key(obj: Object) -> str:
    """Return namespace/name."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def claim(raw: Object) -> VolumeClaim:
    """Read a PersistentVolumeClaim."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    requests = (spec.get("resources") or {}).get("requests") or {}
    volume = spec.get("volumeName") or ""
    return VolumeClaim(
        key=key(raw),
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
        owner=_controller(metadata),
    )


def volume(raw: Object) -> Volume:
    """Read a PersistentVolume."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    labels, ref = metadata.get("labels") or {}, spec.get("claimRef") or {}
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
        affinity=_affinity(spec.get("nodeAffinity") or {}),
        zones=tuple(_zones(labels)),
        attachable=_attachable(spec),
        csi="csi" in spec,
    )


def storage_class(raw: Object) -> StorageClass:
    """Read a StorageClass."""
    topologies = raw.get("allowedTopologies")
    return StorageClass(
        name=raw["metadata"]["name"],
        provisioner=raw.get("provisioner") or "",
        delayed=raw.get("volumeBindingMode") == "WaitForFirstConsumer",
        topologies=tuple(_topology(each) for each in topologies) if topologies else None,
    )


def capacity(raw: Object) -> Capacity:
    """Read a CSIStorageCapacity."""
    limit, nodes = raw.get("maximumVolumeSize", raw.get("capacity")), raw.get("nodeTopology")
    return Capacity(
        key=key(raw),
        storage_class=raw["storageClassName"],
        limit=None if limit is None else quantity.parse(limit),
        capacity=quantity.parse(raw.get("capacity", 0)),
        nodes=() if nodes is None else (_of_all(_selector(nodes).requirements),),
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
    return {each["name"]: (each.get("allocatable") or {}).get("count") for each in installed}


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


def _controller(metadata: Object) -> str:
    return next((str(each["uid"]) for each in metadata.get("ownerReferences") or () if each.get("controller")), "")


def _selector(raw: Object) -> LabelSelector:
    exact = (Requirement(key=key, values=(value,)) for key, value in sorted((raw.get("matchLabels") or {}).items()))
    return LabelSelector(
        requirements=(*exact, *(terms.requirement(each) for each in raw.get("matchExpressions") or ())),
    )


def _affinity(raw: Object) -> Terms | None:
    required = raw.get("required")
    if required is None:
        return None
    return tuple(_without_names(terms.node_term(each)) for each in required.get("nodeSelectorTerms") or ())


def _without_names(term: NodeTerm) -> NodeTerm:
    """Resolve conditions on the node's name: for volumes, kube-scheduler evaluates them against an empty name."""
    names = (_NEVER if each.operator == IN else _ALWAYS for each in term.names)
    return NodeTerm(labels=(*term.labels, *names))


def _topology(raw: Object) -> NodeTerm:
    expressions = raw.get("matchLabelExpressions") or ()
    return NodeTerm(
        labels=tuple(Requirement(key=each["key"], values=tuple(sorted(each["values"]))) for each in expressions),
    )


def _of_all(requirements: Iterable[Requirement]) -> NodeTerm:
    """Return a term that requires all of these; without requirements it matches all nodes, not none."""
    return NodeTerm(labels=(*requirements, _ALWAYS))


def _zones(labels: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in LABELS:
        values = tuple(sorted({each.strip() for each in labels.get(name, "").split("__")}))
        # A label with an empty value in its list is ignored.
        if all(values):
            yield name, values


def _attachable(spec: Object) -> Attachable | None:
    if (csi := spec.get("csi")) is not None:
        return Attachable(driver=csi["driver"], handle=csi["volumeHandle"])
    return mounts.attachable(spec)
