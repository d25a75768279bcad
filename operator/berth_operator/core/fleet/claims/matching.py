"""Match the devices that ResourceSlices list to the cards of a node."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from berth_api.allocation.device_ids import device_name, nic_name
from berth_api.links import is_direct
from berth_api.names import DRA_DRIVER, GPU, RDMA
from berth_operator.core.claims.objects.slices import Device, DeviceID
from berth_operator.core.fleet.claims.drivers import DRIVERS, OTHER, Driver
from berth_operator.core.values.inventory import CardInfo

_ADDRESS: Final = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
_RENDER_NODE: Final = re.compile(r"gpu-[0-9]{1,6}-([0-9]{1,6})")
FIRST_RENDER_NODE: Final = 128
"""The number of the first render node. The minors of AMD's cards and partitions count from it."""


class CardKey(NamedTuple):
    """A card of a node."""

    type: str
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The cards that a device is, or is a part of."""

    cards: frozenset[CardKey] = frozenset()
    instance: str = ""
    """The UUID of the MIG instance that the device is, if the Device lists it."""
    unknown: str = ""
    """The card type, if the device may be any card of this type; empty if `cards` is complete, or the device is no
    card."""


NO_MATCH: Final = Match()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardIndex:
    """The cards of a node by what identifies them."""

    by_id: Mapping[str, CardKey]
    """Cards by their id, and by the UUIDs of their MIG instances; in lower case."""
    by_address: Mapping[str, frozenset[CardKey]]
    """Cards by normal PCI address, including addresses of virtual functions."""
    by_name: Mapping[str, Match]
    """Cards, MIG instances and virtual functions by the name that Berth's own driver gives them."""
    instances: Collection[str]
    """UUIDs of MIG instances that can be allocated."""
    types: frozenset[str]
    unaddressed: frozenset[str]
    """The types with a card whose PCI address is unknown."""
    broken: frozenset[CardKey]
    """Cards that are not healthy."""
    linked: Mapping[CardKey, frozenset[int]]
    """For cards with direct links: the minors at their ends, and the card's own. Equal sets are linked all with all."""

    @classmethod
    def of(cls, cards: Collection[CardInfo]) -> Self:
        """Return the index of a node's cards."""
        by_address: dict[str, frozenset[CardKey]] = {}
        by_name: dict[str, Match] = {}
        for card in cards:
            key = CardKey(card.type, card.minor)
            for address in filter(None, map(normal_address, _addresses(card))):
                by_address[address] = by_address.get(address, frozenset()) | {key}
                if card.type == RDMA:
                    by_name[nic_name(address)] = Match(cards=frozenset({key}))
            if card.type == GPU:
                by_name[device_name(card.id)] = Match(cards=frozenset({key}))
                given = {instance for instance, _ in card.instances}
                for part in card.parts:
                    by_name[device_name(part)] = Match(cards=frozenset({key}), instance=part if part in given else "")
        return cls(
            by_id={name.lower(): CardKey(card.type, card.minor) for card in cards for name in (card.id, *card.parts)},
            by_address=by_address,
            by_name=by_name,
            instances=frozenset(name for card in cards for name, _ in card.instances),
            types=frozenset(card.type for card in cards),
            unaddressed=frozenset(card.type for card in cards if not normal_address(card.address)),
            # A card in MIG mode cannot be given as a whole either, but it has instances.
            broken=frozenset(CardKey(card.type, card.minor) for card in cards if not (card.healthy or card.parts)),
            linked={
                CardKey(card.type, card.minor): ends | {card.minor}
                for card in cards
                if (ends := frozenset(minor for minor, link_type, _ in card.links if is_direct(link_type)))
            },
        )


def match(name: DeviceID, device: Device | None, index: CardIndex) -> Match:
    """Return the cards of a node that the device of this name may be. `device` is None if no slice lists it.

    Each attribute that names a card counts. If two attributes name different cards, the device is both cards. But the
    partitions of a card share its address: if an id names one of them, the address names no others.
    """
    known = DRIVERS.get(name.driver, OTHER)
    if device is None and name.driver == DRA_DRIVER:
        return _by_name(name.device, index)
    if device is None:
        return Match(unknown=known.device_type) if known.device_type in index.types else NO_MATCH
    ids = list(_texts(device, known.ids))
    addresses = list(filter(None, map(normal_address, _texts(device, known.addresses))))
    for uuid in ids:
        if (instance := _original(uuid, index.instances)) and (card := index.by_id.get(uuid.lower())):
            return Match(cards=frozenset({card}), instance=instance)
    cards = {index.by_id[uuid.lower()] for uuid in ids if uuid.lower() in index.by_id}
    for address in addresses:
        at_address = index.by_address.get(address, frozenset())
        if cards.isdisjoint(at_address):
            cards |= _same_partition(device, known, at_address) or at_address
    if cards:
        return Match(cards=frozenset(cards))
    return NO_MATCH if _is_another(device, known, index, addresses) else Match(unknown=known.device_type)


def card_ids(device: Device) -> frozenset[str]:
    """Return the ids of cards or their parts, in lower case, that a device of a known driver has."""
    return frozenset(name.lower() for name in _texts(device, DRIVERS.get(device.id.driver, OTHER).ids))


def normal_address(text: str) -> str:
    """Return a PCI address as the kernel writes it, `0000:3b:00.0`; empty if the text is no PCI address."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return ""
    domain, bus, slot, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _by_name(name: str, index: CardIndex) -> Match:
    """Return the cards of a node that a device of Berth's own driver is, by its name.

    The name of an instance that is made on demand begins with the name of its card.
    """
    start = name
    while start:
        if (known := index.by_name.get(start)) is not None:
            return known
        start, _, _ = start.rpartition("-")
    # A card of AMD that is now divided: the names of its partitions are its name and a number.
    partitions = (part.cards for other, part in index.by_name.items() if other.rpartition("-")[0] == name)
    if cards := frozenset[CardKey]().union(*partitions):
        return Match(cards=cards)
    # A whole card or a NIC of another name is away. An instance that is away does not name its card.
    is_instance = name.startswith("mig-") and GPU in index.types
    return Match(unknown=GPU) if is_instance else NO_MATCH


def _same_partition(device: Device, known: Driver, cards: frozenset[CardKey]) -> frozenset[CardKey]:
    """Return the one of the partitions at an address that has the render node in the device's name; empty if none."""
    kind, named = device.attributes.get(f"{device.id.driver}/type"), _RENDER_NODE.fullmatch(device.id.device)
    if not known.partition or kind is None or kind.value != known.partition or named is None:
        return frozenset()
    return cards & {CardKey(known.device_type, int(named[1]) - FIRST_RENDER_NODE)}


def _is_another(device: Device, known: Driver, index: CardIndex, addresses: Collection[str]) -> bool:
    """Return whether a device is certainly none of the node's cards, because no card has its address."""
    if known.device_type not in index.types:
        return True
    virtual = device.attributes.get(known.virtual)
    if virtual is not None and virtual.value is True:
        return True
    return bool(addresses) and known.device_type not in index.unaddressed


def _texts(device: Device, names: Collection[str]) -> Iterator[str]:
    for name in names:
        attribute = device.attributes.get(name)
        if attribute is not None and isinstance(attribute.value, str) and attribute.value:
            yield attribute.value


def _original(name: str, among: Collection[str]) -> str:
    return next((other for other in among if other.lower() == name.lower()), "")


def _addresses(card: CardInfo) -> Iterator[str]:
    yield card.address
    for _, functions in card.functions:
        yield from (bus_id for _, bus_id in functions)
