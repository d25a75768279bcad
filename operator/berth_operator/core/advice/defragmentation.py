"""Advise which few placed pods to move so that a pod that fits nowhere can be placed.

    advise(fleet, pod, tenants, policies, budgets)        ->  Advice
    first_moves(fleet, advice, tenants, policies, n)      ->  the moves to make first

Moving a pod means deleting it: its controller creates a replacement, which is scheduled like any other pod. So a set of
pods helps if, once all of them are gone, `decide` places the pending pod and then a replacement of each. The advice is
the set that helps with the fewest pods. Among equal sets, it has the fewest cards, the least cpu and the least memory.
docs/decisions/0011-simulation-and-advice.md describes the search and its limits.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from berth_api.names import GPU_MEMORY
from berth_api.resources import CPU, MEMORY
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide, plugin_failure
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import candidate_rows
from berth_operator.core.decision.victims import is_local, released
from berth_operator.core.decision.what_if import WhatIf, sets
from berth_operator.core.fleet import claim_charges
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Indices, Mask
from berth_operator.core.fleet.pods.placed_pods import PlacedPods
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.affinity import PodSelection
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod, PodRequest

MAX_MOVES: Final = 8
"""Pods to move in one advice."""
MAX_SETS: Final = 2**16
"""The maximum number of sets of one size that are tried. A what-if shows whether the pod would fit without a set."""
MAX_TRIALS: Final = 256
"""Maximum number of sets of one size for which all decisions are made; one node and several nodes count separately."""
MAX_PODS_ACROSS_NODES: Final = 32
"""The maximum number of pods from which sets across several nodes are tried."""
CHUNK: Final = 2**13
"""What-ifs that are evaluated at once."""

ABOVE: Final = "it comes before the pod in the queue's order"
PROTECTED: Final = "its PodDisruptionBudget lets none go"
ORPHAN: Final = "no controller would create it again"
FOREIGN: Final = "another scheduler would place it"
MEMBER: Final = "it is a member of a pod group"
OF_CLAIM: Final = "a ResourceClaim holds it until the pods that use it end"
CLAIMING: Final = "it uses ResourceClaims, and which devices those of a new pod would get is not known"
SENSELESS: Final = "it could not be placed again"
OVERDUE: Final = "it was deleted, and does not end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Facts about a placed pod beyond its charge, if a controller creates it again after it is deleted."""

    pod: PendingPod
    """The pending pod that would replace it."""
    refuses: str = ""
    """Why its owner does not allow moving it; empty if it may be moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A pod to move, and the placement of its replacement."""

    charge: Charge
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Which pods to move for a pod that fits nowhere."""

    result: Placement | Failure
    """The pod's placement once all pods are moved and the leaving pods are gone; else why it fits nowhere."""
    moves: tuple[Move, ...] = ()
    """The necessary moves, in the order in which Berth decides the replacements after the pod; empty if none are."""
    fixed: tuple[tuple[Charge, str], ...] = ()
    """Pods that are in the way but must not be moved, each with the reason."""
    tried: int = 0
    """Number of sets of pods for which all decisions were made."""
    limits: tuple[str, ...] = ()
    """What the search left out; if empty, the advice is optimal."""


def advise(
    fleet: Fleet,
    pod: PendingPod,
    tenants: Mapping[str, Tenant],
    policies: Mapping[str, Policy],
    budgets: Budgets,
    *,
    node: str = "",
) -> Advice:
    """Search the fewest pods to move. The Fleet is left unchanged.

    `tenants` describes the placed pods that have a controller, by UID. `policies` has the policy of the pod's scheduler
    name, and of each scheduler name whose pods may be moved. With `node`, pods are moved only to make room there.
    """
    try:
        now = decide(fleet.copy(), pod, policies[pod.scheduler])
        if isinstance(now, Placement) or pod.error:
            return Advice(result=now)
        search = _MoveSearch(fleet, pod, tenants, policies, budgets, node=node)
        solution = search.best()
    except PluginFailedError as error:
        return Advice(result=plugin_failure(error))
    return Advice(
        result=solution[0] if solution else now,
        moves=solution[1] if solution else (),
        fixed=search.fixed,
        tried=search.tried,
        limits=tuple(search.limits),
    )


Solution = tuple[Placement, tuple[Move, ...]]


class _MoveSearch:
    """Searches the pods to move; pods are indices of placed pods, and a set of pods is a row of an array."""

    def __init__(
        self,
        fleet: Fleet,
        pod: PendingPod,
        tenants: Mapping[str, Tenant],
        policies: Mapping[str, Policy],
        budgets: Budgets,
        *,
        node: str,
    ) -> None:
        self._pod, self._tenants, self._policies, self._budgets = pod, tenants, policies, budgets
        self._node = node
        """The only node to make room on; empty for any."""
        self._spent = budgets.spent(fleet)
        self._fleet = fleet.copy()
        for charge in _leaving(fleet):
            self._fleet.release(charge.uid)
        self._charges = list(self._fleet.charges.values())
        self._placed = PlacedPods.of(self._fleet, self._charges)
        self._burdens = np.array([_burden(charge) for charge in self._charges], np.int64).reshape(-1, 3)
        reasons = [self._why_not(charge) for charge in self._charges]
        self._local = is_local(self._fleet, pod.request)
        with self._without_nominees():
            concerned = self._concerned()
        self.fixed = tuple((self._charges[at], reasons[at]) for at in np.flatnonzero(concerned) if reasons[at])
        movable = np.array([not reason for reason in reasons], np.bool_)
        self._movable, self._in_the_way = np.flatnonzero(movable), np.flatnonzero(movable & concerned)
        self._stuck: dict[int, None] = {}
        """Pods without which the pod would fit, but whose replacements would fit nowhere."""
        self._homeless: dict[PodRequest, None] = {}
        """The requests of the replacements that would fit nowhere."""
        self.tried = 0
        self.limits: dict[str, None] = {}

    def best(self) -> Solution | None:
        """Return the pod's placement and the moves for it; None if no tried set helps."""
        if (solution := self._without(np.zeros(0, np.intp))) is not None:
            return solution
        for size in range(1, min(MAX_MOVES, len(self._movable)) + 1):
            for pods in self._candidates(size):
                taken = Counter(budget for at in pods for budget in self._budgets.counting(self._charges[at]))
                if any(number > budget.allowed - self._spent[budget] for budget, number in taken.items()):
                    continue
                if (solution := self._without(pods)) is not None:
                    return solution
        if len(self._movable) > MAX_MOVES:
            self.limits[f"sets of more than {MAX_MOVES} pods"] = None
        return None

    def _without_nominees(self) -> AbstractContextManager[None]:
        """Return a context in which the nominees of lower priority than the pod are not charged."""
        return self._fleet.without(self._fleet.lower_priority_nominees(self._pod.uid, self._pod.priority))

    # --- pods ---------------------------------------------------------------------------------------------------

    def _why_not(self, charge: Charge) -> str:
        """Return why a pod must not be moved; empty if it may be."""
        tenant = self._tenants.get(charge.uid)
        if tenant is None:
            return OF_CLAIM if claim_charges.is_of_claim(charge) else ORPHAN
        if tenant.refuses:
            return tenant.refuses
        replacement = tenant.pod
        reasons = {
            OVERDUE: charge.uid in self._fleet.overdue,
            FOREIGN: replacement.scheduler not in self._policies,
            ABOVE: (replacement.priority, replacement.weight) > (self._pod.priority, self._pod.weight),
            MEMBER: replacement.gang is not None,
            CLAIMING: bool(replacement.request.claims),
            PROTECTED: any(budget.allowed <= self._spent[budget] for budget in self._budgets.counting(charge)),
            SENSELESS: bool(replacement.error),
        }
        return next((why for why, holds in reasons.items() if holds), "")

    def _concerned(self) -> Mask:
        """Return a mask of the pods that are in the way.

        These are the pods that hold what the pod lacks, on nodes where evictions may help. If the decision depends on
        more than the node's own pods, they are all pods on these nodes, and all pods in an anti-affinity with the pod.
        """
        fleet, request, placed = self._fleet, self._pod.request, self._placed
        candidates = candidate_rows(fleet, request, self._policies[self._pod.scheduler])
        if self._node:
            candidates = candidates & fleet.named(self._node)
        mask = candidates[placed.rows]
        if not self._local:
            affinity_index, identity = fleet.affinity_index, request.identity
            own = [PodSelection(peers=(term.peers,)) for term in request.affinity.required_anti_affinity]
            labels = dict(identity.labels)
            repel = [
                any(affinity_index.includes(selection, charge.identity) for selection in own)
                or any(
                    term.peers.matches(identity.namespace, labels, affinity_index.labels_of)
                    for term in charge.affinity.required_anti_affinity
                )
                for charge in self._charges
            ]
            return mask | np.array(repel, np.bool_)
        holding = np.zeros_like(mask)
        for name, amount in request.resources:
            if name in fleet.resources:
                short = fleet.left(name) < amount
                index = fleet.resources[name]
                holding |= (placed.amounts[index, placed.amount_columns] > 0) & short[placed.rows]
        for part in request.devices.parts:
            parts = placed.parts[part.type]
            holding |= (parts.number > 0) | parts.unknown
        return mask & holding

    # --- sets of pods -------------------------------------------------------------------------------------------

    def _candidates(self, size: int) -> Indices:
        """Return sets of `size` pods without which the pod may fit, the smallest to move first."""
        rows = self._placed.rows
        numbers = np.bincount(rows[self._in_the_way]).tolist()
        if sum(math.comb(number, size) for number in numbers) > MAX_SETS:
            self.limits[f"all but {MAX_SETS:,} sets of {size} pods of one node"] = None
        _, of_one_node = sets(rows, self._in_the_way, np.unique(rows[self._in_the_way]), size, MAX_SETS)
        # If the pods are few, sets across several nodes are tried from all of them. Otherwise they are tried from the
        # pods known to be in the way, and from the pods without which the replacement of a known pod would fit.
        pods: Sequence[int] = ()
        if len(self._movable) <= MAX_PODS_ACROSS_NODES:
            pods = self._movable.tolist()
        elif size > 1 or not self._local:  # else the sets of one node cover them
            self.limits[f"sets of several nodes with others than {MAX_PODS_ACROSS_NODES} promising pods"] = None
            promising = dict.fromkeys(list(self._stuck)[: MAX_PODS_ACROSS_NODES // 2])
            for request in self._homeless:
                single = self._movable[:, np.newaxis]
                helpers = self._sorted(single[self._would_fit(single, request)])
                promising |= dict.fromkeys(helpers[:, 0].tolist())
            pods = list(promising)[:MAX_PODS_ACROSS_NODES]
        if (number := math.comb(len(pods), size)) > MAX_SETS:
            self.limits[f"sets of {size} pods of several nodes"] = None
            number = 0
        picks = combinations(sorted(pods), size) if number else ()
        of_several_nodes = np.array(list(picks), np.intp).reshape(number, size)
        smallest = []
        for pod_sets in (of_one_node, of_several_nodes):
            may_help = pod_sets
            if self._local:
                with self._without_nominees():
                    may_help = pod_sets[self._would_fit(pod_sets, self._pod.request)]
            if len(may_help) > MAX_TRIALS:
                self.limits[f"all but {MAX_TRIALS} sets of {size} pods"] = None
            smallest.append(self._sorted(may_help)[:MAX_TRIALS])
        return self._sorted(np.unique(np.concatenate(smallest), axis=0))

    def _sorted(self, pod_sets: Indices) -> Indices:
        """Return the sets, the smallest to move first."""
        burdens = self._burdens[pod_sets].sum(axis=1)
        return pod_sets[np.lexsort(burdens.T[::-1])]

    def _would_fit(self, pod_sets: Indices, request: PodRequest) -> Mask:
        """Return for each set whether one of its nodes would have the resources and devices without its pods."""
        fits = np.zeros(len(pod_sets), np.bool_)
        for start in range(0, len(pod_sets), CHUNK):
            chunk = pod_sets[start : start + CHUNK]
            rows = self._placed.rows[chunk]
            for column in range(chunk.shape[1]):
                if column and (rows[:, column] == rows[:, 0]).all():
                    continue
                what_if = WhatIf(self._fleet, rows[:, column], self._placed)
                for pods, at in zip(chunk.T, rows.T, strict=True):
                    same = np.flatnonzero(at == rows[:, column])
                    what_if.take(same, pods[same])
                fits[start : start + CHUNK] |= what_if.fits(request, self._policies[self._pod.scheduler])
        return fits

    # --- decisions ----------------------------------------------------------------------------------------------

    def _without(self, pods: Indices) -> Solution | None:
        """Decide the pod and then the replacements of `pods`, with all `pods` released; None if one does not fit."""
        self.tried += 1
        moved = sorted((self._charges[at] for at in pods), key=self._decision_order)
        pending = [self._pod, *(self._tenants[charge.uid].pod for charge in moved)]
        with released(self._fleet, moved):
            placed = place_all(self._fleet, pending, self._policies)
            for placement in placed:
                self._fleet.release(placement.pod.uid)
        if self._node and len(pods) and placed and placed[0].node != self._node:
            return None
        if len(placed) == len(pending):
            moves = zip(moved, placed[1:], strict=True)
            return placed[0], tuple(Move(charge=charge, placement=placement) for charge, placement in moves)
        if placed:
            self._stuck |= dict.fromkeys(pods.tolist())
            self._homeless[pending[len(placed)].request] = None
        return None

    def _decision_order(self, charge: Charge) -> tuple[object, ...]:
        """Return the sort key in which the replacements are decided: by the queue's order, then the largest first."""
        replacement, size = self._tenants[charge.uid].pod, _burden(charge)
        return -replacement.priority, -replacement.weight, *(-part for part in size), replacement.uid


def _burden(charge: Charge) -> tuple[int, int, int]:
    """Return how much a pod holds: hundredths of cards, cpu in millicores and memory in bytes."""
    cards = sum(
        max((amount for name, amount in grant.amounts if name != GPU_MEMORY), default=0) for grant in charge.grants
    )
    plain = dict(charge.resources)
    return cards, plain.get(CPU, 0), plain.get(MEMORY, 0)


# --- order ----------------------------------------------------------------------------------------------------------


def place_all(fleet: Fleet, pending: Sequence[PendingPod], policies: Mapping[str, Policy]) -> list[Placement]:
    """Decide pods one after the other and charge them; return the placements up to the first pod that does not fit."""
    placed: list[Placement] = []
    for pod in pending:
        outcome = decide(fleet, pod, policies[pod.scheduler])
        if isinstance(outcome, Failure):
            break
        fleet.charge(outcome.charge)
        placed.append(outcome)
    return placed


def first_moves(
    fleet: Fleet, advice: Advice, tenants: Mapping[str, Tenant], policies: Mapping[str, Policy], most: int
) -> tuple[Move, ...]:
    """Return which moves to make first, at most `most`. The Fleet is left unchanged.

    The replacement of each returned pod fits while the other moves are still to be made and the pod's capacity is
    reserved. The other moves can still be made afterwards, so no pod is homeless whatever happens in between.

    If there is no such move, because pods have to change places, all moves are returned if they may be made together.
    Otherwise none is returned. Controllers create pods in any order, so several moves are made together only if their
    replacements fit in the reverse order, too.
    """
    if isinstance(advice.result, Failure):
        return ()
    what_if = fleet.copy()
    for charge in _leaving(fleet):
        what_if.release(charge.uid)
    # A charge, unlike a nomination, is respected by replacements of any priority.
    what_if.charge(advice.result.charge)
    order = _Order(what_if, tenants, policies)
    first = order.one_by_one(advice.moves)[:most]
    if first:
        return first if len(first) == 1 or order.fits(first[::-1]) else first[:1]
    return advice.moves if len(advice.moves) <= most and order.fits(advice.moves[::-1]) else ()


def _leaving(fleet: Fleet) -> list[Charge]:
    """Return the placed pods that are being deleted, except overdue ones, which may stay."""
    return [charge for charge in fleet.charges.values() if fleet.is_leaving(charge) and charge.uid not in fleet.overdue]


class _Order:
    """Orders moves by which replacements fit already. The Fleet is left unchanged."""

    def __init__(self, fleet: Fleet, tenants: Mapping[str, Tenant], policies: Mapping[str, Policy]) -> None:
        self._fleet, self._tenants, self._policies = fleet, tenants, policies

    def fits(self, moves: Sequence[Move]) -> bool:
        """Return whether the replacements fit once all of these pods are gone, decided in this order."""
        with self._made(moves) as placed:
            return placed

    def one_by_one(self, moves: Sequence[Move]) -> tuple[Move, ...]:
        """Return the moves that can be made one after the other, in this order; empty if none can be the first."""
        for move in moves:
            others = [other for other in moves if other is not move]
            with self._made([move]) as placed:
                if placed and self.fits(others):
                    return move, *self.one_by_one(others)
        return ()

    @contextmanager
    def _made(self, moves: Sequence[Move]) -> Iterator[bool]:
        """Return a context in which the moves are made. It yields whether all replacements fit."""
        pending = [tenant.pod for move in moves if (tenant := self._tenants.get(move.charge.uid)) is not None]
        with released(self._fleet, [move.charge for move in moves]):
            placed = place_all(self._fleet, pending, self._policies)
            try:
                yield len(placed) == len(moves)
            finally:
                for placement in placed:
                    self._fleet.release(placement.pod.uid)
