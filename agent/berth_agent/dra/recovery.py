"""Find out which claims are prepared, where the checkpoint does not say.

A claim has its CDI file as long as it is prepared, with a copy of its record, and kubelet's PodResources names the
claims of containers. What neither names is free. If a claim is only partly known, its devices are given to no other
until kubelet's calls complete it.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from berth_agent.dra import cdi, checkpoint, partitions
from berth_agent.dra.checkpoint import UID, HeldClaim, HeldDevice
from berth_agent.dra.devices import ListedDevice
from berth_api.device import ClaimedDevice
from berth_api.names import DRA_DRIVER

UNKNOWN: Final = "unknown-"
"""The UID of a claim that only PodResources names begins with this; a UID made of its name follows."""
ENDED_SECONDS: Final = 300.0
"""Seconds without a report after which no container has a claim's device any more. A kubelet that has just started
reports nothing before it has its pods from the API server."""

ReportedDevice = tuple[str, str, str]
"""The namespace and the name of a claim, and the name of its device."""


class EndedDevices:
    """Which devices of claims no container has any more."""

    def __init__(self, *, lingering: Callable[[], Collection[str]]) -> None:
        """Set what returns the UIDs of the pods that have gone and still have processes: kubelet does not report them.

        It reads procfs, and is called only if kubelet has not reported a device for `ENDED_SECONDS`.
        """
        self._lingering = lingering
        self._since: dict[ReportedDevice, float] = {}

    def among(
        self, held: Iterable[ReportedDevice], reported: Iterable[ClaimedDevice] | None, *, pool: str, now: float
    ) -> set[ReportedDevice]:
        """Return those of the held devices that each report of the last `ENDED_SECONDS` lacks.

        None have ended while processes of a pod that has gone may use them.

        Args:
            held: the devices that claims have.
            reported: what kubelet reports; None while it does not answer, after which the time begins again.
            pool: the pool of this node.
            now: the time in seconds.
        """
        missing = set() if reported is None else set(held) - own(reported, pool)
        self._since = {device: self._since.get(device, now) for device in missing}
        ended = {device for device, since in self._since.items() if now - since >= ENDED_SECONDS}
        return set() if ended and self._lingering() else ended


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
    claims: Mapping[str, HeldClaim],
    listed: Mapping[str, ListedDevice],
    *,
    cards: Collection[str],
    ended: Collection[ReportedDevice] = (),
) -> dict[str, HeldClaim]:
    """Return claims with the UUIDs of devices that the node has again, without unknown ones that have ended.

    Args:
        claims: the claims by UID.
        listed: the node's devices by name.
        cards: the UUIDs of the node's cards, by which a partition that is not listed now finds its card.
        ended: the devices that no container has any more.
    """
    return {
        uid: replace(claim, devices=tuple(_resolved(device, listed, cards) for device in claim.devices))
        for uid, claim in claims.items()
        if not uid.startswith(UNKNOWN)
        or any((claim.namespace, claim.name, device.device) not in ended for device in claim.devices)
    }


def without_unknown(claims: Mapping[str, HeldClaim], *, namespace: str, name: str) -> dict[str, HeldClaim]:
    """Return claims without those of this name whose UID was unknown: kubelet has just given the UID."""
    return {
        uid: claim
        for uid, claim in claims.items()
        if not (uid.startswith(UNKNOWN) and (claim.namespace, claim.name) == (namespace, name))
    }


def own(reported: Iterable[ClaimedDevice], pool: str) -> set[ReportedDevice]:
    """Return the reported devices of this node and driver."""
    return {(one.namespace, one.claim, one.device) for one in reported if (one.driver, one.pool) == (DRA_DRIVER, pool)}


def _resolved(device: HeldDevice, listed: Mapping[str, ListedDevice], cards: Collection[str]) -> HeldDevice:
    known = listed.get(device.device)
    if device.id or device.partition:
        return device
    if known is None:
        return replace(device, card=partitions.card_of(device.device, cards) or device.card)
    return replace(device, id=known.id, card=known.card, type=known.type, partition=known.partition)
