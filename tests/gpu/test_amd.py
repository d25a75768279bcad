"""The agent on a machine with AMD's cards: what amd-smi reports, and what a process gets. No setting of a card changes.

A program of ROCm is not needed. Cards that are partitioned are left out: amd-smi lists each partition.
"""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse
from berth_agent.readings import Reading
from berth_agent.vendors.amd.hand_over import AmdHandOver
from berth_agent.vendors.amd.inventory import DRIVER, VENDOR, AmdInventory
from berth_agent.vendors.amd.labels import MODE, AmdFacts
from berth_agent.vendors.amd.processes import PROCESSES
from berth_api import names
from berth_api.device import DeviceInfo
from berth_api.resources import quantity
from tests.gpu import amd_smi, machine

SETTINGS: Final = Settings(node_name="here")
SYSFS: Final = SETTINGS.sysfs_root
OPENS: Final = """
import os, sys
files = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def inventory() -> AmdInventory:
    if reason := machine.amd_obstacle(SYSFS):
        pytest.skip(reason)
    return AmdInventory(SETTINGS)


@pytest.fixture(scope="module")
def reading(inventory: AmdInventory) -> Reading:
    return asyncio.run(inventory.read())["here"]


def cards_of(reading: Reading) -> list[DeviceInfo]:
    return [card for card in reading.spec.devices if card.labels.get(MODE, "spx").startswith("spx")]


def address(card: DeviceInfo) -> str:
    assert card.topology
    return card.topology.bus_id


def test_every_card_of_the_driver_is_listed_and_read(reading: Reading) -> None:
    assert all(finding.ok for finding in reading.findings), reading.findings
    bound = {folder.name for folder in sysfs.gpus(SYSFS, VENDOR) or ()} & sysfs.bound_cards(SYSFS, DRIVER)
    assert {address(card) for card in reading.spec.devices} == bound


def test_every_field_equals_amd_smis(reading: Reading) -> None:
    if not shutil.which("amd-smi"):
        pytest.skip("this machine has no amd-smi")
    theirs = amd_smi.facts(amd_smi.ask())
    assert isinstance(reading.facts, AmdFacts)
    for card in cards_of(reading):
        their = theirs[address(card)]
        memory = quantity.parse(str(card.resources[names.PREFIX + names.GPU_MEMORY]))
        ours = {
            "id": their["id"] and card.id.removeprefix("GPU-"),
            "device": reading.facts.cards[card.id],
            "mebibytes": str(memory // 2**20),
            "units": str(card.multiprocessors or their["units"]),
            "numa": str(card.topology.node_id if card.topology else ""),
        }
        assert ours == their, card.id


def test_every_whole_card_is_measured(inventory: AmdInventory, reading: Reading) -> None:
    samples = asyncio.run(inventory.sample())
    for card in cards_of(reading):
        sample = samples[card.id]
        assert sample.memory, card.id
        assert 0 <= sample.memory.used <= sample.memory.total
        assert sample.temperature is not None, card.id
        assert 0 < sample.temperature < 120
        assert sample.power is not None, card.id
        assert sample.sm_utilization is not None, card.id


def test_a_process_opens_what_a_container_gets_and_is_listed(reading: Reading) -> None:
    for card in cards_of(reading):
        access = AmdHandOver(SETTINGS).access(reading.spec)
        access.check()
        response: ContainerAllocateResponse = access.grant([card.id])
        paths = [device.host_path for device in response.devices]
        assert "/dev/kfd" in paths
        command = [sys.executable, "-c", OPENS, *paths]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == "open\n", paths
                assert (SYSFS / PROCESSES / str(process.pid)).is_dir(), "KFD lists it; are the host's processes seen?"
                facts = "".join(file.read_text() for file in Path(f"/proc/{process.pid}/fdinfo").iterdir())
                assert f"drm-pdev:\t{address(card)}" in facts
            finally:
                process.kill()
