"""Names and manifests of the nodes that kwok plays."""

from typing import Any

import pytest
import yaml

from devcluster import fleet, nodes


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
