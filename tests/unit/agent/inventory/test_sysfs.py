import errno
import shutil
from collections.abc import Generator
from pathlib import Path, PosixPath
from typing import Self

import pytest

from berth_agent.inventory import sysfs
from berth_api.device import Topology
from tests.objects.amd_trees import refused
from tests.objects.sysfs_tree import SysfsTree

ADDRESS = "0000:3d:00.0"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(f"pci0000:3a/{ADDRESS}", "pci0000:3a", id="on the root complex itself"),
        pytest.param(f"pci0000:3a/0000:3a:00.0/{ADDRESS}", "pci0000:3a", id="at a root port"),
        pytest.param(
            f"pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/{ADDRESS}", "0000:3b:00.0", id="behind a switch"
        ),
        pytest.param(
            f"pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:40:00.0/0000:41:08.0/{ADDRESS}",
            "0000:40:00.0",
            id="behind two switches the nearest counts",
        ),
        pytest.param(f"LNXSYSTM:00/pci10000:e0/10000:e0:01.0/{ADDRESS}", "pci10000:e0", id="in a domain above 16 bits"),
    ],
)
def test_the_switch_is_the_nearest_upstream_port(tmp_path: Path, path: str, expected: str) -> None:
    device = tmp_path / "devices" / path
    device.mkdir(parents=True)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices" / ADDRESS).symlink_to(device)
    assert sysfs.place(tmp_path, ADDRESS).pcie_id == expected


@pytest.mark.parametrize(("online", "expected"), [("0", 0), ("0-1", -1)])
def test_a_device_without_a_reported_numa_node_is_at_the_only_one(tmp_path: Path, online: str, expected: int) -> None:
    """As a virtual machine with an H100 reports it."""
    SysfsTree(tmp_path).device(ADDRESS, numa="-1")
    nodes = tmp_path / "devices/system/node"
    nodes.mkdir(parents=True)
    (nodes / "online").write_text(f"{online}\n")
    assert sysfs.place(tmp_path, ADDRESS).node_id == expected


def test_a_machine_without_sysfs_has_no_topology(tmp_path: Path) -> None:
    untold = Topology(socket_id=-1, node_id=-1, pcie_id="", bus_id=ADDRESS)
    assert sysfs.place(tmp_path, ADDRESS) == untold
    assert sysfs.bound_cards(tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("address", "kind", "device_class", "expected"),
    [
        pytest.param("0000:01:00.0", "10de:1b06", "0x030000", True, id="a card for screens, too"),
        pytest.param("0000:01:00.0", "10de:2330", "0x030200", True, id="a card without screens"),
        pytest.param("0000:01:00.0", "1002:740f", "0x038000", True, id="an MI210"),
        pytest.param("0000:01:00.0", "1002:74a1", "0x120000", True, id="an MI300X"),
        pytest.param("0000:04:00.0", "1002:74a0", "0x120000", True, id="an MI300A, which shares its slot"),
        pytest.param("0000:04:00.0", "1002:164e", "0x030000", False, id="an APU, which shares its slot"),
        pytest.param("0000:01:00.0", "1002:515e", "0x030000", False, id="a management display by AMD"),
        pytest.param("0000:01:00.0", "19e5:1711", "0x030000", False, id="a management display by Huawei"),
        pytest.param("0000:01:00.0", "19e5:d802", "0x120000", True, id="an accelerator by Huawei"),
        pytest.param("0000:00:02.0", "8086:a780", "0x030000", False, id="integrated graphics by Intel"),
        pytest.param("0000:03:00.0", "8086:56c0", "0x038000", True, id="a card by Intel"),
        pytest.param("0000:01:00.0", "10de:22a3", "0x068000", False, id="an NVSwitch"),
        pytest.param("0000:01:00.0", "10de:228b", "0x040300", False, id="a sound function"),
    ],
)
def test_which_functions_are_gpus(
    tmp_path: Path, address: str, kind: str, device_class: str, *, expected: bool
) -> None:
    tree = SysfsTree(tmp_path)
    vendor, device = (f"0x{part}" for part in kind.split(":"))
    tree.device(address, vendor=vendor, device=device, **{"class": device_class})
    tree.device("0000:04:00.2", vendor="0x1022", device="0x1649", **{"class": "0x108000"})
    tree.device("0000:02:00.0", vendor="0x1a03", device="0x2000", **{"class": "0x030000"})
    assert sysfs.has_gpus(tmp_path, vendor) is expected
    assert [folder.name for folder in sysfs.gpus(tmp_path, vendor) or ()] == [address] * expected


class Vanishing(PosixPath):
    """A folder that the kernel removes after it was found, before it is read."""

    def iterdir(self) -> Generator[Self, None, None]:
        shutil.rmtree(self)
        return super().iterdir()


def test_a_folder_that_vanishes_while_it_is_read_is_empty(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia"
    (folder / ADDRESS).mkdir(parents=True)
    assert [entry.name for entry in sysfs.entries(folder)] == [ADDRESS]
    assert sysfs.entries(Vanishing(folder)) == []


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        sysfs.entries(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("numa", "package", "expected"),
    [
        pytest.param("1023", "1023", (1023, 1023), id="the highest"),
        pytest.param("1024", "6228", (-1, -1), id="a number that a Device cannot have"),
        pytest.param("-7", "9" * 5000, (-1, -1), id="negative, and very long"),
        pytest.param("none", "٣", (-1, -1), id="no number"),
    ],
)
def test_a_place_that_a_device_cannot_have_is_unknown(
    tmp_path: Path, numa: str, package: str, expected: tuple[int, int]
) -> None:
    tree = SysfsTree(tmp_path)
    (tree.device(ADDRESS, numa=numa) / "local_cpulist").write_text("5-7\n")
    socket = tmp_path / "devices/system/cpu/cpu5/topology/physical_package_id"
    socket.parent.mkdir(parents=True)
    socket.write_text(f"{package}\n")
    place = sysfs.place(tmp_path, ADDRESS)
    assert (place.node_id, place.socket_id) == expected


def test_texts_of_firmware_are_read_in_any_encoding(tmp_path: Path) -> None:
    product = tmp_path / "class/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.write_bytes(b"Caf\xe9 9000\n")
    assert sysfs.machine(tmp_path) == "Caf\ufffd 9000"


def test_a_broken_file_leaves_a_detail_unknown_and_never_hides_a_card(tmp_path: Path) -> None:
    device = SysfsTree(tmp_path).device(ADDRESS, vendor="0x10de", device="0x2330", **{"class": "0x030200"})
    product = tmp_path / "class/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.touch()
    numa = device / "numa_node"
    with refused(product, errno.ELOOP), refused(numa, errno.EIO), refused(device / "class", errno.EIO):
        assert sysfs.machine(tmp_path) == ""
        assert sysfs.place(tmp_path, ADDRESS).node_id == -1
        assert sysfs.pci_class(tmp_path, ADDRESS) == ""
        with pytest.raises(OSError, match="Input/output error"):
            sysfs.has_gpus(tmp_path, "0x10de")
