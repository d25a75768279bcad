"""The OpenAPI documents, from which the API server composes its own; `kubectl explain` shows them. Pure."""

import hashlib
from typing import Any, Final

import orjson

from berth_operator.list_watch.kinds import API_VERSION, GROUP, KINDS, VERSION

Schema = dict[str, Any]

V2: Final = "/openapi/v2"
V3: Final = "/openapi/v3"
V3_GROUP: Final = f"{V3}/apis/{API_VERSION}"
_INFO: Final = {"title": GROUP, "version": VERSION}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _list(description: str, items: Schema) -> Schema:
    return {"type": "array", "description": description, "items": items}


def _map(description: str, values: Schema) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": values}


def _object(description: str, **properties: Schema) -> Schema:
    return {"type": "object", "description": description, "properties": properties}


_DEVICE: Final = _object(
    "A GPU, or a part of one.",
    device_id=_text("UUID of the GPU, or of the MIG instance."),
    device_brand=_text("Not set."),
    device_model=_text("Model of the GPU as the driver reports it."),
    device_busid=_text("PCI address of the GPU."),
    device_node=_text("Name of the node."),
)
_IDS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
_SCHEMAS: Final[dict[str, Schema]] = {
    "GpuNode": _object(
        "The GPUs of one node.",
        spec=_object(
            "What the node has.",
            device_infos=_map("The GPUs by UUID.", _DEVICE),
            device_models=_map("UUIDs by model, in lower case.", _IDS),
            device_busy={**_IDS, "description": "UUIDs of the GPUs that cannot be allocated as a whole now."},
            report_time=_text("When the agent last wrote the Device."),
        ),
        status=_object(
            "Whether devices of the node can be allocated.",
            node=_text("Name of the node."),
            health=_text('"True" or "False".'),
            message=_text("Why."),
            last_health_time=_text("Since when the node is healthy, or until when it was."),
            last_transition_time=_text("When the health last changed."),
        ),
    ),
    "GpuPod": _object(
        "The GPUs of one pod.",
        spec=_object(
            "What the pod has.",
            pod_name=_text("Name of the pod."),
            pod_namespace=_text("Namespace of the pod."),
            node_name=_text("Name of the node."),
            containers_device=_list(
                "The GPUs of each container; shares of GPUs have no container.",
                _object(
                    "GPUs of one container.",
                    container_name=_text("Name of the container."),
                    device_info=_list("The GPUs.", _DEVICE),
                ),
            ),
        ),
        status=_object(
            "When that changed.",
            last_changed_time=_text("When the agent last wrote the GpuPod."),
        ),
    ),
}


def _schemas() -> dict[str, Schema]:
    common = {
        "apiVersion": _text("Version of this schema."),
        "kind": _text("Kind of this object."),
        "metadata": {"type": "object", "description": "Standard metadata."},
    }
    schemas = {}
    for kind in KINDS:
        schema = _SCHEMAS[kind.name]
        schemas[f"{GROUP}.{VERSION}.{kind.name}"] = {
            **schema,
            "properties": {**common, **schema["properties"]},
            "x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": kind.name}],
        }
    return schemas


def _paths() -> dict[str, Any]:
    """Return the paths of lists, by which kubectl finds the schema of a resource."""
    paths = {}
    for kind in KINDS:
        operation = {
            "x-kubernetes-action": "list",
            "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": kind.name},
            "responses": {"200": {"description": "OK"}},
        }
        paths[f"/apis/{API_VERSION}/{kind.plural}"] = {"get": operation}
    return paths


_OF_GROUP: Final = {"openapi": "3.0.0", "info": _INFO, "paths": _paths(), "components": {"schemas": _schemas()}}
_HASH: Final = hashlib.sha256(orjson.dumps(_OF_GROUP)).hexdigest()[:32]

DOCUMENTS: Final[dict[str, dict[str, Any]]] = {
    V2: {"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": _schemas()},
    V3: {"paths": {V3_GROUP.removeprefix(f"{V3}/"): {"serverRelativeURL": f"{V3_GROUP}?hash={_HASH}"}}},
    V3_GROUP: _OF_GROUP,
}
"""Path -> document."""
