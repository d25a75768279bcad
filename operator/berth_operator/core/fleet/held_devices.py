"""Devices that ResourceClaims do not get on a node: they are of other pools, held by claims, or of cards in use."""

from collections.abc import Collection

from berth_api.allocation import Grant
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.fleet import claim_charges
from berth_operator.core.fleet.claims.matching import CardKey, card_ids
from berth_operator.core.fleet.claims.node_devices import NodeDevices
from berth_operator.core.fleet.claims.withheld import Held
from berth_operator.core.fleet.fleet import Fleet


def held_devices(fleet: Fleet, node: str, devices: NodeDevices, grants: Collection[Grant] = ()) -> Held:
    """Return the devices that claims of a node do not get: held by claims, of other pools, or of cards that are used.

    `grants` are further cards that are used.
    """
    allocated, index = fleet.claims.supply.holdings.allocated, fleet.claims.supply.cards(node)
    if index is None:
        return Held(allocated.devices, devices.foreign | _kept_by_pods(fleet, node, devices))
    if not devices.cards:
        return Held(allocated.devices, devices.foreign)
    # The cards that pods hold by name, and the types of which pods may hold any card. What is charged for claims that
    # exist is in the holdings.
    used, types = list(grants), set[str]()
    for charge in (*fleet.on_node(node), *fleet.nominees_on(node)):
        if claim_charges.is_of_claim(charge) and not claim_charges.is_leftover(charge):
            continue
        of_claims = {(grant.type, grant.id) for grant in charge.claims.grants}
        used += [grant for grant in charge.grants if (grant.type, grant.id) not in of_claims]
        types.update(() if charge.claims else charge.unknown)
    whole = {CardKey(grant.type, grant.minor) for grant in used if not grant.is_subdevice}
    parts = {(CardKey(grant.type, grant.minor), grant.visible) for grant in used if grant.is_subdevice}
    cut = {card for card, _ in parts}
    used_types = {*types, *(grant.type for grant in used)}
    # The drivers whose devices, or shares of them, claims hold of each card: two drivers may list the same one.
    others: dict[CardKey, set[str]] = {}
    for name, match in devices.cards.items() if devices.driver_count > 1 else ():
        if allocated.include(name):
            for card in match.cards:
                others.setdefault(card, set()).add(name.driver)
    # The devices that are cards, or parts of cards, which cannot be used or are used otherwise.
    withheld = set()
    for name, match in devices.cards.items():
        taken = any(
            card in whole
            or card in index.broken
            or card.type in types
            or any(driver != name.driver for driver in others.get(card, ()))
            or (card in cut and (not match.instance or (card, match.instance) in parts))
            for card in match.cards
        )
        if taken or match.unknown in used_types:
            withheld.add(name)
    return Held(allocated.devices, devices.foreign | withheld)


def _kept_by_pods(fleet: Fleet, node: str, devices: NodeDevices) -> frozenset[DeviceID]:
    """Return the devices of a node without a Device that pods hold by name, which they got while there was one."""
    ids = {
        name.lower()
        for charge in (*fleet.on_node(node), *fleet.nominees_on(node))
        if charge.grants and (claim_charges.is_leftover(charge) or not claim_charges.is_of_claim(charge))
        for grant in charge.grants
        for name in (grant.visible, grant.parent)
    }
    return (
        frozenset(device.id for device in devices.own if not ids.isdisjoint(card_ids(device))) if ids else frozenset()
    )
