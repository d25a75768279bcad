"""What ResourceClaims have of a GPU: shares, and MIG instances that are made for them.

The charge of a claim is the whole card, because nothing else of the card may be given by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from berth_api.allocation import Grant, mig
from berth_api.allocation.held import CARD
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.objects.visibility import InstancePlacement
from berth_operator.core.dra.slices import Device
from berth_operator.core.dra.status import ClaimState
from berth_operator.core.fleet.dra.matching import match
from berth_operator.core.fleet.fleet import Fleet

UNIT: Final = 10**9
"""Amounts of slices and claims are in billionths."""
SLICE: Final = "memory-slice-"
"""The counters of a card's memory slices are named by this and a number, by Berth's driver and by NVIDIA's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPart:
    """A part of a card that a claim has."""

    grant: Grant
    """Its id is the name of the device in its slice."""
    profile: str = ""
    """The profile of an instance; empty for a share."""
    placement: InstancePlacement | None = None
    """Where an instance is; None for a share, and if nothing says it."""


def claimed_parts(fleet: Fleet, node: str, claim: ClaimState) -> Iterator[ClaimedPart]:
    """Yield the parts of GPUs of a node that a claim has: no whole cards, and no instances that the Device lists."""
    if (index := fleet.claims.supply.cards(node)) is None:
        return
    for name in claim.devices:
        if (device := fleet.claims.device(name)) is None:
            continue
        matched = match(name, device, index)
        gpus = [card.minor for card in matched.cards if card.type == GPU]
        if matched.instance or len(gpus) != 1:
            continue
        profile = device.attributes.get(f"{name.driver}/profile")
        if name in claim.held.shared:
            amounts = _share(device, claim.held.capacity.get(name, {}))
            yield ClaimedPart(grant=Grant(type=GPU, minor=gpus[0], amounts=amounts, id=name.device))
        elif profile is not None and mig.is_profile(shown := str(profile.value)):
            grant = Grant(type=GPU, minor=gpus[0], amounts=((mig.resource(shown), 1),), id=name.device)
            yield ClaimedPart(grant=grant, profile=shown, placement=_placement(fleet, device))


def _share(device: Device, held: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return how much of its card a share is; `held` is the capacity that it consumes."""
    memory, all_memory = held.get("memory", 0), device.capacity.get("memory")
    amounts = {
        GPU_CORE: held.get("cores", 0) // UNIT,
        GPU_MEMORY: memory // UNIT,
        # At least 1: parts without cores and ratio count as the whole card.
        GPU_MEMORY_RATIO: max(1, memory * CARD // all_memory.value.amount) if all_memory else 0,
    }
    return tuple((name, amount) for name, amount in amounts.items() if amount)


def _placement(fleet: Fleet, device: Device) -> InstancePlacement | None:
    """Return where an instance is on its card; None if its counters do not say it."""
    numbers, sets = [], set()
    for (of_set, counter), _ in device.consumes:
        if counter.startswith(SLICE) and (number := counter.removeprefix(SLICE)).isdecimal():
            numbers.append(int(number))
            sets.add(of_set)
    of_card = {
        counter
        for slice_ in fleet.claims.in_pool(device.pool)
        for of_set, counters in slice_.counter_sets
        for counter in counters
        if of_set in sets and counter.startswith(SLICE)
    }
    return {"start": min(numbers), "size": len(numbers), "of": len(of_card)} if numbers and of_card else None
