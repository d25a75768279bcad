"""Nodes that are kept for pods of kube-scheduler in addition to their reservation, while no other pod needs them.

In the Fleet these nodes are nominations with their own UID, so that decisions see them without a charge.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.state.cache.waker import Waker

MAX_SPARES: Final = 10_000

Outcome = TypeVar("Outcome", bound=Placement | Sequence[Placement] | Failure | None)


class Spares:
    """Keeps spare nodes for pods; pods that would otherwise wait take them."""

    def __init__(self, *, fleet: Fleet, waker: Waker) -> None:
        self._fleet, self._waker = fleet, waker
        self._of: dict[str, tuple[Charge, ...]] = {}
        """UID of a pod -> charges kept for it."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def charges(self) -> list[Charge]:
        """Return all that is kept."""
        return [charge for charges in self._of.values() for charge in charges]

    def keep(self, uid: str, placements: Iterable[Placement]) -> None:
        """Keep nodes for a pod; nothing is kept beyond a limit."""
        charges = tuple(replace(placement.charge, uid=f"{uid}/{placement.node}") for placement in placements)
        if charges and len(self._of) < MAX_SPARES:
            self._of[uid] = charges
            for charge in charges:
                self._fleet.nominate(charge)

    def release(self, uid: str) -> None:
        """Release the capacity kept for a pod."""
        self._withdraw(self._of.pop(uid, ()))

    def make_way(self, nodes: Collection[str]) -> None:
        """Release the capacity kept on these nodes, because another pod takes it."""
        for uid, charges in list(self._of.items()):
            gone = [charge for charge in charges if charge.node in nodes]
            if gone:
                left = tuple(charge for charge in charges if charge.node not in nodes)
                self._of |= {uid: left}
                if not left:
                    del self._of[uid]
                self._withdraw(gone)

    def _withdraw(self, charges: Iterable[Charge]) -> None:
        for charge in charges:
            if self._fleet.withdraw(charge.uid) is not None:
                self._waker.capacity_freed(charge)


def nodes_of(outcome: Placement | Sequence[Placement] | Failure | None) -> set[str]:
    """Return the nodes of placements; empty if the decision failed."""
    if outcome is None or isinstance(outcome, Failure):
        return set()
    return {outcome.node} if isinstance(outcome, Placement) else {placement.node for placement in outcome}
