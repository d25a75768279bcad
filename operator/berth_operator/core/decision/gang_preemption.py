"""Choose the pods of lower priority to evict so that a whole gang fits.

    preempt_gang(fleet, gang, policy, budgets, unconfirmed)  ->  GangPreemption | None

On a copy of the Fleet, as many members are placed as fit. For each other needed member, the largest first, victims are
chosen as for any pod (`preemption`). In the copy, the victims leave and the member is nominated, so that the next
member sees it. The victims are evicted only if `decide_gang` places the gang without them. Victims that turn out to be
unnecessary are kept.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth_operator.core import filters
from berth_operator.core.decision import alike, capacity, topology
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.claim_bounds import LOWEST_PRIORITY, OFFSET
from berth_operator.core.decision.cycle import Failure, Placement, feasible
from berth_operator.core.decision.departures import Departures
from berth_operator.core.decision.gang import (
    Class,
    Gang,
    decide_gang,
    lower_priority_nominees,
    order,
    place_all_that_fit,
    promising,
    with_expected,
)
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import (
    candidate_rows,
    has_lower,
    leaving,
    preempt,
    ranked_rows,
    without_lower_priority,
)
from berth_operator.core.decision.victims import Preemption
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod, PodRequest

AT_ONCE: Final = 32
"""Members of a class that share one search for the best nodes."""
MAX_COMPARED: Final = 3
"""Models and kinds of GPUs whose victims are compared. Each costs as much as a preemption for one model."""
MAX_REPRIEVE_DECISIONS: Final = 2048
"""Decisions of members that may be spent to find unnecessary victims; they take about half a second."""
NO_VICTIMS: Final = "No preemption victims found for incoming preemptor."

Cost = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPreemption:
    """The nominees of a gang, and the pods to evict for them."""

    nominees: tuple[Charge, ...]
    victims: tuple[Charge, ...]
    """Empty if the pods that are already leaving free enough."""


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
    """
    gang = with_expected(fleet, gang)
    if not may_preempt(fleet, gang, policy) or not all(member.preempts for member in gang.members):
        return None
    gang = _evicting(gang)
    members = sorted((replace(member, nominated_node="") for member in gang.members), key=order)
    found: list[GangPreemption] = []
    for choice in alike.choices(fleet, gang.held, members, policy):
        stage = fleet.copy()
        for nominee in lower_priority_nominees(stage, gang):
            stage.withdraw(nominee.uid)
        chosen = replace(gang, members=choice.applied(members))
        places = _places(stage, chosen, policy, in_flight)
        for rows in places:
            own = stage if rows is places[-1] else stage.copy()
            eviction = _Eviction(own, chosen, policy, budgets, in_flight=in_flight, rows=rows)
            with own.slices_apart(gang.key, gang.held):
                preemption = eviction.preemption()
            if preemption is not None:
                found.append(preemption)
                if not preemption.victims or len(found) == MAX_COMPARED:
                    return min(found, key=_importance)
    return min(found, key=_importance, default=None)


def _places(stage: Fleet, gang: Gang, policy: Policy, in_flight: Collection[str]) -> list[Mask]:
    """Return the sets of rows that might hold the needed members without the pods of lower priority."""
    without = without_lower_priority(stage, gang.lowest, in_flight)
    # The members' classes, with bounds of how many fit once all pods of lower priority are gone.
    classes = []
    for request, count in Counter(member.request for member in gang.members).items():
        may_fit = candidate_rows(stage, request, policy) | feasible(stage, request, policy.filters_of(request))
        fits = feasible(without, request, policy.local) & may_fit
        classes.append(Class(request=request, count=count, capacity=capacity.of_class(without, request, fits)))
    if not gang.topology_key:
        return [stage.present] if sum(class_.possible for class_ in classes) >= gang.needed else []
    try:
        domains = topology.domains(stage, gang.topology_key, gang.nodes)
    except topology.DomainError:
        return []
    return [domain.rows for domain in promising(without, domains, classes, gang.needed)]


def _importance(preemption: GangPreemption) -> tuple[int, int]:
    """Return the key that compares the victims for several choices of GPUs. The lowest is best."""
    priorities = [victim.priority for victim in preemption.victims]
    return max(priorities, default=LOWEST_PRIORITY), sum(priority + OFFSET for priority in priorities)


def pods_awaited(fleet: Fleet, gang: Gang, policy: Policy, nominees: Collection[Charge]) -> int:
    """Return how many pods have yet to leave the nodes nominated for a gang.

    The result is also 0 if one of these nodes has failed. The gang must then choose again.
    """
    nodes = {nominee.node for nominee in nominees}
    left = sum(len(leaving(fleet, fleet.on_node(node), gang.lowest)) for node in nodes)
    return 0 if left and _has_failed(fleet, gang, policy, nominees) else left


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
            if filter_.TRAITS.one_node:
                mask = mask & filters.could_pass(filter_, fleet, request)
        if not mask[rows].all():
            return True
    return False


class _Eviction:
    """Frees capacity on some rows of its own copy of the Fleet."""

    def __init__(
        self,
        stage: Fleet,
        gang: Gang,
        policy: Policy,
        budgets: Budgets,
        *,
        in_flight: Collection[str],
        rows: Mask,
    ) -> None:
        self._stage, self._gang, self._policy, self._rows = stage, gang, policy, rows
        used = {use.claim for request in gang.requests for use in request.claims}
        self._departures = Departures(stage, used)
        self._lowest = gang.lowest
        self._budgets, self._unconfirmed = budgets, in_flight
        self._nodes: dict[str, str] = {}
        """UID of a member -> its node."""
        self._victims: dict[str, Charge] = {}
        self._best = np.zeros(len(stage.names), np.bool_)
        """The rows where evictions cost least, as of the last search."""
        self._for_class: PodRequest | None = None
        self._for_more = 0
        """The class that this search was for, and for how many more members of it the rows are valid."""
        self._last = ""
        """The node of the previous member."""
        self._elsewhere: Cost | None = None
        """The cost of the best node at the last comparison; it can only rise."""

    def preemption(self) -> GangPreemption | None:
        """Return the nominees and victims; None if evictions do not help."""
        for placement in place_all_that_fit(self._stage, self._gang, self._policy, self._rows):
            self._nominate(placement.charge)
        # Evict for one member after the other until enough are nominated.
        unfit: set[PodRequest] = set()
        for pod in sorted((member for member in self._gang.members if member.uid not in self._nodes), key=order):
            if len(self._nodes) == self._gang.needed:
                break
            if pod.request in unfit:
                continue
            # Whichever member it is, only pods below all members are evicted.
            if (preemption := self._evict_for(replace(pod, priority=self._lowest))) is None:
                unfit.add(pod.request)
                continue
            self._victims |= {victim.uid: victim for victim in preemption.victims}
            self._stage.leaving.update(victim.uid for victim in preemption.victims)
            self._nominate(preemption.nominee)
        if len(self._nodes) < self._gang.needed:
            return None
        # Release the victims and all other pods that are leaving, and decide without the nominees.
        for uid in self._nodes:
            self._stage.withdraw(uid)
        self._departures.leave(leaving(self._stage, self._stage.charges.values(), self._lowest))
        placed = self._decide_again(search=True)
        return None if placed is None else self._without_unnecessary(placed)

    # --- one member after the other -------------------------------------------------------------------------------

    def _evict_for(self, pod: PendingPod) -> Preemption | None:
        """Choose a node and victims for a member: the previous member's node unless another costs less."""
        if pod.request != self._for_class:
            self._for_class, self._for_more, self._elsewhere = pod.request, 0, None
        same_node = self._within(pod, self._stage.named(self._last)) if self._last else None
        if same_node is not None and self._elsewhere is not None and _cost(same_node) <= self._elsewhere:
            return same_node
        if not self._for_more:
            # Each member changes a single row: the best AT_ONCE rows have the best row for AT_ONCE members in turn.
            self._best[:] = False
            ranked = ranked_rows(self._stage, pod, self._policy, self._budgets, self._unconfirmed)
            self._best[ranked[self._rows[ranked]][:AT_ONCE]] = True
            self._for_more = AT_ONCE
        self._for_more -= 1
        best_node = self._within(pod, self._best)
        self._elsewhere = None if best_node is None else _cost(best_node)
        return (
            same_node
            if same_node is not None and (best_node is None or _cost(same_node) <= _cost(best_node))
            else best_node
        )

    def _within(self, pod: PendingPod, rows: Mask) -> Preemption | None:
        return preempt(self._stage, pod, self._policy, self._budgets, self._unconfirmed, within=rows)

    def _nominate(self, charge: Charge) -> None:
        self._stage.nominate(charge)
        self._nodes[charge.uid] = self._last = charge.node

    # --- all of them ----------------------------------------------------------------------------------------------

    def _decide_again(self, *, search: bool) -> list[Placement] | None:
        """Decide the gang as it will be decided once the victims are gone."""
        members = tuple(
            replace(member, nominated_node=self._nodes.get(member.uid, "")) for member in self._gang.members
        )
        outcome = decide_gang(self._stage, replace(self._gang, members=members), self._policy, search=search)
        return None if isinstance(outcome, Failure) else outcome

    def _without_unnecessary(self, placed: Sequence[Placement]) -> GangPreemption:
        """Return the result without unnecessary victims; the most important are tried first."""
        trials = MAX_REPRIEVE_DECISIONS // self._gang.needed
        for victim in sorted(self._victims.values(), key=lambda victim: (-victim.priority, victim.started))[:trials]:
            self._departures.come_back([victim])
            if (placements := self._decide_again(search=False)) is None:
                self._departures.leave([victim])
            else:
                del self._victims[victim.uid]
                placed = placements
        needed = sorted(placed, key=lambda placement: placement.pod.uid not in self._nodes)[: self._gang.needed]
        return GangPreemption(
            nominees=tuple(placement.charge for placement in needed), victims=tuple(self._victims.values())
        )


def _cost(preemption: Preemption) -> Cost:
    """Return the keys with which kube-scheduler compares nodes, without the victims' age."""
    highest = max((victim.priority for victim in preemption.victims), default=LOWEST_PRIORITY)
    return preemption.violations, highest, sum(victim.priority + OFFSET for victim in preemption.victims)
