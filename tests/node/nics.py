"""RDMA NICs of a real node, and the device files that its containers have of them."""

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.node.stage import Stage
from tests.nvml.fixture import Gpu
from tests.objects.sysfs_tree import SysfsTree

NIC: Final = "kubernetes.io/rdma"
FILES: Final = ("uverbs", "umad", "issm")


def plug_in(sysfs: SysfsTree, cards: Sequence[Gpu]) -> None:
    """Plug in a NIC under the switch of every second card; the last NIC has two virtual functions."""
    for number, card in enumerate(cards[::2]):
        below, _, _ = card.sysfs.rpartition("/")
        nic = sysfs.device(f"0000:{0x18 + 0x10 * number:02x}:00.0", below=below)
        sysfs.rdma(f"mlx5_{number}", nic)
    for number in range(2):
        function = sysfs.device(f"0000:28:00.{number + 1}", below=below)
        sysfs.rdma(f"mlx5_{number + 2}", function)
        sysfs.virtual(nic, number, function)


def files(stage: Stage, pod: str) -> set[str]:
    """Return the names of the device files of NICs in a pod's container."""
    folder = Path(f"/proc/{stage.node.container(stage.read(pod)).pid}/root/dev/infiniband")
    return {file.name for file in folder.glob("*") if stat.S_ISCHR(file.lstat().st_mode)}


def files_of(*rdma: str) -> set[str]:
    """Return the names of the device files of these NICs."""
    return {"rdma_cm", *(f"{file}-{name}" for file in FILES for name in rdma)}
