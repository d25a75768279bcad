"""FPGAs: PCI functions of the class of processing accelerators, from vendors that make FPGAs.

A card may have several functions. On Alveo cards, the last function is for users, and the functions before it are for
management. So a card is its last function. Virtual functions are listed with their card.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from berth_agent.health import catalogue
from berth_agent.health.faults import Fault, mark
from berth_agent.inventory import sysfs
from berth_api import names
from berth_api.device import DeviceInfo, VirtualFunction, VirtualFunctionGroup

GONE: Final = b"\xff\xff"
"""What a device that fell off the bus reads as."""

_FELL_OFF: Final = Fault(kind=catalogue.OFF_THE_BUS, message="the FPGA does not answer on the PCI bus")
MODELS: Final = {
    "10ee:5001": "Xilinx Alveo U200",
    "10ee:5005": "Xilinx Alveo U250",
    "10ee:500d": "Xilinx Alveo U280",
    "10ee:5021": "Xilinx Alveo U50",
    "10ee:505d": "Xilinx Alveo U55C",
    "8086:09c4": "Intel PAC Arria 10 GX",
    "8086:0b30": "Intel PAC N3000",
    "8086:0b2b": "Intel PAC D5005",
    "8086:bcce": "Intel FPGA N6000",
}


class Fpgas:
    """The FPGAs of this node."""

    name = names.FPGA

    def __init__(self, root: Path, *, ids: Sequence[str]) -> None:
        self._root = root
        self._ids = frozenset(ids)

    def start(self) -> None:
        """Need nothing."""

    def read(self, node: str) -> Sequence[DeviceInfo]:  # noqa: ARG002 -- this node is the only one
        """Return the FPGAs among all processing accelerators."""
        cards: dict[str, Path] = {}
        for function in sysfs.entries(self._root / "bus/pci/devices"):
            if not sysfs.text(function / "class").startswith(sysfs.ACCELERATOR) or (function / "physfn").exists():
                continue
            pci_id = sysfs.pci_id(function)
            if self._ids & {pci_id, pci_id.partition(":")[0]}:
                # The order is by address, so the last function of each card stays.
                cards[function.name.rpartition(".")[0]] = function
        devices = []
        for minor, folder in enumerate(cards.values()):
            kind = sysfs.pci_id(folder)
            device = DeviceInfo(
                type=names.FPGA,
                minor=minor,
                id=folder.name,
                health=True,
                model=MODELS.get(kind, f"FPGA {kind}"),
                resources={names.PREFIX + names.FPGA: 100},
                topology=sysfs.place(self._root, folder.name),
            )
            if virtual := [VirtualFunction(minor=number, bus_id=at) for number, at in sysfs.virtual_functions(folder)]:
                device = device.model_copy(update={"vf_groups": [VirtualFunctionGroup(labels={}, vfs=virtual)]})
            try:
                with (folder / "config").open("rb") as config:
                    is_gone = config.read(2) == GONE
            except FileNotFoundError:
                is_gone = False
            devices.append(mark(device, [_FELL_OFF]) if is_gone else device)
        return devices
