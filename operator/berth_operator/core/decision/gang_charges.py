"""The members of a gang that are placed while it is decided. They are charged to the Fleet until they are undone."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from berth_operator.core.claims.objects import status
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.mounts import PodVolumes
from berth_operator.core.values.request import PodRequest

_OF_MANY: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})


class _Before(NamedTuple):
    """What was known before a member was charged."""

    claims: dict[str, ClaimState]
    """The ResourceClaims that it uses."""
    made: frozenset[str]


class ChargedMembers:
    """Placed members, the last one first to be undone."""

    def __init__(self, fleet: Fleet, requests: Sequence[PodRequest]) -> None:
        """Start without charges. `requests` are the requests of all members."""
        self.placed: list[Placement] = []
        self._fleet = fleet
        self._before: list[_Before] = []
        self._shared_claims = _shared_claims(fleet, requests)
        self._made: frozenset[str] = frozenset()
        """The shared claims whose volume is provisioned for a placed member."""

    def charge(self, placement: Placement) -> None:
        """Charge one more member."""
        # A shared claim is not charged: where its volume will be must not restrict the other members.
        self._fleet.charge(replace(placement.charge, volumes=_without(placement.volumes, self._shared_claims)))
        # Members that share a claim are shown what a placed one gets: they must be where it can be used.
        known, chosen = self._fleet.claims.claims, placement.claims
        written = {str(allocation.claim): allocation.written() for allocation in chosen.of_claims}
        before = {key: known[key] for key in (*written, *chosen.reserved)}
        for key, state in before.items():
            known[key] = status.used_by(state, placement.pod.uid, written.get(key))
        self._before.append(_Before(before, self._made))
        self.placed.append(replace(placement, volumes=_without(placement.volumes, self._made)))
        self._made |= self._shared_claims.intersection(placement.volumes.provisions)

    def undo(self, left: int = 0) -> None:
        """Release the last members, except for the first `left`."""
        while len(self.placed) > left:
            self._fleet.release(self.placed.pop().pod.uid)
            before = self._before.pop()
            self._fleet.claims.claims.update(before.claims)
            self._made = before.made


def _shared_claims(fleet: Fleet, requests: Sequence[PodRequest]) -> frozenset[str]:
    """Return the unbound claims that several members use and that pods on many nodes may use at once.

    One member has the volume provisioned. The decision assumes that the others can reach it wherever its StorageClass
    allows; if they cannot, no member is bound, and the next decision uses the volume that exists then.
    """
    uses = Counter(use.claim for request in requests for use in request.mounts.claims)
    claims = (fleet.volumes.claims.get(key) for key, count in uses.items() if count > 1)
    return frozenset(
        claim.key for claim in claims if claim and not claim.bound and not claim.modes.isdisjoint(_OF_MANY)
    )


def _without(chosen: PodVolumes, made: Collection[str]) -> PodVolumes:
    """Return the chosen volumes without volumes to be provisioned for the claims `made`."""
    if not made or not chosen.provisions:
        return chosen
    return replace(chosen, provisions=tuple(provision for provision in chosen.provisions if provision not in made))
