"""What ResourceClaims have of a GPU: shares, and MIG instances that are made for them.

The charge of such a claim is the whole card, because nothing else of the card may be given by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from berth_api.allocation import Grant, mig
from berth_api.allocation.held import CARD
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.objects.visibility import InstancePlacement
from berth_operator.core.claims.objects.amounts import UNIT
from berth_operator.core.claims.objects.slices import Device
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.fleet.claims.matching import match
from berth_operator.core.fleet.fleet import Fleet

MEMORY_SLICE: Final = "memory-slice-"
"""The counters of a card's memory slices have this and a number as their names, with Berth's driver and NVIDIA's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPart:
    """A part of a card that a claim has."""

    grant: Grant
    """The id of an instance is the name of the device in its slice."""
    profile: str = ""
    """The profile of an instance; empty for a share."""
    placement: InstancePlacement | None = None
    """Where an instance is; None for a share, and if its counters do not say it."""


def claimed_parts(fleet: Fleet, node: str, claim: ClaimState) -> Iterator[ClaimedPart]:
    """Yield the parts of GPUs of a node that a claim has: no whole cards, and no instances that the Device lists."""
    # A claim may have several shares of a device, which it holds as one sum.
    for name in dict.fromkeys(claim.devices):
        if (device := fleet.claims.device(name)) is None:
            continue
        is_share, attribute = name in claim.held.shared, device.attributes.get(f"{name.driver}/profile")
        profile = "" if attribute is None else str(attribute.value)
        if not (is_share or mig.is_profile(profile)) or (index := fleet.claims.supply.cards(node)) is None:
            continue
        matched = match(name, device, index)
        minors = [card.minor for card in matched.cards if card.type == GPU]
        if matched.instance or len(minors) != 1:
            continue
        whole = fleet.grant_of_device(node, GPU, minors[0], "")
        if is_share:
            yield ClaimedPart(grant=replace(whole, amounts=_share(whole, device, claim.held.capacity.get(name, {}))))
        else:
            grant = replace(whole, amounts=((mig.resource(profile), 1),), id=name.device, parent=whole.id)
            yield ClaimedPart(grant=grant, profile=profile, placement=_placement(fleet, device))


def _share(whole: Grant, device: Device, held: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return how much of its card a share is; all of it if the slice does not say how much memory the card has.

    `held` is the capacity that the share consumes.
    """
    capacity = device.capacity.get("memory")
    if capacity is None or capacity.value.amount <= 0:
        return whole.amounts
    memory, cores = (max(0, held.get(name, 0)) for name in ("memory", "cores"))
    amounts = {
        GPU_CORE: min(CARD, cores // UNIT),
        GPU_MEMORY: min(dict(whole.amounts).get(GPU_MEMORY, 0), memory // UNIT),
        # At least 1: parts without cores and ratio count as the whole card.
        GPU_MEMORY_RATIO: min(CARD, max(1, memory * CARD // capacity.value.amount)),
    }
    return tuple((name, amount) for name, amount in amounts.items() if amount)


def _placement(fleet: Fleet, device: Device) -> InstancePlacement | None:
    """Return where an instance is on its card; None if its counters do not say it."""
    numbers, sets = [], set()
    for (of_set, counter), _ in device.consumes:
        if counter.startswith(MEMORY_SLICE) and (number := counter.removeprefix(MEMORY_SLICE)).isdecimal():
            numbers.append(int(number))
            sets.add(of_set)
    of_card = {
        counter
        for slice_ in (fleet.claims.listed_in(device.pool) if numbers else ())
        for of_set, counters in slice_.counter_sets
        for counter in counters
        if of_set in sets and counter.startswith(MEMORY_SLICE)
    }
    if not numbers or max(numbers) >= len(of_card):
        return None
    return {"start": min(numbers), "size": len(numbers), "of": len(of_card)}
