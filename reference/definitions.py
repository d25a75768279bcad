"""The fields of Berth's objects, from their CustomResourceDefinitions."""

from collections.abc import Iterator
from typing import Any

from berth_api import crd
from reference.markdown import code, page, section, table

Schema = dict[str, Any]


def text() -> str:
    """Return the page."""
    return page(
        "Objects",
        "The fields of each kind, as `kubectl explain` shows them: `[]` is an entry of a list, `*` a key of a map. No "
        "role lets people write Devices, GpuPods and LeaderLeases: Berth trusts them.",
        *map(_definition, crd.definitions().values()),
    )


def _definition(definition: Schema) -> str:
    spec = definition["spec"]
    [version] = spec["versions"]
    body = version["schema"]["openAPIV3Schema"]
    names = [spec["names"]["plural"], *spec["names"].get("shortNames", [])]
    about = f"`{spec['group']}/{version['name']}`, {spec['scope'].lower()}; `kubectl get {'`, `'.join(names)}`."
    return section(spec["names"]["kind"], about, str(body.get("description", "")), fields(body))


def fields(body: Schema) -> str:
    """Return the table of the fields of a schema."""
    rows = [(code(path), str(node.get("type", "any")), _meaning(node)) for path, node in _fields(body, "")]
    return table(("field", "type", "meaning"), rows)


def _fields(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield each field below a node with its path: `spec.devices[].id`."""
    for name, child in node.get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        if place not in ("apiVersion", "kind", "metadata"):
            yield place, child
            yield from _inside(child, place)


def _inside(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    if isinstance(node.get("items"), dict):
        yield from _fields(node["items"], f"{path}[]")
    elif isinstance(node.get("additionalProperties"), dict):
        yield from _fields(node["additionalProperties"], f"{path}.*")
    else:
        yield from _fields(node, path)


def _meaning(node: Schema) -> str:
    allowed = f"One of {', '.join(code(value) for value in node['enum'])}." if "enum" in node else ""
    return " ".join(filter(None, [str(node.get("description", "")), allowed]))
