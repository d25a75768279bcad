"""Devices of all types are in one reading, whichever of them a node has."""

from pathlib import Path

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.readings import Reading
from berth_agent.vendors.choice import inventory_for
from berth_api import names
from tests.nvml.fixture import NvmlFixture, a100
from tests.objects.sysfs_tree import SysfsTree


async def read(settings: Settings) -> Reading:
    inventory = inventory_for(settings)
    try:
        return (await inventory.read())["n"]
    finally:
        inventory.close()


def conditions(reading: Reading) -> list[tuple[str, bool, str]]:
    return [(finding.type, finding.ok, finding.reason) for finding in reading.findings]


async def test_a_node_without_gpus_lists_its_nics_and_fpgas(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:1b:00.0", vendor="0x15b3"))
    sysfs.device("0000:2b:00.0", **{"class": "0x120000"}, vendor="0x10ee", device="0x5021")
    settings = Settings(node_name="n", sysfs_root=sysfs.root, nvml_library=sysfs.root / "none.so")
    reading = await read(settings)
    assert [(device.type, device.minor, device.health) for device in reading.spec.devices] == [
        ("rdma", 0, True),
        ("fpga", 0, True),
    ]
    assert conditions(reading) == [
        (names.DRIVER_LOADED, True, "NotNeeded"),
        (names.INVENTORY_READ, True, "InventoryRead"),
        ("InventoryRead.rdma", True, "Read"),
        ("InventoryRead.fpga", True, "Read"),
    ]


async def test_gpus_and_nics_share_their_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = NvmlFixture(tmp_path, gpus=[a100(0)])
    monkeypatch.setenv("BERTH_NVML_STATE", str(fixture.state))
    fixture.write()
    tree = SysfsTree(fixture.sysfs)
    below = fixture.gpus[0].sysfs.rpartition("/")[0].rpartition("/")[0] + "/0000:12:08.0"
    tree.rdma("mlx5_0", tree.device("0000:18:00.0", below=below))
    reading = await read(Settings(node_name="n", sysfs_root=fixture.sysfs, nvml_library=fixture.library))
    places = {device.type: device.topology and device.topology.pcie_id for device in reading.spec.devices}
    assert places == {"gpu": "0000:11:00.0", "rdma": "0000:11:00.0"}


async def test_types_that_are_not_discovered_are_not_listed(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:1b:00.0"))
    reading = await read(Settings(node_name="n", sysfs_root=sysfs.root, discover=("fpga",)))
    assert reading.spec.devices == []
    assert conditions(reading) == [
        (names.DRIVER_LOADED, True, "NotNeeded"),
        (names.INVENTORY_READ, True, "InventoryRead"),
        ("InventoryRead.fpga", True, "Read"),
    ]
