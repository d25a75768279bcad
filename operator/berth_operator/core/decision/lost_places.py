"""Places that evictions freed and other pods took before the preemptor ran: how often, and what follows.

kube-scheduler sees neither Berth's nominations nor the charges of Berth's cards. It may bind the pod that replaces a
victim into the freed place at once, again and again. So lost places are counted for each preemptor, on each node and
over all nodes. From a certain number on, no pods are evicted for the preemptor there: for one minute, then for two, up
to thirty.

Times are seconds since 1970, because the next leader reads the record of the last one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from berth_api.objects.leader_lease import MAX_LOST_PLACES, MAX_PREEMPTOR, MAX_TAKERS, LostPlace
from berth_api.values import keys, listing
from berth_api.values.backoff import ExponentialBackoff
from berth_operator.core.decision.gang import Gang
from berth_operator.core.values.owner import Owner, bounded
from berth_operator.core.values.preemption_backoff import NO_BACKOFF, PreemptionBackoff
from berth_operator.core.values.request import PendingPod

ON_NODE: Final = 2
"""Lost places of a preemptor on one node after which it backs off there."""
OF_POD: Final = 4
"""Lost places of a pod's controller, on any nodes, after which the controller backs off everywhere."""
OF_GANG: Final = 2
"""The same for gangs, whose places are on many nodes at once."""
FIRST: Final = 60.0
"""Seconds of the first back-off; each further lost place doubles it."""
LONGEST: Final = 1800.0
REMEMBERED: Final = 1800.0
"""Seconds for which a preemptor is remembered after its last back-off or last lost place."""
MAX_PREEMPTORS: Final = 64
"""Preemptors that are remembered, in addition to `ALL`."""
MAX_NODES: Final = 4
"""Nodes of a preemptor that are remembered. A preemptor that loses a place on a further node backs off everywhere."""
MAX_SCHEDULER: Final = 63
"""Bytes of a scheduler's name, which any author of a pod may choose."""
EVERYWHERE: Final = ""
"""Stands for a node's name."""
ALL: Final = "*"
"""Stands for all preemptors that are not remembered, while their lost places are unknown."""
CONTROLLER_PARTS: Final = 3
"""Parts of a controller's key after its UID: its namespace, kind and name."""
_TIMES: Final = {1: "once", 2: "twice"}


def preemptor_of(unit: PendingPod | Gang) -> str:
    """Return what identifies a unit if it is created again: its controller, or the name of the pod or gang."""
    return bounded(unit.key, MAX_PREEMPTOR) if isinstance(unit, Gang) else preemptor_of_pod(unit.owner, unit.key)


def preemptor_of_pod(owner: Owner, pod: str) -> str:
    """Return the key for a pod (namespace/name): `UID/namespace/kind/name` of its controller, or its own name."""
    namespace, _ = keys.split(pod)
    key = f"{owner.uid}/{namespace}/{owner.kind}/{owner.name}" if owner.uid else pod
    return bounded(key, MAX_PREEMPTOR)


def _namespace_of(preemptor: str) -> str:
    """Return the namespace in a key of `preemptor_of`."""
    first, *rest = preemptor.split("/")
    # A gang's key has words before its namespace, and a controller's key its UID.
    return rest[0] if len(rest) == CONTROLLER_PARTS else first.rpartition(" ")[2]


class LostPlaces:
    """The lost places of all preemptors."""

    def __init__(self) -> None:
        self._lost: dict[str, dict[str, LostPlace]] = {}
        """Preemptor -> node, or EVERYWHERE -> what it has lost there."""

    def __len__(self) -> int:
        return len(self._lost)

    def lose(self, preemptor: str, nodes: Collection[str], takers: Collection[str], now: float, limit: int) -> None:
        """Count a set of victims whose place was lost.

        Args:
            preemptor: the key of the controller, pod or gang for which the victims were evicted.
            nodes: the nodes of the victims.
            takers: the schedulers of the pods that have come to these nodes since.
            now: seconds since 1970.
            limit: the number of lost places after which the preemptor backs off everywhere.
        """
        by_node = self._lost.setdefault(preemptor, {})
        remembered = [node for node in sorted(nodes) if node in by_node][:MAX_NODES]
        room = MAX_NODES - len(by_node.keys() - {EVERYWHERE})
        remembered += [node for node in sorted(nodes) if node not in by_node][:room]
        for node in remembered:
            by_node[node] = _counted(_known(by_node, preemptor, node), takers, now, ON_NODE)
        everywhere = _known(by_node, preemptor, EVERYWHERE)
        if len(remembered) < len(nodes):
            # What is not remembered there counts as much as all that could be.
            everywhere = everywhere.model_copy(update={"count": max(everywhere.count, limit - 1)})
        by_node[EVERYWHERE] = _counted(everywhere, takers, now, limit)
        if len(self._lost) > MAX_PREEMPTORS:
            # The one that may be forgotten first. If it still backs off, so must all that are not remembered.
            others = (key for key in self._lost if key not in (preemptor, ALL))
            first = min(others, key=lambda key: max(map(_forgotten_at, self._lost[key].values())))
            forgotten = self._lost.pop(first)
            if any(lost.until > now for lost in forgotten.values()):
                self.back_off_all(now)

    def win(self, preemptor: str, nodes: Collection[str]) -> None:
        """Forget what a preemptor has lost on the nodes where it runs now, and on all nodes together."""
        by_node = self._lost.get(preemptor, {})
        for node in (EVERYWHERE, *nodes):
            by_node.pop(node, None)
        if not by_node:
            self._lost.pop(preemptor, None)

    def backoff(self, preemptor: str, now: float) -> PreemptionBackoff:
        """Return where no pods are evicted for a preemptor now."""
        barred = {node: lost for node, lost in self._lost.get(preemptor, {}).items() if lost.until > now}
        if not barred:
            return NO_BACKOFF if preemptor == ALL or ALL not in self._lost else self.backoff(ALL, now)
        if EVERYWHERE in barred:
            return PreemptionBackoff(
                preemptor=preemptor, everywhere=True, note=_note(barred[EVERYWHERE], "no pods are preempted")
            )
        first = min(barred.values(), key=lambda lost: lost.until)
        where = f"no pods are preempted on {listing.first_of(sorted(barred), MAX_TAKERS)}"
        return PreemptionBackoff(preemptor=preemptor, nodes=frozenset(barred), note=_note(first, where))

    def back_off_all(self, now: float) -> None:
        """Start in back-off, in which no pods are evicted, because earlier lost places are unknown."""
        self._lost[ALL] = {
            EVERYWHERE: LostPlace(preemptor=ALL, node=EVERYWHERE, until=round(now + FIRST), last=round(now))
        }

    def has_lost(self, preemptor: str) -> bool:
        """Return whether a preemptor has lost a place since it last ran."""
        return preemptor in self._lost

    def backing_off(self, now: float) -> int:
        """Return the number of preemptors that back off somewhere."""
        return sum(any(lost.until > now for lost in by_node.values()) for by_node in self._lost.values())

    def expire(self, now: float) -> None:
        """Forget what no longer counts."""
        self._keep(lambda lost: _forgotten_at(lost) > now)

    def keep_nodes(self, exists: Callable[[str], bool]) -> None:
        """Forget what was lost on nodes that are gone: another machine may get the name."""
        self._keep(lambda lost: lost.node == EVERYWHERE or exists(lost.node))

    def forget_namespace(self, name: str) -> None:
        """Forget the preemptors of a namespace that was deleted."""
        self._keep(lambda lost: _namespace_of(lost.preemptor) != name)

    def _keep(self, counts: Callable[[LostPlace], bool]) -> None:
        for preemptor, by_node in list(self._lost.items()):
            kept = {node: lost for node, lost in by_node.items() if counts(lost)}
            if kept:
                self._lost[preemptor] = kept
            else:
                del self._lost[preemptor]

    # --- the next leader ----------------------------------------------------------------------------------------

    def record(self) -> list[LostPlace]:
        """Return all lost places, for the next leader."""
        return [lost for by_node in self._lost.values() for lost in by_node.values()][:MAX_LOST_PLACES]

    def restore(self, recorded: Iterable[LostPlace], now: float) -> None:
        """Restore the lost places of the last leader; times far ahead, by a clock that is wrong, are cut."""
        for lost in recorded:
            times = {"until": min(lost.until, int(now + LONGEST)), "last": min(lost.last, int(now))}
            self._lost.setdefault(lost.preemptor, {})[lost.node] = lost.model_copy(update=times)
        self.expire(now)


def _forgotten_at(lost: LostPlace) -> float:
    """Return when a lost place no longer counts."""
    return max(lost.until, lost.last) + REMEMBERED


def _known(by_node: Mapping[str, LostPlace], preemptor: str, node: str) -> LostPlace:
    return by_node.get(node) or LostPlace(preemptor=preemptor, node=node)


def _counted(lost: LostPlace, takers: Collection[str], now: float, allowed: int) -> LostPlace:
    """Return the lost places with one more place."""
    count = lost.count + 1
    pause = ExponentialBackoff(first=FIRST, longest=LONGEST).after(count - allowed + 1)
    names = sorted({*lost.takers, *(bounded(taker, MAX_SCHEDULER) for taker in takers)})[:MAX_TAKERS]
    until = round(now + pause) if pause else 0
    return lost.model_copy(update={"count": count, "until": until, "last": round(now), "takers": tuple(names)})


def _note(lost: LostPlace, what: str) -> str:
    until = datetime.fromtimestamp(lost.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if not lost.count:
        return f"it is not known who took freed capacity before; {what} before {until}."
    times = _TIMES.get(lost.count, f"{lost.count} times")
    taken = f"taken {times} by pods of {' and '.join(lost.takers)}" if lost.takers else f"lost {times}"
    return f"freed capacity was {taken}; {what} before {until}."
