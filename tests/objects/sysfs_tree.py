"""Build a sysfs as the kernel would show it for NICs and FPGAs."""

import os
import shutil
from pathlib import Path

NULL = "1:3"
"""The device that stands for the character devices of NICs: every machine has it."""
CHAR_DEVICES = (("infiniband_verbs", "uverbs"), ("infiniband_mad", "umad"), ("infiniband_mad", "issm"))


class SysfsTree:
    """A sysfs in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(self, address: str, *, below: str = "pci0000:10/0000:10:01.0", numa: str = "0", **files: str) -> Path:
        """Put a PCI device below a bridge: by default at a root port."""
        folder = self.root / "devices" / below / address
        folder.mkdir(parents=True)
        for name, text in {"numa_node": numa, "local_cpulist": "0-31", **files}.items():
            (folder / name).write_text(f"{text}\n")
        link(self.root / "bus/pci/devices" / address, folder)
        return folder

    def rdma(self, name: str, at: Path, *, verbs: bool = True, kind: str = "MT4129", **ports: str) -> None:
        """Make a PCI device an RDMA device; its ports are given as `port1="4: ACTIVE"`."""
        folder = self.root / "class/infiniband" / name
        folder.mkdir(parents=True)
        link(folder / "device", at)
        (folder / "hca_type").write_text(f"{kind}\n")
        for port, state in (ports or {"port1": "4: ACTIVE"}).items():
            self.port(name, int(port.removeprefix("port")), state)
        if verbs:
            for group, file in CHAR_DEVICES:
                device = self.root / f"class/{group}/{file}-{name}"
                device.mkdir(parents=True)
                (device / "ibdev").write_text(f"{name}\n")
                (device / "dev").write_text(f"{NULL}\n")
                link(device / "device", at)
            manager = self.root / "class/misc/rdma_cm"
            manager.mkdir(parents=True, exist_ok=True)
            (manager / "dev").write_text(f"{NULL}\n")

    def port(self, name: str, number: int, state: str, *, layer: str = "InfiniBand") -> None:
        """Set the state of a port."""
        folder = self.root / f"class/infiniband/{name}/ports/{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "phys_state").write_text("5: LinkUp\n" if state.endswith("ACTIVE") else "2: Polling\n")
        (folder / "link_layer").write_text(f"{layer}\n")

    def nic(self, address: str) -> None:
        """Plug in a NIC."""
        self.rdma(f"mlx-{address.replace(':', '-')}", self.device(address))

    def fpga(self, address: str) -> None:
        """Plug in an FPGA."""
        self.device(address, **{"class": "0x120000"}, vendor="0x10ee", device="0x5021")

    def unplug(self, address: str) -> None:
        """Take a PCI device out."""
        link = self.root / "bus/pci/devices" / address
        for rdma in (self.root / "class/infiniband").glob("*"):
            if (rdma / "device").resolve().name == address:
                for kind, file in CHAR_DEVICES:
                    shutil.rmtree(self.root / f"class/{kind}/{file}-{rdma.name}", ignore_errors=True)
                shutil.rmtree(rdma)
        shutil.rmtree(link.resolve())
        link.unlink()

    def virtual(self, physical: Path, number: int, virtual: Path) -> None:
        """Make one device a virtual function of another."""
        link(physical / f"virtfn{number}", virtual)
        link(virtual / "physfn", physical)


def link(path: Path, target: Path) -> None:
    """Make a link, as sysfs has them: relative, and with the target's name at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(Path(os.path.relpath(target.parent, path.parent)) / target.name)
