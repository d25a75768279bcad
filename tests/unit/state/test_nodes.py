"""Nodes as the API server sends them."""

from typing import Any

import pytest

from berth_api import names
from berth_operator.core.values.request import Taint
from berth_operator.core.values.verdict import Change
from berth_operator.state.objects import nodes
from tests.objects.builders import GI, GPU, NVIDIA, RATIO, node

Raw = dict[str, Any]


def ready(status: str) -> Raw:
    return {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status}]}


def test_a_node_is_read() -> None:
    taints = [{"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    info = nodes.info(node("n", labels={"zone": "x"}, taints=taints, unschedulable=True, offered={}, sums={}))
    assert (info.name, info.labels, info.cordoned, info.ready) == ("n", {"zone": "x"}, True, True)
    assert info.allocatable == {"cpu": 64_000, "memory": 512 * GI, "pods": 110}
    assert info.taints == (Taint(key="a", value="1"), Taint(key="b", effect="NoExecute"))


def test_all_that_the_node_shows_counts_as_for_kubelet() -> None:
    shown = {GPU: "800", NVIDIA: "8", "example.com/x": "2"}
    raw = node(allocatable=shown, capacity={GPU: "700"}, offered={}, sums={})
    allocatable = nodes.info(raw).allocatable
    assert {name: allocatable[name] for name in shown} == {GPU: 800, NVIDIA: 8, "example.com/x": 2}
    assert nodes.device_sums(raw, "allocatable") == {GPU: 800, NVIDIA: 8}
    assert nodes.device_sums(raw, "capacity") == {GPU: 700}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(ready("True"), True, id="ready"),
        pytest.param(ready("False"), False, id="not ready"),
        pytest.param(ready("Unknown"), False, id="unknown"),
        pytest.param({"conditions": []}, True, id="no condition yet"),
        pytest.param({"conditions": None}, True, id="null conditions"),
    ],
)
def test_a_node_is_ready_by_its_condition(fields: Raw, *, expected: bool) -> None:
    assert nodes.info(node(**fields)).ready is expected


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_a_node_without_heartbeats_is_unreachable(status: str) -> None:
    assert nodes.info(node(**ready(status))).unreachable is (status == "Unknown")


def test_a_bare_node_is_read() -> None:
    info = nodes.info({"metadata": {"name": "n"}})
    assert (info.labels, info.allocatable, info.taints, info.cordoned, info.ready) == ({}, {}, (), False, True)
    assert nodes.device_sums({"metadata": {"name": "n"}}, "capacity") == {}


WHAT_IS_DIFFERENT_IS_REPORTED = {
    "nothing": ({}, Change(0)),
    "labels": ({"labels": {"a": "b"}}, Change.NODE_LABELS),
    "taints": ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, Change.NODE_TAINTS),
    "cordon": ({"unschedulable": True}, Change.NODE_TAINTS),
    "readiness": (ready("False"), Change.NODE_TAINTS),
    "silence": (ready("Unknown"), Change.NODE_TAINTS),
    "allocatable": ({"allocatable": {"cpu": "1"}}, Change.NODE_ALLOCATABLE),
    "what a device plugin offers": ({"allocatable": {NVIDIA: "7"}}, Change.NODE_ALLOCATABLE),
    "sums that Berth writes": ({"allocatable": {RATIO: "100"}}, Change.NODE_ALLOCATABLE),
    "partition policy": ({"labels": {names.PARTITION_POLICY_LABEL: "Honor"}}, Change.NODE_LABELS | Change.DEVICE),
    "features": ({"features": ["x"]}, Change.NODE_FEATURES),
    "capacity": ({"capacity": {"cpu": "1"}}, Change(0)),
    "images are only a preference": ({"images": [{"names": ["x"], "sizeBytes": 1}]}, Change(0)),
    "several": ({"labels": {"a": "b"}, "unschedulable": True}, Change.NODE_LABELS | Change.NODE_TAINTS),
}


@pytest.mark.parametrize(
    ("fields", "change"), WHAT_IS_DIFFERENT_IS_REPORTED.values(), ids=WHAT_IS_DIFFERENT_IS_REPORTED
)
def test_what_is_different_is_reported(fields: Raw, change: Change) -> None:
    assert nodes.change(nodes.info(node()), nodes.info(node(**fields))) == change


def test_a_first_sight_is_a_new_node() -> None:
    assert nodes.change(None, nodes.info(node())) == Change.NODE_ADDED


def test_unread_fields_are_dropped() -> None:
    raw = node()
    raw["metadata"]["managedFields"] = [1]
    raw["status"] |= {"images": [], "addresses": [1], "nodeInfo": {"bootID": "b", "kernelVersion": "6"}}
    kept = nodes.transform(raw)
    assert "managedFields" not in kept["metadata"]
    assert set(kept["status"]) == {"allocatable", "capacity", "conditions", "declaredFeatures", "images", "nodeInfo"}
    assert kept["status"]["nodeInfo"] == {"bootID": "b"}


def test_a_node_without_status_is_kept() -> None:
    assert nodes.transform({"metadata": {"name": "n"}})["status"] == {}
