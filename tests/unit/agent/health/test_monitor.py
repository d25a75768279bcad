"""A monitor handles readings: cases in addition to the scripts of test_recovery."""

from dataclasses import replace

import pytest

from berth_agent.conditions import Finding, unhealthy
from berth_agent.health import annotations
from berth_agent.health.checks import Checks
from berth_agent.health.faults import Fault, FaultEvent, faults_of
from berth_agent.vendors.nvidia import rules
from berth_agent.vendors.nvidia.rules import Measured
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec, Mig, MigInstance
from tests.unit.agent.health.film import ALL_READ, NODE, READ_TIMED_OUT, SOME_UNREAD, Film, gpu, reading


def nic(minor: int = 0, *, health: bool = True) -> DeviceInfo:
    card = DeviceInfo(type="rdma", minor=minor, id=f"0000:1a:00.{minor}", health=True)
    return card if health else unhealthy(card, reason="Overheated", message="as a plug-in reports")


def test_a_reading_to_which_nothing_is_added_stays_the_very_same() -> None:
    film = Film()
    film.reading = reading(gpu(0), gpu(1, "RowRemapFailed"), nic(health=False))
    film.monitor.observe({NODE: film.reading})
    assert film.shown is film.reading


def test_slices_and_instances_are_ill_with_their_card() -> None:
    film = Film()
    instances = [MigInstance(id="MIG-1", profile="1g.10gb", gpu_instance=7, compute_instance=0, memory="9728Mi")]
    divided = gpu(0).model_copy(update={"mig": Mig(enabled=True, instances=instances), "replicas": 4})
    film.reading = reading(divided, gpu(1))
    film.play("xid 95 7")
    card = film.shown.spec.devices[0]
    assert (card.health, card.mig, card.replicas) == (False, divided.mig, 4)


def test_other_devices_can_be_cordoned_too() -> None:
    film = Film()
    film.reading = reading(gpu(0), nic(0), nic(1))
    film.cordon("rdma/1, 0000:1a:00.0")
    assert [device.health for device in film.shown.spec.devices] == [True, False, False]


def test_unknown_names_set_a_condition_on_the_device() -> None:
    film = Film()
    film.device_annotations = {names.CORDONED_DEVICES: "0, 9, GPU-x", names.RECOVERED_DEVICES: "rdma/7"}
    finding = film.shown.findings[-1]
    assert (finding.type, finding.ok, finding.reason) == ("AnnotationsRead", False, "NoSuchDevice")
    assert finding.message == (
        'metadata.annotations.berth.dev/cordoned-devices: no device of this node is "9", "GPU-x"; allowed are minors '
        "of GPUs (0), types with minors (rdma/1) and ids (a UUID, or a PCI address), with commas between them; "
        'metadata.annotations.berth.dev/recovered-devices: no device of this node is "rdma/7"; allowed are minors '
        "of GPUs (0), types with minors (rdma/1) and ids (a UUID, or a PCI address), with commas between them"
    )
    film.device_annotations = {names.CORDONED_DEVICES: "0"}
    assert film.shown.findings == (ALL_READ,)


@pytest.mark.parametrize(
    ("text", "devices", "problems"),
    [
        ("", [], []),
        (" , ,", [], []),
        ("0", [("gpu", 0)], []),
        ("0,1", [("gpu", 0), ("gpu", 1)], []),
        ("0, 0", [("gpu", 0)], []),
        ("gpu/1", [("gpu", 1)], []),
        ("GPU/1", [("gpu", 1)], []),
        ("GPU-1", [("gpu", 1)], []),
        ("rdma/0", [("rdma", 0)], []),
        ("0000:1A:00.0", [("rdma", 0)], []),
        ("00", [], ["00"]),
        ("gpu", [], ["gpu"]),
        ("gpu/", [], ["gpu/"]),
        ("2,1", [("gpu", 1)], ["2"]),
        ("all", [], ["all"]),
        ("0 1", [], ["0 1"]),
        ("-1", [], ["-1"]),
    ],
)
def test_devices_are_named_by_minor_type_or_id(text: str, devices: list[tuple[str, int]], problems: list[str]) -> None:
    named = annotations.read(text, [gpu(0), gpu(1), nic()])
    assert (sorted(named.devices), list(named.problems)) == (devices, problems)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Measured(), []),
        (Measured(remap_failed=True), ["RowRemapFailed"]),
        (Measured(retirement_pending=True), ["PageRetirementPending"]),
        (Measured(retired_pages=59), []),
        (Measured(retired_pages=60), ["TooManyPagesRetired"]),
        (Measured(recovery_action=1), ["DriverNeedsReset"]),
        (Measured(recovery_action=2), ["DriverNeedsReboot"]),
        (Measured(recovery_action=3), ["DriverNeedsDrain"]),
        (Measured(recovery_action=4), ["DriverNeedsReset"]),
        (Measured(recovery_action=5), ["DriverNeedsDrain"]),
        (Measured(recovery_action=6), ["DriverNeedsReset"]),
        (Measured(recovery_action=7), ["DriverNeedsReboot"]),
        (Measured(recovery_action=8), []),
        (Measured(remap_failed=True, recovery_action=1), ["RowRemapFailed", "DriverNeedsReset"]),
    ],
)
def test_what_the_driver_measures_is_a_fault_or_none(measured: Measured, expected: list[str]) -> None:
    assert [fault.kind for fault in rules.of_measured(measured, Checks())] == expected
    assert rules.of_measured(measured, Checks(disabled=frozenset({"all"}))) == []


def test_a_repeated_event_is_not_new() -> None:
    film, fault_event = Film(), FaultEvent(node=NODE, card="GPU-0", faults=(Fault(kind="Xid95"),))
    assert film.monitor.is_new(fault_event)
    film.monitor.record_event(fault_event)
    assert not film.monitor.is_new(fault_event)
    assert film.monitor.is_new(FaultEvent(node=NODE))


def test_a_node_is_known_when_its_device_was_recalled_and_not_by_a_reading() -> None:
    film = Film()
    film.monitor.observe({"another": film.reading})
    assert not film.monitor.knows("another")
    film.monitor.restore("another", DeviceSpec())
    assert film.monitor.knows("another")


def test_an_event_before_the_device_was_recalled_is_not_lost() -> None:
    film = Film()
    film.play("xid 95")
    film.monitor.restore(NODE, DeviceSpec(devices=[gpu(0, "Xid79"), gpu(1)]))
    assert film.faults == ["Xid79", "Xid95"]


def test_a_card_that_never_answered_this_agent_stays_listed_as_the_one_before_knew_it() -> None:
    film = Film()
    film.monitor.restore(NODE, DeviceSpec(devices=[gpu(0), gpu(1)]))
    film.reading = reading(gpu(1), findings=[SOME_UNREAD])
    film.monitor.observe({NODE: film.reading})
    shown = {device.minor: [fault.kind for fault in faults_of(device)] for device in film.shown.spec.devices}
    assert shown == {1: [], 0: ["NoAnswer"]}
    film.play("read")
    assert film.faults == []


def test_a_card_that_is_not_read_keeps_what_only_a_reset_ends() -> None:
    film = Film()
    film.monitor.restore(NODE, DeviceSpec(devices=[gpu(0, "Xid95", "DriverNeedsReset"), gpu(1)]))
    film.reading = reading(gpu(1), findings=[SOME_UNREAD])
    film.monitor.observe({NODE: film.reading})
    film.play("restart; read DriverNeedsReset")
    assert film.faults == ["Xid95", "DriverNeedsReset"]


@pytest.mark.parametrize("reason", ["ReadTimedOut", "ReadFailed", "NoDriver"])
def test_cards_stay_listed_as_unhealthy_while_no_card_is_read(reason: str) -> None:
    film = Film()
    film.monitor.restore(NODE, DeviceSpec(devices=[gpu(0, "Xid48"), gpu(1), nic()]))
    nothing = reading(findings=[Finding(type=names.INVENTORY_READ, ok=False, reason=reason)])
    shown = []
    for film.reading in (reading(gpu(1), findings=[SOME_UNREAD]), nothing, reading(gpu(0), gpu(1)), nothing):
        film.monitor.observe({NODE: film.reading})
        shown.append({device.id: [fault.kind for fault in faults_of(device)] for device in film.shown.spec.devices})
    assert shown == [
        {"GPU-1": [], "GPU-0": ["Xid48", "NoAnswer"]},
        {"GPU-1": ["NoAnswer"], "GPU-0": ["Xid48", "NoAnswer"]},
        {"GPU-1": [], "GPU-0": ["Xid48"]},
        {"GPU-1": ["NoAnswer"], "GPU-0": ["Xid48", "NoAnswer"]},
    ]


def test_a_failed_reading_of_other_devices_does_not_concern_the_gpus() -> None:
    film = Film()
    film.reading = reading(gpu(0), findings=[ALL_READ, replace(READ_TIMED_OUT, type=f"{names.INVENTORY_READ}.rdma")])
    film.monitor.restore(NODE, DeviceSpec(devices=[gpu(0), gpu(1)]))
    assert film.shown is film.reading


def test_cards_that_are_not_read_are_of_this_boot() -> None:
    film = Film()
    film.monitor.restore(NODE, DeviceSpec(boot_id=film.boot, devices=[gpu(0, "Xid79"), gpu(1)]))
    film.hang()
    assert film.shown.spec.boot_id == film.boot


def test_a_card_that_was_taken_out_is_not_listed() -> None:
    film = Film()
    film.monitor.restore(NODE, DeviceSpec(devices=[gpu(0), gpu(1)]))
    film.reading = reading(gpu(1))
    film.monitor.observe({NODE: film.reading})
    assert [device.minor for device in film.shown.spec.devices] == [1]


@pytest.mark.parametrize(
    ("boot", "expected"), [("boot-1", ["Xid79"]), ("boot-0", []), ("", ["Xid79"])], ids=["same", "another", "untold"]
)
def test_what_was_seen_in_another_boot_does_not_hold(boot: str, expected: list[str]) -> None:
    film = Film()
    film.monitor.restore(NODE, DeviceSpec(boot_id=boot, devices=[gpu(0, "Xid79"), gpu(1)]))
    assert film.faults == expected
