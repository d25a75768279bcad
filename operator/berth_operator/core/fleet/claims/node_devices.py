"""The devices that claims may get on one node, and which of the node's cards they are."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from berth_operator.core.claims.objects.nodes import TargetNode
from berth_operator.core.claims.objects.slices import Device, DeviceID, PoolID
from berth_operator.core.claims.pools.pools import NodePools, SliceIndex, gather
from berth_operator.core.fleet.claims.matching import CardIndex, Match, match

PRODUCT_ATTRIBUTES: Final = ("productName", "model")
"""How drivers name the product that a device is, in their own domain: there is no standard attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevices:
    """A node's data that do not depend on who holds devices.

    They are valid until slices, rules, labels or cards change.
    """

    pools: NodePools
    own: tuple[Device, ...]
    """The devices of own pools that can be allocated, in the order in which they are tried."""
    foreign: frozenset[DeviceID]
    """The devices of all other pools."""
    cards: Mapping[DeviceID, Match]
    """The cards behind the devices of all pools, for devices that are or may be cards."""
    links: Mapping[DeviceID, Hashable]
    """A number for each whole card with direct links, equal for cards that are all linked with each other."""
    products: frozenset[tuple[str, Hashable]]
    """The drivers of the own devices, with the devices' products; None for devices that name none."""

    @property
    def driver_count(self) -> int:
        """Return the number of drivers that list cards."""
        return len({device.driver for device in self.cards})


def of_node(
    index: SliceIndex, node: TargetNode, is_own: Callable[[PoolID], bool], cards: CardIndex | None
) -> NodeDevices:
    """Return the devices of a node. `cards` has the cards of its Device; None if the node has no Device."""
    pools = gather(index, node)
    own = tuple(device for device in pools.devices if is_own(device.pool))
    matches: dict[DeviceID, Match] = {}
    links: dict[DeviceID, Hashable] = {}
    for device in pools.devices:
        if cards is None:
            break
        matched = matches[device.id] = match(device.id, device, cards)
        if len(matched.cards) == 1 and not matched.instance:
            (card,) = matched.cards
            if card in cards.linked:
                links[device.id] = cards.linked[card]
    products = set()
    for device in own:
        attributes = (device.attributes.get(f"{device.id.driver}/{name}") for name in PRODUCT_ATTRIBUTES)
        product = next((attribute.value for attribute in attributes if attribute is not None), None)
        products.add((device.id.driver, product))
    return NodeDevices(
        pools=pools,
        own=own,
        foreign=frozenset(device.id for device in pools.devices if not is_own(device.pool)),
        cards={name: matched for name, matched in matches.items() if matched.cards or matched.unknown},
        links=links,
        products=frozenset(products),
    )
