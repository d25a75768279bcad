"""Names and manifests of the nodes that kwok plays."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import DevclusterError
from devcluster.__main__ import main
from devcluster.additions import fleet
from devcluster.control_plane import nodes


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("alone", ["alone"], id="one-name"),
        pytest.param("node-[0-2]", ["node-0", "node-1", "node-2"], id="range"),
        pytest.param("rack[8-10]-a", ["rack8-a", "rack9-a", "rack10-a"], id="middle"),
        pytest.param("node-[08-10]", ["node-08", "node-09", "node-10"], id="zeros"),
        pytest.param("node-[3-3]", ["node-3"], id="one-in-range"),
        pytest.param("node-[3-2]", [], id="empty"),
    ],
)
def test_ranges(pattern: str, expected: list[str]) -> None:
    assert nodes.expand(pattern) == expected


def test_allocatable_is_the_capacity_by_default() -> None:
    options = nodes.NodeOptions(capacity={"example.com/gpu": "8"}, allocatable={"cpu": "60"})

    status = nodes.manifest("one", options)["status"]

    assert status["capacity"] == {"cpu": "64", "memory": "512Gi", "pods": "110", "example.com/gpu": "8"}
    assert status["allocatable"] == {**status["capacity"], "cpu": "60"}


def test_node_is_marked_for_kwok() -> None:
    metadata = nodes.manifest("one", nodes.NodeOptions(labels={"zone": "a"}))["metadata"]

    assert metadata["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert metadata["labels"]["zone"] == "a"
    assert metadata["labels"]["kubernetes.io/hostname"] == "one"


@pytest.mark.parametrize(
    ("status", "taints", "expected"),
    [
        pytest.param("True", [], True, id="ready"),
        pytest.param("True", [{"key": "dedicated"}], True, id="other-taint"),
        pytest.param("True", [{"key": nodes.NOT_READY}], False, id="controller-has-not-seen-it"),
        pytest.param("False", [], False, id="not-ready"),
    ],
)
def test_ready(status: str, taints: list[dict[str, str]], *, expected: bool) -> None:
    node: dict[str, Any] = {
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }

    assert nodes.is_ready(node) is expected


def test_fleet_file_names_nodes_profile_and_number() -> None:
    text = fleet.document(pattern="node-[0-9]", gpus=4, profile="t4")

    assert yaml.safe_load(text) == {"nodes": [{"names": "node-[0-9]", "profile": "t4", "gpus": 4}]}


def test_nodes_of_a_fleet_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{names: 'node-[0-1]', profile: t4, gpus: 4}, {names: other}]")

    assert fleet.node_names(file) == ["node-0", "node-1", "other"]


@pytest.mark.parametrize("text", ["", "nodes:", "profiles: {}", "nodes: [{profile: t4}]", "nodes: [a]", "{", "- a"])
def test_other_files_are_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)

    with pytest.raises(DevclusterError, match=f"{file} is no fleet file"):
        fleet.node_names(file)


def test_a_missing_fleet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match=r"none\.yaml: No such file"):
        fleet.node_names(tmp_path / "none.yaml")


def test_every_example_has_nodes() -> None:
    assert len(fleet.node_names(fleet.EXAMPLE)) == 16


def test_nodes_are_described_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--nodes", "2", "--fleet", "fleet.yaml"]) == 1

    assert "--nodes and --fleet both describe the nodes" in capsys.readouterr().err
