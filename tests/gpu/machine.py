"""Whether this machine has a GPU to test with."""

from pathlib import Path


def obstacle() -> str:
    """Return why tests cannot run here; empty if they can. With a GPU, every further failure fails the test."""
    # Not /dev/nvidiactl: NVIDIA's library itself creates that one as root, with or without a driver.
    return "" if list(Path("/dev").glob("nvidia[0-9]*")) else "no GPU: this machine has no /dev/nvidia0"
