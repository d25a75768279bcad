"""Definitions (CRDs) only grow: an object of the previous version is valid by this version's, which can read it."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import previous

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
