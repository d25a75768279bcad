"""Definitions (CRDs) only grow: an object of the previous version is valid by this version's, which can read it."""

import copy
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api import crd
from berth_client.errors import ApiError
from berth_operator.commands.crds.main import apply
from tests.programs import previous

CRDS = Path(__file__).parents[3] / "crds"
Schema = Mapping[str, Any]

UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
LOWER = ("minimum", "minLength", "minItems", "minProperties")
FIXED = ("type", "format", "pattern", "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-list-map-keys")


def narrowed(old: Schema, new: Schema, path: str = "") -> Iterator[str]:
    """Yield what a schema no longer accepts of what the older one accepted."""
    if "enum" in old and "enum" not in new:
        # A list of values that becomes open narrows only if it refuses one of them.
        pattern, longest = new.get("pattern", ""), new.get("maxLength", math.inf)
        refused = [value for value in old["enum"] if not re.search(pattern, value) or len(value) > longest]
        yield from (f"{path}: {value}" for value in refused)
        old = {**old, **{key: new[key] for key in ("pattern", "maxLength") if key in new}}
    for key in FIXED:
        if old.get(key) != new.get(key):
            yield f"{path}: {key}"
    yield from (f"{path}: {key}" for key in UPPER if new.get(key, math.inf) < old.get(key, math.inf))
    yield from (f"{path}: {key}" for key in LOWER if new.get(key, 0) > old.get(key, 0))
    if "enum" in new and not set(old.get("enum", [...])) <= set(new["enum"]):
        yield f"{path}: enum"
    yield from (f"{path}.{name}: required" for name in set(new.get("required", ())) - set(old.get("required", ())))
    yield from (f"{path}: {rule}" for rule in _rules(new) - _rules(old))
    for name, schema in old.get("properties", {}).items():
        if name in new.get("properties", {}):
            yield from narrowed(schema, new["properties"][name], f"{path}.{name}")
        else:
            yield f"{path}.{name}: removed"
    for key in ("items", "additionalProperties"):
        if isinstance(old.get(key), dict):
            yield from narrowed(old[key], new.get(key, {}), f"{path}[]")


def _rules(schema: Schema) -> set[str]:
    return {rule["rule"] for rule in schema.get("x-kubernetes-validations", ())}


def schemas(file: Path) -> dict[str, Schema]:
    """Return the schema of each served version of a definition."""
    spec = yaml.safe_load(file.read_text())["spec"]
    return {version["name"]: version["schema"]["openAPIV3Schema"] for version in spec["versions"] if version["served"]}


@pytest.mark.parametrize("name", sorted(path.name for path in CRDS.glob("*.yaml")))
def test_a_definition_only_grows(name: str) -> None:
    old, new = schemas(previous.unpacked() / "crds" / name), schemas(CRDS / name)
    assert old.keys() <= new.keys()
    assert [problem for version in old for problem in narrowed(old[version], new[version])] == []


def test_no_definition_is_gone() -> None:
    assert {path.name for path in (previous.unpacked() / "crds").glob("*.yaml")} <= {
        path.name for path in CRDS.glob("*.yaml")
    }


TEXT: Schema = {"type": "string", "maxLength": 10}


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        ({"properties": {"a": TEXT}}, {"properties": {"a": TEXT, "b": TEXT}}, []),
        ({"properties": {"a": TEXT}}, {"properties": {}}, [".a: removed"]),
        ({"properties": {"a": TEXT}}, {"properties": {"a": {**TEXT, "maxLength": 20}}}, []),
        ({"properties": {"a": TEXT}}, {"properties": {"a": {**TEXT, "maxLength": 5}}}, [".a: maxLength"]),
        ({"properties": {"a": {"type": "string"}}}, {"properties": {"a": TEXT}}, [".a: maxLength"]),
        ({"properties": {"a": TEXT}}, {"properties": {"a": {"type": "integer", "maxLength": 10}}}, [".a: type"]),
        ({"items": {"minimum": 0}}, {"items": {"minimum": 1}}, ["[]: minimum"]),
        ({"items": {"minimum": 1}}, {"items": {}}, []),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, []),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, [": enum"]),
        ({}, {"enum": ["a"]}, [": enum"]),
        ({"enum": ["a", "b"]}, {"pattern": "^[a-z]$", "maxLength": 1}, []),
        ({"enum": ["a", "b2"]}, {"pattern": "^[a-z]", "maxLength": 1}, [": b2"]),
        ({}, {"required": ["a"]}, [".a: required"]),
        ({"required": ["a"]}, {}, []),
        ({}, {"x-kubernetes-validations": [{"rule": "self.a"}]}, [": self.a"]),
        ({"x-kubernetes-validations": [{"rule": "self.a"}]}, {}, []),
    ],
)
def test_what_a_schema_no_longer_accepts_is_found(old: Schema, new: Schema, problems: list[str]) -> None:
    assert list(narrowed(old, new)) == problems


# --- what `berth-operator crds apply` keeps ---------------------------------------------------------------------------


def definition(schema: Schema, *more: str) -> dict[str, Any]:
    versions = [{"name": name, "schema": {"openAPIV3Schema": schema}} for name in ("v1", *more)]
    return {"spec": {"versions": versions}}


ONE: Schema = {"properties": {"spec": {"properties": {"a": TEXT}}}}


@pytest.mark.parametrize(
    ("existing", "is_newer"),
    [
        pytest.param(definition(ONE), False, id="the same"),
        pytest.param(definition({"properties": {"spec": {"properties": {}}}}), False, id="older"),
        pytest.param(definition({"properties": {"spec": {"properties": {"a": TEXT, "b": TEXT}}}}), True, id="newer"),
        pytest.param(definition({"properties": {"spec": {"properties": {"b": TEXT}}}}), False, id="neither"),
        pytest.param(definition({"properties": {"spec": {"properties": {"a": {"items": TEXT}}}}}), True, id="items"),
        pytest.param(definition({**ONE, "additionalProperties": TEXT}), True, id="values"),
        pytest.param(definition({**ONE, "additionalProperties": True}), False, id="no schema of values"),
        pytest.param(definition({"properties": {**ONE["properties"], "status": {}}}), True, id="a part"),
        pytest.param(definition(ONE, "v2"), True, id="a version of the API"),
    ],
)
def test_a_definition_with_all_fields_and_more_is_newer(existing: dict[str, Any], *, is_newer: bool) -> None:
    assert crd.is_newer(existing, definition(ONE)) == is_newer


class Server:
    """Has definitions, and establishes at once what is applied."""

    def __init__(self, *existing: dict[str, Any]) -> None:
        self._existing = {each["metadata"]["name"]: each for each in existing}
        self.applied: set[str] = set()

    async def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self._existing:
            raise ApiError(404, "NotFound", f"{name} not found")
        return {**self._existing[name], "status": {"conditions": [{"type": "Established", "status": "True"}]}}

    async def apply(self, path: str, body: Mapping[str, Any], _manager: str, *, force: bool) -> dict[str, Any]:
        assert force
        name = path.rpartition("/")[2]
        self._existing[name] = dict(body)
        self.applied.add(name)
        return dict(body)


async def test_only_a_newer_definition_stays(capsys: pytest.CaptureFixture[str]) -> None:
    ours = {each["metadata"]["name"]: each for each in crd.definitions().values()}
    newer, older = copy.deepcopy(ours["devices.berth.dev"]), copy.deepcopy(ours["gpupods.berth.dev"])
    fields_of(newer)["later"] = TEXT
    del fields_of(older)["ids"]
    server = Server(newer, older, ours["leaderleases.berth.dev"])

    await apply(server, seconds=5)

    assert server.applied == ours.keys() - {"devices.berth.dev"}
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("devices.berth.dev ")]
    assert line == "devices.berth.dev is of a later version of Berth: it stays, because definitions only grow"


def fields_of(kind: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a definition's spec."""
    [version] = kind["spec"]["versions"]
    fields: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return fields
