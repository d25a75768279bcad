"""ResourceClaims of other schedulers: charge the cards that they hold, and bar cards from allocation by name.

Which cards a claim holds depends on the claim, on the slice that lists its devices, and on the node's Device. These
arrive in any order. After each change, the charges that it may affect are computed again.
"""

from collections.abc import Callable

from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.fleet import claim_charges
from berth_operator.core.fleet.claims.bars import barred
from berth_operator.core.fleet.claims.store import claim_uid
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import DeviceInventory
from berth_operator.state.cache.allocation_tracker import AllocationTracker


class ClaimTracker:
    """Keeps the charges of claims in agreement with the API server."""

    def __init__(self, *, fleet: Fleet, allocations: AllocationTracker) -> None:
        self._fleet, self._allocations = fleet, allocations
        self.on_change: Callable[[str], None] = lambda _key: None
        """Called with each claim (namespace/name) that changed."""

    def without_barred(self, node: str, inventory: DeviceInventory) -> DeviceInventory:
        """Return a node's inventory without what must not be given by name."""
        return barred(self._fleet.claims, node, inventory)

    def put_inventory(self, node: str, inventory: DeviceInventory) -> None:
        """Set the cards of a node, as its Device lists them, and correct what claims are charged there."""
        self._fleet.claims.supply.put_cards(node, inventory.cards)
        self.update_node(node)

    def remove_inventory(self, node: str) -> None:
        """Forget the cards of a node without a Device. Cards that claims hold stay charged."""
        self._fleet.claims.supply.put_cards(node, None)

    def update_node(self, node: str) -> None:
        """Correct what claims are charged on a node."""
        claims, row = self._fleet.claims.held_on(node), self._fleet.rows.get(node)
        for claim in claims:
            self._update(node, claim)
        if claims and row is not None:
            # A slice shows which parts of cards they have, by which no charge changes.
            self._fleet.column_cache.move(row)
        self._update_leftovers(node)

    def claim_changed(self, before: ClaimState | None, after: ClaimState | None) -> None:
        """Correct a claim's charge after it changed; None if the claim does not exist."""
        for claim in filter(None, (before, after)):
            for pod in claim.reserved_for:
                self._fleet.placed_pods.moved(pod)
            deallocated = ClaimState(key=claim.key, uid=claim.uid, claim=claim.claim)
            for node in claim.nodes:
                self._update(node, after if after is not None and after.uid == claim.uid else deallocated)
                self._update_leftovers(node)
        for key in {claim.key for claim in (before, after) if claim is not None}:
            self.on_change(key)

    def pod_changed(self, charge: Charge) -> None:
        """Correct what the claims of a pod are charged after its own charge changed, or was released."""
        for claim in self._fleet.claims.of_pod(charge.uid):
            if charge.node in claim.nodes:
                self._update(charge.node, claim)

    def pod_left(self, uid: str) -> None:
        """Record that a pod has left its node: when its claims are deallocated, their devices are free."""
        for claim in self._fleet.claims.pod_left(uid):
            for node in claim.nodes:
                self._fleet.claims.supply.node_changed(node)

    def _update(self, node: str, claim: ClaimState) -> None:
        index = self._fleet.claims.supply.cards(node)
        uid = claim_uid(node, claim.uid)
        if node not in claim.nodes:
            self._allocations.set_charge(uid, None)
        elif index is not None:
            self._allocations.set_charge(uid, claim_charges.claim_charge(self._fleet, node, claim, index))
        for pod in claim.reserved_for:
            self._fleet.placed_pods.moved(pod)

    def _update_leftovers(self, node: str) -> None:
        """Correct the charges for deleted claims whose containers may still run."""
        reported = self._allocations.claimed(node)
        claims = self._fleet.claims.held_on(node) if reported else ()
        held = {device for claim in claims for device in claim.devices}
        unheld = ((key, tuple(device for device in devices if device not in held)) for key, devices in reported.items())
        left = {key: devices for key, devices in unheld if devices}
        known = {charge.uid for charge in self._fleet.on_node(node) if claim_charges.is_leftover(charge)}
        if not (left or known) or (index := self._fleet.claims.supply.cards(node)) is None:
            return  # as long as there is no Device, charges stay
        for uid in known - {claim_charges.leftover_uid(node, key) for key in left}:
            self._allocations.set_charge(uid, None)
        for key, devices in left.items():
            charge = claim_charges.leftover_charge(self._fleet, node, key, devices, index)
            self._allocations.set_charge(claim_charges.leftover_uid(node, key), charge)
