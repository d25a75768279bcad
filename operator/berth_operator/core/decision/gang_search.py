"""Nodes and devices for the members of a gang, by a backtracking search.

    GangSearch(fleet, pods, policy, needed=..., rows=...).place()  ->  [Placement, ...]

`gang` places one member after another. A member may then take the node or the device that another member needs. This
search is for gangs that do not fit in that way. It chooses the members' nodes depth first, beginning with the members
that have the fewest places. It leaves the devices open: one search of the allocator, which backtracks through devices,
allocates the claims of all members on a node, and `gang_cards` finds cards for all of them. Members are placed, through
the filters, only once all of them have a chosen node. If the filters reject a member, the search goes on from this
member.

Members with equal requests get nodes in ascending order, because they are interchangeable.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_operator.core import allocators
from berth_operator.core.claims.bounds.errors import NoWorkError, TooMuchWorkError
from berth_operator.core.claims.objects.requests import Alternatives, Constraint
from berth_operator.core.claims.objects.status import used_by
from berth_operator.core.decision import capacity, gang_cards
from berth_operator.core.decision.cycle import Placement, feasible, place_on
from berth_operator.core.decision.gang_charges import ChargedMembers
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import dynamic_resources
from berth_operator.core.fleet import claim_choice, claim_counts, extended_resources
from berth_operator.core.fleet.arrays.column_cache import ALL
from berth_operator.core.fleet.claims.answers import DeviceKind
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.values.affinity import NO_AFFINITY, NO_IDENTITY
from berth_operator.core.values.pod_claims import NO_POD_CLAIMS, PodClaims
from berth_operator.core.values.request import PendingPod, PodRequest

WORK: Final = 6_000
"""Work of a search for a gang for going back, in units of `Work`: some 15 ms. Decision 33 has how far that goes."""
MEMBER: Final = 400
"""Work in addition for each member: to look at its row, to search there twice, and to place it once."""
PLACE: Final = 250
"""Work for placing a member by all filters and scores: about half a millisecond."""
LOOK: Final = 4
"""Work for looking at a node for a member."""
USE: Final = 25
"""Work for comparing a node with where a claim can be used that a member on another node shares."""


def work_for(members: int) -> float:
    """Return the bound on the work of a search."""
    return WORK + MEMBER * members


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shape:
    """Members that need the same."""

    number: int
    request: PodRequest
    claims: Sequence[tuple[Sequence[Alternatives], Sequence[Constraint]] | str]
    """The requests of each claim, or the name of a claim that is allocated or that other members share."""
    shared: frozenset[str]
    """The claims that other members share."""
    pods: Column
    """The maximum number of these members that each row can take."""
    wanted: Counter[DeviceKind]
    """The devices that each member certainly takes, without the devices of claims that other members share."""
    by_class: dict[str, Mask]
    """The rows where DeviceClasses provide extended resources."""

    def is_for(self, other: "_Shape") -> bool:
        """Return whether members of another shape need the same."""
        return (
            self.request == other.request
            and self.claims == other.claims
            and bool(np.array_equal(self.pods, other.pods))
        )


_Together = tuple[int, tuple[int, ...], frozenset[str]]
"""A row, the shapes of the members there in ascending order, and the claims that are allocated elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Places:
    """Where members of a shape may be, in the order of trial."""

    shape: _Shape
    rows: Sequence[int]
    left: Sequence[int]
    """For each of the rows, the maximum number of members that it and the later rows can take."""


class GangSearch:
    """The search for one gang on some of the rows."""

    def __init__(self, fleet: Fleet, pods: Sequence[PendingPod], policy: Policy, *, needed: int, rows: Mask) -> None:
        """Prepare a search for places of at least `needed` pods. Its work is limited to the Fleet's remaining work."""
        self._fleet, self._policy = fleet, policy
        self._work = fleet.claims.supply.work
        places = _places(fleet, pods, policy, rows)
        # Those with affinity last, and those with the fewest places first.
        ranks = [
            (
                of_member.shape.request.affinity != NO_AFFINITY,
                of_member.left[0] if of_member.left else 0,
                of_member.shape.number,
            )
            for of_member in places
        ]
        ordered = sorted(range(len(pods)), key=ranks.__getitem__)
        self._pods = [pods[number] for number in ordered]
        self._places = [places[number] for number in ordered]
        self._spare = len(pods) - needed
        self._alike = [sum(other is place for other in self._places[at:]) for at, place in enumerate(self._places)]
        """For each member, the number of equal members from it on, including itself."""
        names = {name for of_member in places for name, _ in of_member.shape.request.resources}
        self._free = {name: fleet.left(name).copy() for name in names}
        self._charged = ChargedMembers(fleet, [pod.request for pod in pods])
        self._at: list[int] = []
        """The members' places so far. The place of a member that is left out is after the last place."""
        self._on: dict[int, list[int]] = {}
        """Row -> the numbers of its members."""
        self._owner: dict[str, int] = {}
        """Claim that members share -> number of the first member that uses it. It is allocated with this member's other
        claims."""
        self._enough: dict[_Together, bool] = {}
        """Whether a row may have enough devices for members, by the counts."""
        self._possible: dict[_Together, bool] = {}
        """Whether a search found devices for all of them."""
        self._ended = any(claim_counts.nodes_not_searched(fleet, request) for request in {pod.request for pod in pods})
        """Whether a search for devices ended at its bound, of these or of those for one member."""
        self._cards: dict[tuple[int, tuple[int, ...]], list[gang_cards.Slots] | None] = {}
        """Row, shapes of several members there -> the slots of their cards; None if not all get cards."""
        self._chosen: dict[tuple[int, tuple[int, ...], frozenset[str]], tuple[PodClaims, ...]] = {}
        """The same with the numbers of the members -> what their claims get."""
        self._tried: list[tuple[int, int, PodClaims, Placement | None]] = []
        """Each member that was placed the last time, its row, claims and placement."""

    def place(self) -> list[Placement]:
        """Return the placements of enough members; empty if there are none. The Fleet is left unchanged.

        Raises:
            TooMuchWorkError: there are none, but the search for devices on a node ended at its bound.
            NoWorkError: the bound on the work ended the search.
        """
        start = 0
        try:
            while True:
                member = len(self._at)
                if member == len(self._pods):
                    rejected = self._unallocatable()
                    if rejected is None and (rejected := self._charge_all()) is None:
                        return list(self._charged.placed)
                    while len(self._at) > rejected + 1:
                        self._pop()
                    start = self._pop() + 1
                elif (place := self._next(member, start)) is not None:
                    self._at.append(place)
                    if (row := self._row(member)) is not None:
                        self._on.setdefault(row, []).append(member)
                        for claim in self._places[member].shape.shared:
                            self._owner.setdefault(claim, member)
                    # The trial of the next one begins where this one is, if it needs the same.
                    after = member + 1
                    is_alike = after < len(self._pods) and self._places[after] is self._places[member]
                    start = place if is_alike else 0
                elif self._at:
                    start = self._pop() + 1
                elif self._ended:
                    raise TooMuchWorkError("the search for devices on a node is not finished")
                else:
                    return []
        finally:
            self._charged.undo()

    # --- the members' rows ------------------------------------------------------------------------------------------

    def _next(self, member: int, start: int) -> int | None:
        """Return the next place where a member fits together with the members before it; None if there is none."""
        places = self._places[member]
        skipped = sum(at == len(of_member.rows) for at, of_member in zip(self._at, self._places, strict=False))
        least = self._alike[member] - (self._spare - skipped)
        for place in range(start, len(places.rows)):
            self._spend(LOOK)
            if places.left[place] < least:
                break
            if self._may_be(member, places.rows[place]):
                return place
        may_skip = skipped < self._spare and start <= len(places.rows)
        return len(places.rows) if may_skip else None

    def _pop(self) -> int:
        """Take the last member away, and return its place."""
        member = len(self._at) - 1
        if (row := self._row(member)) is not None:
            self._on[row].pop()
            self._owner = {claim: owner for claim, owner in self._owner.items() if owner != member}
        return self._at.pop()

    def _row(self, member: int) -> int | None:
        places = self._places[member]
        return places.rows[self._at[member]] if self._at[member] < len(places.rows) else None

    def _may_be(self, member: int, row: int) -> bool:
        """Return whether a row has enough for a member and the members already there."""
        members = (*self._on.get(row, ()), member)
        shape = self._places[member].shape
        alike = sum(self._places[number].shape is shape for number in members)
        if alike > shape.pods[row]:
            return False
        if len(members) > 1:
            # The filters have compared a single member's resources.
            wanted: Counter[str] = Counter()
            for shape in (self._places[number].shape for number in members):
                for name, amount in shape.request.resources:
                    if not (name in shape.by_class and shape.by_class[name][row]):
                        wanted[name] += amount
            if any(amount > self._free[name][row] for name, amount in wanted.items() if amount):
                return False
        if len(members) > 1 and self._slots(members, row) is None:
            return False
        return self._may_have_devices(members, row)

    # --- their cards ------------------------------------------------------------------------------------------------

    def _slots(self, members: Sequence[int], row: int) -> list[gang_cards.Slots] | None:
        """Return the slots of the cards of several members on a row, by ascending shapes; None if not all get cards."""
        shapes = sorted((self._places[number].shape for number in members), key=lambda shape: shape.number)
        key = row, tuple(shape.number for shape in shapes)
        if key not in self._cards:
            requests = [shape.request for shape in shapes]
            self._cards[key] = gang_cards.choose_together(self._fleet, row, requests, self._policy, self._spend)
        return self._cards[key]

    def _with_cards(self, member: int, row: int) -> PendingPod:
        """Return a member that may get only the cards that were found for it next to the others on its row."""
        pod, members = self._pods[member], sorted(self._on[row], key=lambda number: self._places[number].shape.number)
        found = self._slots(members, row) if len(members) > 1 else None
        if not found or not (slots := found[members.index(member)]):
            return pod
        cards = self._fleet.cards[GPU]
        ids = [cards.ids[row].get(int(cards.minor[row, slot]), "") for slot in slots]
        return gang_cards.with_cards(pod, ids) if all(ids) else pod

    # --- their claims -----------------------------------------------------------------------------------------------

    def _may_have_devices(self, members: Sequence[int], row: int) -> bool:
        """Return whether the claims of members may be allocated on a row, or used if they are allocated elsewhere.

        Devices are searched only when each member has a row: one search for all members on a row takes less time than
        one after each of them.
        """
        if not self._have_claims(members):
            return True
        elsewhere = self._elsewhere(members, row)
        for claim in elsewhere:
            # Whether it can be used on this row.
            self._spend(USE)
            state, owner = self._fleet.claims.claims[claim], self._owner[claim]
            for allocation in self._claims_of(owner, self._row(owner)).of_claims:
                if str(allocation.claim) == claim:
                    state = used_by(state, "", allocation.written())
            if not claim_counts.usable_rows(self._fleet, state)[row]:
                return False
        key = self._together(members, row)
        if key not in self._enough:
            shapes = (self._places[number].shape for number in members)
            wanted = sum((shape.wanted for shape in shapes), Counter[DeviceKind]())
            self._enough[key] = claim_counts.may_have(self._fleet, row, wanted)
        return self._enough[key] and self._possible.get(key, True)

    def _unallocatable(self) -> int | None:
        """Return a member whose claims get no devices next to those of the members before it on its row.

        None if the claims of all members get devices.
        """
        for row, members in self._on.items():
            if not self._have_claims(members) or self._has_devices(members, row):
                continue
            fewer = (number for number in range(1, len(members)) if not self._has_devices(members[:number], row))
            return members[next(fewer, len(members)) - 1]
        return None

    def _has_devices(self, members: Sequence[int], row: int) -> bool:
        """Return whether a search finds devices for all members on a row."""
        key = self._together(members, row)
        if key not in self._possible:
            self._possible[key] = self._choose(tuple(members), row, key[2]) is not None
        return self._possible[key]

    def _have_claims(self, members: Sequence[int]) -> bool:
        shapes = (self._places[number].shape for number in members)
        return any(shape.claims or shape.by_class for shape in shapes)

    def _together(self, members: Sequence[int], row: int) -> _Together:
        shapes = sorted(self._places[number].shape.number for number in members)
        return row, tuple(shapes), self._elsewhere(members, row)

    def _elsewhere(self, members: Sequence[int], row: int) -> frozenset[str]:
        """Return the claims of members on a row that a member on another row allocates."""
        shared = {claim for number in members for claim in self._places[number].shape.shared if claim in self._owner}
        return frozenset(claim for claim in shared if self._row(self._owner[claim]) != row)

    def _claims_of(self, member: int, row: int | None) -> PodClaims:
        """Return the devices that the claims of a member get on its row, next to the other members' devices there."""
        members = () if row is None else tuple(self._on[row])
        chosen = None if row is None else self._choose(members, row, self._elsewhere(members, row))
        return NO_POD_CLAIMS if chosen is None else chosen[members.index(member)]

    def _choose(self, members: tuple[int, ...], row: int, elsewhere: frozenset[str]) -> tuple[PodClaims, ...] | None:
        key = row, members, elsewhere
        if key not in self._chosen:
            self._spend(LOOK)
            pods = [self._pods[number] for number in members]
            first_fit = self._policy.takes_first_devices
            try:
                chosen = claim_choice.choose_together(self._fleet, row, pods, elsewhere, first_fit=first_fit)
            except TooMuchWorkError:
                self._ended, chosen = True, None
            if chosen is None:
                return None
            self._chosen[key] = chosen
        return self._chosen[key]

    # --- all of them ------------------------------------------------------------------------------------------------

    def _charge_all(self) -> int | None:
        """Charge all members on their nodes. If one does not fit, return it and charge none."""
        rows = [(number, row) for number in range(len(self._pods)) if (row := self._row(number)) is not None]
        wanted = [(member, row, self._claims_of(member, row)) for member, row in rows]
        known, self._tried = iter(self._tried), []
        for member, row, claims in wanted:
            tried = next(known, None)
            if tried is None or tried[:2] != (member, row) or tried[2] is not claims or len(self._on[row]) > 1:
                # The members after it meet another Fleet than they did.
                known = iter(())
                self._spend(PLACE)
                placed = place_on(self._fleet, self._with_cards(member, row), self._policy, row, claims)
                placed = replace(placed, pod=self._pods[member]) if placed else None
                tried = member, row, claims, placed
            if tried[3] is None:
                self._charged.undo()
                return member
            self._tried.append(tried)
            self._charged.charge(tried[3])
        return None

    def _spend(self, amount: float) -> None:
        if self._work.is_over():
            raise NoWorkError("the search for other nodes and devices is not finished")
        self._work.spend(amount)


# --- where members may be -------------------------------------------------------------------------------------------


def _places(fleet: Fleet, pods: Sequence[PendingPod], policy: Policy, rows: Mask) -> list[_Places]:
    """Return the possible places of each pod; the same object for members with equal requests."""
    uses = Counter(use.claim for pod in pods for use in pod.request.claims)
    shared = {claim for claim, count in uses.items() if count > 1}
    exchangeable = all(pod.request.affinity == NO_AFFINITY for pod in pods)
    shapes: list[_Shape] = []
    numbers = []
    for pod in pods:
        shape = _shape(fleet, pod.request, policy, rows, shared, exchangeable=exchangeable, number=len(shapes))
        numbers.append(next((known.number for known in shapes if known.is_for(shape)), len(shapes)))
        if numbers[-1] == len(shapes):
            shapes.append(shape)
    counts = Counter(numbers)
    others: Column = np.sum([np.minimum(shape.pods, counts[shape.number]) for shape in shapes], axis=0)
    places = []
    for shape in shapes:
        # The rows that can take the fewest of all members first; the last key is the primary one.
        ordered = np.flatnonzero(shape.pods)
        ordered = ordered[np.lexsort((ordered, shape.pods[ordered], others[ordered]))]
        left = np.cumsum(shape.pods[ordered][::-1])[::-1]
        places.append(_Places(shape=shape, rows=ordered.tolist(), left=left.tolist()))
    return [places[number] for number in numbers]


def _shape(
    fleet: Fleet,
    request: PodRequest,
    policy: Policy,
    rows: Mask,
    shared: Collection[str],
    *,
    exchangeable: bool,
    number: int,
) -> _Shape:
    """Return a shape; `exchangeable`: pods with other labels may take the place of one."""
    # The filters that a row must pass whatever rows the other members take.
    alone = request.affinity == NO_AFFINITY and not request.mounts
    of_row = [
        filter_
        for filter_ in policy.filters_of(request)
        if alone or filter_.TRAITS.one_node or filter_.TRAITS.of_pod or filter_.NAME == dynamic_resources.NAME
    ]
    fits = rows & feasible(fleet, request, of_row)
    pods = np.minimum(capacity.of_class(fleet, request, fits), claim_counts.pods_per_row(fleet, request, shared))
    for part in request.devices.parts:
        if allocators.in_subdevices(fleet, part):
            units = allocators.subdevices_apart(fleet, request, part, ALL)
            pods = np.minimum(pods, units.sum(axis=1) // part.count)
    return _Shape(
        number=number,
        request=replace(request, claims=(), identity=NO_IDENTITY if exchangeable else request.identity),
        claims=[
            state.key if state.key in shared or state.allocation else (state.claim.requests, state.claim.constraints)
            for state in claim_counts.states(fleet, request)
        ],
        shared=frozenset(state.key for state in claim_counts.unallocated(fleet, request) if state.key in shared),
        pods=pods,
        wanted=claim_counts.certainly_wanted(fleet, request, shared),
        by_class=extended_resources.rows_by_class(fleet, request),
    )
