"""Keep the CDI files of prepared claims there, and in step with the numbers of their devices.

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
from berth_agent.dra.checkpoint import HeldClaim, dumped
from berth_agent.vendor import CardAccess, MisconfiguredError, RefusedError, Specification
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
    contents: Mapping[str, Specification]
    """What the files have, or should have."""


class LostError(Exception):
    """A file is lost, and what it had is not known. The text shows what helps."""


def renew(
    folder: Path, claims: Mapping[str, HeldClaim], node: NodeDevices, known: Mapping[str, Specification]
) -> Renewed:
    """Write the files whose device nodes have changed, and withdraw those of claims with a device that is not there.

    A file that another program has removed or damaged is written again: kubelet does not ask for it, and without it no
    container of the claim starts. `known`: the contents of the files after the last renewal, by the UIDs of the claims.
    """
    access = cache(node.access)
    withdrawn, unwritten = dict[str, str](), dict[str, str]()
    contents = {uid: content for uid, content in known.items() if uid in claims}
    for uid, held in claims.items():
        try:
            try:
                nodes = _nodes(uid, held, node, access)
                shown = cdi.read(folder, uid)
                content = shown or known.get(uid) or _composed(uid, held, node, access)
            except (RefusedError, MisconfiguredError) as error:
                if cdi.withdraw(folder, uid):
                    withdrawn[uid] = f"no container of {held.title} can start: {error}"
            except LostError as error:
                withdrawn[uid] = f"no container of {held.title} can start: {error}"
            else:
                contents[uid] = cdi.renewed(content, nodes)
                cdi.put(folder, uid, contents[uid], shown=shown)
        except OSError as error:
            unwritten[uid] = f"no container of {held.title} can start: its CDI file is not written: {error}"
    return Renewed(withdrawn=withdrawn, unwritten=unwritten, contents=contents)


def _composed(uid: str, held: HeldClaim, node: NodeDevices, access: Callable[[], CardAccess]) -> Specification:
    """Return the content of a lost file that this agent has not seen.

    Raises:
        RefusedError: a device is not there.
        MisconfiguredError: something is not there that containers must have.
        LostError: the file had limits of shares, which depend on the containers.
    """
    if any(device.share for device in held.devices):
        raise LostError("its CDI file is lost, with the limits of its shares; delete its pods")
    edits = {
        cdi.device_name(uid, device.device): node.nic_edits(device.id)
        if device.type == RDMA
        else ClaimEdits(access(), device.id).edits
        for device in held.devices
    }
    return cdi.specification(uid, record=dumped(held), edits={name: own for name, own in edits.items() if own})


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
