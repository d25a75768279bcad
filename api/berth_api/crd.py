"""Generate the CustomResourceDefinitions from the models: `python -m berth_api.crd [--check] FOLDER`.

The JSON schema of pydantic becomes a structural schema. References are inlined. Keywords that the API server does not
allow (titles, defaults of optional fields, `const`) are removed or replaced.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from berth_api import names
from berth_api.device import Device, Model
from berth_api.objects.gpupod import GpuPod
from berth_api.objects.leader_lease import LeaderLease
from berth_api.objects.podgroup import PodGroup

Schema = dict[str, Any]

CATEGORY: Final = "berth"
"""Every definition of Berth's lists its kind in this category (`kubectl get berth`), and no other project's does."""

HEADER: Final = "# Generated from the models in api/berth_api by `make generate`; do not edit.\n"
_KEPT: Final = (
    "type", "description", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "maxProperties", "x-kubernetes-int-or-string", "x-kubernetes-validations",
)  # fmt: skip
_MAP_KEYS: Final = {
    ("spec", "devices"): ["type", "minor"],
    ("status", "devices"): ["type", "minor"],
    ("conditions",): ["type"],
}
"""Lists that are merged as maps: the end of the path to the list -> the keys of an entry."""
_ATOMIC: Final = ("topology", "resources", "mig", "free")
"""Objects with one writer: the server then tracks one owner for each, not one for each field, which makes an apply
several times cheaper."""
_NESTED: Final = {"items": "[]", "additionalProperties": "*"}
"""Keyword of a schema within a schema -> what stands for it in paths."""
_ONE_WRITER: Final = (LeaderLease,)
"""Models whose status is no subresource, because one request writes it together with the spec."""


def _column(name: str, kind: str, path: str, **extra: object) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **extra}


WIDE: Final = 1
"""The priority of columns that only `kubectl get -o wide` shows."""
_READY: Final = '.status.conditions[?(@.type=="Ready")].status'
_CONSISTENT: Final = '.status.conditions[?(@.type=="Consistent")].status'
_AGE: Final = _column("Age", "date", ".metadata.creationTimestamp")
_DEVICE_COLUMNS: Final = [
    _column("Ready", "string", _READY),
    _column("GPUs", "integer", ".status.gpus"),
    _column("Healthy", "integer", ".status.healthy"),
    _column("Allocated", "string", ".status.allocated"),
    _column("Blocked", "integer", ".status.blocked"),
    _column("Model", "string", ".status.model"),
    _column("Others", "string", ".status.others"),
    _column("Memory", "string", ".status.memory", priority=WIDE),
    _column("Driver", "string", ".spec.driverVersion", priority=WIDE),
    _AGE,
]
_GPUPOD_COLUMNS: Final = [
    _column("Node", "string", ".spec.nodeName"),
    _column("Devices", "string", ".spec.devices"),
    _column("Memory", "string", ".spec.memory"),
    _column("Core", "integer", ".spec.core"),
    _column("Consistent", "string", _CONSISTENT),
    _column("IDs", "string", ".spec.ids", priority=WIDE),
    _AGE,
]
_LEADER_LEASE_COLUMNS: Final = [
    _column("Holder", "string", ".spec.holderIdentity"),
    _column("Term", "integer", ".spec.term"),
    _column("Renewed", "date", ".spec.renewTime"),
    _AGE,
]
_PODGROUP_COLUMNS: Final = [
    _column("Phase", "string", ".status.phase"),
    _column("MinMember", "integer", ".spec.minMember"),
    _column("Scheduled", "integer", ".status.scheduled"),
    _column("Running", "integer", ".status.running"),
    _column("Succeeded", "integer", ".status.succeeded"),
    _column("Failed", "integer", ".status.failed"),
    _AGE,
]


def definitions() -> dict[str, Schema]:
    """Return all CustomResourceDefinitions: file name -> definition."""
    device = _definition(Device, names.GROUP, names.DEVICES, ["dev"], _DEVICE_COLUMNS)
    gpupod = _definition(GpuPod, names.GROUP, names.GPUPODS, [], _GPUPOD_COLUMNS)
    lease = _definition(LeaderLease, names.GROUP, names.LEADER_LEASES, [], _LEADER_LEASE_COLUMNS)
    group = _definition(PodGroup, names.POD_GROUP_GROUP, names.POD_GROUPS, ["pg", "pgs"], _PODGROUP_COLUMNS)
    return {f"{definition['metadata']['name']}.yaml": definition for definition in (device, gpupod, lease, group)}


def _definition(model: type[Model], group: str, plural: str, short: list[str], columns: list[Schema]) -> Schema:
    kind = model.__name__
    has_status = "status" in model.model_fields and model not in _ONE_WRITER
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster" if model is Device else "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                **({"shortNames": short} if short else {}),
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if has_status else {}),
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema(model)},
                }
            ],
        },
    }


def is_foreign(definition: Mapping[str, Any]) -> bool:
    """Return whether another project installed this definition.

    PodGroups are defined by scheduler-plugins, too. Berth reads and writes theirs as well as its own.
    """
    spec = definition["spec"]
    return spec["group"] != names.GROUP and CATEGORY not in spec["names"].get("categories", ())


def is_newer(existing: Mapping[str, Any], definition: Mapping[str, Any]) -> bool:
    """Return whether an existing definition is a later version of this one.

    Definitions only grow: the later one has all fields of the earlier one, and more. A definition that also lacks
    fields of this one is no later version.
    """
    return _fields(existing) > _fields(definition)


def _fields(definition: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    """Return the paths of all fields, each with its version."""
    paths: set[tuple[str, ...]] = set()
    unread: list[tuple[tuple[str, ...], Schema]]
    unread = [((version["name"],), version["schema"]["openAPIV3Schema"]) for version in definition["spec"]["versions"]]
    while unread:
        path, node = unread.pop()
        paths.add(path)
        unread += [((*path, name), child) for name, child in node.get("properties", {}).items()]
        # `additionalProperties` may be a boolean.
        unread += [((*path, end), node[key]) for key, end in _NESTED.items() if isinstance(node.get(key), dict)]
    return frozenset(paths)


def schema(model: type[Model]) -> Schema:
    """Return the structural schema of an object."""
    raw = model.model_json_schema(mode="validation")
    body = _structural(raw, raw.get("$defs", {}), ())
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    return {**body, "required": required} if required else body


def _structural(node: Schema, definitions: Schema, path: tuple[str, ...]) -> Schema:
    # References are inlined. `X | None` becomes X, because an absent field stands for None.
    if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        variants = [variant for variant in node["anyOf"] if variant.get("type") != "null"]
        node = {**variants[0], **{key: value for key, value in node.items() if key != "anyOf"}}
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    out: Schema = {key: node[key] for key in _KEPT if key in node}
    if "x-kubernetes-int-or-string" in out:
        return {key: value for key, value in out.items() if key not in ("type", "anyOf")}
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    return {**out, **_children(node, definitions, path), **_merging(path, node)}


def _children(node: Schema, definitions: Schema, path: tuple[str, ...]) -> Schema:
    out: Schema = {}
    if "properties" in node:
        out["properties"] = {
            name: _structural(child, definitions, (*path, name)) for name, child in node["properties"].items()
        }
        if node.get("required"):
            out["required"] = node["required"]
    if isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(node["additionalProperties"], definitions, (*path, "*"))
    if "items" in node:
        out["items"] = _structural(node["items"], definitions, (*path, "[]"))
    return out


def _merging(path: tuple[str, ...], node: Schema) -> Schema:
    """Return the keywords that define how server-side apply merges a list or an object."""
    if node.get("type") == "object" and path and path[-1] in _ATOMIC:
        return {"x-kubernetes-map-type": "atomic"}
    for end, keys in _MAP_KEYS.items():
        if node.get("type") == "array" and path[-len(end) :] == end:
            return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    return {}


def render(definition: Schema) -> str:
    """Return the text of the file of a definition."""
    return HEADER + yaml.safe_dump(definition, sort_keys=False, width=120)


def main() -> int:
    """Write the definitions, or with --check report which files differ; return 1 if one does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    options = parser.parse_args()
    texts = {options.folder / name: render(definition) for name, definition in definitions().items()}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            sys.stderr.write(f"{path} differs from its model: run `make generate`\n")
        else:
            path.write_text(texts[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
