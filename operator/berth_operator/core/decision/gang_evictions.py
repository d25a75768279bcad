"""Victims for the members of a gang, chosen one member after the other.

    OneByOne(board).on(rows)  ->  GangPreemption | None

This is for clusters with too many sets of victims to compare them (`gang_victims`). As many members are placed as fit.
For each other needed member, the largest first, victims are chosen as for any pod (`preemption`). They count as
leaving, and the member is nominated, so that the next member sees it. Pods are evicted only if the gang is placed
without them. Victims that turn out to be unnecessary are kept.

This may fail although the gang would fit. `with_places` begins with the members' places instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.departures import Departures
from berth_operator.core.decision.gang import Gang, decide_gang, order, place_all_that_fit
from berth_operator.core.decision.gang_victims import Cost, Rules, by_priority, importance
from berth_operator.core.decision.preemption import leaving, preempt, preemptible_below, ranked_rows
from berth_operator.core.decision.victims import Preemption
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod, PodRequest

AT_ONCE: Final = 32
"""Members of a class that share one search for the best nodes."""
MAX_REPRIEVE_DECISIONS: Final = 2048
"""Decisions of members that may be spent to find unnecessary victims; they take about half a second."""
ANYWHERE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPreemption:
    """The nominees of a gang, and the pods to evict for them."""

    nominees: tuple[Charge, ...]
    victims: tuple[Charge, ...]
    """The most important first; empty if the pods that are already leaving free enough."""


class Board(Departures):
    """Decisions of a gang on a copy of the Fleet, which pods leave."""

    def __init__(self, fleet: Fleet, gang: Gang, rules: Rules) -> None:
        """Create a board on a copy of the Fleet, which it modifies."""
        super().__init__(fleet, {use.claim for request in gang.requests for use in request.claims})
        self.gang, self.rules = gang, rules

    def clear(self) -> None:
        """Release all pods that are leaving."""
        self.leave(leaving(self.fleet, self.fleet.charges.values(), self.gang.lowest))

    def lower(self) -> list[Charge]:
        """Return the pods that may be victims."""
        mask = preemptible_below(self.fleet, self.gang.lowest, self.rules.in_flight)
        charges = self.fleet.placed_pods.current(self.fleet).charges
        return [charges[pod] for pod in np.flatnonzero(mask).tolist()]

    def decide(self, nodes: Mapping[str, str] = ANYWHERE, *, search: bool = True) -> list[Placement] | Failure:
        """Decide the gang as it will be decided once the victims are gone. `nodes` are those nominated, by UID."""
        members = tuple(replace(member, nominated_node=nodes.get(member.uid, "")) for member in self.gang.members)
        return decide_gang(self.fleet, replace(self.gang, members=members), self.rules.policy, search=search)


class OneByOne:
    """Frees capacity on a board."""

    def __init__(self, board: Board) -> None:
        self._board, self._fleet, self._gang, self._rules = board, board.fleet, board.gang, board.rules
        self._nodes: dict[str, str] = {}
        """UID of a member -> its node."""
        self._victims: dict[str, Charge] = {}
        self._best = np.zeros(len(self._fleet.names), np.bool_)
        """The rows where evictions cost least, as of the last search."""
        self._for_class: PodRequest | None = None
        self._for_more = 0
        """The class that this search was for, and for how many more members of it the rows are valid."""
        self._last = ""
        """The node of the previous member."""
        self._elsewhere: Cost | None = None
        """The cost of the best node at the last comparison; it can only rise."""

    def on(self, rows: Mask) -> GangPreemption | None:
        """Return the nominees on some rows and their victims; None if none are found."""
        for placement in place_all_that_fit(self._fleet, self._gang, self._rules.policy, rows):
            self._nominate(placement.charge)
        # Evict for one member after the other until enough are nominated.
        unfit: set[PodRequest] = set()
        for pod in sorted((member for member in self._gang.members if member.uid not in self._nodes), key=order):
            if len(self._nodes) == self._gang.needed:
                break
            if pod.request not in unfit and not self._evict(self._best_for(self._below_all(pod), rows)):
                unfit.add(pod.request)
        return self._all() if len(self._nodes) >= self._gang.needed else None

    def with_places(self, placed: Sequence[Placement]) -> GangPreemption | None:
        """Return the nominees on nodes that were chosen, and their victims; None if none are found."""
        members = {member.uid: member for member in self._gang.members}
        for placement in placed[: self._gang.needed]:
            pod, row = self._below_all(members[placement.pod.uid]), self._fleet.named(placement.node)
            free = cycle.place(self._fleet, pod, self._rules.policy, np.where(row, 0.0, -np.inf))
            if free is not None:
                self._nominate(free.charge)
            elif not self._evict(self._within(pod, row)):
                return None
        return self._all()

    def _below_all(self, pod: PendingPod) -> PendingPod:
        """Return a member for which only pods below all members are evicted."""
        return replace(pod, priority=self._gang.lowest)

    # --- one member after the other -------------------------------------------------------------------------------

    def _best_for(self, pod: PendingPod, rows: Mask) -> Preemption | None:
        """Choose a node and victims for a member: the previous member's node unless another costs less."""
        if pod.request != self._for_class:
            self._for_class, self._for_more, self._elsewhere = pod.request, 0, None
        same_node = self._within(pod, self._fleet.named(self._last)) if self._last else None
        if same_node is not None and self._elsewhere is not None and self._cost(same_node) <= self._elsewhere:
            return same_node
        if not self._for_more:
            # Each member changes a single row: the best AT_ONCE rows have the best row for AT_ONCE members in turn.
            self._best[:] = False
            policy, budgets, _, in_flight = self._rules
            ranked = ranked_rows(self._fleet, pod, policy, budgets, in_flight)
            self._best[ranked[rows[ranked]][:AT_ONCE]] = True
            self._for_more = AT_ONCE
        self._for_more -= 1
        best_node = self._within(pod, self._best)
        self._elsewhere = None if best_node is None else self._cost(best_node)
        return (
            same_node
            if same_node is not None and (best_node is None or self._cost(same_node) <= self._cost(best_node))
            else best_node
        )

    def _within(self, pod: PendingPod, rows: Mask) -> Preemption | None:
        policy, budgets, _, in_flight = self._rules
        return preempt(self._fleet, pod, policy, budgets, in_flight, within=rows)

    @staticmethod
    def _cost(preemption: Preemption) -> Cost:
        """Return the keys with which kube-scheduler compares nodes, without the victims' age."""
        return preemption.violations, *by_priority(preemption.victims)

    def _evict(self, preemption: Preemption | None) -> bool:
        """Nominate a member, and let its victims leave; return whether there is a node for it."""
        if preemption is None:
            return False
        self._victims |= {victim.uid: victim for victim in preemption.victims}
        self._fleet.leaving.update(victim.uid for victim in preemption.victims)
        self._nominate(preemption.nominee)
        return True

    def _nominate(self, charge: Charge) -> None:
        self._fleet.nominate(charge)
        self._nodes[charge.uid] = self._last = charge.node

    # --- all of them ----------------------------------------------------------------------------------------------

    def _all(self) -> GangPreemption | None:
        """Release the victims and all other pods that are leaving, and decide without the nominees."""
        for uid in self._nodes:
            self._fleet.withdraw(uid)
        self._board.clear()
        placed = self._board.decide(self._nodes)
        return None if isinstance(placed, Failure) else self._without_unnecessary(placed)

    def _without_unnecessary(self, placed: Sequence[Placement]) -> GangPreemption:
        """Return the result without unnecessary victims; the most important are tried first."""
        trials = MAX_REPRIEVE_DECISIONS // self._gang.needed
        for victim in sorted(self._victims.values(), key=importance)[:trials]:
            self._board.come_back([victim])
            outcome = self._board.decide(self._nodes, search=False)
            if isinstance(outcome, Failure):
                self._board.leave([victim])
            else:
                del self._victims[victim.uid]
                placed = outcome
        needed = sorted(placed, key=lambda placement: placement.pod.uid not in self._nodes)[: self._gang.needed]
        return GangPreemption(
            nominees=tuple(placement.charge for placement in needed),
            victims=tuple(sorted(self._victims.values(), key=importance)),
        )
