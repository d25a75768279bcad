"""FPGAs as sysfs shows them."""

import pytest

from berth_agent.configuration.settings import FPGA_IDS
from berth_agent.inventory.discovery.fpga import Fpgas
from berth_api.device import DeviceInfo, Topology
from tests.objects.sysfs_tree import SysfsTree


def fpgas(sysfs: SysfsTree, ids: tuple[str, ...] = FPGA_IDS) -> Fpgas:
    return Fpgas(sysfs.root, ids=ids)


def test_a_card_is_its_last_function(sysfs: SysfsTree) -> None:
    sysfs.device("0000:1b:00.0", **{"class": "0x120000"}, vendor="0x10ee", device="0x5020")
    sysfs.device("0000:1b:00.1", **{"class": "0x120000"}, vendor="0x10ee", device="0x5021")
    assert fpgas(sysfs).read("n") == [
        DeviceInfo(
            type="fpga",
            minor=0,
            id="0000:1b:00.1",
            health=True,
            model="Xilinx Alveo U50",
            resources={"kubernetes.io/fpga": 100},
            topology=Topology(socket_id=-1, node_id=0, pcie_id="pci0000:10", bus_id="0000:1b:00.1"),
        )
    ]


@pytest.mark.parametrize(
    ("kind", "vendor", "device", "model"),
    [
        ("0x120000", "0x10ee", "0x5001", "Xilinx Alveo U200"),
        ("0x120000", "0x10ee", "0x9999", "FPGA 10ee:9999"),
        ("0x120000", "0x1172", "0x0001", "FPGA 1172:0001"),
        ("0x120000", "0x8086", "0x0b30", "Intel PAC N3000"),
        ("0x120000", "0x8086", "0x4940", None),
        ("0x120000", "0x1da3", "0x1020", None),
        ("0x120000", "0x1002", "0x74a1", None),
        ("0x120000", "0x19e5", "0xd802", None),
        ("0x030200", "0x10ee", "0x5001", None),
        ("0x020000", "0x10ee", "0x9034", None),
    ],
    ids=["known", "unknown", "altera", "intel", "other intel", "gaudi", "mi300x", "ascend", "a display", "a nic"],
)
def test_which_accelerators_are_fpgas(sysfs: SysfsTree, kind: str, vendor: str, device: str, model: str | None) -> None:
    sysfs.device("0000:1b:00.0", **{"class": kind}, vendor=vendor, device=device)
    assert [card.model for card in fpgas(sysfs).read("n")] == ([] if model is None else [model])


def test_the_list_of_vendors_is_a_setting(sysfs: SysfsTree) -> None:
    sysfs.device("0000:1b:00.0", **{"class": "0x120000"}, vendor="0x1da3", device="0x1020")
    assert [card.id for card in fpgas(sysfs, ids=("1da3:1020",)).read("n")] == ["0000:1b:00.0"]


def test_virtual_functions_stand_with_their_card(sysfs: SysfsTree) -> None:
    card = sysfs.device("0000:1b:00.0", **{"class": "0x120000"}, vendor="0x8086", device="0x09c4")
    virtual = sysfs.device("0000:1b:00.1", **{"class": "0x120000"}, vendor="0x8086", device="0x09c4")
    sysfs.virtual(card, 0, virtual)
    (device,) = fpgas(sysfs).read("n")
    assert device.id == "0000:1b:00.0"
    assert [(vf.minor, vf.bus_id) for group in device.vf_groups for vf in group.vfs] == [(0, "0000:1b:00.1")]


@pytest.mark.parametrize(("config", "expected"), [(b"\xee\x10\x21\x50", True), (b"\xff\xff\xff\xff", False)])
def test_a_card_that_fell_off_the_bus_is_ill(sysfs: SysfsTree, *, config: bytes, expected: bool) -> None:
    folder = sysfs.device("0000:1b:00.0", **{"class": "0x120000"}, vendor="0x10ee", device="0x5021")
    (folder / "config").write_bytes(config)
    (card,) = fpgas(sysfs).read("n")
    assert card.health is expected
    assert [condition.reason for condition in card.conditions][:1] == ([] if expected else ["OffTheBus"])
