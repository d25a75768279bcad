"""Changes of a Device cause one Event each, on the Device and on the Node, never twice."""

from datetime import UTC, datetime
from typing import Any

import pytest

from berth_agent.health import catalogue
from berth_api.objects import faults
from berth_operator.binding.reports import device_events
from berth_operator.binding.reports.events import Event
from berth_operator.state.objects import devices
from tests.objects.builders import condition, device, entry

Raw = dict[str, Any]

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
SINCE = "2026-01-01T11:58:00Z"
XID_79 = ("Xid79", "UntilReboot", "Xid 79: GPU has fallen off the bus")
XID_48 = ("Xid48", "UntilReset", "Xid 48: double bit ECC error")
CORDON = ("Cordoned", "WhileMeasured", "cordoned by the annotation berth.dev/cordoned-devices")


def failed(minor: int, *faults: tuple[str, str, str], since: str = SINCE) -> Raw:
    summary = condition("Healthy", "False", since, reason=faults[0][0], message="; ".join(fault[2] for fault in faults))
    details = [condition(kind, "True", since, reason=ends, message=message) for kind, ends, message in faults]
    return entry(minor, health=False, conditions=[summary, *details])


def events(before: Raw | None, after: Raw) -> list[Event]:
    earlier = None if before is None else devices.record(before)
    return [*device_events.of_change(earlier, devices.record(after, earlier), NOW)]


def made(*entries: Raw, generation: int = 1) -> Raw:
    return device("node-1", *entries, generation=generation)


HEALTHY = made(entry(0), entry(1))


def test_a_card_that_fails_is_reported_on_the_device_and_on_the_node() -> None:
    on_device, on_node = events(HEALTHY, made(failed(0, XID_79), entry(1), generation=2))
    assert on_device.body("me") == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "name": on_device.name},
        "eventTime": on_device.time,
        "reportingController": "berth-operator",
        "reportingInstance": "me",
        "action": "ReadingDevices",
        "reason": "DeviceUnhealthy",
        "type": "Warning",
        "note": "1 device(s) failed and are not allocated: GPU 0 GPU-0 (UntilReboot: Xid 79: GPU has fallen off the "
        "bus); see docs/runbooks.md#berthgpuunhealthy",
        "regarding": {
            "apiVersion": "berth.dev/v1alpha1", "kind": "Device", "name": "node-1", "uid": "uid-device-node-1"
        },
    }  # fmt: skip
    body = on_node.body("me")
    assert body["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert (body["note"], body["reason"]) == (on_device.note, on_device.reason)
    assert on_device.name != on_node.name


def test_what_a_person_cordons_has_the_agents_name() -> None:
    assert faults.CORDONED == catalogue.CORDONED


FALLEN = made(failed(0, XID_79), entry(1), generation=2)


WHAT_IS_REPORTED = {
    "nothing changed": (FALLEN, FALLEN, None, ""),
    "it failed while none led": (None, FALLEN, "DeviceUnhealthy", "GPU 0 GPU-0"),
    "long before": (None, made(failed(0, XID_79, since="2026-01-01T09:00:00Z")), None, ""),
    "healthy at first": (None, HEALTHY, None, ""),
    "cordoned by a person": (HEALTHY, made(failed(0, CORDON), generation=2), None, ""),
    "one more": (FALLEN, made(failed(0, XID_79, XID_48), generation=3), "DeviceUnhealthy", "UntilReset: Xid 48"),
    "one fault less": (made(failed(0, XID_79, XID_48)), FALLEN, None, ""),
    "healthy again": (
        FALLEN,
        made(entry(0), entry(1), generation=3),
        "DeviceHealthy",
        "1 device(s) are healthy again: GPU 0 GPU-0 (UntilReboot: Xid 79: GPU has fallen off the bus)",
    ),
    "taken out": (FALLEN, made(entry(1), generation=3), None, ""),
    "many at once": (
        made(*map(entry, range(9))),
        made(*(failed(minor, XID_79) for minor in range(9)), generation=2),
        "DeviceUnhealthy",
        "9 device(s) failed and are not allocated: GPU 0 GPU-0 (",
    ),
}


@pytest.mark.parametrize(("before", "after", "reason", "words"), WHAT_IS_REPORTED.values(), ids=WHAT_IS_REPORTED)
def test_what_is_reported(before: Raw | None, after: Raw, reason: str | None, words: str) -> None:
    made_events = events(before, after)
    assert {event.reason for event in made_events} == ({reason} if reason else set())
    assert all(words in event.note for event in made_events)
    assert len(made_events) in (0, 2)


def test_many_are_counted() -> None:
    event, _ = events(made(), made(*(failed(minor, XID_79) for minor in range(9)), generation=2))
    assert event.note.endswith(" and 5 more; see docs/runbooks.md#berthgpuunhealthy")


def test_another_leader_and_a_card_that_flaps_make_the_same_event_and_a_later_fault_another_one() -> None:
    first = [event.name for event in events(HEALTHY, FALLEN)]
    assert [event.name for event in events(None, FALLEN)] == first
    soon = made(failed(0, XID_79, since="2026-01-01T11:59:59Z"), generation=5)
    assert [event.name for event in events(HEALTHY, soon)] == first
    later = made(failed(0, XID_79, since="2026-01-01T12:10:00Z"), generation=5)
    assert not {event.name for event in events(HEALTHY, later)} & {*first}
