"""The API server accepts the definitions made from the models, and everything in them is bounded."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api import crd

Schema = dict[str, Any]

DEFINITIONS = crd.definitions()
ALLOWED = {
    "type",
    "description",
    "enum",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "properties",
    "additionalProperties",
    "items",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
}


def schema_of(definition: Schema) -> Schema:
    (version,) = definition["spec"]["versions"]
    served: Schema = version["schema"]["openAPIV3Schema"]
    return served


def walk(node: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "additionalProperties" in node:
        yield from walk(node["additionalProperties"], f"{path}.*")
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")


BY_PATH = {
    f"{name.partition('.')[0]}{path}": node
    for name, definition in DEFINITIONS.items()
    for path, node in walk(schema_of(definition))
}


def test_a_part_has_only_what_a_structural_schema_may_have() -> None:
    for path, node in BY_PATH.items():
        assert set(node) <= ALLOWED, path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path


def fields(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    for inner in (node.get("items"), node.get("additionalProperties")):
        if inner:
            yield from fields(inner, f"{path}[]")


@pytest.mark.parametrize("name", DEFINITIONS)
def test_kubectl_explain_describes_every_field(name: str) -> None:
    described = dict(fields(schema_of(DEFINITIONS[name]), name))
    assert described
    assert {path for path, field in described.items() if not field.get("description")} == set()


def is_bounded(node: Schema) -> bool:
    kind = node.get("type")
    if kind == "array":
        return bool(node["maxItems"] <= 1000)
    if "additionalProperties" in node:
        return bool(node["maxProperties"] <= 64)
    if node.get("x-kubernetes-int-or-string"):
        return "maxLength" in node and node["minimum"] == 0
    if kind == "string":
        return bool({"maxLength", "enum"} & node.keys()) or node.get("format") == "date-time"
    return kind != "integer" or "minimum" in node


def test_every_part_is_bounded() -> None:
    assert [path for path, node in BY_PATH.items() if not is_bounded(node)] == []


def test_the_keys_of_a_list_map_are_required() -> None:
    for path, node in BY_PATH.items():
        keys = node.get("x-kubernetes-list-map-keys", [])
        assert set(keys) <= set(node.get("items", {}).get("required", [])), path
        assert bool(keys) == (node.get("x-kubernetes-list-type") == "map"), path


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        pytest.param("devices.spec.devices", ["type", "minor"], id="devices"),
        pytest.param("devices.status.devices", ["type", "minor"], id="uses"),
        pytest.param("devices.status.conditions", ["type"], id="conditions"),
        pytest.param("devices.spec.devices[].conditions", ["type"], id="a card's conditions"),
        pytest.param("gpupods.status.conditions", ["type"], id="a GpuPod's conditions"),
        pytest.param("devices.spec.devices[].links", None, id="links are a list"),
        pytest.param("gpupods.spec.containers[].devices", None, id="held devices are a list"),
    ],
)
def test_a_list_is_a_map_by_its_keys(path: str, keys: list[str] | None) -> None:
    assert BY_PATH[path].get("x-kubernetes-list-map-keys") == keys


def test_fields_stand_under_their_names_on_the_wire() -> None:
    card = "devices.spec.devices[]"
    places = {f"{card}.topology.{name}" for name in ("socketID", "nodeID", "pcieID", "busID")}
    others = {f"{card}.moduleID", f"{card}.vfGroups[].vfs[].busID", f"{card}.mig.instances[].profile"}
    assert places | others | {"devices.status.observedGeneration", "gpupods.spec.podUID"} <= BY_PATH.keys()


@pytest.mark.parametrize("definition", [pytest.param(crd, id=name) for name, crd in DEFINITIONS.items()])
def test_a_definition_serves_one_version(definition: Schema) -> None:
    (version,), name = definition["spec"]["versions"], definition["spec"]["names"]["kind"]
    assert version["served"]
    assert version["storage"]
    # The leader writes its record in the request that renews the term.
    has_writer = "status" in version["schema"]["openAPIV3Schema"]["properties"] and name != "LeaderLease"
    assert version.get("subresources") == ({"status": {}} if has_writer else None)
    assert definition["metadata"]["name"] == f"{definition['spec']['names']['plural']}.{definition['spec']['group']}"


def test_devices_are_printed_as_documented() -> None:
    (version,) = DEFINITIONS["devices.berth.dev.yaml"]["spec"]["versions"]
    columns = version["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority") == crd.WIDE]
    assert narrow == ["Ready", "GPUs", "Healthy", "Allocated", "Blocked", "Model", "Others", "Age"]
    assert wide == ["Memory", "Driver"]
    assert DEFINITIONS["devices.berth.dev.yaml"]["spec"]["names"]["shortNames"] == ["dev"]


def test_gpu_pods_show_their_devices_and_share() -> None:
    (version,) = DEFINITIONS["gpupods.berth.dev.yaml"]["spec"]["versions"]
    columns = {column["name"]: column.get("priority", 0) for column in version["additionalPrinterColumns"]}
    assert list(columns) == ["Node", "Devices", "Memory", "Core", "Consistent", "IDs", "Age"]
    assert [name for name, priority in columns.items() if priority] == ["IDs"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["crd", *arguments])
    return crd.main()


def test_written_definitions_are_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, str(tmp_path)) == 0
    assert {path.name: yaml.safe_load(path.read_text()) for path in tmp_path.iterdir()} == DEFINITIONS
    assert run(monkeypatch, "--check", str(tmp_path)) == 0
    assert capsys.readouterr().err == ""


def test_definitions_that_differ_or_are_missing_are_named_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, str(tmp_path))
    stale = tmp_path / "devices.berth.dev.yaml"
    stale.write_text("old")
    missing = tmp_path / "gpupods.berth.dev.yaml"
    missing.unlink()
    assert run(monkeypatch, "--check", str(tmp_path)) == 1
    error = "{} differs from its model: run `make generate`\n"
    assert sorted(capsys.readouterr().err.splitlines(keepends=True)) == [error.format(stale), error.format(missing)]
    assert (stale.read_text(), missing.exists()) == ("old", False)


def test_the_committed_definitions_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[3] / "crds"
    assert run(monkeypatch, "--check", str(folder)) == 0
