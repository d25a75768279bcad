"""The instances that can be made on a card, as devices that share counters (KEP-4815). Pure functions.

A slice holds devices or counter sets, so each opened card has two: one with the counter set, and one with the devices.
The whole card consumes all of the set, and each instance the memory slices at its placement and its engines. So a
scheduler can allocate the whole card or instances, and instances only where the card has room for all of them.

A scheduler that takes the first device that fits, as kube-scheduler, should leave room for large instances. So the
placements that exclude the fewest others come first.

All figures are what the card's library reports about the card. Amounts differ between models and between drivers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from berth_agent.dra.devices import Attributes, ListedDevice
from berth_agent.vendor import PartitionableCard, PartitionProfile, Placement
from berth_api.allocation.device_ids import MAX_NAME, device_name

MAX_COUNTERS: Final = 32
"""Counters of a set, by the API."""
MAX_DEVICES: Final = 64
"""Devices of a slice whose devices consume counters, by the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedCard:
    """The slices of a card on which instances can be made."""

    counters: Mapping[str, Any]
    """The counter set."""
    devices: Sequence[Mapping[str, Any]]
    """The whole card, then each instance that can be made."""
    placements: Mapping[str, Placement]
    """Where each instance is made, by the name of its device."""

    def makeable(self, card: ListedDevice) -> Iterator[ListedDevice]:
        """Yield the instances that can be made on the card."""
        for name, placement in self.placements.items():
            yield replace(card, name=name, id="", attributes={}, memory="", partition=placement)


def on_card(card: ListedDevice, found: PartitionableCard) -> PartitionedCard | None:
    """Return the slices of a card that is open for instances; None if it stays whole.

    A card that needs a reset to change its mode is in this mode already, and is not listed as a whole.
    """
    slices = partitioned(card, found.profiles, opened=True, keeps_counters=True)
    return slices if slices is None or found.changes_at_once else replace(slices, devices=slices.devices[1:])


def partitioned(
    card: ListedDevice, profiles: Sequence[PartitionProfile], *, opened: bool, keeps_counters: bool
) -> PartitionedCard | None:
    """Return the slices of a card on which instances can be made; None if none are listed, and the card stays whole.

    Args:
        card: the whole card, without a fault.
        profiles: what the card's library reports.
        opened: whether the administrator opened the card for instances on demand.
        keeps_counters: whether the API server keeps counters. Kubernetes 1.34 and 1.35 drop them by default. Without
            counters, a scheduler would allocate instances that overlap.
    """
    if not opened or not keeps_counters or not profiles:
        return None
    capacity = _capacity(profiles)
    places = [
        (profile, Placement(profile=profile.id, start=start, size=profile.size))
        for profile in profiles
        for start in profile.starts
    ]
    if len(capacity) > MAX_COUNTERS or 1 + len(places) > MAX_DEVICES:
        return None
    if any(len(_name(card, profile, place)) > MAX_NAME for profile, place in places):
        return None
    excluded = {place: sum(place.overlaps(other) for _, other in places) for _, place in places}
    counter_set = device_name(card.id)
    whole = {
        "name": card.name,
        "attributes": card.attributes,
        **({"capacity": {"memory": {"value": card.memory}}} if card.memory else {}),
        "consumesCounters": [{"counterSet": counter_set, "counters": _values(capacity)}],
    }
    devices, placements = [whole], {}
    for profile, place in sorted(places, key=lambda choice: excluded[choice[1]]):
        name = _name(card, profile, place)
        placements[name] = place
        devices.append(
            {
                "name": name,
                "attributes": _attributes(card, profile),
                "capacity": {
                    "memory": {"value": f"{profile.memory_mib}Mi"},
                    **{engine: {"value": str(count)} for engine, count in profile.engines.items()},
                },
                "consumesCounters": [{"counterSet": counter_set, "counters": _values(_used(profile, place))}],
            }
        )
    return PartitionedCard(
        counters={"name": counter_set, "counters": _values(capacity)}, devices=devices, placements=placements
    )


def _capacity(profiles: Sequence[PartitionProfile]) -> dict[str, int]:
    """Return the counters of a card: every memory slice that a profile uses, and the engines.

    The card has as many of an engine as the instances of any one profile have together. The largest profile need not
    have all: on some cards, only an instance of another kind has an engine (`+gfx`).
    """
    engines: dict[str, int] = {}
    for profile in profiles:
        for counter, count in _engines(profile).items():
            engines[counter] = max(engines.get(counter, 0), profile.instances * count)
    slices = max(start + profile.size for profile in profiles for start in profile.starts)
    return {**engines, **{_slice(index): 1 for index in range(slices)}}


def _used(profile: PartitionProfile, place: Placement) -> dict[str, int]:
    """Return what an instance consumes. Counters of which it uses nothing are left out."""
    return {**_engines(profile), **{_slice(index): 1 for index in range(place.start, place.start + place.size)}}


def _engines(profile: PartitionProfile) -> dict[str, int]:
    return {_counter(engine): count for engine, count in profile.engines.items() if count}


def _counter(engine: str) -> str:
    """Return the name of a counter, a DNS label: `copy-engines` for `copyEngines`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in engine)


def _slice(index: int) -> str:
    return f"memory-slice-{index}"


def _values(counters: Mapping[str, int]) -> dict[str, dict[str, str]]:
    return {name: {"value": str(count)} for name, count in counters.items()}


def _name(card: ListedDevice, profile: PartitionProfile, place: Placement) -> str:
    """Return the name of an instance that can be made. The profile's id keeps `1g.10gb` and `1g.10gb+me` apart."""
    return f"{card.name}-{device_name(profile.name)}-{profile.id}-{place.start}"


def card_of(name: str, cards: Iterable[str]) -> str:
    """Return the UUID of the card of an instance that is made on demand, by the name of its device; empty if unknown.

    The name alone is known of an instance whose records are lost, and of one that cannot be made at the moment.
    """
    return max((card for card in cards if name.startswith(f"{device_name(card)}-")), key=len, default="")


def _attributes(card: ListedDevice, profile: PartitionProfile) -> Attributes:
    """Return the card's attributes, without those of the whole card."""
    common = {name: value for name, value in card.attributes.items() if name not in {"uuid", "linkGroup"}}
    own = {"type": {"string": "mig"}, "parentUUID": {"string": card.card}, "profile": {"string": profile.name}}
    return {**common, **own}
