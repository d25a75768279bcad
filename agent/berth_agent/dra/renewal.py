"""Keep the CDI files of prepared claims in step with the numbers of their devices.

A driver that was reloaded may have exchanged the numbers of two cards or NICs, or may not have a MIG instance any more.
kubelet starts the containers of a claim again without a call. With the old numbers, they would get what others have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from berth_agent.dra import cdi
from berth_agent.dra.cdi import ClaimEdits
from berth_agent.dra.checkpoint import HeldClaim
from berth_agent.vendor import CardAccess, MisconfiguredError, RefusedError
from berth_api.names import RDMA


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevices:
    """The devices of the node, and what containers need for them."""

    access: Callable[[], CardAccess]
    """Returns how containers get the cards; reads the disk."""
    nic_edits: Callable[[str], Mapping[str, Any]]
    """Returns the edits of a CDI device for the NIC at a PCI address; reads the disk, and may raise RefusedError."""
    card_of: Mapping[str, str] = field(default_factory=dict)
    """UUID of the card of each card and MIG instance of the last reading, by UUID; of instances on demand, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Why containers of claims cannot start now, by the UIDs of the claims."""

    withdrawn: Mapping[str, str]
    """A device is not there."""
    unwritten: Mapping[str, str]
    """The disk refused the file."""


def renew(folder: Path, claims: Mapping[str, HeldClaim], node: NodeDevices) -> Renewed:
    """Write the files whose device nodes have changed, and withdraw those of claims with a device that is not there."""
    access = cache(node.access)
    withdrawn, unwritten = dict[str, str](), dict[str, str]()
    for uid, held in claims.items():
        try:
            try:
                nodes = _nodes(uid, held, node, access)
            except (RefusedError, MisconfiguredError) as error:
                if cdi.withdraw(folder, uid):
                    withdrawn[uid] = f"no container of {held.title} can start: {error}"
            else:
                cdi.renew(folder, uid, nodes)
        except OSError as error:
            unwritten[uid] = f"no container of {held.title} can start: its CDI file is not written: {error}"
    return Renewed(withdrawn=withdrawn, unwritten=unwritten)


def _nodes(
    uid: str, held: HeldClaim, node: NodeDevices, access: Callable[[], CardAccess]
) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the device nodes of a claim's CDI devices, by their names.

    Raises:
        RefusedError: a device is not there.
        MisconfiguredError: something is not there that containers must have.
    """
    nodes = {}
    for device in held.devices:
        if device.type == RDMA:
            edits = node.nic_edits(device.id)
        elif device.id in node.card_of:
            edits = ClaimEdits(access(), device.id).edits
        else:
            raise RefusedError(f"the node has no device {device.device} any more")
        nodes[cdi.device_name(uid, device.device, device.share)] = edits.get("deviceNodes", ())
    return nodes
