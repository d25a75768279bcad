"""A card's health by the driver's events and figures, through the real library's interface."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_agent.health.faults import Fault, FaultEvent, faults_of
from berth_agent.readings import Reading
from berth_agent.vendors.nvidia import labels
from tests.nvml.fixture import UNINITIALIZED, Gpu, MigDevice, a100, t4
from tests.nvml.probe import NODE, Machine, Probe, Start

ID_0, ID_1 = a100(0).uuid, a100(1).uuid


def faults(reading: Reading) -> list[list[str]]:
    return [[fault.kind for fault in faults_of(device)] for device in reading.spec.devices]


def labelled(reading: Reading) -> dict[str, str]:
    assert reading.facts is not None
    return labels.of(reading.spec, reading.facts, renamed=False)


async def until(probe: Probe, expected: list[list[str]]) -> None:
    """Read until the cards have these faults; what changes them is another thread."""
    deadline = time.monotonic() + 20
    while (listed := faults(await probe.read())) != expected:
        assert time.monotonic() < deadline, listed


async def test_an_xid_is_reported_at_once_with_its_card(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.xid(1, 79)
    fault = Fault(kind="Xid79", message="Xid 79 (GPU has fallen off the bus)")
    assert probe.fault_event() == FaultEvent(node=NODE, card=ID_1, faults=(fault,))


async def test_an_xid_that_comes_while_the_session_is_closed_for_a_change_is_reported(
    machine: Machine, agent: Start
) -> None:
    fixture = machine(a100(0))
    fixture.event_poll_ms = fixture.event_wait_ms = 500
    fixture.write()
    probe = agent(fixture)
    await probe.read()
    fixture.xid(0, 79)
    async with probe.inventory.released():
        assert probe.fault_event().card == ID_0


async def test_an_xid_that_does_not_count_is_not_reported(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.xid(0, 43)
    fixture.xid(0, 13)
    fixture.double_bit_error(1)
    assert probe.fault_event() == FaultEvent(
        node=NODE, card=ID_1, faults=(Fault(kind="DoubleBitEcc", message="double-bit ECC error"),)
    )


@pytest.mark.parametrize(
    ("options", "xid", "expected"),
    [
        ({"disable_healthchecks": "95"}, 95, "Xid74"),
        ({"disable_healthchecks": "xids", "enable_healthchecks": "74"}, 79, "Xid74"),
        ({"disable_healthchecks": "all", "enable_healthchecks": "74"}, 79, "Xid74"),
        ({"enable_healthchecks": "13"}, 13, "Xid13"),
    ],
)
async def test_settings_say_which_xids_count(
    machine: Machine, agent: Start, options: dict[str, Any], xid: int, expected: str
) -> None:
    fixture = machine(a100(0))
    probe = agent(fixture, **options)
    await probe.read()
    fixture.xid(0, xid)
    fixture.xid(0, 74)
    assert [fault.kind for fault in probe.fault_event().faults] == [expected]


async def test_an_xid_of_an_instance_is_one_of_its_card(machine: Machine, agent: Start) -> None:
    migs = [
        MigDevice(uuid="MIG-0", profile="3g.40gb", gpu_instance=1),
        MigDevice(uuid="MIG-1", profile="3g.40gb", gpu_instance=2),
    ]
    fixture = machine(replace(a100(0), mig_mode=True, migs=migs))
    probe = agent(fixture)
    await probe.read()
    fixture.xid(0, 94, gpu_instance=2, compute_instance=0)
    fault_event = probe.fault_event()
    assert (fault_event.card, fault_event.faults[0].message) == (
        ID_0,
        "Xid 94 (contained memory error) on GPU instance 2",
    )


async def test_a_card_that_was_lost_can_still_be_named(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.gpus[0].lost = True
    fixture.xid(0, 79)
    assert probe.fault_event().card == ID_0


async def test_a_card_that_comes_back_is_watched_again(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), replace(a100(1), lost=True))
    probe = agent(fixture)
    await probe.read()
    fixture.restore(1)
    await probe.read()
    fixture.xid(1, 48)
    assert probe.fault_event().card == ID_1


async def test_while_waiting_fails_all_cards_are_ill(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    assert faults(await probe.read()) == [[], []]
    fixture.wait_error = 999
    fixture.write()
    assert probe.fault_event() == FaultEvent(node=NODE)
    reading = await probe.read()
    assert faults(reading) == [["EventsFailed"], ["EventsFailed"]]
    assert faults_of(reading.spec.devices[0])[0].message == "no events are received: Unknown Error"
    fixture.wait_error = 0
    fixture.write()
    await until(probe, [[], []])
    fixture.xid(0, 79)
    while not (fault_event := probe.fault_event()).faults:
        pass
    assert fault_event.card == ID_0


async def test_events_are_received_again_after_the_driver_was_reloaded(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0))
    probe = agent(fixture)
    await probe.read()
    fixture.unload()
    assert (await probe.read()).spec.devices == []
    fixture.load()
    await until(probe, [[]])
    fixture.xid(0, 48)
    while not (fault_event := probe.fault_event()).faults:
        pass
    assert fault_event.card == ID_0


@pytest.mark.parametrize("function", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
async def test_a_card_without_events_is_healthy_and_one_that_refuses_them_is_not(
    machine: Machine, agent: Start, function: str
) -> None:
    fixture = machine(a100(0), a100(1))
    fixture.fail(0, function, 3)
    fixture.fail(1, function, 999)
    probe = agent(fixture)
    assert faults(await probe.read()) == [[], ["EventsFailed"]]
    del fixture.gpus[1].fails[function]
    fixture.write()
    assert faults(await probe.read()) == [[], []]
    fixture.xid(1, 79)
    assert probe.fault_event().card == ID_1


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (replace(a100(0), remapped_failure=True), ["RowRemapFailed"]),
        (replace(a100(0), remapped_pending=True, remapped_uncorrected=1), []),
        (replace(t4(0), retired_pending=True), ["PageRetirementPending"]),
        (replace(t4(0), retired_pages=60), ["TooManyPagesRetired"]),
        (replace(t4(0), retired_pages=59), []),
        (replace(a100(0), recovery_action=1), ["DriverNeedsReset"]),
        (replace(a100(0), recovery_action=2), ["DriverNeedsReboot"]),
        (replace(a100(0), recovery_action=2, fails={"nvmlDeviceGetFieldValues": 3}), []),
        (replace(a100(0), remapped_failure=True, fails={"nvmlDeviceGetRemappedRows": 3}), []),
        (replace(a100(0), remapped_failure=True, fails={"nvmlDeviceGetRemappedRows": 4}), []),
    ],
)
async def test_what_the_driver_measures_makes_a_card_ill(
    machine: Machine, agent: Start, gpu: Gpu, expected: list[str]
) -> None:
    fixture = machine(gpu)
    assert faults(await agent(fixture).read()) == [expected]
    assert faults(await agent(fixture, disable_healthchecks="all").read()) == [[]]


async def test_a_card_that_the_driver_bound_again_was_reset(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    assert (await probe.read()).reset == frozenset()
    fixture.unbind(1)
    assert (await probe.read()).reset == frozenset()
    fixture.write()
    assert (await probe.read()).reset == {ID_1}
    assert (await probe.read()).reset == frozenset()


async def test_a_card_that_was_bound_again_between_two_readings_was_reset(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.rebind(1)
    with capture_logs() as logged:
        assert (await probe.read()).reset == {ID_1}
    # The session before knows the card as it was.
    assert [entry["event"] for entry in logged] == ["NVML session reopened: the driver's cards changed"]
    fixture.write()
    assert (await probe.read()).reset == frozenset()


async def test_a_reset_that_a_failed_reading_saw_is_reported_by_the_next(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.unbind(1)
    await probe.read()
    fixture.fail(1, "nvmlDeviceGetMinorNumber", UNINITIALIZED)  # the session is lost in the midst of the reading
    failed = await probe.read()
    assert (failed.findings[0].ok, failed.reset) == (False, frozenset())
    fixture.gpus[1].fails.clear()
    fixture.write()
    assert (await probe.read()).reset == {ID_1}
    assert (await probe.read()).reset == frozenset()


async def test_a_reset_is_reported_when_its_card_answers(machine: Machine, agent: Start) -> None:
    """Until then, its faults would come again, or it is not listed."""
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.rebind(1)
    fixture.lose(1)
    assert (await probe.read()).reset == frozenset()
    fixture.restore(1)
    assert (await probe.read()).reset == {ID_1}
    assert (await probe.read()).reset == frozenset()


async def test_a_new_layout_of_instances_is_seen(machine: Machine, agent: Start) -> None:
    fixture = machine(
        replace(a100(0), mig_mode=True, migs=[MigDevice(uuid="MIG-0", profile="7g.80gb", gpu_instance=0)])
    )
    probe = agent(fixture)
    before = await probe.read()
    fixture.gpus[0].migs = [
        MigDevice(uuid=f"MIG-{at}", profile="1g.10gb", gpu_instance=7 + at, multiprocessors=14) for at in range(2)
    ]
    fixture.write()
    after = await probe.read()
    profiles = [
        [one.profile for card in reading.spec.devices if card.mig for one in card.mig.instances]
        for reading in (before, after)
    ]
    assert profiles == [["7g.80gb"], ["1g.10gb", "1g.10gb"]]
    values = labelled(after)
    assert values["nvidia.com/mig-1g.10gb.count"] == "2"
    assert values["nvidia.com/mig-1g.10gb.multiprocessors"] == "14"


async def test_the_node_s_labels_come_from_the_driver_and_sysfs(machine: Machine, agent: Start) -> None:
    fixture = machine(replace(t4(0), pci_class="0x030000"))
    product = fixture.sysfs / "class/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.write_text("ProLiant XL675d Gen10 Plus\n")
    values = labelled(await agent(fixture).read())
    kept = ("product", "family", "memory", "compute.major", "compute.minor", "mode", "machine")
    assert [values[f"nvidia.com/gpu.{name}"] for name in kept] == [
        *("Tesla-T4", "turing", "15360", "7", "5", "graphics", "ProLiant-XL675d-Gen10-Plus")
    ]


async def test_labels_stay_with_a_card_that_is_lost_and_go_with_one_that_is_gone(
    machine: Machine, agent: Start
) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    before = labelled(await probe.read())
    fixture.lose(1)
    assert labelled(await probe.read()) == before
    fixture.remove(1)
    assert labelled(await probe.read())["nvidia.com/gpu.count"] == "1"
    fixture.remove(0)
    assert labelled(await probe.read()) == {}


async def test_the_boot_is_published(machine: Machine, agent: Start, tmp_path: Path) -> None:
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("5e1f\n")
    assert (await agent(machine(a100(0)), proc_root=tmp_path / "proc").read()).spec.boot_id == "5e1f"
