"""Where the members of a gang could be if pods of lower priority left: sets of rows, and rows by class.

places_of(fleet, gang, policy, in_flight)  ->  Places
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from berth_operator.core import filters
from berth_operator.core.decision import capacity, topology
from berth_operator.core.decision.cycle import feasible
from berth_operator.core.decision.departures import Departures
from berth_operator.core.decision.gang import Class, Gang, promising
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import candidate_rows, without_lower_priority
from berth_operator.core.decision.victims import is_local
from berth_operator.core.filters import pod_affinity
from berth_operator.core.fleet import claim_counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.affinity import NO_AFFINITY, NO_IDENTITY, PodSelection
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PodRequest


class Places(NamedTuple):
    """The sets of rows one of which must hold all needed members; the most promising first."""

    domains: Sequence[Mask]
    by_affinity: bool = False
    """Whether only the members' affinity to each other keeps them in one of these."""


NOWHERE: Final = Places(())
RowsByClass = Mapping[PodRequest, tuple[int, Mask]]
"""The number of members with each request, and the rows that could take one if no other pods were there."""


def places_of(fleet: Fleet, gang: Gang, policy: Policy, in_flight: Collection[str]) -> Places:
    """Return the sets of rows that might hold the needed members without the pods of lower priority."""
    without = without_lower_priority(fleet, gang.lowest, in_flight)
    key = gang.topology_key or affinity_key(fleet, gang)
    # The members' classes, with bounds of how many fit once all pods of lower priority are gone.
    classes = []
    for request, count in Counter(member.request for member in gang.members).items():
        may_fit = candidate_rows(fleet, request, policy) | feasible(fleet, request, policy.filters_of(request))
        fits = feasible(without, request, policy.local) & may_fit
        # In one domain, affinity to each other lets no more members fit.
        counted = replace(request, affinity=NO_AFFINITY) if key and not gang.topology_key else request
        classes.append(Class(request=counted, count=count, capacity=capacity.of_class(without, request, fits)))
    if not key:
        return Places([fleet.present] if sum(class_.possible for class_ in classes) >= gang.needed else [])
    try:
        domains = topology.domains(fleet, key, gang.nodes if gang.topology_key else ())
    except topology.DomainError:
        return NOWHERE
    most = {} if gang.topology_key else {"most": len(domains)}
    masks = [domain.rows for domain in promising(without, domains, classes, gang.needed, **most)]
    return Places(masks, by_affinity=not gang.topology_key)


def affinity_key(fleet: Fleet, gang: Gang) -> str:
    """Return the topology key of which all members must be in one domain because of their affinity to each other.

    It is empty if there is none, and if placed pods are selected, too: the members may then be in several domains.
    """
    selection = _selected(fleet, gang)
    if selection is None or fleet.affinity_index.count(selection).any():
        return ""
    terms = gang.members[0].request.affinity.required_affinity
    return max((term.key for term in terms), key=lambda key: len(fleet.labels.column(key).values))


def _selected(fleet: Fleet, gang: Gang) -> PodSelection | None:
    """Return the pods to which all members have required affinity, if each member is one of them."""
    requests = set(gang.requests)
    terms = {request.affinity.required_affinity for request in requests}
    if len(terms) > 1 or () in terms:
        return None
    selection = PodSelection(peers=tuple(term.peers for term in terms.pop()))
    is_own = all(fleet.affinity_index.includes(selection, request.identity) for request in requests)
    return selection if is_own else None


def rows_by_class(what_if: Departures, gang: Gang, policy: Policy, lower: Sequence[Charge]) -> RowsByClass:
    """Return the number of members with each request, and the rows that could take one without the `lower` pods."""
    counts = Counter(member.request for member in gang.members)
    selection = _selected(what_if.fleet, gang)
    together = selection is not None
    rows = {request: _could_take(what_if.fleet, request, policy, together=together) for request in counts}
    index = what_if.fleet.affinity_index
    if selection and (gone := [charge for charge in lower if index.includes(selection, charge.identity)]):
        # Without these, other domains may do.
        with what_if.without(gone):
            rows = {
                request: mask | _could_take(what_if.fleet, request, policy, together=together)
                for request, mask in rows.items()
            }
    return _by_need(what_if.fleet, {request: (count, rows[request]) for request, count in counts.items()}, gang)


def _by_need(fleet: Fleet, classes: RowsByClass, gang: Gang) -> RowsByClass:
    """Return one class for all members that need the same: their requests differ by the names of claims, or labels."""
    shared, found = claims_shared(gang), dict[object, tuple[PodRequest, tuple[int, Mask]]]()
    for request, (count, rows) in classes.items():
        key: tuple[object, ...] = rows.tobytes(), is_local(fleet, request)
        if claim_counts.is_searched(fleet, request):
            wanted = frozenset(claim_counts.certainly_wanted(fleet, request, shared).items())
            key = *key, wanted, claim_counts.pods_per_row(fleet, request, shared).tobytes()
        else:
            key = *key, request.claims
        key = *key, replace(request, claims=(), identity=NO_IDENTITY)
        first, (before, _) = found.get(key, (request, (0, rows)))
        found[key] = first, (before + count, rows)
    return dict(found.values())


def claims_shared(gang: Gang) -> frozenset[str]:
    """Return the claims (namespace/name) that several members use."""
    uses = Counter(use.claim for member in gang.members for use in member.request.claims)
    return frozenset(claim for claim, count in uses.items() if count > 1)


def _could_take(fleet: Fleet, request: PodRequest, policy: Policy, *, together: bool) -> Mask:
    """Return the rows that could take a member if no other pods were there.

    `together`: whether all members have affinity to each other, so that none lets another one be elsewhere.
    """
    mask = fleet.present
    for filter_ in policy.filters_of(request):
        traits = filter_.TRAITS
        if traits.one_node or traits.of_pod or (together and filter_.NAME == pod_affinity.NAME):
            mask = mask & filters.could_pass(filter_, fleet, request)
    return mask
