"""RDMA NICs as sysfs shows them."""

import shutil

import pytest

from berth_agent.discovery.rdma import Nics, Port, link_faults
from berth_api.device import DeviceInfo, Topology, VirtualFunction, VirtualFunctionGroup
from tests.unit.agent.discovery.sysfs_tree import SysfsTree

SWITCHED = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:04.0"


def test_a_nic_is_told_with_its_place_its_model_and_what_it_offers(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:18:00.0", below=SWITCHED, numa="1"))
    assert Nics(sysfs.root).read("n") == [
        DeviceInfo(
            type="rdma",
            minor=0,
            id="0000:18:00.0",
            health=True,
            model="Mellanox ConnectX-7",
            resources={"kubernetes.io/rdma": 100},
            topology=Topology(socket_id=-1, node_id=1, pcie_id="0000:11:00.0", bus_id="0000:18:00.0"),
            labels={"berth.dev/rdma-device": "mlx5_0", "berth.dev/link-layer": "InfiniBand"},
        )
    ]


def test_a_nic_at_a_root_port_has_the_root_complex_as_its_place(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:11:00.0"))
    (nic,) = Nics(sysfs.root).read("n")
    assert nic.topology is not None
    assert nic.topology.pcie_id == "pci0000:10"


def test_nics_are_numbered_by_their_addresses_not_by_their_names(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:3b:00.0"))
    sysfs.rdma("mlx5_1", sysfs.device("0000:1b:00.0"))
    sysfs.rdma("mlx5_2", sysfs.device("0000:1b:00.1"))
    assert [(each.minor, each.id) for each in Nics(sysfs.root).read("n")] == [
        (0, "0000:1b:00.0"),
        (1, "0000:1b:00.1"),
        (2, "0000:3b:00.0"),
    ]


def test_a_nic_keeps_its_number_when_others_come_and_go(sysfs: SysfsTree) -> None:
    nics = Nics(sysfs.root)
    sysfs.rdma("mlx5_0", sysfs.device("0000:2b:00.0"))
    sysfs.rdma("mlx5_1", sysfs.device("0000:3b:00.0"))
    nics.read("n")
    shutil.rmtree(sysfs.root / "class/infiniband/mlx5_0")
    sysfs.rdma("mlx5_2", sysfs.device("0000:1b:00.0"))
    assert [(each.minor, each.id) for each in nics.read("n")] == [(1, "0000:3b:00.0"), (2, "0000:1b:00.0")]


def test_virtual_functions_stand_with_their_nic(sysfs: SysfsTree) -> None:
    nic = sysfs.device("0000:1b:00.0")
    sysfs.rdma("mlx5_0", nic)
    for number in (0, 1, 10, 2):
        virtual = sysfs.device(f"0000:1b:01.{number % 8}" if number < 8 else "0000:1b:02.2")
        sysfs.rdma(f"mlx5_{number + 1}", virtual)
        sysfs.virtual(nic, number, virtual)
    (found,) = Nics(sysfs.root).read("n")
    functions = [(0, "0000:1b:01.0"), (1, "0000:1b:01.1"), (2, "0000:1b:01.2"), (10, "0000:1b:02.2")]
    assert found.vf_groups == [
        VirtualFunctionGroup(labels={}, vfs=[VirtualFunction(minor=number, bus_id=at) for number, at in functions])
    ]


def test_a_virtual_function_without_an_rdma_device_is_not_told(sysfs: SysfsTree) -> None:
    nic, virtual = sysfs.device("0000:1b:00.0"), sysfs.device("0000:1b:01.0")
    sysfs.rdma("mlx5_0", nic)
    sysfs.virtual(nic, 0, virtual)
    (found,) = Nics(sysfs.root).read("n")
    assert found.vf_groups == []


def test_a_function_that_a_hypervisor_gave_is_a_nic_itself(sysfs: SysfsTree) -> None:
    nic, virtual = sysfs.device("0000:1b:00.0"), sysfs.device("0000:1b:01.0")
    sysfs.virtual(nic, 0, virtual)
    sysfs.rdma("mlx5_1", virtual)
    assert [each.id for each in Nics(sysfs.root).read("n")] == ["0000:1b:01.0"]


def test_without_a_verbs_device_a_nic_cannot_be_used(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:1b:00.0"), verbs=False)
    assert Nics(sysfs.root).read("n") == []


def test_a_machine_without_rdma_has_none(sysfs: SysfsTree) -> None:
    assert Nics(sysfs.root).read("n") == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("MT4123", "Mellanox ConnectX-6"),
        ("MT41692", "Mellanox BlueField-3"),
        ("BCM57508", "BCM57508"),
        ("", "14e4:1750"),
    ],
)
def test_the_model_is_what_the_driver_calls_it(sysfs: SysfsTree, kind: str, expected: str) -> None:
    sysfs.rdma("rdma0", sysfs.device("0000:1b:00.0", vendor="0x14e4", device="0x1750"), kind=kind)
    assert [each.model for each in Nics(sysfs.root).read("n")] == [expected]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (["ACTIVE"], None),
        (["DOWN"], "port 1 is DOWN, physically Polling"),
        (["INIT"], "port 1 is INIT, physically Polling"),
        (["DOWN", "ACTIVE"], None),
        (["DOWN", "ARMED"], "port 1 is DOWN, physically Polling; port 2 is ARMED, physically Polling"),
        ([], "the NIC has no port"),
    ],
)
def test_a_nic_is_well_while_a_port_can_carry_something(states: list[str], message: str | None) -> None:
    ports = [
        Port(number=at + 1, state=state, physical="Polling", link_layer="Ethernet") for at, state in enumerate(states)
    ]
    assert [fault.message for fault in link_faults(ports)] == ([] if message is None else [message])


def test_a_link_that_goes_and_comes_is_followed(sysfs: SysfsTree) -> None:
    nics = Nics(sysfs.root)
    sysfs.rdma("mlx5_0", sysfs.device("0000:1b:00.0"))
    sysfs.port("mlx5_0", 1, "1: DOWN", layer="Ethernet")
    (nic,) = nics.read("n")
    assert (nic.health, nic.labels["berth.dev/link-layer"]) == (False, "Ethernet")
    assert [(each.type, each.status, each.reason, each.message) for each in nic.conditions] == [
        ("Healthy", "False", "LinkDown", "port 1 is DOWN, physically Polling"),
        ("LinkDown", "True", "WhileMeasured", "port 1 is DOWN, physically Polling"),
    ]
    sysfs.port("mlx5_0", 1, "4: ACTIVE")
    (nic,) = nics.read("n")
    assert (nic.health, nic.conditions) == (True, [])
