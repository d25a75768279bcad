"""The link matrix: how cards are connected with each other, as NVML reports it.

NVLinks are counted both between two cards directly and through NVSwitch. Cards whose links lead into the switches of
one machine reach each other over all of these links, as `nvidia-smi topo -m` shows it (`NV12`).
"""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from berth_agent.vendors.nvidia.nvml import library
from berth_agent.vendors.nvidia.nvml.library import Handle, NvmlError
from berth_api.device import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveNvlinks:
    """The active NVLinks of one card."""

    direct: Counter[str]
    """Links by the PCI address at their other end."""
    switched: int
    """Links into NVSwitch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """One card of the matrix."""

    handle: Handle
    minor: int
    bus_id: str
    wires: ActiveNvlinks


def wires(handle: Handle) -> ActiveNvlinks:
    """Read the active NVLinks of a card."""
    direct: Counter[str] = Counter()
    switched = 0
    for link in range(library.MAX_NVLINKS):
        if not library.nvlink_is_active(handle, link):
            continue
        if library.unless_unsupported(default=False, function=library.nvlink_ends_at_switch, of=(handle, link)):
            switched += 1
        elif remote := library.nvlink_remote(handle, link):
            direct[remote] += 1
    return ActiveNvlinks(direct=direct, switched=switched)


def links(node: LinkEnd, others: Sequence[LinkEnd]) -> list[Link]:
    """Return the row of one card. A pair that the driver does not report has no entry."""
    row = []
    for other in others:
        if other is node:
            continue
        count = nvlinks(node, other)
        with contextlib.suppress(NvmlError):
            peer = library.peer_to_peer(node.handle, other.handle)
            way = "NVLink" if count else library.ancestor(node.handle, other.handle)
            row.append(Link(minor=other.minor, type=way, count=count, peer_to_peer=peer))
    return row


def nvlinks(node: LinkEnd, other: LinkEnd) -> int:
    """Count the NVLinks between two cards."""
    return node.wires.direct[other.bus_id] + min(node.wires.switched, other.wires.switched)
