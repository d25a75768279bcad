"""Devices and their shares in the words of Events and GpuPods: `GPU 0, MIG 3g.40gb, replica 2 of 4`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from berth_api.allocation import MAX_MINOR, REPLICA_MARK, Grant, message_text
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.values import listing

CARD: Final = 100
"""A whole card, in hundredths."""
SHOWN: Final = 16
"""Devices that a text lists before it counts the others."""
LISTED: Final = re.compile(r"listed by driver (\S+) in pool \S+,")
"""What `listed_by` returns; the group is the driver."""


def listed_by(driver: str, pool: str) -> str:
    """Return why a card is not given by name that a driver lists for ResourceClaims, as conditions begin it."""
    return f"listed by driver {driver} in pool {pool},"


def of_device(device_type: str, minor: int, name: str, *, profile: str = "", replicas: int = 0) -> str:
    """Return the text of a device by its id; `replicas` is how many its card or instance has, 0 if not known.

    Replicas count from 1: `GPU-…::0` is replica 1.
    """
    # A card that the Device no longer lists has no minor that users know.
    card, mark, number = name.partition(REPLICA_MARK)
    words = [f"{device_type.upper()} {minor if minor <= MAX_MINOR else card}"]
    if profile:
        words.append(f"MIG {profile}")
    if mark:
        ordinal = int(number) + 1 if number.isdecimal() else number
        words.append(f"replica {ordinal} of {replicas}" if replicas else f"replica {ordinal}")
    return ", ".join(words)


def of_share(grant: Grant) -> str:
    """Return how much of its device a grant is: `core 50, memory 40Gi`; empty for all of it, or a subdevice."""
    amounts = dict(grant.amounts)
    words = [] if grant.is_subdevice else list(_amounts(grant.type, amounts))
    words += [f"virtual function {given.bus_id or given.minor}" for given in grant.functions]
    return ", ".join(words)


def _amounts(device_type: str, amounts: Mapping[str, int]) -> Iterator[str]:
    if device_type != GPU:
        if (hundredths := amounts.get(device_type, CARD)) < CARD:
            yield f"{hundredths} of {CARD}"
    elif min(amounts.get(name, CARD) for name in (GPU_MEMORY_RATIO, GPU_CORE)) < CARD:
        for name, word in ((GPU_CORE, "core"), (GPU_MEMORY, "memory")):
            if name in amounts:
                yield f"{word} {message_text(name, amounts[name])}"


def joined(devices: Iterable[str]) -> str:
    """Return the texts of several devices as one."""
    return listing.first_of(devices, SHOWN, "; ")
