"""The agent's report for a machine matches `nvidia-smi -q`."""

import asyncio
import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.inventory.plugins import checked
from berth_agent.readings import Reading
from berth_agent.vendor import MisconfiguredError
from berth_agent.vendors.nvidia.hand_over.access import NvidiaHandOver
from berth_agent.vendors.nvidia.nvml.inventory import NvmlInventory
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec, Mig, MigInstance, Topology
from berth_api.resources import quantity
from tests.nvml import build
from tests.nvml.fixture import (
    GPU_IS_LOST,
    MIB,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Gpu,
    MigDevice,
    NvmlFixture,
    a100,
    h100,
    t4,
)
from tests.nvml.probe import Machine, Start
from tests.objects.amd_trees import refused

VGPU = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU."""
FUNCTIONS = sorted(set(re.findall(r"nvmlDevice\w+", (build.HERE / "nvml.c").read_text())))
"""All that the fixture answers of a card."""

A100 = {
    "Product Name": "NVIDIA A100-SXM4-80GB",
    "MIG Mode Current": "Disabled",
    "GPU UUID": "GPU-a1000000-0000-4000-8000-000000000003",
    "Minor Number": "3",
    "Module ID": "4",
    "Bus Id": "00000000:24:00.0",
    "FB Memory Usage Total": "81920 MiB",
}
H100 = {
    "Product Name": "NVIDIA H100 80GB HBM3",
    "MIG Mode Current": "Disabled",
    "GPU UUID": "GPU-b1000000-0000-4000-8000-000000000000",
    "Minor Number": "0",
    "Module ID": "1",
    "Bus Id": "00000000:13:00.0",
    "FB Memory Usage Total": "81559 MiB",
}
T4 = {
    "Product Name": "Tesla T4",
    "MIG Mode Current": "N/A",
    "GPU UUID": "GPU-74000000-0000-4000-8000-000000000001",
    "Minor Number": "1",
    "Module ID": "N/A",
    "Bus Id": "00000000:91:00.0",
    "FB Memory Usage Total": "15360 MiB",
}


def in_smi_terms(card: DeviceInfo) -> dict[str, str]:
    memory = quantity.parse(card.resources["kubernetes.io/gpu-memory"])
    assert card.topology is not None
    return {
        "Product Name": card.model,
        "MIG Mode Current": "N/A" if card.mig is None else "Enabled" if card.mig.enabled else "Disabled",
        "GPU UUID": card.id,
        "Minor Number": str(card.minor),
        "Module ID": "N/A" if card.module_id == -1 else str(card.module_id),
        "Bus Id": f"0000{card.topology.bus_id.upper()}",
        "FB Memory Usage Total": f"{memory // MIB} MiB",
    }


def finding(reading: Reading, kind: str) -> Finding:
    return next(finding for finding in reading.findings if finding.type == kind)


async def test_a_card_offers_all_of_itself(machine: Machine, agent: Start) -> None:
    card = (await agent(machine(replace(a100(0), memory=85198045184))).read()).spec.devices[0]
    assert card.resources == {
        "kubernetes.io/gpu-core": 100,
        "kubernetes.io/gpu-memory": "83201216Ki",
        "kubernetes.io/gpu-memory-ratio": 100,
    }


async def test_unequal_cards_equal_nvidia_smis_fields_and_have_no_model_label(machine: Machine, agent: Start) -> None:
    reading = await agent(machine(h100(0), t4(1), a100(3))).read()
    assert [in_smi_terms(card) for card in reading.spec.devices] == [H100, T4, A100]
    assert reading.labels == {names.VENDOR_LABEL: "nvidia", names.DRIVER_LABEL: "570.133.20"}


async def test_equal_cards_give_their_model_as_label(machine: Machine, agent: Start) -> None:
    reading = await agent(machine(h100(0), h100(1))).read()
    assert reading.labels[names.MODEL_LABEL] == "H100-80GB-HBM3"


async def test_place_comes_from_sysfs(machine: Machine, agent: Start) -> None:
    cards = (await agent(machine(a100(5), a100(6, switch=False), replace(t4(7), numa=-1))).read()).spec.devices
    assert [card.topology for card in cards] == [
        Topology(socket_id=1, node_id=1, pcie_id="0000:31:00.0", bus_id="0000:34:00.0"),
        Topology(socket_id=1, node_id=1, pcie_id="pci0000:40", bus_id="0000:43:00.0"),
        Topology(socket_id=0, node_id=-1, pcie_id="pci0000:f0", bus_id="0000:f1:00.0"),
    ]


async def test_a_lost_card_stays_listed_and_hides_no_other(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    before = (await probe.read()).spec.devices
    fixture.lose(0)
    reading = await probe.read()
    lost, other = reading.spec.devices
    assert in_smi_terms(lost) == in_smi_terms(before[0])
    assert (lost.health, other.health) == (False, True)
    condition = [
        (condition.type, condition.status, condition.reason, condition.message) for condition in lost.conditions
    ]
    assert condition == [
        ("Healthy", "False", "GpuIsLost", "GPU is lost"),
        ("GpuIsLost", "True", "UntilReset", "GPU is lost"),
    ]
    assert finding(reading, names.INVENTORY_READ).ok


async def test_one_failing_call_makes_only_that_card_unhealthy(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.fail(1, "nvmlDeviceGetMemoryInfo")
    cards = (await probe.read()).spec.devices
    assert [card.health for card in cards] == [True, False]
    assert cards[1].conditions[0].reason == "Unknown"


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_no_call_that_fails_for_one_card_hides_another(machine: Machine, agent: Start, function: str) -> None:
    fixture = machine(a100(0), a100(1))
    # A card can be lost at any moment of a reading: calls before this one still answered.
    probe = agent(fixture)
    before = (await probe.read()).spec.devices
    fixture.fail(1, function, GPU_IS_LOST)
    sound, failing = (await probe.read()).spec.devices
    assert sound.model_copy(update={"links": before[0].links}) == before[0]
    assert failing.id == before[1].id


async def test_a_card_that_never_answered_is_named_in_the_condition(machine: Machine, agent: Start) -> None:
    reading = await agent(machine(a100(0), replace(a100(1), lost=True))).read()
    assert [card.minor for card in reading.spec.devices] == [0]
    condition = finding(reading, names.INVENTORY_READ)
    assert (condition.ok, condition.reason) == (False, "CardsUnread")
    assert condition.message.endswith("card 1: GPU is lost")


@pytest.mark.parametrize(
    ("chosen", "is_refused"),
    [
        ({}, True),
        ({"device_list_strategy": ("cdi-cri",), "cdi_specification": "nvidia-ctk"}, True),
        ({"device_list_strategy": ("cdi-cri",)}, False),
        ({"device_id_strategy": "uuid"}, False),
    ],
)
async def test_cards_are_not_given_by_index_while_a_card_is_unread(
    machine: Machine, agent: Start, chosen: dict[str, Any], *, is_refused: bool
) -> None:
    """NVML counts a card that does not answer, so all cards after it have higher indices than the list shows."""
    fixture = machine(replace(a100(0), lost=True), a100(1))
    spec = (await agent(fixture).read()).spec
    settings = Settings(node_name="a", sysfs_root=fixture.sysfs, **{"device_id_strategy": "index"} | chosen)
    access = NvidiaHandOver(settings).access(spec)
    if is_refused:
        with pytest.raises(MisconfiguredError, match=r"--device-id-strategy=index: the driver holds 0000:.*uuid"):
            access.check()
    else:
        access.check()
    fixture.remove(0)
    NvidiaHandOver(settings).access(spec).check()


async def test_cards_come_and_go_while_the_agent_runs(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    gone = fixture.remove(0)
    assert [card.minor for card in (await probe.read()).spec.devices] == [1]
    fixture.add(gone)
    fixture.add(a100(2))
    assert [card.minor for card in (await probe.read()).spec.devices] == [0, 1, 2]


async def test_a_card_that_moved_up_is_not_taken_for_a_lost_one(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1), a100(2))
    probe = agent(fixture)
    await probe.read()
    fixture.remove(0)
    fixture.lose(1)
    cards = (await probe.read()).spec.devices
    assert [(card.minor, card.health) for card in cards] == [(1, True)]


async def test_a_lost_card_whose_minor_another_card_has_now_is_not_listed(machine: Machine, agent: Start) -> None:
    """The API server would refuse the whole Device, the health of all other cards included."""
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.gpus = [replace(fixture.gpus[0], minor=1), replace(fixture.gpus[1], minor=0, lost=True)]
    fixture.write()
    reading = await probe.read()
    assert [(card.minor, card.id, card.health) for card in reading.spec.devices] == [(1, a100(0).uuid, True)]
    assert finding(reading, names.INVENTORY_READ).reason == "CardsUnread"


async def test_a_card_with_the_minor_of_a_lost_one_is_unhealthy_when_it_is_lost_too(
    machine: Machine, agent: Start
) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    await probe.read()
    fixture.gpus = [replace(fixture.gpus[0], lost=True), replace(fixture.gpus[1], minor=0)]
    fixture.write()
    assert [(card.id, card.health) for card in (await probe.read()).spec.devices] == [(a100(1).uuid, True)]
    fixture.lose(1)
    reading = await probe.read()
    assert [(card.id, card.health) for card in reading.spec.devices] == [(a100(1).uuid, False)]
    assert finding(reading, names.INVENTORY_READ).reason == "CardsUnread"


async def test_no_driver_is_a_condition_until_there_is_one(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), loaded=False)
    probe = agent(fixture)
    reading = await probe.read()
    condition = finding(reading, names.DRIVER_LOADED)
    assert (condition.ok, condition.reason, condition.message) == (False, "DriverNotLoaded", "Driver Not Loaded")
    assert (reading.spec.devices, reading.labels, reading.processes) == ([], {}, None)
    fixture.load()
    reading = await probe.read()
    assert finding(reading, names.DRIVER_LOADED).ok
    assert len(reading.spec.devices) == 1


async def test_a_missing_library_is_a_condition(tmp_path: Path) -> None:
    settings = Settings(node_name="a", nvml_library=tmp_path / "libnvidia-ml.so.1", sysfs_root=tmp_path)
    inventory = NvmlInventory(settings)
    condition = finding((await inventory.read())["a"], names.DRIVER_LOADED)
    inventory.close()
    assert (condition.ok, condition.reason) == (False, "LibraryNotFound")
    assert "libnvidia-ml.so.1" in condition.message


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
async def test_the_strategy_is_published(
    machine: Machine, agent: Start, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setenv("MIG_STRATEGY", strategy)
    assert (await agent(machine(a100(0))).read()).spec.mig_strategy == strategy


@pytest.mark.parametrize("function", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetAttributes_v2"])
async def test_a_card_whose_instances_may_not_be_read_is_not_a_whole_one(
    machine: Machine, agent: Start, function: str
) -> None:
    divided = replace(a100(1), mig_mode=True, migs=[MigDevice(uuid="MIG-1", profile="1g.10gb", gpu_instance=7)])
    divided.fails[function] = NO_PERMISSION
    reading = await agent(machine(a100(0), divided)).read()
    assert [card.minor for card in reading.spec.devices] == [0]
    assert finding(reading, names.INVENTORY_READ).reason == "CardsUnread"


async def test_mig_instances_are_listed(machine: Machine, agent: Start) -> None:
    migs = [
        MigDevice(uuid="MIG-0", profile="3g.40gb", gpu_instance=1, gpu_slices=3, compute_slices=3, memory_mib=40192),
        MigDevice(uuid="MIG-1", profile="1g.10gb+me", gpu_instance=9, compute_instance=0, memory_mib=9728),
    ]
    probe = agent(machine(replace(a100(0), mig_mode=True, migs=migs), a100(1)))
    cards = (await probe.read()).spec.devices
    assert cards[0].mig == Mig(
        enabled=True,
        instances=[
            MigInstance(id="MIG-0", profile="3g.40gb", gpu_instance=1, compute_instance=0, memory="40192Mi"),
            MigInstance(id="MIG-1", profile="1g.10gb+me", gpu_instance=9, compute_instance=0, memory="9728Mi"),
        ],
    )
    assert cards[1].mig == Mig(enabled=False)


STATIC_FACTS_ARE_PUBLISHED_WHERE_THEY_ARE_KNOWN = {
    "all are known": (t4(0), {"multiprocessors": 40, "memoryBandwidth": "320064M", "encoders": 1, "decoders": 2}),
    "model": (replace(t4(0), name="NVIDIA New"), {"multiprocessors": 40, "memoryBandwidth": "320064M"}),
    "NVML reports none": (
        replace(t4(0), fails={"nvmlDeviceGetNumGpuCores": NOT_SUPPORTED, "nvmlDeviceGetMemoryBusWidth": NOT_SUPPORTED}),
        {"encoders": 1, "decoders": 2},
    ),
    "a vGPU": (replace(t4(0), virtualization=VGPU), {"multiprocessors": 40, "memoryBandwidth": "320064M"}),
}


@pytest.mark.parametrize(
    ("gpu", "expected"),
    STATIC_FACTS_ARE_PUBLISHED_WHERE_THEY_ARE_KNOWN.values(),
    ids=STATIC_FACTS_ARE_PUBLISHED_WHERE_THEY_ARE_KNOWN,
)
async def test_static_facts_are_published_where_they_are_known(
    machine: Machine, agent: Start, gpu: Gpu, expected: dict[str, object]
) -> None:
    [card] = (await agent(machine(gpu)).read()).spec.devices
    published = card.model_dump(by_alias=True, exclude_unset=True)
    fields = "multiprocessors", "memoryBandwidth", "encoders", "decoders"
    assert {name: published[name] for name in fields if name in published} == expected


async def test_a_card_that_is_removed_during_a_reading_is_not_taken_for_another(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1), t4(2))
    probe = agent(fixture)
    await probe.read()
    path = fixture.sysfs / "bus/pci/devices" / fixture.gpus[1].address / "class"
    text = path.read_text()
    path.unlink()
    os.mkfifo(path)

    reading = asyncio.create_task(probe.read())
    with await asyncio.to_thread(path.open, "w") as pipe:  # the reading is at the second card
        fixture.remove(0)
        pipe.write(text)

    cards = (await reading).spec.devices
    assert [(card.id, card.health) for card in cards] == [(a100(1).uuid, True), (t4(2).uuid, True)]


# --- values that a Device cannot have -------------------------------------------------------------------------------

NO_TEXT = "A\udcff"
"""A byte that is not UTF-8."""


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"name": NO_TEXT}, id="a name that is no text"),
        pytest.param({"uuid": "GPU,1"}, id="a UUID that no annotation can have"),
        pytest.param({"minor": 65536}, id="a minor that is too high"),
        pytest.param({"module": 65536}, id="a module that is too high"),
        pytest.param({"cores": 64 * 65536}, id="too many multiprocessors"),
        pytest.param(
            {"mig_mode": True, "migs": [MigDevice(uuid="MIG-1", profile="1g.10gb", gpu_instance=256)]},
            id="an instance with a number that is too high",
        ),
    ],
)
async def test_a_value_that_a_device_cannot_have_makes_only_its_card_unread(
    machine: Machine, agent: Start, odd: dict[str, Any]
) -> None:
    reading = await agent(machine(a100(0), replace(a100(1), **odd))).read()
    assert [card.id for card in reading.spec.devices] == [a100(0).uuid]
    condition = finding(reading, names.INVENTORY_READ)
    assert (condition.ok, condition.reason) == (False, "CardsUnread")
    assert "card 1: " in condition.message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(lambda fixture: setattr(fixture, "driver", NO_TEXT), "can't decode byte", id="a driver's version"),
        pytest.param(
            lambda fixture: setattr(fixture.gpus[1], "minor", 0), "minor 0 stands 2 times", id="two cards of one minor"
        ),
    ],
)
async def test_a_reading_that_fails_keeps_the_cards_of_the_last_one(
    machine: Machine, agent: Start, change: Callable[[NvmlFixture], None], problem: str
) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)
    before = await probe.read()
    change(fixture)
    fixture.write()
    reading = await probe.read()
    assert reading.spec == before.spec
    condition = finding(reading, names.INVENTORY_READ)
    assert (condition.ok, condition.reason) == (False, "ReadFailed")
    assert problem in condition.message


async def test_a_bus_that_cannot_be_read_is_a_condition(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), loaded=False)
    with refused(fixture.sysfs / "bus/pci/devices" / fixture.gpus[0].address / "vendor", errno.EIO):
        reading = await agent(fixture).read()
    condition = finding(reading, names.DRIVER_LOADED)
    assert (condition.ok, condition.reason) == (False, "DriverNotLoaded")
    assert "Input/output error" in condition.message


_TEXTS = st.one_of(
    st.sampled_from((NO_TEXT, "", "GPU-" + "0" * 90, "0000:3B:00.0", "00000000:3B:00.0", ",", "GPU-1::0", "MIG-1")),
    st.text(st.characters(exclude_characters="\0\n\r"), max_size=30),
)
_NUMBERS = st.sampled_from((0, 1, 255, 256, 1023, 1024, 65535, 65536, 2**31 - 1, 2**32 - 1))
_HOSTILE = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("uuid", "name"), _TEXTS),
        "bus_id": st.sampled_from(
            ("00000000:14:00.0", "FFFFFFFF:14:00.0", "0000zzzz:14:00.0", "no address", NO_TEXT * 4)
        ),
        **dict.fromkeys(("minor", "module", "cores", "bus_width", "max_memory_clock", "numa"), _NUMBERS),
        "memory": st.sampled_from((0, 1, 2**63, 2**64 - 1)),
        "migs": st.lists(
            st.builds(
                MigDevice,
                uuid=st.sampled_from(("MIG-1", "MIG-2", ",", NO_TEXT)),
                profile=st.sampled_from(("1g.10gb", "x" * 80, NO_TEXT)),
                gpu_instance=_NUMBERS,
                compute_instance=_NUMBERS,
                memory_mib=_NUMBERS,
            ),
            max_size=3,
        ),
        "topology": st.just({a100(0).uuid: 7}),
    },
)


def test_what_is_read_can_be_published_whatever_a_card_reports(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1))
    probe = agent(fixture)

    @settings(max_examples=15, derandomize=True, database=None, deadline=None)
    @given(_HOSTILE, st.one_of(st.just(fixture.driver), _TEXTS))
    def read(odd: dict[str, Any], driver: str) -> None:
        fixture.gpus = [a100(0), replace(a100(1), **odd, mig_mode="migs" in odd)]
        fixture.driver = driver
        fixture.write()
        reading = asyncio.run(probe.read())
        DeviceSpec.model_validate_json(reading.spec.model_dump_json(by_alias=True))
        checked(names.GPU, reading.spec.devices)
        conditions = [finding.condition() for finding in reading.findings]
        wrong = [condition for condition in conditions if condition.status == "False"]
        assert not wrong or any(condition.message for condition in wrong)
        assert all(card.health or card.conditions for card in reading.spec.devices)

    read()
