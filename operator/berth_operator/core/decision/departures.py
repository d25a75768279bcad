"""Pods that leave a copy of the Fleet in a what-if, and the ResourceClaims that are deallocated as a result.

Kubernetes' resource claim controller deallocates a claim once the last pod that it is reserved for has left. A what-if
does the same with claims for devices of one node. A claim stays allocated if it is reserved for a pod that stays, for a
pod without a node, or for anything but pods. If the controller has not yet processed a claim that a pod leaves behind,
the claim still counts as free. Its devices are kept for the nominated pod.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self

from berth_operator.core.claims.bounds.work import Work
from berth_operator.core.decision import cycle
from berth_operator.core.filters import Filter
from berth_operator.core.fleet import claim_counts
from berth_operator.core.fleet.claims.store import claim_uid
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PodRequest

MAX_WORK: Final = 4_000
"""Maximum work of the what-ifs for the claims of one pod, as in `dra.work`: 80 what-ifs."""
WHAT_IF: Final = 50
"""Work for all filters, in addition to the search for devices."""


class Departures:
    """A copy of the Fleet that pods leave, and come back to."""

    def __init__(self, fleet: Fleet, used: Collection[str] = (), *, with_left_behind: bool = True) -> None:
        """Begin with the claims that pods have left behind.

        Args:
            fleet: the copy.
            used: claims (namespace/name) of the pods that are to be placed, which are never deallocated.
            with_left_behind: whether claims that pods have left behind count as free.
        """
        self.fleet, self._used = fleet, used
        self._freed: dict[str, list[Charge]] = {}
        """Claim -> the charge for its cards."""
        if with_left_behind:
            self._free(fleet.claims.departed)

    @classmethod
    def for_pod(cls, fleet: Fleet, request: PodRequest) -> Self:
        """Begin on a copy of the Fleet, for a pod whose claims may need devices. The work for claims is bounded."""
        whole = fleet.copy(until_changes=True)
        whole.claims.supply.work = Work(MAX_WORK if claim_counts.is_searched(fleet, request) else math.inf)
        return cls(whole, [use.claim for use in request.claims])

    @property
    def is_over(self) -> bool:
        """Return whether the work is used up. Devices that were not found may then exist."""
        return self.fleet.claims.supply.work.left <= 0

    def fits(self, row: int, request: PodRequest, filters: Sequence[Filter]) -> bool:
        """Return whether all filters pass a row."""
        self.fleet.claims.supply.work.spend(WHAT_IF)
        return bool(cycle.feasible(self.fleet, request, filters)[row])

    def leave(self, charges: Collection[Charge]) -> None:
        """Release placed pods, and the claims that no pod uses then."""
        uids = [charge.uid for charge in charges]
        for uid in uids:
            self.fleet.release(uid)
        self.fleet.claims.departed.update(uids)
        self._free(uids)

    def come_back(self, charges: Iterable[Charge]) -> None:
        """Charge pods again that have left, and the claims that they use."""
        for charge in charges:
            self.fleet.claims.departed.discard(charge.uid)
            for claim in self.fleet.claims.of_pod(charge.uid):
                if claim.key in self._freed:
                    self.fleet.claims.supply.put_claim(claim)
                    for card_charge in self._freed.pop(claim.key):
                        self.fleet.charge(card_charge)
            self.fleet.charge(charge)

    @contextmanager
    def without(self, charges: Collection[Charge]) -> Iterator[None]:
        """Return a context without some placed pods. They may come back within it."""
        self.leave(charges)
        try:
            yield
        finally:
            self.come_back(charges)

    def _free(self, uids: Iterable[str]) -> None:
        departed = self.fleet.claims.departed
        claims = {claim.key: claim for uid in uids for claim in self.fleet.claims.of_pod(uid)}
        for claim in claims.values():
            if claim.nodes and claim.reserved_for <= departed and claim.key not in self._used:
                self.fleet.claims.supply.remove_claim(claim.key)
                released = [self.fleet.release(claim_uid(node, claim.uid)) for node in claim.nodes]
                self._freed.setdefault(claim.key, [charge for charge in released if charge is not None])
