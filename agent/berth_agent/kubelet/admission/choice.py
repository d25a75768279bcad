"""Which devices kubelet is to hand out when it asks, and whether those that it hands out can be explained.

A pod of ours gets the devices of its annotation. Where kubelet admitted pods in another order than we thought, another
pod has them already; then it gets what that pod was meant to have, and so the two are exchanged. A pod of another
scheduler gets only what nobody has and no annotation names.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from berth_agent.kubelet.admission.picture import NONE, Asker, Ids, Picture, Turn
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.units import Taken
from berth_api.allocation import REPLICA_MARK

Peer = Callable[[str, Sequence[str], Sequence[str], int], list[str]]
"""Chooses among devices that are all free to be given, as a plugin without a scheduler would: (resource, available,
must include, size)."""


def in_order(_resource: str, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Choose the first."""
    return list(dict.fromkeys((*must, *available)))[:size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What was proposed to kubelet, and for whom."""

    asker: Asker
    resource: str
    ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What kubelet asks: it wants so many of these, and these in any case."""

    resource: str
    available: Sequence[str]
    must: Sequence[str]
    size: int


def propose(picture: Picture, question: Question, peer: Peer) -> Proposal | None:
    """Choose for the container that kubelet is likeliest to be asking for; None where no pod is waiting."""
    must = frozenset(question.must)
    turns = picture.turns(question.resource, question.size)
    if not turns:
        return None
    turn = min(turns, key=lambda each: (each.reusable != must, each.order))
    ids = _filled(picture, turn.pod, turn, question, peer)
    return Proposal(asker=turn.asker, resource=question.resource, ids=frozenset(ids))


def remainder(picture: Picture, question: Question, peer: Peer) -> list[str]:
    """Choose for a pod that nobody knows: among what nobody has and no annotation names."""
    return _chosen(picture, question, peer)


def explain(picture: Picture, resource: str, ids: Ids, proposal: Proposal | None) -> Asker | None:
    """Tell for which container kubelet can be handing out these devices; None where it can be for none."""
    turns = [each for each in picture.turns(resource, len(ids)) if _possible(picture, each, ids)]
    if proposal is not None and proposal.resource == resource and proposal.ids == ids:
        turns.sort(key=lambda each: each.asker != proposal.asker)
        return turns[0].asker if turns else None
    for allowed in (_own, _any):
        for turn in turns:
            if _is_explained(turn, ids, allowed(picture, turn.pod, ids)):
                return turn.asker
    return None


def _possible(picture: Picture, turn: Turn, ids: Ids) -> bool:
    others = picture.had_by_others(turn.pod)
    return all(others.leaves(unit, picture.units) for unit in ids)


def _is_explained(turn: Turn, ids: Ids, allowed: Ids) -> bool:
    """Tell whether a container can be given these: of what it reuses all that it needs, then what it is allowed."""
    return ids <= turn.reusable or (turn.reusable <= ids and ids - turn.reusable <= allowed)


def _own(_picture: Picture, pod: Pod, _ids: Ids) -> Ids:
    return frozenset(pod.granted)


def _any(picture: Picture, pod: Pod, ids: Ids) -> Ids:
    """Give all that a pod may have if it comes to that; nothing else as long as what it is meant to have is there."""
    role = _role(picture, pod)
    if role and picture.holders().keys().isdisjoint(role):
        return _reused(picture, pod).union(role)
    return _reused(picture, pod).union(pod.granted, role, _orphans(picture), _unclaimed(picture, ids, ()))


def _reused(picture: Picture, pod: Pod) -> Ids:
    """Give what init containers of a pod can have had that we took for another's."""
    sizes = {size for each in pod.containers if each.ends for size in each.wants.values()}
    return NONE.union(*(ids for ids in picture.unproven if len(ids) in sizes))


def _filled(picture: Picture, pod: Pod, turn: Turn, question: Question, peer: Peer) -> list[str]:
    """Take from one pool after the other what kubelet has, until it is enough."""
    available = set(question.available)
    others = picture.had_by_others(pod)
    picked = dict.fromkeys(question.must)
    for pool in _pools(picture, pod, turn, question, peer):
        for unit in pool:
            if len(picked) < question.size and unit in available and others.leaves(unit, picture.units):
                picked[unit] = None
    return list(picked)


def _pools(picture: Picture, pod: Pod, turn: Turn, question: Question, peer: Peer) -> Iterator[Iterable[str]]:
    if not pod.grants:
        yield _chosen(picture, question, peer)
        yield _orphans(picture)
        return
    role = _role(picture, pod)
    yield [unit for unit in role if unit.partition(REPLICA_MARK)[0] in turn.container.visible]
    yield role
    yield pod.granted
    yield _orphans(picture)
    yield _unclaimed(picture, question.available, question.must)


def _chosen(picture: Picture, question: Question, peer: Peer) -> list[str]:
    """Choose among what nobody has and no annotation names, and take all of it where it is not enough."""
    free = dict.fromkeys((*question.must, *_unclaimed(picture, question.available, question.must)))
    if len(free) <= question.size:
        return list(free)
    return peer(question.resource, list(free), question.must, question.size)


def _role(picture: Picture, pod: Pod) -> tuple[str, ...]:
    """Give the set that a pod gets: its own, or that of the pod that it changed places with."""
    holders, owners = picture.holders(), picture.owners()
    had = picture.had_by(pod)
    if had and had.isdisjoint(pod.granted):
        # It goes on as the pod that it was taken for, so that devices which were chosen together stay so.
        return next((owners[unit].granted for unit in sorted(had) if unit in owners), pod.granted)
    by_uid = {each.uid: each for each in picture.pods}
    seen: list[Pod] = []
    while pod not in seen:
        seen.append(pod)
        taker = next((holders[unit] for unit in pod.granted if holders.get(unit, pod.uid) != pod.uid), "")
        pod = by_uid.get(taker, pod)
    return pod.granted


def _orphans(picture: Picture) -> list[str]:
    """Give what annotations name and their pods will not ask for: these have others already."""
    settled = [pod for pod in picture.pods if pod.uses_plugin and pod.grants and not picture.is_waiting(pod)]
    promised = picture.promised(without=frozenset(pod.uid for pod in settled))
    holders = picture.holders()
    named = (unit for pod in settled for unit in pod.granted if unit not in holders)
    return [unit for unit in named if promised.leaves(unit, picture.units)]


def _unclaimed(picture: Picture, available: Iterable[str], must: Collection[str]) -> list[str]:
    """Give what nobody has and no annotation names."""
    promised = picture.promised()
    had = Taken.of((picture.holders().keys() - set(must)).union(*picture.lingering.values()), picture.units)
    free = (unit for unit in available if had.leaves(unit, picture.units))
    return [unit for unit in free if promised.leaves(unit, picture.units)]
