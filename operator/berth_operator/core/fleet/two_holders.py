"""Cards with two holders: more of a card is charged to pods than the card has."""

from typing import NamedTuple

import numpy as np

from berth_operator.core.fleet.claim_charges import is_of_claim
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_pod
from berth_operator.core.values.charge import Charge


class CardOnNode(NamedTuple):
    """A card that a Device lists."""

    node: str
    type: str
    minor: int


def two_holders(fleet: Fleet) -> dict[CardOnNode, tuple[Charge, ...]]:
    """Return the overbooked cards with the charges of their pods and ResourceClaims, ordered by name.

    Pods that have ended or were deleted are none, nor are processes of no pod. Two ResourceClaims alone are reported as
    claims.
    """
    cards_held: dict[CardOnNode, tuple[Charge, ...]] = {}
    for device_type, cards in fleet.cards.items():
        counted = [cards.index[name] for name in cards.counted]
        over = (cards.used[counted] > cards.total[counted]).any(axis=0) & cards.present & (cards.users > 1)
        for row, slot in np.argwhere(over).tolist():
            card = CardOnNode(fleet.names[row], device_type, int(cards.minor[row, slot]))
            holders = [
                charge
                for charge in fleet.on_node(card.node)
                if (is_pod(charge) or is_of_claim(charge))
                and any((grant.type, grant.minor) == (card.type, card.minor) for grant in charge.grants)
            ]
            if len(holders) > 1 and any(map(is_pod, holders)):
                cards_held[card] = tuple(sorted(holders, key=lambda charge: charge.pod))
    return cards_held
