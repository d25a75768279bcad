"""The id of the node's current boot."""

from pathlib import Path


def boot_id(proc: Path) -> str:
    """Return the kernel's id of this boot, or an empty string if there is none."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return ""
