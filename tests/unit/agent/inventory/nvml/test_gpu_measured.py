"""The comparison of measured values of `make test-gpu`, on the fixture and its nvidia-smi output."""

from dataclasses import replace

import pytest

from tests.gpu import measured
from tests.nvml.fixture import MIB, NOT_SUPPORTED, Gpu, a100, t4
from tests.nvml.probe import Machine, Start


def printed(gpu: Gpu) -> str:
    """Return what nvidia-smi would print of a card, whose driver rounds to whole MiB."""
    free = gpu.memory - gpu.reserved - gpu.used
    memory = f"{gpu.used // MIB}, {free // MIB}"
    engines = "[N/A], [N/A]" if gpu.mig_mode else f"{gpu.gpu_utilization}, {gpu.memory_utilization}"
    power = f"{gpu.power / 1000:.2f}, {gpu.power_limit / 1000:.2f}"
    ecc = f"{gpu.ecc_corrected}, {gpu.ecc_uncorrected}" if gpu.ecc_mode else "[N/A], [N/A]"
    clocks = f"{gpu.sm_clock}, {gpu.memory_clock}"
    return f"{gpu.uuid}, {memory}, {engines}, {power}, {gpu.temperature}, {clocks}, {ecc}\n"


CARDS = {
    "idle": a100(0),
    "busy": replace(a100(0), used=2048 * MIB, gpu_utilization=97, power=310_500, temperature=83, ecc_corrected=3),
    "mig": replace(a100(0), mig_mode=True),
    "no ecc": replace(t4(0), ecc_mode=False),
}


async def agents(machine: Machine, agent: Start, gpu: Gpu) -> measured.Measured:
    probe = agent(machine(gpu))
    await probe.read()
    return measured.of_samples(await probe.inventory.sample())


@pytest.mark.parametrize("gpu", [pytest.param(gpu, id=name) for name, gpu in CARDS.items()])
async def test_both_report_the_same_values(machine: Machine, agent: Start, gpu: Gpu) -> None:
    assert measured.differences(await agents(machine, agent, gpu), measured.of_smi(printed(gpu))) == []


EACH_DIFFERENCE_IS_FOUND = {
    "memory": (replace(a100(0), used=4096 * MIB), ["memory.used", "memory.free"]),
    "limit": (replace(a100(0), power_limit=300_000), ["enforced.power.limit"]),
    "power": (replace(a100(0), power=400_000), ["power.draw"]),
    "temperature": (replace(a100(0), temperature=80), ["temperature.gpu"]),
    "errors": (replace(a100(0), ecc_corrected=1), ["ecc.errors.corrected.volatile.total"]),
    "not reported": (replace(a100(0), fails={"nvmlDeviceGetPowerUsage": NOT_SUPPORTED}), ["power.draw"]),
}


@pytest.mark.parametrize(("changed", "fields"), EACH_DIFFERENCE_IS_FOUND.values(), ids=EACH_DIFFERENCE_IS_FOUND)
async def test_each_difference_is_found(machine: Machine, agent: Start, changed: Gpu, fields: list[str]) -> None:
    theirs = measured.of_smi(printed(a100(0)))
    differences = measured.differences(await agents(machine, agent, changed), theirs)
    assert [difference.split()[1].rstrip(":") for difference in differences] == fields


async def test_a_card_that_only_one_lists_is_a_difference(machine: Machine, agent: Start) -> None:
    listed = await agents(machine, agent, a100(0))
    assert f"{t4(0).uuid}: only one of them lists it" in measured.differences(listed, measured.of_smi(printed(t4(0))))
