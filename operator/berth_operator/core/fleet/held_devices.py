"""Devices that ResourceClaims do not get on a node: they are of other pools, held by claims, or of cards in use."""

from collections.abc import Collection, Iterator

from berth_api.allocation import Grant
from berth_operator.core.dra.slices import DeviceID
from berth_operator.core.fleet import claim_charges
from berth_operator.core.fleet.dra.matching import CardKey
from berth_operator.core.fleet.dra.node_devices import NodeDevices
from berth_operator.core.fleet.dra.withheld import Held
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge


def held_devices(fleet: Fleet, node: str, devices: NodeDevices, grants: Collection[Grant] = ()) -> Held:
    """Return the devices that claims of a node do not get: held by claims, of other pools, or of cards that are used.

    `grants` are further cards that are used.
    """
    holdings = fleet.claims.supply.holdings
    withheld = frozenset(_withheld(fleet, node, devices, grants)) if devices.cards else frozenset[DeviceID]()
    return Held(holdings.allocated.devices, devices.foreign | withheld)


def _withheld(fleet: Fleet, node: str, devices: NodeDevices, grants: Collection[Grant]) -> Iterator[DeviceID]:
    """Yield the devices that are cards, or parts of cards, which cannot be used or are used otherwise."""
    used = [*grants, *_by_name(fleet, node)]
    whole = {CardKey(each.type, each.minor) for each in used if not each.is_subdevice}
    parts = {(CardKey(each.type, each.minor), each.visible) for each in used if each.is_subdevice}
    cut = {card for card, _ in parts}
    types = _of_unknown_cards(fleet, node)
    used_types = {*types, *(each.type for each in used)}
    index = fleet.claims.supply.cards(node)
    broken = index.broken if index is not None else frozenset()
    others = _by_driver(fleet, devices) if devices.driver_count > 1 else {}
    for name, match in devices.cards.items():
        taken = any(
            card in whole
            or card in broken
            or card.type in types
            or any(driver != name.driver for driver in others.get(card, ()))
            or (card in cut and (not match.instance or (card, match.instance) in parts))
            for card in match.cards
        )
        if taken or match.unknown in used_types:
            yield name


def _charges(fleet: Fleet, node: str) -> Iterator[Charge]:
    """Yield what is charged to a node or kept for pods, except for claims that exist."""
    for charge in (*fleet.on_node(node), *fleet.nominees_on(node)):
        if claim_charges.is_leftover(charge) or not claim_charges.is_of_claim(charge):
            yield charge


def _by_name(fleet: Fleet, node: str) -> Iterator[Grant]:
    """Yield the cards of a node that pods hold by name."""
    for charge in _charges(fleet, node):
        # Those of its claims are in the holdings.
        of_claims = {(each.type, each.id) for each in charge.claims.grants}
        yield from (each for each in charge.grants if (each.type, each.id) not in of_claims)


def _of_unknown_cards(fleet: Fleet, node: str) -> frozenset[str]:
    """Return the types of which pods may hold any card of a node."""
    return frozenset(each for charge in _charges(fleet, node) for each in charge.unknown if not charge.claims)


def _by_driver(fleet: Fleet, devices: NodeDevices) -> dict[CardKey, set[str]]:
    """Return the drivers whose devices claims hold of each card: two drivers may list the same one."""
    drivers: dict[CardKey, set[str]] = {}
    for name, match in devices.cards.items():
        if fleet.claims.supply.holdings.hold(name):
            for card in match.cards:
                drivers.setdefault(card, set()).add(name.driver)
    return drivers
