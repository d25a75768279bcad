"""Whether this machine has a GPU to test with."""

from pathlib import Path


def obstacle() -> str:
    """Say why there is nothing to test with; nothing where there is. From here on whatever fails is a failure."""
    # Not /dev/nvidiactl: NVIDIA's library itself makes that one as root, driver or none.
    return "" if list(Path("/dev").glob("nvidia[0-9]*")) else "no GPU: this machine has no /dev/nvidia0"
