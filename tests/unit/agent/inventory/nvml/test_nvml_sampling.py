"""Measurements of cards, as NVML reports them."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from berth_agent.readings import CardSample, MemoryUse, Process
from tests.nvml.fixture import (
    GPU_IS_LOST,
    HW_THERMAL_SLOWDOWN,
    IDLE,
    MIB,
    NOT_SUPPORTED,
    SW_POWER_CAP,
    UNKNOWN,
    Gpu,
    MigDevice,
    a100,
    t4,
)
from tests.nvml.fixture import Process as FixtureProcess
from tests.nvml.probe import Machine, Probe, Start

FUNCTIONS = {
    "memory": "nvmlDeviceGetMemoryInfo_v2",
    "sm_utilization": "nvmlDeviceGetUtilizationRates",
    "memory_utilization": "nvmlDeviceGetUtilizationRates",
    "encoder_utilization": "nvmlDeviceGetEncoderUtilization",
    "decoder_utilization": "nvmlDeviceGetDecoderUtilization",
    "power": "nvmlDeviceGetPowerUsage",
    "power_limit": "nvmlDeviceGetEnforcedPowerLimit",
    "temperature": "nvmlDeviceGetTemperature",
    "clocks": "nvmlDeviceGetClockInfo",
    "throttle_reasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "ecc_errors": "nvmlDeviceGetTotalEccErrors",
    "processes": "nvmlDeviceGetComputeRunningProcesses_v3",
}
"""Fields of a sample, and the functions that they come from."""
NOTHING = CardSample()
FUNCTION_NOT_FOUND = 13


def busy() -> Gpu:
    return replace(
        a100(0),
        used=2048 * MIB,
        gpu_utilization=97,
        memory_utilization=40,
        encoder_utilization=12,
        decoder_utilization=100,
        power=310_500,
        temperature=83,
        sm_clock=1410,
        throttle_reasons=SW_POWER_CAP | HW_THERMAL_SLOWDOWN,
        ecc_corrected=3,
        ecc_uncorrected=1,
        processes=[FixtureProcess(pid=7, used=MIB)],
    )


async def samples(probe: Probe) -> Mapping[str, CardSample]:
    await probe.read()
    return await probe.inventory.sample()


async def test_each_value_has_its_base_unit(machine: Machine, agent: Start) -> None:
    [sample] = (await samples(agent(machine(busy())))).values()
    assert sample.memory == MemoryUse(total=81920 * MIB, used=2048 * MIB, free=(81920 - 675 - 2048) * MIB)
    assert (sample.sm_utilization, sample.memory_utilization) == (0.97, 0.4)
    assert (sample.encoder_utilization, sample.decoder_utilization) == (0.12, 1.0)
    assert (sample.power, sample.power_limit, sample.temperature) == (310.5, 400.0, 83)
    assert sample.clocks == {"sm": 1_410_000_000, "memory": 1_593_000_000}
    assert {name for name, holds in sample.throttle_reasons.items() if holds} == {
        "sw_power_cap",
        "hw_thermal_slowdown",
    }
    assert len(sample.throttle_reasons) == 9
    assert sample.ecc_errors == {"corrected": 3, "uncorrected": 1}
    assert sample.processes == (Process(pid=7, memory=MIB),)


async def test_a_driver_that_knows_no_reserve_counts_it_as_used(machine: Machine, agent: Start) -> None:
    card = busy()
    card.fails["nvmlDeviceGetMemoryInfo_v2"] = FUNCTION_NOT_FOUND
    [sample] = (await samples(agent(machine(card)))).values()
    assert sample.memory == MemoryUse(total=81920 * MIB, used=2723 * MIB, free=(81920 - 2723) * MIB)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN, GPU_IS_LOST])
@pytest.mark.parametrize("field", FUNCTIONS)
async def test_what_a_card_does_not_report_is_left_out_and_the_rest_is_there(
    machine: Machine, agent: Start, field: str, code: int
) -> None:
    fixture = machine(busy(), t4(1))
    probe = agent(fixture)
    whole = await samples(probe)
    fixture.fail(0, FUNCTIONS[field], code)
    first, second = (await probe.inventory.sample()).values()
    missing = {name for name, function in FUNCTIONS.items() if function == FUNCTIONS[field]}
    assert {name for name in FUNCTIONS if getattr(first, name) == getattr(NOTHING, name)} == missing
    assert [second] == list(whole.values())[1:]


async def test_reasons_that_a_card_does_not_support_are_left_out(machine: Machine, agent: Start) -> None:
    card = replace(t4(0), supported_reasons=IDLE | SW_POWER_CAP)
    [sample] = (await samples(agent(machine(card)))).values()
    assert sample.throttle_reasons == {"gpu_idle": True, "sw_power_cap": False}


async def test_instances_have_their_own_memory_and_their_card_measures_no_engines(
    machine: Machine, agent: Start
) -> None:
    mig = [MigDevice(uuid=f"MIG-{number}", profile="1g.10gb", gpu_instance=number) for number in (7, 8)]
    card = replace(busy(), mig_mode=True, migs=mig, processes=[FixtureProcess(pid=1, used=1024 * MIB, gpu_instance=8)])
    [sample] = (await samples(agent(machine(card)))).values()
    assert sample.instances == {
        "MIG-7": MemoryUse(total=9728 * MIB, used=0, free=9728 * MIB),
        "MIG-8": MemoryUse(total=9728 * MIB, used=1024 * MIB, free=8704 * MIB),
    }
    engines = sample.sm_utilization, sample.memory_utilization, sample.encoder_utilization, sample.decoder_utilization
    assert engines == (None, None, None, None)
    assert sample.temperature == 83


async def test_xids_are_counted_by_card_and_number_also_those_that_are_no_fault(machine: Machine, agent: Start) -> None:
    fixture = machine(t4(0), t4(1))
    probe = agent(fixture)
    await probe.read()
    for number in (13, 13, 9999):
        fixture.xid(1, number)
    fixture.double_bit_error(1)
    fixture.xid(0, 79)
    while probe.fault_event().card != fixture.gpus[0].uuid:
        pass
    first, second = (card.uuid for card in fixture.gpus)
    assert probe.inventory.xids() == {(second, 13): 2, (second, 0): 1, (first, 79): 1}
