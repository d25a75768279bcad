"""The kernel's data about a PCI device: its NUMA node, its socket, and the switch above it.

The kernel removes files and folders while they are read, for example when a driver is unloaded. What is gone is empty.
"""

import contextlib
import errno
import fnmatch
import re
from pathlib import Path
from typing import Final

from berth_api.device import MAX_TOPOLOGY_NUMBER, Topology

UNTOLD: Final = -1
ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
ACCELERATOR: Final = "0x1200"
"""How the class of processing accelerators begins."""
GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", ACCELERATOR)
"""How the classes of GPUs begin: with a plug for a screen, and three classes without one."""
_MANAGEMENT_DISPLAYS: Final = frozenset({"1002:4752", "1002:515e", "19e5:1711"})
"""Displays of management controllers by a vendor that also makes GPUs. Most are by other vendors (ASPEED, Matrox)."""
_INTEGRATED_INTEL: Final = "0000:00:02.0"
"""The address of Intel's integrated graphics."""
_AMD_CPU: Final = "0x1022"
"""The vendor of what is in AMD's processors; graphics by AMD are of 0x1002."""
_TOPOLOGY_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_GONE: Final = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)
_WILD: Final = re.compile(r"[*?\[]")
BEHIND_SWITCH: Final = 4
"""Length of a path from a root complex through a switch: root port, upstream port, downstream port, device."""


def place(root: Path, address: str) -> Topology:
    """Return where a device sits. What the kernel does not report, or cannot be read, stays -1 or empty."""
    device = root / "bus/pci/devices" / address
    first_cpu = _detail(device / "local_cpulist").partition(",")[0].partition("-")[0]
    socket = UNTOLD
    if first_cpu.isdecimal():
        socket = _number(root / f"devices/system/cpu/cpu{first_cpu}/topology/physical_package_id")
    node = _number(device / "numa_node")
    if node == UNTOLD:
        # In virtual machines the kernel reports no NUMA node; where there is only one, it is that one.
        node = _number(root / "devices/system/node/online")
    return Topology(
        socket_id=socket,
        node_id=node,
        pcie_id=_switch(device),
        bus_id=address,
    )


def pcie_root(root: Path, address: str) -> str:
    """Return the root complex of a device, `pci0000:3a`; an empty string if the kernel does not report it."""
    parts = (root / "bus/pci/devices" / address).resolve().parts
    return next((part for part in parts if ROOT_COMPLEX.fullmatch(part)), "")


def virtual_functions(device: Path) -> list[tuple[int, str]]:
    """Return the virtual functions of a PCI device: the kernel's number of each, and its PCI address."""
    links = entries(device, "virtfn*")
    return sorted((int(link.name.removeprefix("virtfn")), link.resolve().name) for link in links)


def pci_id(device: Path) -> str:
    """Return the vendor and device of a PCI device's folder: `10ee:5001`."""
    return ":".join(text(device / part).removeprefix("0x") for part in ("vendor", "device"))


def pci_class(root: Path, address: str) -> str:
    """Return the class of a device, `0x030200`, or an empty string if it is not known."""
    return _detail(root / "bus/pci/devices" / address / "class")


def machine(root: Path) -> str:
    """Return the machine's product name, as its maker wrote it; an empty string if it is not known."""
    return _detail(root / "class/dmi/id/product_name")


def has_gpus(root: Path, vendor: str) -> bool | None:
    """Return whether the PCI bus has a GPU of a vendor (`0x10de`); None where there is no bus to look at."""
    folders = gpus(root, vendor)
    return None if folders is None else bool(folders)


def gpus(root: Path, vendor: str) -> list[Path] | None:
    """Return the folders of a vendor's GPUs, sorted by PCI address; None where there is no bus to look at.

    Integrated graphics and displays of management controllers do not count.
    """
    devices = entries(root / "bus/pci/devices")
    of_vendor = [device for device in devices if text(device / "vendor") == vendor]
    return [device for device in of_vendor if _is_gpu(device)] if devices else None


def _is_gpu(device: Path) -> bool:
    kind, device_class = pci_id(device), text(device / "class")
    if not device_class.startswith(GPU_CLASSES) or kind in _MANAGEMENT_DISPLAYS:
        return False
    if kind.startswith("8086:"):
        return device.name != _INTEGRATED_INTEL
    if kind.startswith("1002:") and not device_class.startswith(ACCELERATOR):
        # In an APU, functions of the processor share the slot: its encryption and USB controllers.
        slot = entries(device.parent, f"{device.name.rpartition('.')[0]}.*")
        return all(text(function / "vendor") != _AMD_CPU for function in slot)
    return True


def bound_cards(root: Path, driver: str = "*") -> frozenset[str]:
    """Return the PCI addresses that a driver holds now; without its name, those that any driver holds."""
    return frozenset(entry.name for entry in entries(root / "bus/pci/drivers", f"{driver}/*:*:*.*"))


def bindings(root: Path, driver: str) -> frozenset[tuple[str, int]]:
    """Return the PCI address of each card that a driver holds now, and the inode of the link that shows it.

    A card that is bound again has another link, also if it was not seen without one: the kernel counts inodes up.
    """
    found = set()
    for link in entries(root / "bus/pci/drivers", f"{driver}/*:*:*.*"):
        # The driver may give the card up meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.add((link.name, link.lstat().st_ino))
    return frozenset(found)


def _switch(device: Path) -> str:
    """Return the upstream port of the nearest switch, or the root complex where the way has no switch."""
    parts = device.resolve().parts
    start = next((index for index, part in enumerate(parts) if ROOT_COMPLEX.fullmatch(part)), None)
    if start is None:
        return ""
    ports = parts[start + 1 :]
    return ports[-3] if len(ports) >= BEHIND_SWITCH else parts[start]


def _number(path: Path) -> int:
    """Return a number that a Topology can have; -1 for all else. Some firmware numbers sockets by addresses."""
    number = _detail(path)
    return int(number) if _TOPOLOGY_NUMBER.fullmatch(number) and int(number) <= MAX_TOPOLOGY_NUMBER else UNTOLD


def _detail(path: Path) -> str:
    """Return a text as `text` does; also an empty string if the file cannot be read.

    It is for facts that cards can do without. No card must be unhealthy because such a file is broken.
    """
    try:
        return text(path)
    except OSError:
        return ""


def text(path: Path) -> str:
    """Return the text of a small file; an empty string if it does not exist, or its device is gone.

    Firmware writes some of these texts, in any encoding.

    Raises:
        OSError: the file cannot be read. Callers must not take this for a device that does not exist.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        if error.errno in _GONE:
            return ""
        raise


def entries(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the entries of a folder that match a pattern, sorted by name; none if it does not exist any more.

    `Path.glob` is not used, because from Python 3.13 on it hides all errors: a folder that cannot be read would be a
    machine without GPUs.
    """
    found = [folder]
    for part in pattern.split("/"):
        found = [entry for parent in found for entry in _matching(parent, part)]
    return sorted(found)


def _matching(folder: Path, name: str) -> list[Path]:
    try:
        if not _WILD.search(name):
            # Without reading the folder: /dev may be large.
            (folder / name).lstat()
            return [folder / name]
        return [entry for entry in folder.iterdir() if fnmatch.fnmatchcase(entry.name, name)]
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise
