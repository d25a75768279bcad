"""Nodes, parsed from the API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_api import request, resources
from berth_api.allocation import partitions
from berth_api.names import CARDS_KEY
from berth_api.request import BUILT_IN, Kinds
from berth_api.resources import quantity
from berth_client.objects import without_managed_fields
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import Taint
from berth_operator.core.values.verdict import Change
from berth_operator.state.objects import images

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A Node as the operator read it."""

    uid: str
    info: NodeInfo
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    """Device resources that the Node shows."""


_KEPT: Final = ("allocatable", "capacity", "conditions", "declaredFeatures", "images", "nodeInfo")


def transform(node: dict[str, Any]) -> dict[str, Any]:
    """Drop the fields of a node that the operator does not read."""
    without_managed_fields(node)
    status = node.get("status") or {}
    node["status"] = {name: status[name] for name in _KEPT if name in status}
    if "nodeInfo" in status:
        node["status"]["nodeInfo"] = {"bootID": boot_id(node)}
    return node


def boot_id(node: Object) -> str:
    """Return a Node's boot ID; empty until kubelet has reported it."""
    node_info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(node_info.get("bootID") or "")


def record(node: Object, kinds: Kinds = BUILT_IN) -> NodeRecord:
    """Read a Node, with the device resources that it shows."""
    return NodeRecord(
        uid=node["metadata"]["uid"],
        info=info(node),
        capacity=device_sums(node, "capacity", kinds),
        allocatable=device_sums(node, "allocatable", kinds),
    )


def info(node: Object) -> NodeInfo:
    """Read a Node; its allocatable includes the sums of devices that Berth writes, which kubelet checks as well."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    shown = status.get("allocatable") or {}
    counted = {name: value for name, value in shown.items() if request.is_counted_on_node(name)}
    return NodeInfo(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels") or {},
        allocatable=resources.amounts(counted, "status.allocatable"),
        taints=tuple(
            Taint(key=taint["key"], value=taint.get("value") or "", effect=taint.get("effect") or "")
            for taint in spec.get("taints") or ()
        ),
        cordoned=bool(spec.get("unschedulable")),
        ready=_readiness(status) not in ("False", "Unknown"),
        unreachable=_readiness(status) == "Unknown",
        features=tuple(status.get("declaredFeatures") or ()),
        images=images.of_node(status),
    )


def _readiness(status: Object) -> str:
    """Return the status of the Ready condition; empty without one, when the node has a not-ready taint."""
    conditions = status.get("conditions") or ()
    return next((str(condition["status"]) for condition in conditions if condition["type"] == "Ready"), "")


def change(old: NodeInfo | None, new: NodeInfo) -> Change:
    """Return the changes to wake pods for."""
    if old is None:
        return Change.NODE_ADDED
    changes = Change(0)
    if old.labels != new.labels:
        changes |= Change.NODE_LABELS
    if partitions.partitions_only(old.labels) != partitions.partitions_only(new.labels):
        changes |= Change.DEVICE
    if old.labels.get(CARDS_KEY) != new.labels.get(CARDS_KEY):
        # DeviceClasses provide now what the allocatable lacks, or no longer.
        changes |= Change.DEVICE | Change.NODE_ALLOCATABLE
    if _repelling(old) != _repelling(new):
        changes |= Change.NODE_TAINTS
    if old.allocatable != new.allocatable:
        changes |= Change.NODE_ALLOCATABLE
    if old.features != new.features:
        changes |= Change.NODE_FEATURES
    return changes


def changed_labels(old: NodeInfo | None, new: NodeInfo | None) -> frozenset[str]:
    """Return the keys of labels that were added, changed or removed; all keys if the node was added or removed."""
    before, after = (set(node.labels.items()) if node else set() for node in (old, new))
    return frozenset(key for key, _ in before ^ after)


def _repelling(node: NodeInfo) -> tuple[object, ...]:
    return (node.taints, node.cordoned, node.ready, node.unreachable)


def device_sums(node: Object, field: str, kinds: Kinds = BUILT_IN) -> dict[str, int]:
    """Return the device resources that the Node shows in `capacity` or `allocatable`."""
    shown = (node.get("status") or {}).get(field) or {}
    return {name: quantity.parse(value) for name, value in shown.items() if request.is_device(name, kinds)}
