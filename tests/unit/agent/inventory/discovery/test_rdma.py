"""RDMA NICs as sysfs shows them."""

import pytest

from berth_agent.inventory.discovery.rdma import RdmaNics, RdmaPort, link_faults
from berth_api.device import DeviceInfo, Topology, VirtualFunction, VirtualFunctionGroup
from tests.objects.sysfs_tree import SysfsTree

SWITCHED = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:04.0"


def test_a_nic_is_listed_with_topology_model_and_resources(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:18:00.0", below=SWITCHED, numa="1"))
    assert RdmaNics(sysfs.root).read("n") == [
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
    (nic,) = RdmaNics(sysfs.root).read("n")
    assert nic.topology is not None
    assert nic.topology.pcie_id == "pci0000:10"


def test_nics_are_numbered_by_their_addresses_not_by_their_names(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:3b:00.0"))
    sysfs.rdma("mlx5_1", sysfs.device("0000:1b:00.0"))
    sysfs.rdma("mlx5_2", sysfs.device("0000:1b:00.1"))
    assert [(nic.minor, nic.id) for nic in RdmaNics(sysfs.root).read("n")] == [
        (0, "0000:1b:00.0"),
        (1, "0000:1b:00.1"),
        (2, "0000:3b:00.0"),
    ]


def test_virtual_functions_stand_with_their_nic(sysfs: SysfsTree) -> None:
    nic = sysfs.device("0000:1b:00.0")
    sysfs.rdma("mlx5_0", nic)
    for number in (0, 1, 10, 2):
        virtual = sysfs.device(f"0000:1b:01.{number % 8}" if number < 8 else "0000:1b:02.2")
        sysfs.rdma(f"mlx5_{number + 1}", virtual)
        sysfs.virtual(nic, number, virtual)
    (device,) = RdmaNics(sysfs.root).read("n")
    functions = [(0, "0000:1b:01.0"), (1, "0000:1b:01.1"), (2, "0000:1b:01.2"), (10, "0000:1b:02.2")]
    assert device.vf_groups == [
        VirtualFunctionGroup(labels={}, vfs=[VirtualFunction(minor=number, bus_id=at) for number, at in functions])
    ]


def test_a_virtual_function_without_an_rdma_device_is_not_listed(sysfs: SysfsTree) -> None:
    nic, virtual = sysfs.device("0000:1b:00.0"), sysfs.device("0000:1b:01.0")
    sysfs.rdma("mlx5_0", nic)
    sysfs.virtual(nic, 0, virtual)
    (device,) = RdmaNics(sysfs.root).read("n")
    assert device.vf_groups == []


def test_a_function_that_a_hypervisor_gave_is_a_nic_itself(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_1", sysfs.device("0000:1b:01.0"))
    assert [nic.id for nic in RdmaNics(sysfs.root).read("n")] == ["0000:1b:01.0"]


def test_a_virtual_function_is_no_nic_while_its_own_has_no_rdma_device(sysfs: SysfsTree) -> None:
    """The pods that hold it hold it as a part of its NIC: as a NIC of its own it would be given out a second time."""
    nic, virtual = sysfs.device("0000:1b:00.0"), sysfs.device("0000:1b:01.0")
    sysfs.virtual(nic, 0, virtual)
    sysfs.rdma("mlx5_1", virtual)
    assert RdmaNics(sysfs.root).read("n") == []
    sysfs.rdma("mlx5_0", nic)
    (device,) = RdmaNics(sysfs.root).read("n")
    assert [vf.bus_id for group in device.vf_groups for vf in group.vfs] == ["0000:1b:01.0"]


@pytest.mark.parametrize("went", [[], ["0000:1b:01.0"], ["0000:1b:01.1", "0000:1b:01.2"]])
def test_virtual_functions_have_the_kernels_numbers_whichever_are_there(sysfs: SysfsTree, went: list[str]) -> None:
    nic = sysfs.device("0000:1b:00.0")
    sysfs.rdma("mlx5_0", nic)
    for number in range(4):
        virtual = sysfs.device(f"0000:1b:01.{number}")
        sysfs.virtual(nic, number, virtual)
        if virtual.name not in went:
            sysfs.rdma(f"mlx5_{number + 1}", virtual)
    (device,) = RdmaNics(sysfs.root).read("n")
    functions = {vf.bus_id: vf.minor for group in device.vf_groups for vf in group.vfs}
    assert functions == {f"0000:1b:01.{number}": number for number in range(4) if f"0000:1b:01.{number}" not in went}


def test_two_rdma_devices_of_one_function_are_one_nic(sysfs: SysfsTree) -> None:
    nic = sysfs.device("0000:1b:00.0")
    sysfs.rdma("mlx4_0", nic)
    sysfs.rdma("mlx4_1", nic)
    assert [nic.id for nic in RdmaNics(sysfs.root).read("n")] == ["0000:1b:00.0"]


def test_without_a_verbs_device_a_nic_cannot_be_used(sysfs: SysfsTree) -> None:
    sysfs.rdma("mlx5_0", sysfs.device("0000:1b:00.0"), verbs=False)
    assert RdmaNics(sysfs.root).read("n") == []


def test_a_machine_without_rdma_has_none(sysfs: SysfsTree) -> None:
    assert RdmaNics(sysfs.root).read("n") == []


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
    assert [nic.model for nic in RdmaNics(sysfs.root).read("n")] == [expected]


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
def test_a_nic_is_healthy_while_a_port_is_active(states: list[str], message: str | None) -> None:
    ports = [
        RdmaPort(number=at + 1, state=state, physical="Polling", link_layer="Ethernet")
        for at, state in enumerate(states)
    ]
    assert [fault.message for fault in link_faults(ports)] == ([] if message is None else [message])


def test_a_link_that_goes_and_comes_is_followed(sysfs: SysfsTree) -> None:
    nics = RdmaNics(sysfs.root)
    sysfs.rdma("mlx5_0", sysfs.device("0000:1b:00.0"))
    sysfs.port("mlx5_0", 1, "1: DOWN", layer="Ethernet")
    (nic,) = nics.read("n")
    assert (nic.health, nic.labels["berth.dev/link-layer"]) == (False, "Ethernet")
    assert [
        (condition.type, condition.status, condition.reason, condition.message) for condition in nic.conditions
    ] == [
        ("Healthy", "False", "LinkDown", "port 1 is DOWN, physically Polling"),
        ("LinkDown", "True", "WhileMeasured", "port 1 is DOWN, physically Polling"),
    ]
    sysfs.port("mlx5_0", 1, "4: ACTIVE")
    (nic,) = nics.read("n")
    assert (nic.health, nic.conditions) == (True, [])
