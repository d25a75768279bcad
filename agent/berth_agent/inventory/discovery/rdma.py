"""RDMA NICs: physical functions with an RDMA device, and their virtual functions that also have one.

A function is listed if the kernel gave it a verbs device (`uverbsN`). Without a verbs device, no process can use it. If
a hypervisor passed a virtual function to this machine, no physical function is visible above it. The function then
counts as a physical one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berth_agent.health import catalogue
from berth_agent.health.faults import Fault, mark
from berth_agent.inventory import sysfs
from berth_api import names
from berth_api.device import DeviceInfo, VirtualFunction, VirtualFunctionGroup

ACTIVE: Final = "ACTIVE"

MODELS: Final = {
    "MT4115": "Mellanox ConnectX-4",
    "MT4117": "Mellanox ConnectX-4 Lx",
    "MT4119": "Mellanox ConnectX-5",
    "MT4121": "Mellanox ConnectX-5 Ex",
    "MT4123": "Mellanox ConnectX-6",
    "MT4125": "Mellanox ConnectX-6 Dx",
    "MT4127": "Mellanox ConnectX-6 Lx",
    "MT4129": "Mellanox ConnectX-7",
    "MT4131": "Mellanox ConnectX-8",
    "MT41686": "Mellanox BlueField-2",
    "MT41692": "Mellanox BlueField-3",
}
"""Names of NICs by what their driver calls them (`hca_type`), as the simulated fleet has them."""

MODES: Final = {"umad": 0o600, "issm": 0o600}
"""File modes of the devices that only root may open, as the kernel creates them; all users may open the others."""
FOR_ALL: Final = 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """One port of a NIC."""

    number: int
    state: str
    """`ACTIVE`, `DOWN`, `INIT` …"""
    physical: str
    """`LinkUp`, `Polling`, `Disabled` …"""
    link_layer: str
    """`InfiniBand` or `Ethernet`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaFunction:
    """One PCI function with an RDMA device."""

    name: str
    """The name of its RDMA device: `mlx5_0`."""
    address: str
    parent: str
    """PCI address of the physical function; empty if this function is physical, or another machine has its physical
    function."""
    model: str
    ports: tuple[RdmaPort, ...]


class RdmaNics:
    """The RDMA NICs of this node."""

    name = names.RDMA

    def __init__(self, root: Path) -> None:
        self._root = root

    def start(self) -> None:
        """Need nothing."""

    def read(self, node: str) -> Sequence[DeviceInfo]:  # noqa: ARG002 -- this node is the only one
        """Return the NICs among all RDMA devices."""
        verbs = sysfs.entries(self._root / "class/infiniband_verbs", "uverbs*")
        usable = {sysfs.text(path / "ibdev") for path in verbs}
        functions: dict[str, RdmaFunction] = {}
        for folder in sysfs.entries(self._root / "class/infiniband"):
            if folder.name in usable and (folder / "device").exists():
                function = _function(folder)
                functions[function.address] = function
        # A virtual function is never one, even while its own has no RDMA device: pods may hold it as a part of its NIC.
        physical = sorted(function.address for function in functions.values() if not function.parent)
        devices = []
        for minor, address in enumerate(physical):
            function = functions[address]
            numbered = sysfs.virtual_functions(self._root / "bus/pci/devices" / address)
            # Virtual functions that have an RDMA device, too.
            virtual = [VirtualFunction(minor=number, bus_id=at) for number, at in numbered if at in functions]
            layers = sorted({port.link_layer for port in function.ports})
            device = DeviceInfo(
                type=names.RDMA,
                minor=minor,
                id=address,
                health=True,
                model=function.model,
                resources={names.PREFIX + names.RDMA: 100},
                topology=sysfs.place(self._root, address),
                labels={names.DEVICE_RDMA: function.name, names.DEVICE_LINK_LAYER: "-".join(layers)},
            )
            if virtual:
                device = device.model_copy(update={"vf_groups": [VirtualFunctionGroup(labels={}, vfs=virtual)]})
            faults = link_faults(function.ports)
            devices.append(mark(device, faults) if faults else device)
        return devices


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevice:
    """A character device below `/dev/infiniband` through which processes use NICs."""

    name: str
    """Its file name: `uverbs0`."""
    major: int
    minor: int
    rdma: str = ""
    """The RDMA device that it belongs to, `mlx5_0`; empty for the connection manager of the machine."""


def char_devices(root: Path, address: str) -> list[CharDevice]:
    """Return the character devices of one PCI function; the verbs devices come first.

    These are the devices that other device plugins give to containers: `uverbsN`, `umadN` and `issmN`. They stay where
    they are if a CNI plugin moves the RDMA device itself into the network namespace of a pod.
    """
    folders = (("infiniband_verbs", "uverbs*"), ("infiniband_mad", "umad*"), ("infiniband_mad", "issm*"))
    paths = (path for folder, names in folders for path in sysfs.entries(root / "class" / folder, names))
    return [
        device
        for path in paths
        if (path / "device").resolve().name == address
        for device in _char_device(path, rdma=sysfs.text(path / "ibdev"))
    ]


def connection_manager(root: Path) -> list[CharDevice]:
    """Return `rdma_cm`, which all NICs share; nothing if its driver is not loaded."""
    return list(_char_device(root / "class/misc/rdma_cm", rdma=""))


def cdi_node(device: CharDevice) -> dict[str, Any]:
    """Return a device node of a CDI specification; by its numbers, since the agent does not see the host's /dev."""
    return {
        "path": f"/dev/infiniband/{device.name}",
        "type": "c",
        "major": device.major,
        "minor": device.minor,
        "fileMode": MODES.get(device.name[:4], FOR_ALL),
        "permissions": "rw",
    }


def _char_device(path: Path, *, rdma: str) -> Iterator[CharDevice]:
    major, _, minor = sysfs.text(path / "dev").partition(":")
    if major.isdecimal() and minor.isdecimal():
        yield CharDevice(name=path.name, major=int(major), minor=int(minor), rdma=rdma)


def link_faults(ports: Sequence[RdmaPort]) -> list[Fault]:
    """Return the fault of a NIC without a working port."""
    if any(port.state == ACTIVE for port in ports):
        return []
    states = "; ".join(f"port {port.number} is {port.state}, physically {port.physical}" for port in ports)
    return [Fault(kind=catalogue.LINK_DOWN, message=states or "the NIC has no port")]


def _function(folder: Path) -> RdmaFunction:
    device = (folder / "device").resolve()
    kind = sysfs.text(folder / "hca_type")
    ports = sorted(sysfs.entries(folder / "ports"), key=lambda port: int(port.name))
    return RdmaFunction(
        name=folder.name,
        address=device.name,
        parent=(device / "physfn").resolve().name if (device / "physfn").exists() else "",
        model=MODELS.get(kind, kind or sysfs.pci_id(device)),
        ports=tuple(
            RdmaPort(
                number=int(port.name),
                state=_state(port / "state"),
                physical=_state(port / "phys_state"),
                link_layer=sysfs.text(port / "link_layer"),
            )
            for port in ports
        ),
    )


def _state(path: Path) -> str:
    """Read a state such as `4: ACTIVE`."""
    return sysfs.text(path).rpartition(": ")[2]
