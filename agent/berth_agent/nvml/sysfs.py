"""What the kernel tells of a PCI device: its NUMA node, its socket, and the switch above it."""

import re
from pathlib import Path
from typing import Final

from berth_api.device import Topology

UNTOLD: Final = -1
ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
BEHIND_SWITCH: Final = 4
"""Length of a path from a root complex through a switch: root port, upstream port, downstream port, device."""


def place(root: Path, address: str) -> Topology:
    """Return where a device sits. What the kernel does not tell stays -1 or empty."""
    device = root / "bus/pci/devices" / address
    return Topology(
        socket_id=_socket(root, device),
        node_id=_number(device / "numa_node"),
        pcie_id=_switch(device),
        bus_id=address,
    )


def bound_cards(root: Path) -> frozenset[str]:
    """Return the PCI addresses that the driver holds now: when they change, NVML must be opened anew to see it."""
    folder = root / "bus/pci/drivers/nvidia"
    return frozenset(entry.name for entry in folder.glob("*:*:*.*"))


def _switch(device: Path) -> str:
    """Return the upstream port of the nearest switch, or the root complex where the way has no switch."""
    parts = device.resolve().parts
    start = next((index for index, part in enumerate(parts) if ROOT_COMPLEX.fullmatch(part)), None)
    if start is None:
        return ""
    ports = parts[start + 1 :]
    return ports[-3] if len(ports) >= BEHIND_SWITCH else parts[start]


def _socket(root: Path, device: Path) -> int:
    first = _text(device / "local_cpulist").partition(",")[0].partition("-")[0]
    return _number(root / f"devices/system/cpu/cpu{first}/topology/physical_package_id") if first else UNTOLD


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text else UNTOLD


def _text(path: Path) -> str:
    """Read a small file; one that is not there tells nothing."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
