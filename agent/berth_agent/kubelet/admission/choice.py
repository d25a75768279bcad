"""Which devices kubelet should allocate, and whether a waiting pod can explain an allocation.

A pod of Berth gets the devices of its annotation. If kubelet admitted pods in an unexpected order, another pod may
already have these devices. The pod then gets the devices that were meant for that pod, so the two are exchanged. A pod
of another scheduler gets only devices that no pod has and no annotation names.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.snapshot import NONE, AdmissionSnapshot, ContainerKey, Ids, PendingContainer
from berth_agent.kubelet.admission.units import Taken
from berth_api.allocation import REPLICA_MARK

DefaultPreference = Callable[[str, Sequence[str], Sequence[str], int], list[str]]
"""Chooses among devices that are all free to be given, as a plugin without a scheduler would: (resource, available,
must include, size)."""


def first_available(_resource: str, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Choose the first."""
    return list(dict.fromkeys((*must, *available)))[:size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The preferred allocation that kubelet was answered, and its container."""

    key: ContainerKey
    resource: str
    ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRequest:
    """GetPreferredAllocation's request for one container."""

    resource: str
    available: Sequence[str]
    must: Sequence[str]
    size: int


def propose(
    snapshot: AdmissionSnapshot, request: PreferenceRequest, default_preference: DefaultPreference
) -> Proposal | None:
    """Choose for the container for which kubelet most likely requests devices; None if no pod is waiting."""
    must = frozenset(request.must)
    candidates = snapshot.pending_containers(request.resource, request.size)
    if not candidates:
        return None
    candidate = min(candidates, key=lambda option: (option.reusable != must, option.order))
    # From one pool after the other, until there are enough.
    available = set(request.available)
    held_by_others = snapshot.had_by_others(candidate.pod)
    picked = dict.fromkeys(request.must)
    for pool in _pools(snapshot, candidate, request, default_preference):
        for unit in pool:
            if len(picked) < request.size and unit in available and held_by_others.leaves(unit, snapshot.units):
                picked[unit] = None
    return Proposal(key=candidate.key, resource=request.resource, ids=frozenset(picked))


def explain(snapshot: AdmissionSnapshot, resource: str, ids: Ids, proposal: Proposal | None) -> ContainerKey | None:
    """Return the container that kubelet can be allocating these devices to; None if there is none."""
    candidates = []
    for candidate in snapshot.pending_containers(resource, len(ids)):
        held_by_others = snapshot.had_by_others(candidate.pod)
        if all(held_by_others.leaves(unit, snapshot.units) for unit in ids):
            candidates.append(candidate)
    if proposal is not None and proposal.resource == resource and proposal.ids == ids:
        candidates.sort(key=lambda option: option.key != proposal.key)
        return candidates[0].key if candidates else None
    for candidate in candidates:
        if _is_explained(candidate, ids, frozenset(candidate.pod.granted)):
            return candidate.key
    for candidate in candidates:
        if _is_explained(candidate, ids, _allowed(snapshot, candidate.pod, ids)):
            return candidate.key
    return None


def is_for_static_pod(snapshot: AdmissionSnapshot, resource: str, ids: Ids) -> bool:
    """Return whether kubelet can be allocating these devices to a static pod, given that all Pod objects are known.

    Kubelet creates the Pod object of a static pod only after its admission. If the devices are refused, the static pod
    fails, and kubelet does not try it again before its file changes. No other container may wait for as many devices,
    and no pod may have them.
    """
    return not snapshot.pending_containers(resource, len(ids)) and ids <= frozenset(_unclaimed(snapshot, ids, ()))


def _is_explained(candidate: PendingContainer, ids: Ids, allowed: Ids) -> bool:
    """Return whether a container can be given these devices.

    They must include everything that it reuses, or be part of it. The rest must be allowed.
    """
    return ids <= candidate.reusable or (candidate.reusable <= ids and ids - candidate.reusable <= allowed)


def _allowed(snapshot: AdmissionSnapshot, pod: Pod, ids: Ids) -> Ids:
    """Return all that a pod may have; only its own set as long as that is free."""
    # What its init containers can have had that we took for another's.
    sizes = {size for container in pod.containers if container.ends for size in container.wants.values()}
    reused = NONE.union(*(given for given in snapshot.unconfirmed if len(given) in sizes))
    role = _role(snapshot, pod)
    if role and snapshot.holders().keys().isdisjoint(role):
        return reused.union(role)
    return reused.union(pod.granted, role, _orphans(snapshot), _unclaimed(snapshot, ids, ()))


def _pools(
    snapshot: AdmissionSnapshot,
    candidate: PendingContainer,
    request: PreferenceRequest,
    default_preference: DefaultPreference,
) -> Iterator[Iterable[str]]:
    """Yield what a container may get, the best first."""
    pod = candidate.pod
    if not pod.grants:
        yield prefer_unclaimed(snapshot, request, default_preference)
        yield _orphans(snapshot)
        return
    role = _role(snapshot, pod)
    yield [unit for unit in role if unit.partition(REPLICA_MARK)[0] in candidate.container.visible]
    yield role
    yield pod.granted
    yield _orphans(snapshot)
    yield _unclaimed(snapshot, request.available, request.must)


def prefer_unclaimed(
    snapshot: AdmissionSnapshot, request: PreferenceRequest, default_preference: DefaultPreference
) -> list[str]:
    """Choose among devices that no pod holds and no annotation names, as for an unknown pod; all if too few."""
    free = dict.fromkeys((*request.must, *_unclaimed(snapshot, request.available, request.must)))
    if len(free) <= request.size:
        return list(free)
    return default_preference(request.resource, list(free), request.must, request.size)


def _role(snapshot: AdmissionSnapshot, pod: Pod) -> tuple[str, ...]:
    """Return the set that a pod gets: its own set, or the set of the pod with which it changed places."""
    holders, owners = snapshot.holders(), snapshot.owners()
    held = snapshot.had_by(pod)
    if held and held.isdisjoint(pod.granted):
        # It goes on as the pod that it was taken for, so that devices which were chosen together stay so.
        return next((owners[unit].granted for unit in sorted(held) if unit in owners), pod.granted)
    by_uid = {candidate.uid: candidate for candidate in snapshot.pods}
    pods: list[Pod] = []
    while pod not in pods:
        pods.append(pod)
        taker = next((holders[unit] for unit in pod.granted if holders.get(unit, pod.uid) != pod.uid), "")
        pod = by_uid.get(taker, pod)
    return pod.granted


def _orphans(snapshot: AdmissionSnapshot) -> list[str]:
    """Return the devices that annotations name and their pods no longer request, because they already have others."""
    settled = [pod for pod in snapshot.pods if pod.uses_plugin and pod.grants and not snapshot.is_waiting(pod)]
    promised = snapshot.promised(without=frozenset(pod.uid for pod in settled))
    holders = snapshot.holders()
    named = (unit for pod in settled for unit in pod.granted if unit not in holders)
    return [unit for unit in named if promised.leaves(unit, snapshot.units)]


def _unclaimed(snapshot: AdmissionSnapshot, available: Iterable[str], must: Collection[str]) -> list[str]:
    """Return what no pod has and no annotation names."""
    promised = snapshot.promised()
    held = Taken.of((snapshot.holders().keys() - set(must)).union(*snapshot.lingering.values()), snapshot.units)
    free = (unit for unit in available if held.leaves(unit, snapshot.units))
    return [unit for unit in free if promised.leaves(unit, snapshot.units)]
