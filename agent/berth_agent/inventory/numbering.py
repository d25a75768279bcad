"""Number NICs and FPGAs, because their hardware has no minors like GPUs.

A device is identified by its id. It keeps its minor as long as the Device object exists: over hot-plug, restarts and
upgrades of the agent, and reboots. The minor of a missing device stays reserved for it.

The Device is the memory. Its spec has the minors of present devices. The annotation `berth.dev/reserved-minors` has the
minors of missing devices: `rdma/1=0000:3b:00.0`, separated by commas, the longest missing first. Nothing is numbered
before the Device was read. Otherwise a restart could exchange the minors of two devices.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

from berth_agent.readings import Reading
from berth_api import names
from berth_api.allocation import MAX_MINOR, TYPE
from berth_api.device import MAX_DEVICES, DeviceInfo, DeviceSpec

MAX_RESERVED: Final = MAX_DEVICES
"""Minors of each type that are reserved at most: all devices of a node are gone while they lack their driver."""
_ENTRY: Final = re.compile(rf"(?P<type>{TYPE})/(?P<minor>0|[1-9][0-9]{{0,4}})=(?P<id>[^\s,=]{{1,128}})")

Minors = dict[str, int]
"""Minors of one type by device id. Removed devices come first, the longest removed first."""


class MinorClaim(NamedTuple):
    """A minor that belongs to a device."""

    type: str
    minor: int
    id: str


class Numbering:
    """The minors of the devices of any number of nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, Minors]] = {}

    def restore(self, node: str, spec: DeviceSpec, reserved: str) -> None:
        """Start with the content of a node's Device: its spec, and the value of the annotation."""
        self._nodes[node] = recalled(spec, reserved)

    def assign(self, node: str, reading: Reading) -> None:
        """Assign minors to the devices of a reading that have none yet."""
        known = self._nodes.setdefault(node, {})
        for device_type in reading.unnumbered:
            ids = [device.id for device in reading.spec.devices if device.type == device_type]
            known[device_type] = assigned(ids, known.get(device_type, {}))

    def numbered(self, node: str, reading: Reading) -> Reading:
        """Return the reading with the assigned minors; the same object if the inventory knows all minors."""
        if not reading.unnumbered:
            return reading
        known = self._nodes[node]
        numbered = []
        for device in reading.spec.devices:
            minor = known[device.type][device.id] if device.type in reading.unnumbered else device.minor
            numbered.append(device if device.minor == minor else device.model_copy(update={"minor": minor}))
        text = formatted(numbered, {device_type: known[device_type] for device_type in sorted(reading.unnumbered)})
        return replace(
            reading,
            spec=reading.spec.model_copy(update={"devices": numbered}),
            annotations={**reading.annotations, **({names.RESERVED_MINORS: text} if text else {})},
        )


def assigned(ids: Iterable[str], known: Mapping[str, int]) -> Minors:
    """Return the minors of these devices, after the reserved minors. New devices take the lowest free minors."""
    present = sorted(set(ids))
    used = frozenset(known.values())
    free = (minor for minor in count() if minor not in used)
    missing = [name for name in known if name not in present][-MAX_RESERVED:]
    minors = {name: known[name] for name in missing}
    return minors | {name: known[name] if name in known else next(free) for name in present}


def recalled(spec: DeviceSpec, reserved: str) -> dict[str, Minors]:
    """Return the minors by type that a Device records. On contradictions, its spec and the lowest minor win."""
    listed = sorted(MinorClaim(device.type, device.minor, device.id) for device in spec.devices)
    minors_by_type: dict[str, Minors] = {}
    claimed: set[tuple[str, object]] = set()
    # Latest first: of two devices that claim one minor, the one that went later keeps it.
    for claim in [*listed, *reversed(parsed(reserved))]:
        keys: set[tuple[str, object]] = {(claim.type, claim.minor), (claim.type, claim.id)}
        if not keys & claimed:
            claimed |= keys
            minors_by_type.setdefault(claim.type, {})[claim.id] = claim.minor
    return {device_type: dict(reversed(minors.items())) for device_type, minors in minors_by_type.items()}


def parsed(reserved: str) -> list[MinorClaim]:
    """Return the entries of the annotation. Unreadable entries are left out."""
    matches = (_ENTRY.fullmatch(part.strip()) for part in reserved.split(","))
    claims = [MinorClaim(match["type"], int(match["minor"]), match["id"]) for match in matches if match]
    return [claim for claim in claims if claim.minor <= MAX_MINOR]


def formatted(devices: Iterable[DeviceInfo], minors: Mapping[str, Minors]) -> str:
    """Return the value of the annotation: the minors of the devices that are not among these."""
    present = {(device.type, device.id) for device in devices}
    return ",".join(
        f"{device_type}/{minor}={name}"
        for device_type, of_type in minors.items()
        for name, minor in of_type.items()
        if (device_type, name) not in present
    )
