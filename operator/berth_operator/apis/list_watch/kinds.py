"""The kinds of nvidia-gpu-scheduler, each computed from one of Berth's custom resources. Pure functions.

An object depends on one custom resource only, and has its resourceVersion. A change of the object is a change of the
resource, so all replicas know the same versions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from berth_api import names
from berth_api.allocation import short, visible
from berth_api.objects import gpupod
from berth_api.resources import quantity
from berth_api.values.caching import compact
from berth_client.objects import Object
from berth_operator.apis.aggregated import kinds
from berth_operator.apis.aggregated.kinds import CREATED, NAME_FIELD, NAMESPACE_FIELD, Cells, Entry, column
from berth_operator.apis.list_watch.objects import ContainerDevices, GpuInfo, GpuNode, GpuNodeStatus, GpuPod

GROUP: Final = "nvidia-gpu-scheduler"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
NODE_LABEL: Final = "nvidia-gpu-scheduler.node"
"""The label of GpuPods with the name of the node."""
MAX_LABEL: Final = 63
MIG_PREFIX: Final = "MIG-"
NODE_FIELD: Final = "spec.node_name"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcedKind(kinds.Kind):
    """One kind of object. `KINDS` has all of them."""

    group: str = GROUP
    version: str = VERSION
    source: str
    """The plural of the custom resource behind it."""
    cells: Callable[[Any], Cells]
    """Returns an object's cells in its columns."""
    convert: Callable[[Object], Mapping[str, Any]]
    """Returns the object's labels, spec and status, and its name if it differs from the resource's name."""

    @property
    def path(self) -> str:
        """Return the path of the custom resource behind it."""
        return f"/apis/{names.API_VERSION}/{self.source}"

    def entry(self, source: Object) -> Entry:
        """Return the object of a custom resource."""
        metadata = source["metadata"]
        converted = dict(self.convert(source))
        labels = converted.pop("labels", {})
        namespace, name = metadata.get("namespace", ""), converted.pop("name", metadata["name"])
        own = {
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
            **({"labels": labels} if labels else {}),
        }
        body = {"kind": self.name, "apiVersion": API_VERSION, "metadata": own, **converted}
        fields = {NAME_FIELD: name, NAMESPACE_FIELD: namespace, NODE_FIELD: converted["spec"].get("node_name", "")}
        return Entry(
            key=(namespace, name),
            version=int(metadata["resourceVersion"]),
            labels=labels,
            fields={field: fields[field] for field in self.fields},
            metadata=own,
            cells=[*self.cells(body), metadata["creationTimestamp"]],
            body=compact(orjson.dumps(body)),
        )


# --- GpuNodes, of Devices -----------------------------------------------------------------------------------------


def gpu_node(device: Object) -> GpuNode:
    """Return spec and status of the GpuNode of a Device: its GPUs, and which GPUs are not wholly free."""
    name, status = device["metadata"]["name"], device.get("status") or {}
    cards = [card for card in device["spec"].get("devices") or () if card["type"] == names.GPU]
    uses = {use["minor"]: use for use in status.get("devices") or () if use["type"] == names.GPU}
    models: dict[str, list[str]] = {}
    for card in cards:
        models.setdefault(str(card.get("model", "")).strip().lower(), []).append(card["id"])
    ready = next((condition for condition in status.get("conditions") or () if condition["type"] == names.READY), None)
    if ready is None:
        message = "the operator has not seen the node's Device yet"
        health: GpuNodeStatus = {"node": name, "health": "False", "message": message}
    else:
        is_ready, since = ready["status"] == "True", ready["lastTransitionTime"]
        health = {
            "node": name,
            "health": "True" if is_ready else "False",
            "message": ready.get("message", ""),
            # While healthy: since when; else: until when.
            "last_health_time": since,
            "last_transition_time": since,
        }
    return {
        "spec": {
            "device_infos": {
                card["id"]: _info(card, (card.get("topology") or {}).get("busID"), name) for card in cards
            },
            "device_models": {model: sorted(ids) for model, ids in sorted(models.items())},
            "device_busy": sorted(card["id"] for card in cards if not _is_idle(card, uses.get(card["minor"]))),
            "report_time": reported_at(device),
        },
        "status": health,
    }


def _info(card: Mapping[str, Any], bus_id: str | None, node: str, device_id: str | None = None) -> GpuInfo:
    info: GpuInfo = {"device_id": device_id or card["id"], "device_node": node}
    if model := card.get("model"):
        info["device_model"] = model
    if bus_id:
        info["device_busid"] = bus_id
    return info


def _is_idle(card: Mapping[str, Any], use: Mapping[str, Any] | None) -> bool:
    """Return whether a whole card can be allocated, by the operator's status; False without a status."""
    if use is None or use.get("holders"):
        return False
    free = {short(name): quantity.parse(amount) for name, amount in (use.get("free") or {}).items()}
    # Of a card in MIG mode its instances are free, and of no other card less than what the spec lists.
    total = {short(name): quantity.parse(amount) for name, amount in (card.get("resources") or {}).items()}
    return any(free.values()) and all(amount >= total.get(name, 0) for name, amount in free.items())


# --- GpuPods, of GpuPods ------------------------------------------------------------------------------------------


def gpu_pod(source: Object) -> Object:
    """Return name, labels, spec and status of the GpuPod of a custom resource. Its name is the pod's name."""
    metadata, spec = source["metadata"], source["spec"]
    node = spec["nodeName"]
    pod = gpupod.pod_of(metadata["name"], node)
    cards = spec.get("cards") or ()
    containers: list[ContainerDevices] = [
        {"container_name": container["name"], "device_info": _infos(container.get("devices") or (), cards, node)}
        for container in spec.get("containers") or ()
    ]
    # Kubelet gives shares to no container: they are the pod's.
    if shares := _infos(spec.get("allocated") or (), cards, node):
        containers.append({"device_info": shares})
    body: GpuPod = {
        "spec": {
            "pod_name": pod,
            "pod_namespace": metadata["namespace"],
            "node_name": node,
            "containers_device": containers,
        },
        "status": {"last_changed_time": reported_at(source)},
    }
    return {"name": pod, "labels": {NODE_LABEL: node} if len(node) <= MAX_LABEL else {}, **body}


def _infos(devices: Iterable[Mapping[str, Any]], cards: Iterable[Mapping[str, Any]], node: str) -> list[GpuInfo]:
    by_id = {card["id"]: card for card in cards}
    by_minor = {card["minor"]: card for card in cards}
    infos = []
    for device in devices:
        if device["type"] == names.GPU:
            device_id = visible(device["id"])
            # A card that is gone may have had the minor that another has now.
            known = by_minor.get(device["minor"]) if device_id.startswith(MIG_PREFIX) else by_id.get(device_id)
            card = known or {"id": device_id}
            infos.append(_info(card, card.get("busID"), node, device_id))
    return infos


def reported_at(source: Object) -> str:
    """Return when the spec was last written."""
    metadata = source["metadata"]
    managers = metadata.get("managedFields") or ()
    written = [manager.get("time", "") for manager in managers if not manager.get("subresource")]
    return max(written, default="") or str(metadata["creationTimestamp"])


# --- columns of kubectl -------------------------------------------------------------------------------------------


def _node_cells(obj: GpuNode) -> Cells:
    spec, status = obj["spec"], obj["status"]
    return [
        status["health"],
        len(spec["device_infos"]),
        len(spec["device_busy"]),
        ", ".join(spec["device_models"]),
        status["message"],
    ]


def _pod_cells(obj: GpuPod) -> Cells:
    spec = obj["spec"]
    ids = dict.fromkeys(gpu["device_id"] for container in spec["containers_device"] for gpu in container["device_info"])
    return [spec["node_name"], len(ids), obj["status"]["last_changed_time"], ", ".join(ids)]


NODES: Final = SourcedKind(
    name="GpuNode",
    plural="gpunodes",
    namespaced=False,
    source=names.DEVICES,
    fields=frozenset({NAME_FIELD, NAMESPACE_FIELD}),
    columns=(
        column("Health"),
        column("GPUs", "integer"),
        column("Busy", "integer"),
        column("Models"),
        column("Message", wide=True),
        CREATED,
    ),
    cells=_node_cells,
    convert=gpu_node,
)
PODS: Final = SourcedKind(
    name="GpuPod",
    plural="gpupods",
    namespaced=True,
    source=names.GPUPODS,
    fields=frozenset({NAME_FIELD, NAMESPACE_FIELD, NODE_FIELD}),
    columns=(
        column("Node"),
        column("GPUs", "integer"),
        column("Update"),
        column("IDs", wide=True),
        CREATED,
    ),
    cells=_pod_cells,
    convert=gpu_pod,
)
KINDS: Final = (NODES, PODS)
