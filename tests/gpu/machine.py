"""Whether this machine has a GPU to test with."""

from pathlib import Path

from berth_agent.inventory import sysfs
from berth_agent.vendors.amd.inventory import DRIVER, VENDOR


def obstacle() -> str:
    """Return why tests cannot run here; empty if they can. With a GPU, every further failure fails the test."""
    # Not /dev/nvidiactl: NVIDIA's library itself creates that one as root, with or without a driver.
    return "" if list(Path("/dev").glob("nvidia[0-9]*")) else "no GPU: this machine has no /dev/nvidia0"


def amd_obstacle(sysfs_root: Path) -> str:
    """Return why tests of AMD's cards cannot run here; empty if they can."""
    bound = sysfs.bound_cards(sysfs_root, DRIVER)
    if any(folder.name in bound for folder in sysfs.gpus(sysfs_root, VENDOR) or ()):
        return ""
    return f"no GPU of AMD: the driver {DRIVER} holds none on this machine"
