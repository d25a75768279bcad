"""The attributes that identify the devices of known drivers with cards: one row for each driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from berth_api.names import DRA_DRIVER, GPU, RDMA

PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
"""The standard attribute for the PCI address of a device, or of the card that it is a part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What is known of the devices of a driver."""

    device_type: str = ""
    """The type of the cards that its devices are, or are parts of; empty if unknown."""
    ids: tuple[str, ...] = ()
    """Attributes with the id of a card or of a part of one."""
    addresses: tuple[str, ...] = (PCI_BUS_ID,)
    """Attributes with the PCI address of a card or of a part of one."""
    virtual: str = ""
    """The attribute that is true of devices that are no cards, and parts of none."""
    partition: str = ""
    """The attribute `type` of partitions that have the address of their card, and in their names `gpu-<card>-<render>`
    the number of their render node; empty if there are none."""


_NVIDIA: Final = "gpu.nvidia.com"
_AMD: Final = "gpu.amd.com"
_SRIOV: Final = "sriovnetwork.k8snetworkplumbingwg.io"

DRIVERS: Final[Mapping[str, Driver]] = MappingProxyType(
    {
        # Of a MIG device `uuid` is its own, or absent if it is created on demand, and `parentUUID` the GPU's.
        # `pcieBusID` is what the standard attribute was in early versions.
        _NVIDIA: Driver(
            device_type=GPU,
            ids=(f"{_NVIDIA}/uuid", f"{_NVIDIA}/parentUUID"),
            addresses=(PCI_BUS_ID, f"{_NVIDIA}/pcieBusID"),
        ),
        DRA_DRIVER: Driver(device_type=GPU, ids=(f"{DRA_DRIVER}/uuid", f"{DRA_DRIVER}/parentUUID")),
        # `pciAddr` and `parentPciAddr` are what the standard attribute was before version 1.0.
        _AMD: Driver(
            device_type=GPU,
            addresses=(PCI_BUS_ID, f"{_AMD}/pciAddr", f"{_AMD}/parentPciAddr"),
            partition="amdgpu-partition",
        ),
        "gpu.intel.com": Driver(device_type=GPU, addresses=(PCI_BUS_ID, "gpu.intel.com/pciAddress")),
        "dra.net": Driver(device_type=RDMA, addresses=(PCI_BUS_ID, "dra.net/pciAddress"), virtual="dra.net/virtual"),
        # Its devices are virtual functions.
        _SRIOV: Driver(device_type=RDMA, addresses=(PCI_BUS_ID, f"{_SRIOV}/pciAddress", f"{_SRIOV}/pfPciAddress")),
    }
)
"""By the driver's name; docs/dra-drivers.md shows it."""
OTHER: Final = Driver()
"""A driver that is not known."""
