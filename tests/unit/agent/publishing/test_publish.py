"""The pure parts of publishing: labels, times of conditions, and the objects that are applied."""

import json
from dataclasses import replace

import pytest

from berth_agent import conditions
from berth_agent.conditions import Finding
from berth_agent.inventory.interface import label_value
from berth_agent.publishing.publish import device_body, status_body
from berth_agent.readings import Reading
from berth_agent.vendors.nvidia.labels import labels_of
from berth_api.device import Condition, Device, DeviceInfo, DeviceSpec, Topology

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1", "controller": True}


def card(minor: int = 0, *, model: str = "Tesla T4") -> DeviceInfo:
    return DeviceInfo(type="gpu", minor=minor, id=f"GPU-{minor}", health=True, model=model)


def condition(status: str, time: str, kind: str = "Healthy") -> Condition:
    return Condition.model_validate({"type": kind, "status": status, "reason": "R", "lastTransitionTime": time})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("H100 80GB HBM3", "H100-80GB-HBM3"),
        ("RTX 6000 (Ada)", "RTX-6000-Ada"),
        ("-odd_", "odd"),
        ("x" * 62 + ".y", "x" * 62),
        ("®", ""),
    ],
)
def test_a_model_becomes_a_label(text: str, expected: str) -> None:
    assert label_value(text) == expected


def test_a_node_without_gpus_has_no_labels() -> None:
    nic = DeviceInfo(type="rdma", minor=0, id="0000:1a:00.0", model="NIC")
    assert labels_of(DeviceSpec(driver_version="1", devices=[nic])) == {}


def test_a_condition_keeps_its_time_until_its_status_flips() -> None:
    before = [condition("False", "2026-01-01T00:00:00Z")]
    again, flipped = condition("False", "2026-02-02T00:00:00Z"), condition("True", "2026-02-02T00:00:00Z")
    assert conditions.keep_times([again], before) == before
    assert conditions.keep_times([flipped], before) == [flipped]


def test_the_times_of_a_condition_go_with_the_id_of_its_card() -> None:
    old = conditions.unhealthy(card(1), reason="GpuIsLost", message="")
    old = old.model_copy(update={"conditions": [condition("False", "2026-01-01T00:00:00Z")]})
    moved = conditions.unhealthy(card(1), reason="GpuIsLost", message="").model_copy(update={"minor": 0})
    replaced = conditions.unhealthy(card(1), reason="GpuIsLost", message="").model_copy(update={"id": "GPU-new"})
    (first,), (second,) = (kept.conditions for kept in conditions.keep_card_times([moved, replaced], [old]))
    assert first.last_transition_time == "2026-01-01T00:00:00Z"
    assert second.last_transition_time != "2026-01-01T00:00:00Z"


def test_the_applied_object_has_only_fields_that_were_set() -> None:
    place = Topology(node_id=-1, bus_id="0000:3b:00.0")
    cards = [card().model_copy(update={"topology": place})]
    reading = Reading(spec=DeviceSpec(driver_version="570", devices=cards), findings=(), labels={"k": "v"})
    body = device_body("a", reading=reading, cards=cards, owners=[OWNER])
    assert body == {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "a", "labels": {"k": "v"}, "ownerReferences": [OWNER]},
        "spec": {
            "driverVersion": "570",
            "devices": [
                {
                    "type": "gpu",
                    "minor": 0,
                    "id": "GPU-0",
                    "health": True,
                    "model": "Tesla T4",
                    "topology": {"nodeID": -1, "busID": "0000:3b:00.0"},
                }
            ],
        },
    }
    assert Device.model_validate(json.loads(json.dumps(body))).spec.devices == cards


def test_empty_labels_and_annotations_are_not_applied() -> None:
    reading = Reading(spec=DeviceSpec(devices=[]), findings=())
    metadata = device_body("a", reading=reading, cards=[], owners=[OWNER])["metadata"]
    assert metadata == {"name": "a", "ownerReferences": [OWNER]}
    annotated = device_body("a", reading=replace(reading, annotations={"k": "v"}), cards=[], owners=[OWNER])
    assert annotated["metadata"]["annotations"] == {"k": "v"}


def test_the_applied_status_has_only_our_conditions() -> None:
    finding = Finding(type="DriverLoaded", ok=False, reason="DriverNotLoaded", message="Driver Not Loaded")
    body = status_body("a", conditions=[finding.condition()])
    assert list(body["status"]) == ["conditions"]
    condition = body["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("DriverLoaded", "False", "DriverNotLoaded")
