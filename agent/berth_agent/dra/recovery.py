"""Find out which claims are prepared, where the checkpoint does not say.

A claim has its CDI file as long as it is prepared, and kubelet's PodResources names the claims of running containers.
What neither names is free. What one of them names in part is kept from everybody until kubelet's calls complete it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson
from pydantic import ValidationError

from berth_agent import files
from berth_agent.dra import cdi, shares
from berth_agent.dra.checkpoint import UID, HeldClaim, HeldDevice
from berth_agent.dra.devices import ListedDevice
from berth_api.device import ClaimedDevice
from berth_api.names import DRA_DRIVER

UNKNOWN: Final = "unknown-"
"""The UID of a claim that only PodResources names begins with this; the device's name follows."""
MAX_UID: Final = 64


def from_files(folder: Path, *, boot: str) -> dict[str, HeldClaim]:
    """Return the claims that have a CDI file, by UID: without their names, and without the UUIDs of their devices.

    A claim whose file is damaged has no devices: any card may be its own.

    Raises:
        OSError: the folder or a file cannot be read.
    """
    claims = {}
    for file in cdi.claim_files(folder):
        uid = cdi.uid_of(file)
        try:
            UID.validate_python(uid)
            entries = orjson.loads(files.read(file))["devices"]
            names = [shares.of_name(str(entry["name"]).removeprefix(cdi.device_name(uid, ""))) for entry in entries]
        except FileNotFoundError:
            continue
        except ValidationError:
            # None of ours.
            continue
        except (ValueError, KeyError, TypeError):
            names = []
        devices = tuple(HeldDevice(request="", device=name, id="", card="", share=share) for name, share in names)
        claims[uid] = HeldClaim(namespace="", name="", boot=boot, devices=devices)
    return claims


def with_reported(
    claims: Mapping[str, HeldClaim], reported: Iterable[ClaimedDevice], *, pool: str, boot: str
) -> dict[str, HeldClaim]:
    """Return claims with their names, and with one more for each device of a container that no known claim has."""
    named = dict(claims)
    holders = {device.device: uid for uid, claim in claims.items() for device in claim.devices}
    for one in _own(reported, pool):
        uid = holders.get(one.device)
        if uid is None:
            device = HeldDevice(request="", device=one.device, id="", card="")
            named[f"{UNKNOWN}{one.device}"[:MAX_UID]] = HeldClaim(
                namespace=one.namespace, name=one.claim, boot=boot, devices=(device,)
            )
        elif not named[uid].name:
            named[uid] = replace(named[uid], namespace=one.namespace, name=one.claim)
    return named


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
    in_use = {one.device for one in _own(reported, pool)}
    return {
        uid: replace(claim, devices=tuple(_resolved(device, listed) for device in claim.devices))
        for uid, claim in claims.items()
        if not uid.startswith(UNKNOWN) or any(device.device in in_use for device in claim.devices)
    }


def without_unknown(claims: Mapping[str, HeldClaim], *, namespace: str, name: str) -> dict[str, HeldClaim]:
    """Return claims without those of this name whose UID was unknown: kubelet has just given the UID."""
    return {
        uid: claim
        for uid, claim in claims.items()
        if not (uid.startswith(UNKNOWN) and (claim.namespace, claim.name) == (namespace, name))
    }


def _own(reported: Iterable[ClaimedDevice], pool: str) -> list[ClaimedDevice]:
    return [one for one in reported if (one.driver, one.pool) == (DRA_DRIVER, pool)]


def _resolved(device: HeldDevice, listed: Mapping[str, ListedDevice]) -> HeldDevice:
    known = listed.get(device.device)
    return device if device.id or known is None else replace(device, id=known.id, card=known.card)
