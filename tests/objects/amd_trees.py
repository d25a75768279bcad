"""Build a sysfs as AMD's driver shows it, for each generation of cards.

Buses, ids, hives and compute units of MI210, MI300X and MI308X are facts of public trees of KFD. No public tree has the
folders of the PCI devices: these are as the kernel's source writes them.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.objects.sysfs_tree import SysfsTree, link

DRIVER: Final = "bus/pci/drivers/amdgpu"
KFD: Final = "class/kfd/kfd/topology/nodes"
PROCESSES: Final = "class/kfd/kfd/proc"
KFD_ID: Final = 41000
"""KFD's number of the card with the render node 0; the kernel's are hashes of 16 bits."""
GIB: Final = 2**30
NOTHING: Final[Mapping[int, int]] = {}


class Place(NamedTuple):
    """A card of a public tree."""

    bus: int
    unique_id: str
    domain: int = 0
    hive: int = 0

    @property
    def address(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:00.0"


MI210: Final = (
    *(Place(0x63, "1901ead3a2ecd4a6", hive=1), Place(0x43, "51276ac12ce05db3", hive=1)),
    *(Place(0x03, "93bb3629c01aea1c", hive=1), Place(0x26, "4344e78b718814cd", hive=1)),
    *(Place(0xE3, "aea834aa2723eb57", hive=2), Place(0xC3, "a3781b5a10fcf54a", hive=2)),
    *(Place(0x83, "f83f06efb714e6cf", hive=2), Place(0xA3, "c34ec50444dd0a6d", hive=2)),
)
"""In the order of their render nodes. Each card has one hop to the three others of its hive."""
MI300X: Final = (
    *(Place(0x05, "e3aa140f9a5f9e31"), Place(0x27, "2250f807caf2231a")),
    *(Place(0x47, "d802d560d4ba851d"), Place(0x65, "a70757a01276547a")),
    # The public tree ends here.
    *(Place(0x85, "0000000000000085"), Place(0xA7, "00000000000000a7")),
    *(Place(0xC7, "00000000000000c7"), Place(0xE5, "00000000000000e5")),
)
MI308X: Final = (Place(0x0A, "084cafeae17e7696"), Place(0x0B, "f2640be0c4c5b44b", domain=1))
MI308X_BANK: Final = 51539607552
"""Bytes of each of its four partitions, as KFD reports them also under NPS1."""


class AmdTree(SysfsTree):
    """A sysfs with AMD's driver."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / DRIVER).mkdir(parents=True)
        (root / "module/amdgpu").mkdir(parents=True)
        (root / "module/amdgpu/version").write_text("6.10.5\n")
        (root / "module/amdgpu/srcversion").write_text("D3B0C1E8A9F4\n")
        (root / "class/kfd/kfd").mkdir(parents=True)
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").symlink_to("pid:[4026531836]")
        self._cards = 1  # card0 is the display of the management controller

    def card(
        self,
        address: str,
        device: str,
        render: int,
        *,
        below: str = "",
        memory: int = 64 * GIB,
        kind: str = "0x120000",
        **files: str,
    ) -> Path:
        """Put a card that the driver holds below a port, by default below a root complex of its own."""
        below = below or f"pci{address[:7]}/{address[:7]}:01.0"
        shown = {"class": kind, "vendor": "0x1002", "revision": "0x00", "mem_info_vram_total": str(memory)}
        folder = self.device(address, below=below, **{**shown, "device": device, **files})
        (self.root / DRIVER / address).symlink_to(folder)
        self.drm(folder, render)
        for name, text in {"gpu_busy_percent": "0", "mem_info_vram_used": "0"}.items():
            (folder / name).write_text(f"{text}\n")
        self.sensors(folder, power1_average="90000000")
        for sensor, celsius, limit in ((1, 40, 100), (2, 45, 105), (3, 50, 105)):
            self.sensors(folder, **{f"temp{sensor}_input": f"{celsius}000", f"temp{sensor}_crit": f"{limit}000"})
        (folder / "ras").mkdir()
        for block in ("umc", "gfx", "sdma"):
            (folder / f"ras/{block}_err_count").write_text("ue: 0\nce: 0\n")
        return folder

    def drm(self, folder: Path, render: int) -> None:
        """Add the card and the render node of a device."""
        for name in (f"card{self._cards}", f"renderD{render}"):
            (folder / "drm" / name).mkdir(parents=True)
            link(folder / "drm" / name / "device", folder)
            link(self.root / "class/drm" / name, folder / "drm" / name)
        self._cards += 1

    def sensors(self, folder: Path, **values: str) -> None:
        """Set values of a card's hwmon."""
        (folder / "hwmon/hwmon4").mkdir(parents=True, exist_ok=True)
        for name, text in values.items():
            (folder / "hwmon/hwmon4" / name).write_text(f"{text}\n")

    def bridge(self, path: str, vendor: str) -> None:
        """Name the vendor of a port on the way to a card."""
        (self.root / "devices" / path / "vendor").write_text(f"{vendor}\n")

    def hive(self, folders: Sequence[Path], hive: str) -> None:
        """Connect cards by XGMI, each directly with each other by one link."""
        owner = folders[0] / "xgmi_hive_info"
        owner.mkdir()
        (owner / "xgmi_hive_id").write_text(f"{hive}\n")
        for position, folder in enumerate(folders):
            link(owner / f"node{position + 1}", folder)
            if folder is not folders[0]:
                link(folder / "xgmi_hive_info", owner)
            numbers = " ".join("00" if other is folder else "01" for other in folders)
            (folder / "xgmi_num_hops").write_text(f"{numbers} \n")
            (folder / "xgmi_num_links").write_text(f"{numbers} \n")

    def kfd(self, place: Place, partition: int, render: int, units: int, memory: int) -> None:
        """Add a node to KFD's topology, as a privileged agent reads it."""
        folder = self.root / KFD / str(len(list((self.root / KFD).glob("*"))))
        (folder / "mem_banks/0").mkdir(parents=True)
        facts = {
            "cpu_cores_count": 0,
            "simd_count": 4 * units,
            "simd_per_cu": 4,
            "location_id": place.bus << 8 | partition,
            "domain": place.domain,
            "drm_render_minor": render,
            "unique_id": int(place.unique_id, 16),
        }
        (folder / "gpu_id").write_text(f"{KFD_ID + render}\n")
        (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in facts.items()))
        (folder / "mem_banks/0/properties").write_text(f"heap_type 1\nsize_in_bytes {memory}\nflags 0\n")

    def process(self, pid: int, *renders: int, queues: Sequence[int] = (), memory: Mapping[int, int] = NOTHING) -> None:
        """Add a process that has KFD open, with its memory of each card that it may use by render node."""
        folder = self.root / PROCESSES / str(pid)
        (folder / "queues").mkdir(parents=True)
        (folder / "pasid").write_text("32771\n")
        for render in renders:
            (folder / f"vram_{KFD_ID + render}").write_text(f"{memory.get(render, 0)}\n")
        for number, render in enumerate(queues):
            (folder / f"queues/{number}").mkdir()
            (folder / f"queues/{number}/gpuid").write_text(f"{KFD_ID + render}")

    def opened(
        self, pid: int, number: int, *, render: int, address: str, client: int, memory: str, path: str = ""
    ) -> None:
        """Add an open render node to a process, by the number of the descriptor. The tree is the procfs, too."""
        for kind in ("fd", "fdinfo"):
            (self.root / str(pid) / kind).mkdir(parents=True, exist_ok=True)
        (self.root / f"{pid}/fd/{number}").symlink_to(path or f"/dev/dri/renderD{render}")
        facts = {"drm-driver": "amdgpu", "drm-pdev": address, "drm-client-id": client, "drm-memory-vram": memory}
        text = "".join(f"{name}:\t{value}\n" for name, value in facts.items())
        (self.root / f"{pid}/fdinfo/{number}").write_text(f"pos:\t0\nflags:\t02100002\n{text}")


def mi210(root: Path) -> AmdTree:
    """Build a node with eight MI210 in two hives of four; pairs of cards share a PCIe switch."""
    tree = AmdTree(root)
    hives: dict[int, list[Path]] = {}
    for number, place in enumerate(MI210):
        pair, complex_ = number // 2, f"pci0000:{0x10 * (number // 2):02x}"
        switch = f"{complex_}/0000:{0x10 * pair:02x}:01.0/0000:{0x10 * pair + 1:02x}:00.0"
        folder = tree.card(
            place.address,
            "0x740f",
            128 + number,
            below=f"{switch}/0000:{0x10 * pair + 2:02x}:0{number % 2}.0",
            numa=str(number // 4),
            unique_id=place.unique_id,
            kind="0x038000",
        )
        hives.setdefault(place.hive, []).append(folder)
    for hive, folders in hives.items():
        tree.hive(folders, str(12609507387757274807 + hive))
    return tree


def mi300x(
    root: Path, *, cards: int = 8, compute: str = "SPX", memory: str = "NPS1", is_privileged: bool = False
) -> AmdTree:
    """Build a node with up to eight MI300X in one hive, each in one compute mode."""
    tree = AmdTree(root)
    parts = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}[compute]
    folders = []
    for number, place in enumerate(MI300X[:cards]):
        first = 128 + 8 * number
        folder = tree.card(
            place.address,
            "0x74a1",
            first,
            memory=192 * GIB,
            unique_id=place.unique_id,
            product_name="AMD Instinct MI300X OAM",
            current_compute_partition=compute,
            available_compute_partition="SPX, DPX, QPX, CPX",
            current_memory_partition=memory,
        )
        folders.append(folder)
        for partition in range(parts):
            if partition:
                tree.drm(tree.root / f"devices/platform/amdgpu_xcp_{8 * number + partition}", first + partition)
            if is_privileged:
                tree.kfd(place, partition, first + partition, 304 // parts, 192 * GIB // parts)
    tree.hive(folders, "15188982192727901047")
    return tree


def radeon(root: Path) -> AmdTree:
    """Build a workstation with a card that has no unique_id, and a PCIe switch of its own."""
    tree = AmdTree(root)
    port = "pci0000:00/0000:00:01.1"
    tree.card(
        "0000:03:00.0",
        "0x744c",
        128,
        below=f"{port}/0000:01:00.0/0000:02:00.0",
        memory=24 * GIB,
        revision="0xc8",
        kind="0x030000",
    )
    tree.bridge(port, "0x1022")
    tree.bridge(f"{port}/0000:01:00.0", "0x1002")
    tree.bridge(f"{port}/0000:01:00.0/0000:02:00.0", "0x1002")
    return tree


def apu_and_nvidia(root: Path) -> AmdTree:
    """Build a workstation with graphics in its processor, which AMD's driver holds, and a card of NVIDIA's."""
    tree = AmdTree(root)
    at = "pci0000:00/0000:00:08.1"
    tree.card("0000:0e:00.0", "0x15bf", 128, below=at, memory=GIB // 2, kind="0x030000")
    tree.device("0000:0e:00.2", below=at, vendor="0x1022", device="0x15c7", **{"class": "0x108000"})
    tree.device("0000:01:00.0", below="pci0000:00/0000:00:01.1", vendor="0x10de", **{"class": "0x030000"})
    return tree


@contextlib.contextmanager
def refused(path: Path, number: int) -> Iterator[None]:
    """Make each read of a file fail with an error: EIO, EAGAIN or ELOOP."""
    before = path.read_text()
    path.unlink()
    match number:
        case errno.EIO:
            path.symlink_to("/proc/self/mem")
            yield
        case errno.ELOOP:
            path.symlink_to(path)
            yield
        case errno.EAGAIN:
            os.mkfifo(path)
            # A pipe with a writer, from which nothing comes.
            writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            yield
            os.close(writer)
    path.unlink()
    path.write_text(before)
