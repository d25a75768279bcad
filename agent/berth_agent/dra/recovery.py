"""Find out which claims are prepared, where the checkpoint does not say.

A claim has its CDI file as long as it is prepared, with a copy of its record, and kubelet's PodResources names the
claims of containers. What neither names is free. What one of them names in part is kept from everybody until kubelet's
calls complete it.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from berth_agent.dra import cdi, checkpoint
from berth_agent.dra.checkpoint import UID, HeldClaim, HeldDevice
from berth_agent.dra.devices import ListedDevice
from berth_api.device import ClaimedDevice
from berth_api.names import DRA_DRIVER

UNKNOWN: Final = "unknown-"
"""The UID of a claim that only PodResources names begins with this; a UID made of its name follows."""


def from_files(folder: Path, *, boot: str) -> dict[str, HeldClaim]:
    """Return the claims that have a CDI file, by UID.

    A claim whose file is damaged has no name and no devices: any card may be its own.

    Raises:
        OSError: the folder or a file cannot be read.
    """
    claims = {}
    for uid in map(cdi.uid_of, cdi.claim_files(folder)):
        try:
            UID.validate_python(uid)
        except ValidationError:
            # None of ours.
            continue
        try:
            claims[uid] = checkpoint.parsed(cdi.record(folder, uid))
        except FileNotFoundError:
            continue
        except ValueError:
            claims[uid] = HeldClaim(namespace="", name="", boot=boot, devices=())
    return claims


def with_reported(
    claims: Mapping[str, HeldClaim], reported: Iterable[ClaimedDevice], *, pool: str, boot: str
) -> dict[str, HeldClaim]:
    """Return claims, and one more for each claim of which containers have devices that no known claim has."""
    known = {(claim.namespace, claim.name, device.device) for claim in claims.values() for device in claim.devices}
    more: dict[str, HeldClaim] = {}
    for namespace, name, device in sorted(own(reported, pool) - known):
        # Several claims may have one device: those with admin access.
        uid = f"{UNKNOWN}{uuid.uuid5(uuid.NAMESPACE_OID, f'{namespace}/{name}')}"
        earlier = more[uid].devices if uid in more else ()
        devices = (*earlier, HeldDevice(request="", device=device, id="", card=""))
        more[uid] = HeldClaim(namespace=namespace, name=name, boot=boot, devices=devices)
    return {**claims, **more}


def completed(
    claims: Mapping[str, HeldClaim], listed: Mapping[str, ListedDevice], reported: Iterable[ClaimedDevice], *, pool: str
) -> dict[str, HeldClaim]:
    """Return claims with the UUIDs of devices that the node has again, without unknown ones that have ended.

    Args:
        claims: the claims by UID.
        listed: the node's devices by name.
        reported: the devices of claims that containers have now.
        pool: the pool of this node.
    """
    in_use = own(reported, pool)
    return {
        uid: replace(claim, devices=tuple(_resolved(device, listed) for device in claim.devices))
        for uid, claim in claims.items()
        if not uid.startswith(UNKNOWN)
        or any((claim.namespace, claim.name, device.device) in in_use for device in claim.devices)
    }


def without_unknown(claims: Mapping[str, HeldClaim], *, namespace: str, name: str) -> dict[str, HeldClaim]:
    """Return claims without those of this name whose UID was unknown: kubelet has just given the UID."""
    return {
        uid: claim
        for uid, claim in claims.items()
        if not (uid.startswith(UNKNOWN) and (claim.namespace, claim.name) == (namespace, name))
    }


def own(reported: Iterable[ClaimedDevice], pool: str) -> set[tuple[str, str, str]]:
    """Return the namespace, the claim and the name of each reported device of this node and driver."""
    return {(one.namespace, one.claim, one.device) for one in reported if (one.driver, one.pool) == (DRA_DRIVER, pool)}


def _resolved(device: HeldDevice, listed: Mapping[str, ListedDevice]) -> HeldDevice:
    known = listed.get(device.device)
    if device.id or device.partition or known is None:
        return device
    return replace(device, id=known.id, card=known.card, type=known.type, partition=known.partition)
