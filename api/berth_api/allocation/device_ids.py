"""The valid forms of device ids.

Ids reach environments, mounts and CDI names of containers. NVIDIA's runtime accepts `all`, `0` or `0:1` for cards, and
a comma or a line break ends an id. So an id in any other form could give a container other cards.
"""

import re
from typing import Final

from berth_api.names import GPU, RDMA

_ANY: Final = re.compile(r"[0-9A-Za-z]([0-9A-Za-z._:/-]{0,126}[0-9A-Za-z])?")
"""Ids of all types, such as the PCI addresses of NICs."""
_GPU: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z]([0-9A-Za-z./-]{0,122}[0-9A-Za-z])?")
"""A UUID as NVML writes it; older drivers write instances as `MIG-GPU-<UUID>/1/0`."""
_NUMBER: Final = re.compile(r"[0-9]{1,3}")
_SHOWN: Final = 40
MAX_NAME: Final = 63
"""Characters of a device's name in a ResourceSlice."""


def device_name(name: str) -> str:
    """Return the name in slices of Berth's driver for the id of a card or instance: `gpu-…` for the UUID `GPU-…`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME].strip("-")


def nic_name(address: str) -> str:
    """Return the name in slices of Berth's driver for a NIC or function at a PCI address: `rdma-0000-1f-00-0`."""
    return device_name(f"{RDMA}-{address}")


def is_valid(device_type: str, name: str) -> bool:
    """Return whether an id of a card or MIG instance has the form for its type."""
    return (_GPU if device_type == GPU else _ANY).fullmatch(name) is not None


def is_valid_unit(device_type: str, name: str, mark: str) -> bool:
    """Return whether an id of a card, instance or replica has the form for its type; `mark` precedes a replica."""
    device, found, number = name.partition(mark)
    return is_valid(device_type, device) and (not found or _NUMBER.fullmatch(number) is not None)


def problem(device_type: str, name: str) -> str:
    """Return the problem with an id; empty if it has the form for its type."""
    if is_valid(device_type, name):
        return ""
    form = "GPU-<UUID> or MIG-<UUID>" if device_type == GPU else "a PCI address, or letters, digits and . _ : / -"
    return f"{name[:_SHOWN]!r} is not of the form {form}"
