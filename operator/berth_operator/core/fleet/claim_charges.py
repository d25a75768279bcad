"""The charges of a node's allocated ResourceClaims: each card that is one of their devices, as a whole."""

from collections.abc import Iterable, Iterator
from typing import Final

from berth_api.allocation import Grant
from berth_api.values import keys
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.fleet.claims.matching import CardIndex, CardKey, Match, match
from berth_operator.core.fleet.claims.store import CHARGE_MARK, claim_uid
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import BEYOND
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge

KIND: Final = "resourceclaim"
_GONE: Final = f"//gone-{KIND}/"


def claim_charge(fleet: Fleet, node: str, claim: ClaimState, index: CardIndex) -> Charge | None:
    """Return the charge for the devices of a claim that are cards of a node; None if there are none.

    Cards that a pod with this claim holds by name as well are left out: they are charged to the pod.
    """
    held = _held_by_pods(fleet, node, claim)
    return _charge(fleet, node, claim_uid(node, claim.uid), claim.key, claim.devices, index=index, held=held)


def leftover_charge(fleet: Fleet, node: str, key: str, devices: Iterable[DeviceID], index: CardIndex) -> Charge | None:
    """Return the charge for devices of a claim (namespace/name) that is gone; None if they are no cards."""
    return _charge(fleet, node, leftover_uid(node, key), key, devices, index=index)


def _charge(
    fleet: Fleet,
    node: str,
    uid: str,
    key: str,
    devices: Iterable[DeviceID],
    *,
    index: CardIndex,
    held: frozenset[CardKey] = frozenset(),
) -> Charge | None:
    matches = [match(device, fleet.claims.device(device), index) for device in devices]
    grants = tuple(grants_of(fleet, node, matches, held=held))
    unknown = tuple(sorted({matched.unknown for matched in matches if matched.unknown}))
    if not grants and not unknown:
        return None
    namespace, name = keys.split(key)
    return Charge(
        uid=uid,
        pod=keys.join(namespace, f"{KIND}/{name}"),
        node=node,
        grants=grants,
        unknown=unknown,
        priority=BEYOND,
        ends=ending.NEVER,
    )


def leftover_uid(node: str, key: str) -> str:
    """Return the UID of the charge for what containers have of a claim that is gone."""
    return f"{node}{_GONE}{key}"


def is_leftover(charge: Charge) -> bool:
    """Return whether a charge is for a claim that is gone."""
    return _GONE in charge.uid


def is_of_claim(charge: Charge) -> bool:
    """Return whether a charge is for a ResourceClaim."""
    return CHARGE_MARK in charge.uid or is_leftover(charge)


def grants_of(fleet: Fleet, node: str, matches: list[Match], held: frozenset[CardKey] = frozenset()) -> Iterator[Grant]:
    """Yield a grant of each MIG instance, and of each other card once, except for cards that are held otherwise."""
    instances = {matched.instance: card for matched in matches if matched.instance for card in matched.cards}
    whole = {card for matched in matches if not matched.instance for card in matched.cards}
    for name, card in sorted(instances.items()):
        if card not in held | whole:
            yield fleet.grant_of_device(node, card.type, card.minor, name)
    for card in sorted(whole - held):
        yield fleet.grant_of_device(node, card.type, card.minor, "")


def _held_by_pods(fleet: Fleet, node: str, claim: ClaimState) -> frozenset[CardKey]:
    """Return the cards that the claim's pods hold by name."""
    charges = (fleet.charges.get(uid) for uid in claim.reserved_for)
    on_node = (charge for charge in charges if charge is not None and charge.node == node)
    return frozenset(CardKey(grant.type, grant.minor) for charge in on_node for grant in charge.grants)
