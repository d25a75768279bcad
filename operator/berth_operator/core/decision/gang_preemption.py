"""Choose the pods of lower priority to evict so that a whole gang fits.

    preempt_gang(fleet, gang, policy, budgets, in_flight)  ->  GangPreemption | None

Sets of victims are tried on a copy of the Fleet, the cheapest first, until `decide_gang` places the gang without them
(`gang_victims`). So no other set costs less, and no victim could stay.

If there are too many sets, victims are chosen for one member after the other (`gang_evictions`). If that does not help,
the gang is decided as if many pods had left: first all of them, then only those up to a priority, the lowest that
suffices. Victims are then chosen on the members' nodes.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Final

import numpy as np

from berth_operator.core import filters
from berth_operator.core.claims.bounds.errors import NoWorkError
from berth_operator.core.decision import alike
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import (
    Gang,
    lower_priority_nominees,
    order,
    with_expected,
)
from berth_operator.core.decision.gang_evictions import Board, GangPreemption, OneByOne
from berth_operator.core.decision.gang_places import Places, RowsByClass, claims_shared, places_of, rows_by_class
from berth_operator.core.decision.gang_search import PLACE
from berth_operator.core.decision.gang_victims import MAX_SETS, Rules, VictimCosts, VictimSets, number_of_sets
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import (
    has_lower,
    leaving,
    victims_by_rank,
)
from berth_operator.core.filters import namespace_limits
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PodRequest

MAX_DECISIONS: Final = 1024
"""Decisions of members with which sets of victims are tried, and searches that take as long. They take some 0.3 s."""
SETS_PER_DECISION: Final = 32
"""Sets of pods that are counted in the time of a decision."""
MAX_COMPARED: Final = 3
"""Models, kinds of GPUs and domains whose victims are compared if they are chosen for one member after the other. Each
costs as much as a preemption for one model."""
MAX_LEAVING: Final = 2048
"""Pods that leave at once if victims for one member after the other do not help. It takes some 60 ms."""
WHOLE_NODES: Final = 64
"""Nodes that all of these pods leave, for each class of members. From other nodes the victims for one member leave."""
NO_VICTIMS: Final = "No preemption victims found for incoming preemptor."
NOT_FINISHED: Final = "The search for preemption victims ended at its bound."


def may_preempt(fleet: Fleet, gang: Gang, policy: Policy) -> bool:
    """Return whether pods may be evicted for a gang: it needs members, and pods of lower priority exist."""
    return policy.preemption and _evicting(gang).needed > 0 and has_lower(fleet, gang.lowest)


def _evicting(gang: Gang) -> Gang:
    """Return a gang that needs as many members as pods are evicted for."""
    if gang.needed or not gang.further_preempt:
        return gang
    return replace(gang, minimum=gang.placed + 1)


def preempt_gang(
    fleet: Fleet, gang: Gang, policy: Policy, budgets: Budgets, in_flight: Collection[str] = frozenset()
) -> GangPreemption | None:
    """Choose victims for a gang that does not fit; return None if evictions would not help.

    The Fleet is left unchanged. `in_flight` are UIDs of pods whose Binding is not confirmed yet. They are not evicted.
    The nominees may be pods that do not exist yet.

    Raises:
        NoWorkError: a bound ended the search before victims were found.
    """
    gang = with_expected(fleet, gang)
    if not may_preempt(fleet, gang, policy) or not all(member.preempts for member in gang.members):
        return None
    rules = Rules(policy, budgets, VictimCosts(fleet, budgets), in_flight)
    return _Search(fleet, _evicting(gang), rules).best()


class _Search:
    """The search for the victims of one gang."""

    def __init__(self, fleet: Fleet, gang: Gang, rules: Rules) -> None:
        self._fleet, self._gang, self._rules = fleet, gang, rules
        self._best: GangPreemption | None = None
        self._decisions: float = MAX_DECISIONS
        """Decisions that are left for trying sets of victims."""
        self._compared = MAX_COMPARED
        """How many victims that are chosen for one member after the other may still be compared."""
        self._is_finished = True
        """Whether no bound has ended anything."""

    def best(self) -> GangPreemption | None:
        """Return the cheapest victims; None if evictions would not help.

        Raises:
            NoWorkError: a bound ended the search before victims were found.
        """
        members = sorted((replace(member, nominated_node="") for member in self._gang.members), key=order)
        for choice in alike.choices(self._fleet, self._gang.held, members, self._rules.policy):
            stage = self._fleet.copy()
            for nominee in lower_priority_nominees(stage, self._gang):
                stage.withdraw(nominee.uid)
            gang = replace(self._gang, members=choice.applied(members))
            with stage.slices_apart(gang.key, gang.held):
                self._find(stage, gang)
            if self._best is not None and not self._best.victims:
                break
        if self._best is None and not self._is_finished:
            raise NoWorkError(NOT_FINISHED)
        return self._best

    def _take_if_cheaper(self, preemption: GangPreemption) -> None:
        if self._is_cheaper(preemption.victims):
            self._best = preemption

    def _is_cheaper(self, victims: Sequence[Charge]) -> bool:
        cost = self._rules.costs.of
        return self._best is None or cost(victims) < cost(self._best.victims)

    def _find(self, stage: Fleet, gang: Gang) -> None:
        """Find victims for a gang with one choice of GPUs. The Fleet is left unchanged."""
        places = places_of(stage, gang, self._rules.policy, self._rules.in_flight)
        if not places.domains:
            return
        board = Board(stage.copy(), gang, self._rules)
        board.clear()
        lower = board.lower()
        classes = rows_by_class(board, gang, self._rules.policy, lower)
        # Pods on nodes that could take no member are no victims.
        usable = np.logical_or.reduce([rows for _, rows in classes.values()])
        lower = [charge for charge in lower if usable[stage.rows[charge.node]]]
        with suppress(NoWorkError):
            if self._compare(board, stage, places, classes, lower):
                return
        self._one_by_one(stage, gang, places)
        if self._best is None:
            self._with_places(board, stage, lower)

    # --- sets of victims ------------------------------------------------------------------------------------------

    def _compare(
        self, board: Board, stage: Fleet, places: Places, classes: RowsByClass, lower: Sequence[Charge]
    ) -> bool:
        """Find the cheapest victims, if they cost less than what was found; return whether no others need be tried.

        Raises:
            NoWorkError: a bound ended the search.
        """
        are_all = True
        for rows in places.domains:
            inside = [charge for charge in lower if rows[stage.rows[charge.node]]]
            if (number := number_of_sets(inside)) <= MAX_SETS:
                self._spend(number / SETS_PER_DECISION)
                sets = VictimSets(
                    board.fleet,
                    classes,
                    inside,
                    needed=board.gang.needed,
                    shared=claims_shared(board.gang),
                    rules=self._rules,
                )
                self._try(board, stage, sets.cheapest(rows), inside)
            else:
                are_all = False
        return are_all and (self._best is not None or self._is_finished)

    def _try(self, board: Board, stage: Fleet, sets: Iterable[list[Charge]], everyone: Sequence[Charge]) -> None:
        """Try sets of victims, the cheapest first."""
        helps = False
        for victims in sets:
            if not self._is_cheaper(victims):
                return
            if (placed := self._placed(board, stage, victims)) is not None:
                nominees = tuple(placement.charge for placement in placed[: board.gang.needed])
                self._take_if_cheaper(GangPreemption(nominees=nominees, victims=tuple(victims)))
                return
            if not helps and self._placed(board, stage, everyone) is None:
                return
            helps = True

    def _placed(self, board: Board, stage: Fleet, victims: Sequence[Charge]) -> list[Placement] | None:
        """Return the placements on a board that victims have left; None if the gang does not fit."""
        work = board.fleet.claims.supply.work
        before = work.within_limits
        self._spend(board.gang.size)
        with board.without(victims):
            outcome = board.decide()
            if not isinstance(outcome, Failure) and (nodes := _exchanged(outcome, victims)):
                exchanged = board.decide(nodes)
                outcome = outcome if isinstance(exchanged, Failure) else exchanged
        self._decisions -= (work.within_limits - before) / PLACE
        if isinstance(outcome, Failure):
            self._is_finished &= not outcome.is_unfinished
            return None
        return outcome if _keeps_limits(stage, outcome) else None

    def _spend(self, decisions: float) -> None:
        if self._decisions <= 0:
            raise NoWorkError(NOT_FINISHED)
        self._decisions -= decisions

    # --- one member after the other -------------------------------------------------------------------------------

    def _one_by_one(self, stage: Fleet, gang: Gang, places: Places) -> None:
        """Find victims for one member after the other."""
        in_turn = [stage.present, *places.domains[:MAX_COMPARED]] if places.by_affinity else places.domains
        for rows in in_turn:
            if not self._compared:
                return
            preemption = OneByOne(Board(stage.copy(), gang, self._rules)).on(rows)
            if preemption is not None:
                self._compared -= 1
                self._take_if_cheaper(preemption)
                if not preemption.victims or places.by_affinity:
                    return

    def _with_places(self, board: Board, stage: Fleet, lower: list[Charge]) -> None:
        """Find victims on the nodes where the gang is placed if many pods leave."""
        if len(lower) > MAX_LEAVING:
            self._is_finished = False
            lower = _on_best_rows(stage, board.gang, self._rules, lower)
        placed = self._placed_below(board, lower)
        if placed is None:
            return
        preemption = OneByOne(Board(stage.copy(), board.gang, self._rules)).with_places(placed)
        if preemption is None:
            self._is_finished = False
        else:
            self._take_if_cheaper(preemption)

    def _placed_below(self, board: Board, lower: list[Charge]) -> list[Placement] | None:
        """Return the placements if pods leave up to the lowest level that suffices; None if none does."""
        level = self._rules.costs.level
        lower = sorted(lower, key=level)
        levels = sorted(set(map(level, lower)))
        gone, placements = 0, list[Placement]()

        def fits(number: int) -> bool:
            nonlocal gone, placements
            left = bisect_right(lower, levels[number], key=level)
            board.leave(lower[gone:left])
            board.come_back(lower[left:gone])
            gone = left
            outcome = board.decide()
            if isinstance(outcome, Failure):
                self._is_finished &= not outcome.is_unfinished
                return False
            placements = outcome
            return True

        if not levels or not fits(len(levels) - 1):
            return None
        # The last level that suffices is the lowest one.
        bisect_left(range(len(levels) - 1), x=True, key=fits)
        return placements


def _exchanged(placed: Sequence[Placement], victims: Sequence[Charge]) -> dict[str, str]:
    """Return nodes, by UID, with which members that exist get places of victims from pods that come later.

    Places for pods that come later are kept for a limited time, and those for members until the victims have left.
    Return no nodes if nothing is to be exchanged.
    """
    nodes = {victim.node for victim in victims}
    later = [placement for placement in placed if placement.pod.workload and placement.node in nodes]
    members = [placement for placement in placed if not placement.pod.workload and placement.node not in nodes]
    if not later or not members:
        return {}
    exchanged = {placement.pod.uid: placement.node for placement in placed}
    for one, other in zip(later, members, strict=False):
        exchanged |= {one.pod.uid: other.node, other.pod.uid: one.node}
    return exchanged


def _keeps_limits(stage: Fleet, placed: Sequence[Placement]) -> bool:
    """Return whether the members may be nominated while the victims still count for the limits of namespaces."""
    nominated: list[Charge] = []
    try:
        for placement in placed if stage.namespaces.limits else ():
            if not namespace_limits.passes(stage, placement.pod.request)[stage.rows[placement.node]]:
                return False
            stage.nominate(placement.charge)
            nominated.append(placement.charge)
    finally:
        for charge in nominated:
            stage.withdraw(charge.uid)
    return True


def _on_best_rows(stage: Fleet, gang: Gang, rules: Rules, lower: Sequence[Charge]) -> list[Charge]:
    """Return at most MAX_LEAVING pods, of the nodes where evictions for one of the members cost least.

    All pods of the best nodes leave, and on the others the victims for one member.
    """
    rankings = [
        victims_by_rank(stage, replace(member, priority=gang.lowest), rules.policy, rules.budgets, rules.in_flight)
        for member in {member.request: member for member in gang.members}.values()
    ]
    by_node = defaultdict[str, list[Charge]](list)
    for charge in lower:
        by_node[charge.node].append(charge)
    chosen: dict[str, Charge] = {}
    # The best nodes of each class in turn.
    for rank, of_classes in enumerate(zip_longest(*rankings, fillvalue=())):
        for victims in filter(None, of_classes):
            leave = by_node[victims[0].node] if rank < WHOLE_NODES else victims
            chosen |= {charge.uid: charge for charge in leave}
        if len(chosen) > MAX_LEAVING:
            break
    return list(chosen.values())


# --- while pods leave -------------------------------------------------------------------------------------------------


def pods_awaited(fleet: Fleet, gang: Gang, policy: Policy, nominees: Collection[Charge]) -> int:
    """Return how many pods have yet to leave the nodes nominated for a gang.

    The result is also 0 if one of these nodes has failed. The gang must then choose again.
    """
    nodes = {nominee.node for nominee in nominees}
    left = sum(len(leaving(fleet, fleet.on_node(node), gang.lowest)) for node in nodes)
    return 0 if left and _has_failed(fleet, gang, policy, nominees) else left


def waits_for_kubelet(fleet: Fleet, gang: Gang, policy: Policy, nominees: Collection[Charge]) -> bool:
    """Return whether a gang waits until a pause after rejections by kubelet has ended on a node nominated for it."""
    requests = {member.uid: member.request for member in gang.members}
    is_paused = any(
        nominee.uid in requests and nominee.node in fleet.rejecting.get(requests[nominee.uid].rejected_controller, ())
        for nominee in nominees
    )
    return is_paused and not _has_failed(fleet, gang, policy, nominees)


def _has_failed(fleet: Fleet, gang: Gang, policy: Policy, nominees: Iterable[Charge]) -> bool:
    """Return whether a node nominated for a gang is rejected for a reason that no eviction changes.

    Only filters that read one node are run: the others depend on the places of the other members.
    """
    requests = {member.uid: member.request for member in with_expected(fleet, gang).members}
    rows_by_request = defaultdict[PodRequest, list[int]](list)
    for nominee in nominees:
        if (request := requests.get(nominee.uid)) is not None:
            rows_by_request[request].append(fleet.rows[nominee.node])
    for request, rows in rows_by_request.items():
        mask = fleet.present & extended_resources.reporting(fleet, request)
        for filter_ in policy.filters_of(request):
            if filter_.TRAITS.one_node and not filter_.TRAITS.ends_by_itself:
                mask = mask & filters.could_pass(filter_, fleet, request)
        if not mask[rows].all():
            return True
    return False
