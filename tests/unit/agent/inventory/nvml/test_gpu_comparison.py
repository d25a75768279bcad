"""The comparison of `make test-gpu` finds each difference between the fixture and its nvidia-smi output."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.gpu import look, pretend, smi
from tests.nvml.fixture import HOSTBRIDGE, MIB, Gpu, MigDevice, NvLink, NvmlFixture, a100, h100, t4
from tests.nvml.probe import Machine, Start

MIG = MigDevice(uuid="MIG-0aa1d6c4-0000-5000-8000-000000000001", profile="3g.40gb", gpu_instance=2)
SMALL = MigDevice(uuid="MIG-0aa1d6c4-0000-5000-8000-000000000002", profile="1g.10gb+me", gpu_instance=9)


def divided() -> Gpu:
    return replace(a100(1), mig_mode=True, migs=[MIG, SMALL])


def pair(level: int) -> list[Gpu]:
    one, other = replace(a100(0), links=[]), replace(a100(3), links=[])
    one.topology, other.topology = {other.uuid: level}, {one.uuid: level}
    return [one, other]


def bridged() -> list[Gpu]:
    one, other = a100(0), a100(1)
    one.links = [NvLink(end="gpu", remote=other.bus_id)] * 4
    other.links = [NvLink(end="gpu", remote=one.bus_id)] * 4
    return [one, other]


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param([h100(index) for index in range(8)], id="nvswitch"),
        pytest.param(bridged(), id="bridge"),
        *(pytest.param(pair(level), id=word) for level, word in pretend.LEVELS.items()),
        pytest.param([replace(t4(1), minor=0), replace(t4(0), minor=1)], id="minors-and-indices-differ"),
        pytest.param([a100(0), divided(), t4(2)], id="mig"),
        pytest.param([replace(t4(0), numa=-1)], id="no-numa"),
        pytest.param([replace(t4(0), retired_pages=70, retired_pending=True)], id="pages"),
        *(
            pytest.param([replace(h100(0), recovery_action=action)], id=word)
            for action, word in pretend.ACTIONS.items()
        ),
        pytest.param([replace(h100(0), remapped_failure=True)], id="remapping"),
    ],
)
async def test_both_report_the_same_machine(machine: Machine, agent: Start, gpus: list[Gpu]) -> None:
    fixture = machine(*sorted(gpus, key=lambda gpu: gpu.bus_id))
    reading = await agent(fixture).read()
    theirs = smi.facts(pretend.texts(fixture))
    assert len(theirs) == len(gpus) + 1
    assert smi.differences(look.facts(reading), theirs) == []


def change(**fields: object) -> Callable[[NvmlFixture], None]:
    """Change the second card."""

    def apply(fixture: NvmlFixture) -> None:
        fixture.gpus[1] = replace(fixture.gpus[1], **fields)  # type: ignore[arg-type]

    return apply


def driver(fixture: NvmlFixture) -> None:
    fixture.driver = "570.133.21"


def cuda(fixture: NvmlFixture) -> None:
    fixture.cuda = 13000


ONE, TWO = a100(0).uuid, a100(1).uuid
CARD = (
    *("compute_cap", "faults", "index", "link GPU0", "memory.total", "mig.mode.current", "minor_number", "name"),
    *("numa", "pci.bus_id", "peer GPU0"),
)
"""Fields of a card that has one other card next to it."""


def fields(differences: list[str]) -> list[str]:
    return [difference.partition(": agent ")[0] for difference in differences]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (driver, ["machine driver_version"]),
        (cuda, ["machine cuda_version"]),
        (change(memory=40960 * MIB), [f"{TWO} memory.total"]),
        (change(minor_capability=6), [f"{TWO} compute_cap"]),
        (change(mig_capable=False), [f"{TWO} mig {MIG.uuid}", f"{TWO} mig {SMALL.uuid}", f"{TWO} mig.mode.current"]),
        (change(migs=[MIG]), [f"{TWO} mig {SMALL.uuid}"]),
        (change(migs=[MIG, replace(SMALL, profile="1g.10gb")]), [f"{TWO} mig {SMALL.uuid}"]),
        (change(migs=[MIG, replace(SMALL, gpu_instance=8)]), [f"{TWO} mig {SMALL.uuid}"]),
        (change(migs=[MIG, replace(SMALL, compute_instance=1)]), [f"{TWO} mig {SMALL.uuid}"]),
        (change(remapped_failure=True), [f"{TWO} faults"]),
        (change(fails={}, retired_pending=True), [f"{TWO} faults"]),
        (change(fails={}, retired_pages=60), [f"{TWO} faults"]),
        (change(recovery_action=1), [f"{TWO} faults"]),
        (change(links=a100(1).links[1:]), [f"{ONE} link GPU1", f"{TWO} link GPU0"]),
        (change(links=[], topology={ONE: HOSTBRIDGE}), [f"{ONE} link GPU1", f"{TWO} link GPU0"]),
        (change(p2p={ONE: 1}), [f"{TWO} peer GPU0"]),
        (change(bus_id="00000000:33:00.0", sysfs=f"{a100(1).sysfs[:-12]}0000:33:00.0"), [f"{TWO} pci.bus_id"]),
    ],
)
async def test_a_wrong_field_is_named(
    machine: Machine, agent: Start, wrong: Callable[[NvmlFixture], None], expected: list[str]
) -> None:
    fixture = machine(a100(0), divided())
    theirs = smi.facts(pretend.texts(fixture))
    wrong(fixture)
    fixture.write()
    differences = smi.differences(look.facts(await agent(fixture).read()), theirs)
    assert fields(differences) == expected


async def test_a_card_that_the_agent_does_not_know_is_wrong_in_every_field(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    facts = look.facts(await agent(fixture).read())
    fixture.gpus[1].uuid = unknown = "GPU-ffffffff-0000-4000-8000-000000000000"
    differences = smi.differences(facts, smi.facts(pretend.texts(fixture)))
    assert fields(differences) == [f"{whose} {field}" for whose in (TWO, unknown) for field in CARD]


async def test_a_driver_that_counts_otherwise_is_found_out(machine: Machine, agent: Start) -> None:
    """The agent takes it for given that NVML's indices follow the PCI addresses."""
    fixture = machine(t4(1), t4(0))
    differences = smi.differences(look.facts(await agent(fixture).read()), smi.facts(pretend.texts(fixture)))
    theirs = ["index", "link GPU0", "link GPU1", "peer GPU0", "peer GPU1"]
    assert fields(differences) == [f"{card.uuid} {field}" for card in (t4(0), t4(1)) for field in theirs]


async def test_a_driver_that_does_not_answer_is_a_trouble(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0))
    theirs = smi.facts(pretend.texts(fixture))
    fixture.unload()
    differences = smi.differences(look.facts(await agent(fixture).read()), theirs)
    assert (
        "machine troubles: agent 'DriverLoaded: DriverNotLoaded Driver Not Loaded; InventoryRead: NoDriver '"
        in differences[-1]
    )
