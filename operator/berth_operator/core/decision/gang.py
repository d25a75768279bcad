"""Decide a gang: place all of its pods close together, or none of them.

    decide_gang(fleet, gang, policy)  ->  [Placement, ...] | Failure

Members are decided one after another by the same `decide` as any pod. Each is charged to the Fleet before the next.
`decide_gang` releases all these charges before it returns. The caller assumes the placements, as with a single pod. If
too few members fit in this way, `gang_search` looks for other nodes, cards and devices.

Topology domains are tried from the narrowest to the widest. A domain that seems to have capacity for all members is
tried alone. Within this domain, or if no domain can hold all members, a score draws members to domains that already
hold members of the gang. If no domain holds any, the score prefers the domain that fits best.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, islice
from operator import or_
from typing import Final

import numpy as np

from berth_api.names import MIXED_GPUS
from berth_api.request import DeviceRequest
from berth_api.resources import CPU, MEMORY
from berth_operator.core.claims.bounds.errors import NoWorkError, TooMuchWorkError
from berth_operator.core.decision import alike, capacity, gang_search, topology
from berth_operator.core.decision.alike import ANY as ANY_CHOICE
from berth_operator.core.decision.cycle import Failure, Placement, decide, failure, feasible, refusing
from berth_operator.core.decision.gang_charges import ChargedMembers
from berth_operator.core.decision.gang_search import GangSearch
from berth_operator.core.decision.messages import POD_GROUP_NOT_READY, SCHEDULER_ERROR, cut
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.ranking import Floats
from berth_operator.core.decision.topology import Domain, DomainError
from berth_operator.core.fleet import claim_counts, claim_products
from berth_operator.core.fleet.claims.answers import MAX_REQUESTS
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.fleet.nodes.labels import ABSENT, Numbers
from berth_operator.core.values import bound_with
from berth_operator.core.values.affinity import NO_AFFINITY, NO_IDENTITY
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership, PendingPod, PodRequest
from berth_operator.core.values.verdict import ANY, NODE_CHANGES, Change

TRIES: Final = 2
"""Domains that are tried per topology key."""
MAX_DOMAINS: Final = 32
"""Domains that are tried for members that must be in one."""
STEPS: Final = 256
"""Levels of the score of a domain."""
BIAS: Final = 2.0**14
"""More than all other scores together."""
WORK: Final = 4_000
"""Work about claims for placing a gang's members one after the other, in units of `Work`: some 10 ms."""
MEMBER_WORK: Final = 400
"""Work in addition for each member: a search takes some 60, and a member is tried up to six times, in several
domains."""
MAX_SEARCHED: Final = 32
"""Waiting members of a gang without claims for which other nodes and cards are searched: at most some 60 ms."""
NOT_FINISHED: Final = "The search for other nodes and devices ended at its bound."
MIXED: Final = f'On GPUs of several models or kinds enough fit: allow them by the annotation {MIXED_GPUS}: "true".'
OTHERS: Final = "node(s) were taken by other members of the pod group"
LATER: Final = "This counts {} pod(s) that are created once these run."
_FREES: Final = Change.NODE_ADDED | Change.NODE_ALLOCATABLE | Change.DEVICE | Change.CAPACITY_FREED
"""Changes that may let a node take more members if it already can take some."""

_ALONE: Final = Membership(group="")
"""The group of pods that belong to none."""
NO_CAPACITY: Final = Failure(message="no node fits.", wakes_on=_FREES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A unit of the queue: the waiting members of one group, and what the decision must know about the others."""

    membership: Membership
    """The membership, as the members' label or annotation has it."""
    minimum: int
    """Members that must be placed, or none is (minMember)."""
    members: tuple[PendingPod, ...]
    expected: tuple[PendingPod, ...] = ()
    """Pods that do not exist yet: their controller creates them once members run. All need places, too. Their
    `workload` is the key of the gang that they join."""
    is_confirmed: bool = True
    """Whether an object shows how many pods are expected, and not only the members, which may state any size."""
    placed: int = 0
    """Number of members that have a node, or have succeeded."""
    nodes: tuple[str, ...] = ()
    """Nodes of the members that have one."""
    held: tuple[str, ...] = ()
    """UIDs of these members."""
    unbound: tuple[str, ...] = ()
    """UIDs of those members whose Binding has not succeeded yet."""
    created: str = ""
    arrived: int = 0
    """Arrival number of the member that came first."""
    version: int = 0
    """Increased with every change that may alter the decision."""
    topology_key: str = ""
    """The label of nodes that must be the same for all members; empty if they may be anywhere."""
    formed: bool = False
    """Whether it has formed, and members of it run: then each waiting member is placed for itself."""
    further_preempt: bool = False
    """Whether pods are evicted for members beyond the minimum, too, for one at a time."""

    @property
    def key(self) -> str:
        """Return the unique key of the gang, readable in messages."""
        return self.membership.key

    @property
    def uid(self) -> str:
        """Return the gang's key, which no pod's UID equals."""
        return self.key

    @property
    def namespace(self) -> str:
        """Return the namespace of the members."""
        return self.members[0].namespace

    @property
    def needed(self) -> int:
        """Return how many of the waiting members must be placed, or none is."""
        missing = max(0, self.minimum - self.placed)
        return min(missing, 1) if self.formed else missing

    def records(self, uids: Sequence[str]) -> list[str]:
        """Return the records of members that are bound now, as in `bound_with`."""
        bound = self.placed - len(self.unbound)
        needed = 0 if self.formed else max(0, self.minimum - bound)
        return bound_with.records((*self.unbound, *uids), needed, self.minimum)[len(self.unbound) :]

    @property
    def priority(self) -> int:
        """Return the highest priority among the members."""
        return max(member.priority for member in self.members)

    @property
    def lowest(self) -> int:
        """Return the lowest priority among all pods; only pods below it may be evicted for the gang."""
        return min(pod.priority for pod in (*self.members, *self.expected))

    @property
    def weight(self) -> int:
        """Return the highest weight among the members."""
        return max(member.weight for member in self.members)

    @property
    def class_key(self) -> tuple[str, int]:
        """Return a key that no other unit has: gangs are decided one by one."""
        return self.key, self.version

    @property
    def requests(self) -> tuple[PodRequest, ...]:
        """Return the members' requests, and those of the pods that come later."""
        return tuple(pod.request for pod in (*self.members, *self.expected))

    def without_expected(self, placements: Sequence[Placement]) -> list[Placement]:
        """Return the placements of the members, without those of pods that come later."""
        uids = {member.uid for member in self.members}
        return [placement for placement in placements if placement.pod.uid in uids]

    @property
    def size(self) -> int:
        """Return the number of members."""
        return len(self.members)


def with_expected(fleet: Fleet, gang: Gang) -> Gang:
    """Return the gang that has all pods as members that must get a place now, or none gets one.

    Pods that come later are left out if another gang, which comes before them too, has promised places for them. They
    are also left out if they use volumes or ResourceClaims, whose nodes and devices cannot be chosen before the pods
    exist.
    """
    # By identity: there may be many of them, with few requests.
    requests = {id(pod.request): pod.request for pod in gang.expected}
    undecidable = {
        key for key, request in requests.items() if request.mounts or claim_counts.needs_devices(fleet, request)
    }
    expected = [pod for pod in gang.expected if id(pod.request) not in undecidable]
    if fleet.nominees:
        expected = [pod for pod in expected if not _has_place_of_others(fleet, gang, pod)]
    if not expected:
        return gang if not gang.expected else replace(gang, expected=())
    members = (*gang.members, *expected)
    return replace(gang, members=members, expected=(), minimum=gang.placed + len(members))


def _has_place_of_others(fleet: Fleet, gang: Gang, pod: PendingPod) -> bool:
    """Return whether a place is kept for a pod that comes later, and not for this gang."""
    if (place := fleet.nominees.get(pod.uid)) is None:
        return False
    if place.gang is not None:
        return place.gang.key != gang.key
    return (place.owner.kind, place.owner.name) != (gang.membership.controller, gang.membership.name)


def pods_of(unit: PendingPod | Gang) -> tuple[PendingPod, ...]:
    """Return the pods that a unit of the queue consists of."""
    return unit.members if isinstance(unit, Gang) else (unit,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Class:
    """Equal members of a gang."""

    request: PodRequest
    count: int
    capacity: Column
    """The maximum number of these members that each row can take."""
    is_refused: bool = False
    """Whether they could be placed on no node whatsoever, such as with a claim that does not exist."""

    @property
    def shrinks(self) -> bool:
        """Return whether placing other members can only reduce the capacity for it (no affinity, no volumes)."""
        return self.is_refused or (self.request.affinity == NO_AFFINITY and not self.request.mounts)

    @property
    def possible(self) -> int:
        """Return how many can be placed at most."""
        return self.possible_in(np.ones(len(self.capacity), np.bool_))

    def possible_in(self, rows: Mask) -> int:
        """Return how many can be placed at most on some of the rows."""
        return min(self.count, int(self.capacity[rows].sum())) if self.shrinks else self.count


_Members = Sequence[tuple[PendingPod, Class]]


def decide_gang(fleet: Fleet, gang: Gang, policy: Policy, *, search: bool = True) -> list[Placement] | Failure:
    """Place at least the needed members, and the others if they fit. The Fleet is left unchanged.

    If pods are expected later, place them and all members. The caller promises their places.

    `search`: whether to search other nodes, cards and devices if too few members fit one after another.
    """
    if gang.expected:
        whole = with_expected(fleet, gang)
        outcome = decide_gang(fleet, whole, policy, search=search)
        if isinstance(outcome, Failure) and (later := whole.size - gang.size):
            return replace(outcome, message=cut(f"{outcome.message} {LATER.format(later)}"))
        return outcome
    if len(gang.members) < gang.needed:
        return not_ready(too_few(gang.key, gang.placed + len(gang.members), gang.minimum))
    try:
        with fleet.without(lower_priority_nominees(fleet, gang)), fleet.slices_apart(gang.key, gang.held):
            claiming = [
                request for request in dict.fromkeys(gang.requests) if claim_counts.needs_devices(fleet, request)
            ]
            for request in claiming:
                claim_counts.rows_with_devices(fleet, request)
            work = fleet.claims.supply.work
            is_one = gang.needed <= 1  # it has tried all nodes, and all devices there
            if not claiming:
                return _decide_gang(fleet, gang, policy, search=search and not is_one)
            if work.is_over():
                # Not all that they request can be counted in this turn.
                return _decide_gang(fleet, gang, policy)
            # Within bounds of its own: what a turn has left may never suffice for a large gang.
            refusals = _refusals(fleet, claiming)
            with work.limited(WORK + MEMBER_WORK * gang.size) as goes_on:
                outcome = _decide_gang(fleet, gang, policy)
                work.learn(max(0, _refusals(fleet, claiming) - refusals))
                is_final = not goes_on()
            if not isinstance(outcome, Failure) or is_one or not (search and is_final):
                return outcome
            placed, note = _by_search(fleet, gang, policy)
            return placed or (_unfinished(outcome, note) if note else outcome)
    except DomainError as error:
        return Failure(message=f"{gang.key}: {error}", condition=SCHEDULER_ERROR, wakes_on=ANY)


def lower_priority_nominees(fleet: Fleet, gang: Gang) -> list[Charge]:
    """Return the nominees whose capacity a gang may use: its members, and pods of lower priority than all members."""
    own = {member.uid for member in gang.members} if fleet.nominees else ()
    return [nominee for nominee in fleet.nominees.values() if nominee.uid in own or nominee.priority < gang.lowest]


def place_all_that_fit(fleet: Fleet, gang: Gang, policy: Policy, rows: Mask) -> list[Placement]:
    """Place as many members as fit on some rows, even if fewer than needed. The Fleet is left unchanged."""
    pods = sorted(gang.members, key=order)
    classes = _classes(fleet, pods, policy)
    with fleet.slices_apart(gang.key, gang.held):
        return _Attempt(fleet, gang, policy, rows).place([(pod, classes[pod.request]) for pod in pods])[0]


def place_each(
    fleet: Fleet, pods: Sequence[PendingPod], policy: Policy, *, partly: bool
) -> tuple[list[Placement], Failure | None]:
    """Place pods that belong to no gang one after the other. The Fleet is left unchanged.

    Returns:
        the placements, empty if not all pods fit and `partly` is False; and why the first pod without a placement has
        none.
    """
    ordered = sorted(pods, key=order)
    with fleet.without(fleet.lower_priority_nominees("", min(pod.priority for pod in pods))):
        classes = _classes(fleet, ordered, policy)
        if not partly and sum(class_.possible for class_ in classes.values()) < len(ordered):
            return [], _why_too_few(fleet, ordered, classes, policy, len(ordered))[0]
        attempt = _Attempt(fleet, Gang(membership=_ALONE, minimum=0, members=tuple(ordered)), policy, fleet.present, ())
        placed, why, _ = attempt.place([(pod, classes[pod.request]) for pod in ordered])
    if len(placed) == len(ordered):
        return placed, None
    return (placed if partly else []), why


def place_as_decided(fleet: Fleet, gang: Gang, policy: Policy) -> tuple[list[Placement], list[PendingPod]]:
    """Place as many members as fit with the decision's choice of GPUs. The Fleet is left unchanged.

    Returns:
        the placements of the original members, and all members with the choice, in the order of trial.
    """
    pods = sorted(gang.members, key=order)
    outcome = _nearest(fleet, gang, pods, policy)
    chosen = list(outcome.choice.applied(pods))
    if not gang.topology_key:
        classes = _classes(fleet, chosen, policy)
        pairs = [(pod, classes[pod.request]) for pod in chosen]
        outcome = replace(outcome, placed=_Attempt(fleet, gang, policy, fleet.present).place(pairs)[0])
    return outcome.of(pods), chosen if outcome.number() else pods


def _refusals(fleet: Fleet, claiming: Sequence[PodRequest]) -> int:
    """Return on how many nodes searches for members are known to find nothing; 0 if not all of that is kept."""
    if len(claiming) > MAX_REQUESTS:
        return 0
    return sum(len(claim_counts.refusals(fleet, request)) for request in claiming)


def _by_search(fleet: Fleet, gang: Gang, policy: Policy) -> tuple[list[Placement], str]:
    """Return the placements that the search finds for a gang, or none and a note if it ended at its bound."""
    pods, note = sorted(gang.members, key=order), ""
    with fleet.claims.supply.work.limited(gang_search.work_for(gang.size)):
        for choice in alike.choices(fleet, gang.held, pods, policy):
            chosen = choice.applied(pods)
            domains = [fleet.present]
            if gang.topology_key:
                # Those that may hold the needed members.
                of_key = topology.domains(fleet, gang.topology_key, gang.nodes)
                classes = _classes(fleet, chosen, policy).values()
                domains = [domain.rows for domain in promising(fleet, of_key, classes, gang.needed)]
            for rows in domains:
                try:
                    placed = GangSearch(fleet, chosen, policy, needed=gang.needed, rows=rows).place()
                except NoWorkError:
                    return [], NOT_FINISHED
                except TooMuchWorkError:
                    note = NOT_FINISHED
                    continue
                if placed:
                    return _Outcome(choice=choice, placed=placed, why=NO_CAPACITY).of(pods), ""
    return [], note


def _decide_gang(fleet: Fleet, gang: Gang, policy: Policy, *, search: bool = False) -> list[Placement] | Failure:
    """Place a gang with one choice of GPUs, or explain why too few members fit.

    `search`: whether to search other nodes and cards if members fit, but too few.
    """
    if gang.size > MAX_SEARCHED and (short := _short_of_capacity(fleet, gang, policy)) is not None:
        return short
    pods = sorted(gang.members, key=order)
    nearest = _nearest(fleet, gang, pods, policy)
    if not nearest.suffices(gang) and gang.needed < len(pods) and pods[0].request != pods[-1].request:
        # A large member that is not needed may take the place of several that are.
        smallest_first = _nearest(fleet, gang, pods[::-1], policy)
        nearest = smallest_first if smallest_first.suffices(gang) else nearest
    if nearest.suffices(gang) or len(nearest.placed) == len(pods):
        return nearest.of(pods)
    note = ""
    if search and nearest.placed:
        # Its time grows with the members, and the whole operator waits for it.
        placed, note = _by_search(fleet, gang, policy) if gang.size <= MAX_SEARCHED else ([], NOT_FINISHED)
        if placed:
            return placed
    why = _too_few_alike(fleet, gang, nearest, policy)
    if note:
        return _unfinished(why, note)
    if nearest.choice.label and _place(fleet, gang, ANY_CHOICE, pods, policy).suffices(gang):
        return replace(why, message=cut(f"{why.message} {MIXED}"))
    return why


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What can be placed of a gang with one choice of GPUs."""

    choice: alike.Choice
    placed: Sequence[Placement] = ()
    possible: int = 0
    """How many members can be placed at most, if that is less than needed."""
    why: Failure
    member: str = ""
    """The name of the first other member, which the failure is of."""
    where: str = ""
    """The domain, for the message; empty if the members may be anywhere."""

    def number(self) -> int:
        """Return how many members fit."""
        return len(self.placed) or self.possible

    def suffices(self, gang: Gang) -> bool:
        """Return whether enough members are placed."""
        return len(self.placed) > 0 and len(self.placed) >= gang.needed

    def of(self, pods: Sequence[PendingPod]) -> list[Placement]:
        """Return the placements of the original members, without the choice."""
        by_uid = {pod.uid: pod for pod in pods}
        return [replace(placement, pod=by_uid[placement.pod.uid]) for placement in self.placed]


def _short_of_capacity(fleet: Fleet, gang: Gang, policy: Policy) -> Failure | None:
    """Return the failure of a gang whose needed members exceed the capacity for them; None if they may fit.

    It is one pass over the nodes for each distinct request, however many members an object states.
    """
    classes = _classes(fleet, gang.members, policy)
    # Classes that request the same devices share the capacity.
    sharing: dict[DeviceRequest, list[Class]] = {}
    for class_ in classes.values():
        sharing.setdefault(class_.request.devices, []).append(class_)
    possible = sum(map(_possible_together, sharing.values()))
    if possible >= gang.needed:
        return None
    why, member = _why_too_few(fleet, gang.members, classes, policy, gang.needed)
    return _too_few_fit(gang, possible, why, member)


def _possible_together(classes: Sequence[Class]) -> int:
    """Return how many members can be placed at most of classes that request the same devices."""
    alone = sum(class_.possible for class_ in classes)
    if not (classes[0].request.devices and all(class_.shrinks for class_ in classes)):
        return alone
    return min(alone, int(np.maximum.reduce([class_.capacity for class_ in classes]).sum()))


def _nearest(fleet: Fleet, gang: Gang, pods: Sequence[PendingPod], policy: Policy) -> _Outcome:
    """Try the choices of GPUs; return the first that holds all members, or else the choice that holds most members."""
    outcomes: list[_Outcome] = []
    for choice in alike.choices(fleet, gang.held, pods, policy):
        best = max((outcome for outcome in outcomes if outcome.suffices(gang)), key=_Outcome.number, default=None)
        if best is not None and choice.is_last:
            # Whole cards suffice, so subdevices are not needed.
            return best
        outcomes.append(_place(fleet, gang, choice, pods, policy))
        if len(outcomes[-1].placed) == len(pods):
            return outcomes[-1]
    return max(outcomes, key=lambda outcome: (outcome.suffices(gang), outcome.number()))


def _place(fleet: Fleet, gang: Gang, choice: alike.Choice, members: Sequence[PendingPod], policy: Policy) -> _Outcome:
    """Place as many members as fit, all of them in one topology domain if possible."""
    pods = choice.applied(members)
    classes = _classes(fleet, pods, policy)
    possible = sum(class_.possible for class_ in classes.values())
    if possible < gang.needed:
        why, member = _why_too_few(fleet, pods, classes, policy, gang.needed)
        return _Outcome(choice=choice, possible=possible, why=why, member=member)
    pairs = [(pod, classes[pod.request]) for pod in pods]
    if gang.topology_key:
        return replace(_place_in_one_domain(fleet, gang, pairs, policy), choice=choice)
    for rows in _domains(fleet, gang, policy.gang_topology_keys, _by_need(fleet, classes)):
        placed, why, _ = _Attempt(fleet, gang, policy, rows).place(pairs, enough=len(pairs))
        if len(placed) == len(pairs):
            return _Outcome(choice=choice, placed=placed, why=why)
    placed, why, member = _Attempt(fleet, gang, policy, fleet.present).place(pairs)
    return _Outcome(choice=choice, placed=placed, why=why, member=member)


def promising(
    fleet: Fleet, domains: Sequence[Domain], classes: Collection[Class], needed: int, *, most: int = MAX_DOMAINS
) -> list[Domain]:
    """Return the domains that may hold the needed members, those that may hold most, and then the fullest, first."""
    possible = {domain.value: sum(class_.possible_in(domain.rows) for class_ in classes) for domain in domains}
    requests = [class_.request for class_ in classes for _ in range(class_.count)]

    def rank(domain: Domain) -> tuple[int, float]:
        return -possible[domain.value], -topology.utilization(fleet, domain.rows, requests)

    return sorted((domain for domain in domains if possible[domain.value] >= needed), key=rank)[:most]


def _place_in_one_domain(fleet: Fleet, gang: Gang, members: _Members, policy: Policy) -> _Outcome:
    """Place as many members as fit in the best domain of the group's topology key."""
    outcomes: list[tuple[Domain, _Outcome]] = []
    domains = topology.domains(fleet, gang.topology_key, gang.nodes)
    classes = {class_ for _, class_ in members}
    # One that cannot hold enough has a reason for the message.
    for domain in promising(fleet, domains, classes, gang.needed) or promising(fleet, domains, classes, 0)[:1]:
        placed, why, member = _Attempt(fleet, gang, policy, domain.rows).place(members)
        where = f" in {gang.topology_key}={domain.value}"
        outcomes.append((domain, _Outcome(choice=ANY_CHOICE, placed=placed, why=why, member=member, where=where)))
    most = max((len(outcome.placed) for _, outcome in outcomes), default=0)

    def rank(tried: tuple[Domain, _Outcome]) -> tuple[bool, float]:
        domain, outcome = tried
        placed = [placement.pod.request for placement in outcome.placed]
        return outcome.suffices(gang), topology.score(fleet, domain, placed, most)

    _, best = max(outcomes, key=rank, default=(None, _Outcome(choice=ANY_CHOICE, why=NO_CAPACITY)))
    # Labels decide, too, and other domains were rejected for other reasons.
    why = replace(best.why, wakes_on=best.why.wakes_on | _FREES | NODE_CHANGES, filters=(), rejected_by=())
    return replace(best, why=why, where=f"{best.where} (0/{len(domains)} placements are available)")


def order(pod: PendingPod) -> tuple[object, ...]:
    """Return the sort key of members: those that require a topology first, and then the largest.

    Others fit more easily into the rest.
    """
    request = pod.request
    topology_hint = request.devices.topology
    is_free = topology_hint is None or not topology_hint.required
    cards = sum(part.count * max((amount for _, amount in part.amounts), default=0) for part in request.devices.parts)
    plain = dict(request.resources)
    return is_free, -cards, -plain.get(CPU, 0), -plain.get(MEMORY, 0), -pod.priority, pod.created, pod.arrived, pod.uid


def _classes(fleet: Fleet, pods: Sequence[PendingPod], policy: Policy) -> dict[PodRequest, Class]:
    """Return the members' classes by request, in the members' order."""
    counts = Counter(pod.request for pod in pods)
    fits = {request: feasible(fleet, request, policy.filters_of(request)) for request in counts}
    return {
        request: Class(
            request=request,
            count=count,
            capacity=capacity.of_class(fleet, request, fits[request]),
            is_refused=bool(request.mounts) and not fits[request].any() and _is_refused(fleet, request, policy),
        )
        for request, count in counts.items()
    }


def _is_refused(fleet: Fleet, request: PodRequest, policy: Policy) -> bool:
    of_pod = (filter_ for filter_ in policy.filters_of(request) if filter_.TRAITS.of_pod)
    return any(filter_.passes(fleet, request) is not fleet.present for filter_ in of_pod)


def too_few(key: str, have: int, minimum: int) -> str:
    """Return the message that a gang waits for members."""
    return f"{key}: waiting for members: {have} of {minimum}"


def not_ready(problem: str) -> Failure:
    """Return the failure of the members of a gang that cannot be decided; its tracker wakes it."""
    return Failure(message=problem, condition=POD_GROUP_NOT_READY, wakes_on=Change(0))


# --- why not --------------------------------------------------------------------------------------------------


def _why_too_few(
    fleet: Fleet, pods: Sequence[PendingPod], classes: Mapping[PodRequest, Class], policy: Policy, needed: int
) -> tuple[Failure, str]:
    """Explain why fewer members fit than needed, without placing any; name the first member that does not fit."""
    alone = [class_ for class_ in classes.values() if class_.possible < class_.count]
    if not alone:
        # Each class has enough capacity, but they share it.
        scarce = max(classes.values(), key=lambda class_: class_.count)
        why = failure(fleet, scarce.request, policy.filters_of(scarce.request), others=OTHERS)
        return replace(why, wakes_on=why.wakes_on | _FREES), ""
    scarce = min(
        alone,
        # A member that no new node could take either decides whether autoscalers may add nodes.
        key=lambda class_: (
            refusing(fleet, class_.request, policy.filters_of(class_.request)) is None,
            not class_.is_refused,
        ),
    )
    lacking = min(scarce.count - scarce.possible, needed - sum(class_.possible for class_ in classes.values()))
    why = failure(fleet, scarce.request, policy.filters_of(scarce.request), others=OTHERS, pods=lacking)
    names = (pod.name for pod in pods if pod.request == scarce.request)
    return replace(why, wakes_on=why.wakes_on | _FREES), next(islice(names, scarce.possible, None))


def _unfinished(why: Failure, note: str) -> Failure:
    """Return a failure with the note that a bound ended the search."""
    return replace(why, message=cut(f"{why.message} {note}"), is_unfinished=True)


def _too_few_alike(fleet: Fleet, gang: Gang, nearest: _Outcome, policy: Policy) -> Failure:
    """Explain why too few members fit, for the choice of GPUs that holds most members. All choices wake the gang."""
    if not nearest.choice.label:
        return _too_few_fit(gang, nearest.number(), nearest.why, nearest.member, nearest.where)
    smallest_first = sorted(gang.members, key=order, reverse=True)
    members = list({member.request.alike_key: member for member in smallest_first}.values())
    of_any = [failure(fleet, member.request, policy.filters_of(member.request), others=OTHERS) for member in members]
    whys = (nearest.why, *of_any)
    why = replace(
        nearest.why if nearest.number() else of_any[0],
        wakes_on=reduce(or_, (of_one.wakes_on for of_one in whys), _FREES),
        rejected_by=tuple(dict.fromkeys(chain.from_iterable(of_one.rejected_by for of_one in whys))),
    )
    if not nearest.number():
        return _too_few_fit(gang, 0, why, members[0].name)
    return _too_few_fit(gang, nearest.number(), why, nearest.member, f"{nearest.where} on {nearest.choice.label}")


def _too_few_fit(gang: Gang, placed: int, why: Failure, member: str, where: str = "") -> Failure:
    if not gang.needed:
        return why
    fit = f"{gang.key}: {placed} of the {gang.needed} required members fit{where}"
    return replace(why, message=cut(f"{fit}; next member{f' {member}' if member else ''}: {why.message}"))


# --- where ----------------------------------------------------------------------------------------------------


def _domains(fleet: Fleet, gang: Gang, keys: Sequence[str], classes: Sequence[Class]) -> Iterator[Mask]:
    """Yield the domains that may hold all members, the narrowest first, each as a mask of its rows."""
    member_rows = [fleet.rows[name] for name in gang.nodes if name in fleet.rows]
    counts = np.array([[class_.count] for class_ in classes])
    points = [points for class_ in classes for points in claim_counts.preference_points(fleet, class_.request)]
    for numbers in _columns(fleet, keys, classes):
        size = int(numbers.max()) + 1
        capacities = np.array([np.bincount(numbers, weights=class_.capacity, minlength=size) for class_ in classes])
        fits_all = np.all(capacities >= counts, axis=0)
        members = np.bincount(numbers[member_rows], minlength=size)
        if member_rows:
            fits_all &= members > 0
        fits_all[ABSENT] = False
        best = np.zeros(size)
        np.maximum.at(best, numbers, np.sum(points, axis=0))
        # lexsort's last key is the primary one: most members of the gang, the devices that its claims prefer, then the
        # least capacity left over.
        order = np.lexsort((capacities.sum(axis=0), -best, -members))
        for domain in order[fits_all[order]][:TRIES]:
            yield numbers == domain


def _by_need(fleet: Fleet, classes: Mapping[PodRequest, Class]) -> list[Class]:
    """Return one class for all members that need the same: their requests differ by the names of claims, or labels."""
    uses = Counter(
        use.claim for class_ in classes.values() for use in class_.request.claims for _ in range(class_.count)
    )
    shared = {claim for claim, count in uses.items() if count > 1}
    found: dict[object, Class] = {}
    for request, class_ in classes.items():
        wanted = claim_counts.certainly_wanted(fleet, request, shared)
        pods = np.minimum(class_.capacity, claim_counts.pods_per_row(fleet, request, shared))
        key = replace(request, claims=(), identity=NO_IDENTITY), frozenset(wanted.items()), pods.tobytes()
        count = class_.count + (found[key].count if key in found else 0)
        found[key] = Class(request=request, count=count, capacity=pods)
    return list(found.values())


def _columns(fleet: Fleet, keys: Sequence[str], classes: Sequence[Class]) -> Iterator[Numbers]:
    """Yield the numbers of the rows' domains: of those with alike devices, if members have claims, then of all."""
    columns = [fleet.labels.column(key).numbers for key in keys]
    claiming = any(claim_counts.is_searched(fleet, class_.request) for class_ in classes)
    if claiming and (products := claim_products.numbers(fleet)) is not None:
        size = int(products.max()) + 1
        for column in columns:
            yield np.where((products == ABSENT) | (column == ABSENT), ABSENT, column * size + products)
        yield products
    yield from columns


class _Attempt:
    """One attempt to place the members on some of the rows."""

    def __init__(self, fleet: Fleet, gang: Gang, policy: Policy, rows: Mask, keys: Sequence[str] | None = None) -> None:
        """Create an attempt. `keys` are the topology keys; the default is the policy's keys."""
        self._fleet, self._policy, self._rows = fleet, policy, rows
        keys = policy.gang_topology_keys if keys is None else keys
        self._columns = [fleet.labels.column(key).numbers for key in keys]
        self._taken = [np.zeros(int(numbers.max()) + 1, np.bool_) for numbers in self._columns]
        """For each topology key, the domains in which the gang has members."""
        self._charged = ChargedMembers(fleet, gang.requests)
        for name in gang.nodes:
            self._take(name)

    def place(self, members: _Members, *, enough: int = 0) -> tuple[list[Placement], Failure, str]:
        """Return the placements, why the first other member has none, and its name.

        Stop once `enough` cannot be reached.
        """
        failures: dict[Class, tuple[Failure, str]] = {}
        waiting, max_placed = members, len(members)
        try:
            while waiting and max_placed >= enough:
                spare = max_placed - enough
                remaining: list[tuple[PendingPod, Class]] = []
                failed: set[Class] = set()
                for number, (pod, class_) in enumerate(waiting):
                    if class_ not in failed:
                        bias = self._bias(class_.capacity, len(waiting) - number)
                        outcome = decide(self._fleet, pod, self._policy, bias)
                        if isinstance(outcome, Placement):
                            self._charged.charge(outcome)
                            self._take(outcome.node)
                            failures.pop(class_, None)
                            continue
                        failed.add(class_)
                        failures[class_] = outcome, pod.name
                    if not class_.shrinks:
                        remaining.append((pod, class_))
                    elif (spare := spare - 1) < 0:
                        break
                max_placed = len(self._charged.placed) + len(remaining)
                # A member with pod affinity may fit once the others are placed.
                waiting = remaining if len(remaining) < len(waiting) else ()
            placed = list(self._charged.placed)
        finally:
            self._charged.undo()
        return placed, *next(iter(failures.values()), (NO_CAPACITY, ""))

    def _take(self, name: str) -> None:
        """Record that a node holds a member."""
        row = self._fleet.rows.get(name)
        for numbers, taken in zip(self._columns, self._taken, strict=True):
            if row is not None and numbers[row] != ABSENT:
                taken[numbers[row]] = True

    def _bias(self, class_capacity: Column, left: int) -> Floats:
        """Return the rows' bias for the next of `left` members: the widest key's domains weigh most.

        Within a key, domains with members come first, then the tightest domains that hold all, then the largest
        domains.
        """
        inside = np.where(self._rows, class_capacity, 0)
        total = np.zeros(len(class_capacity))
        for numbers, taken in zip(reversed(self._columns), reversed(self._taken), strict=True):
            capacities = np.bincount(numbers, weights=inside, minlength=len(taken))
            tight = np.where(capacities >= left, 1.0 + left / np.maximum(capacities, 1.0), capacities / left)
            steps = np.where(taken, STEPS - 1, np.floor(tight * (STEPS // 2 - 1)))
            steps[ABSENT] = 0
            total = total * STEPS + steps[numbers]
        return np.where(self._rows, total * BIAS, -np.inf)
