"""Which cards of a node are the devices that drivers list, by the attributes that the drivers really write."""

from collections.abc import Set as AbstractSet
from typing import Any

import pytest

from berth_api.names import DRA_DRIVER
from berth_operator.core.claims.objects import slices
from berth_operator.core.claims.objects.slices import Device, DeviceID
from berth_operator.core.fleet.claims.matching import CardIndex, CardKey, Match, match, normal_address
from berth_operator.core.values.inventory import CardInfo
from tests.objects.resource_claims import NVIDIA_DRIVER, PCI, listed, resource_slice

GPU_0, GPU_1, NIC = CardKey("gpu", 0), CardKey("gpu", 1), CardKey("rdma", 0)
MIG = "MIG-1b2c3d4e-0000-0000-0000-00000000000a"
CARDS = (
    CardInfo(type="gpu", minor=0, id="GPU-aaaa0000-0000-0000-0000-000000000000", address="0000:3b:00.0"),
    CardInfo(
        type="gpu",
        minor=1,
        id="GPU-aaaa1111-0000-0000-0000-000000000001",
        address="0000:86:00.0",
        instances=((MIG, "nvidia.com/mig-1g.10gb"),),
        parts=(MIG,),
    ),
    CardInfo(
        type="rdma", minor=0, id="0000:1f:00.0", address="0000:1f:00.0", functions=(((), ((0, "0000:1f:00.2"),)),)
    ),
)
SRIOV = "sriovnetwork.k8snetworkplumbingwg.io"


def device(attributes: dict[str, str | bool], driver: str = NVIDIA_DRIVER) -> Device:
    [read] = slices.read(resource_slice(listed("d", attributes), driver=driver)).devices
    return read


def matched(driver: str, attributes: dict[str, str | bool], cards: Any = CARDS) -> Match:
    listed_device = device(attributes, driver)
    return match(listed_device.id, listed_device, CardIndex.of(cards))


@pytest.mark.parametrize(
    ("driver", "attributes", "card"),
    [
        pytest.param(NVIDIA_DRIVER, {"uuid": CARDS[0].id}, GPU_0, id="a GPU by its UUID"),
        pytest.param(NVIDIA_DRIVER, {"uuid": CARDS[0].id.upper()}, GPU_0, id="in upper case"),
        pytest.param(NVIDIA_DRIVER, {"parentUUID": CARDS[1].id}, GPU_1, id="a MIG device made on demand"),
        pytest.param(NVIDIA_DRIVER, {"uuid": "MIG-new", "parentUUID": CARDS[1].id}, GPU_1, id="an unlisted MIG device"),
        pytest.param(NVIDIA_DRIVER, {"uuid": "x", "pcieBusID": "0000:3b:00.0"}, GPU_0, id="VFIO, by an early version"),
        pytest.param(NVIDIA_DRIVER, {PCI: "00000000:3B:00.0"}, GPU_0, id="NVML's address"),
        pytest.param("gpu.amd.com", {PCI: "3b:00.0"}, GPU_0, id="an address without a domain"),
        pytest.param("gpu.amd.com", {"pciAddr": "0000:3b:00.0"}, GPU_0, id="a partition of AMD's driver"),
        pytest.param("gpu.intel.com", {"pciAddress": "0000:3B:00.0"}, GPU_0, id="a GPU of Intel's driver"),
        pytest.param("dra.net", {"dra.net/pciAddress": "0000:1F:00.0"}, NIC, id="a NIC"),
        pytest.param("dra.net", {"dra.net/pciAddress": "0000:1f:00.2"}, NIC, id="a virtual function"),
        pytest.param(DRA_DRIVER, {PCI: "0000:1f:00.2"}, NIC, id="a virtual function of Berth's driver"),
        pytest.param(SRIOV, {f"{SRIOV}/pfPciAddress": "0000:1f:00.0"}, NIC, id="the NIC of a virtual function"),
        pytest.param("new.example.com", {PCI: "0000:1f:00.0"}, NIC, id="a driver that is not known"),
    ],
)
def test_a_device_is_the_card_that_an_attribute_names(
    driver: str, attributes: dict[str, str | bool], card: CardKey
) -> None:
    assert matched(driver, attributes) == Match(cards=frozenset({card}))


def test_a_mig_device_that_the_device_lists_is_this_instance() -> None:
    attributes: dict[str, str | bool] = {"uuid": MIG.upper(), "parentUUID": CARDS[1].id, PCI: "0000:86:00.0"}
    assert matched(NVIDIA_DRIVER, attributes) == Match(cards=frozenset({GPU_1}), instance=MIG)


def test_attributes_that_name_two_cards_are_both() -> None:
    assert matched(NVIDIA_DRIVER, {"uuid": CARDS[0].id, PCI: "0000:86:00.0"}).cards == {GPU_0, GPU_1}


DIVIDED = tuple(
    CardInfo(type="gpu", minor=minor, id=f"GPU-e3aa140f9a5f9e31-{minor}", address="0000:05:00.0") for minor in range(8)
)
"""The partitions of one MI300X in the mode CPX."""
ALL = frozenset(CardKey("gpu", minor) for minor in range(8))
AMD = "gpu.amd.com"
PARTITION: dict[str, str | bool] = {"type": "amdgpu-partition", PCI: "0000:05:00.0"}


@pytest.mark.parametrize(
    ("driver", "name", "attributes", "cards"),
    [
        pytest.param(
            DRA_DRIVER,
            "gpu-e3aa140f9a5f9e31-3",
            {"uuid": DIVIDED[3].id, PCI: "0000:05:00.0"},
            {CardKey("gpu", 3)},
            id="Berth's driver",
        ),
        # AMD's driver from version 1.0: no attribute names the partition, its name has its device nodes.
        pytest.param(AMD, "gpu-9-130", PARTITION, {CardKey("gpu", 2)}, id="AMD's driver"),
        pytest.param(
            AMD,
            "gpu-9-130",
            {"type": "amdgpu-partition", "parentPciAddr": "0000:05:00.0"},
            {CardKey("gpu", 2)},
            id="AMD's driver before version 1.0",
        ),
        pytest.param(AMD, "gpu-9-199", PARTITION, ALL, id="a device node that no partition has"),
        pytest.param(AMD, "other", PARTITION, ALL, id="another form of name"),
        pytest.param(AMD, "gpu-1-128", {"type": "amdgpu", PCI: "0000:05:00.0"}, ALL, id="listed before it was divided"),
        pytest.param(AMD, "gpu-vfio-0", {"type": "vfio", PCI: "0000:05:00.0"}, ALL, id="for a virtual machine"),
    ],
)
def test_a_partition_is_not_its_whole_card(
    driver: str, name: str, attributes: dict[str, str | bool], cards: AbstractSet[CardKey]
) -> None:
    [read] = slices.read(resource_slice(listed(name, attributes), driver=driver)).devices
    assert match(read.id, read, CardIndex.of(DIVIDED)) == Match(cards=frozenset(cards))


def test_a_card_that_was_divided_since_a_claim_got_it_is_all_its_partitions() -> None:
    name = DeviceID(DRA_DRIVER, "node", "gpu-e3aa140f9a5f9e31")
    assert match(name, None, CardIndex.of(DIVIDED)) == Match(cards=ALL)
    assert match(name._replace(device="gpu-e3aa"), None, CardIndex.of(DIVIDED)) == Match()


@pytest.mark.parametrize(
    ("driver", "attributes", "unknown"),
    [
        pytest.param(NVIDIA_DRIVER, {"type": "gpu"}, "gpu", id="no attribute that identifies it"),
        pytest.param(NVIDIA_DRIVER, {"uuid": "GPU-other"}, "gpu", id="a UUID that the Device does not list"),
        pytest.param(NVIDIA_DRIVER, {PCI: "nonsense"}, "gpu", id="no address"),
        pytest.param(NVIDIA_DRIVER, {PCI: "0000:ff:00.0"}, "", id="another address than all GPUs"),
        pytest.param("dra.net", {"dra.net/ifName": "dummy0"}, "rdma", id="an interface of which nothing is known"),
        pytest.param("dra.net", {"dra.net/virtual": True}, "", id="a virtual interface"),
        pytest.param("new.example.com", {"uuid": "x"}, "", id="a driver that is not known"),
    ],
)
def test_a_device_of_a_known_driver_may_be_any_card_unless_it_is_certainly_none(
    driver: str, attributes: dict[str, str | bool], unknown: str
) -> None:
    assert matched(driver, attributes) == Match(unknown=unknown)


def test_an_address_says_nothing_while_a_card_has_none() -> None:
    cards = (*CARDS[:1], CardInfo(type="gpu", minor=1, id="GPU-1"))
    assert matched("gpu.amd.com", {PCI: "0000:ff:00.0"}, cards) == Match(unknown="gpu")


@pytest.mark.parametrize(("driver", "unknown"), [(NVIDIA_DRIVER, "gpu"), ("dra.net", "rdma"), ("other", "")])
def test_a_device_that_no_slice_lists_may_be_any_card(driver: str, unknown: str) -> None:
    name = DeviceID(driver, "node", "d")
    assert match(name, None, CardIndex.of(CARDS)) == Match(unknown=unknown)
    assert match(name, None, CardIndex.of(())) == Match()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu-aaaa0000-0000-0000-0000-000000000000", Match(cards=frozenset({GPU_0}))),
        ("mig-1b2c3d4e-0000-0000-0000-00000000000a", Match(cards=frozenset({GPU_1}), instance=MIG)),
        ("gpu-aaaa1111-0000-0000-0000-000000000001-1g-10gb-19-4", Match(cards=frozenset({GPU_1}))),
        ("rdma-0000-1f-00-2", Match(cards=frozenset({NIC}))),
        # A card that fell off the bus, a NIC in the network namespace of a pod, an instance that was destroyed.
        ("gpu-bbbb0000-0000-0000-0000-000000000000", Match()),
        ("rdma-0000-2f-00-0", Match()),
        ("mig-00000000-0000-0000-0000-00000000000a", Match(unknown="gpu")),
    ],
)
def test_a_device_of_berths_driver_that_no_slice_lists_is_the_card_in_its_name(name: str, expected: Match) -> None:
    assert match(DeviceID(DRA_DRIVER, "node", name), None, CardIndex.of(CARDS)) == expected


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("0:3b:0.7", "0000:3b:00.7"),
        ("3b:00", ""),
        ("", ""),
    ],
)
def test_addresses(text: str, normal: str) -> None:
    assert normal_address(text) == normal
