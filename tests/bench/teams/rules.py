"""The rules that hold at each revision of the history of teams that share a fleet by quotas."""

import abc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tests.bench.teams.history import WHOLE, Event, Pod, Shape, Workload
from tests.kueue.audit import Amount

K = TypeVar("K")
V = TypeVar("V")
STRANDED_SECONDS: Final = 30.0
RECLAIM_SECONDS: Final = 20.0
HEAD_SECONDS: Final = 30.0
LARGE: Final = 64
"""Pods of a large workload."""
LARGE_SECONDS: Final = 300.0
CHECK_SECONDS: Final = 1.0
"""Between two looks at the heads of the queues."""
NOTHING: Final = Amount(0, 0)


@dataclass(frozen=True, slots=True)
class Quota:
    """What a team may hold."""

    nominal: Amount
    limit: Amount
    """With what it may borrow."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes, each with so many cards, and the quotas of the teams."""

    nodes: Sequence[str]
    cards: int
    quotas: Mapping[str, Quota]


@dataclass(slots=True)
class State:
    """What exists at one revision."""

    pods: dict[str, Pod] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    named: dict[tuple[str, str], Workload] = field(default_factory=dict)
    """The same by team and name."""
    members: defaultdict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Team and name of a Workload -> UIDs of its pods."""

    def apply(self, event: Event) -> None:
        """Apply one revision."""
        value = event.value
        if isinstance(value, Workload):
            _put(self.workloads, event.uid, event, value)
            _put(self.named, (value.team, value.name), event, value)
            return
        before = self.pods.get(event.uid, value)
        self.members[before.team, before.workload].discard(event.uid)
        _put(self.pods, event.uid, event, value)
        if not event.is_gone:
            self.members[value.team, value.workload].add(event.uid)

    def pods_of(self, workload: Workload) -> Iterator[Pod]:
        """Yield the pods of a Workload."""
        return (self.pods[uid] for uid in self.members[workload.team, workload.name])

    def holding(self) -> Iterator[Pod]:
        """Yield the pods that hold cards, those that are terminating, too."""
        return (pod for pod in self.pods.values() if pod.node and not pod.is_over)


def _put(table: dict[K, V], key: K, event: Event, value: V) -> None:
    if event.is_gone:
        table.pop(key, None)
    else:
        table[key] = value


class Rule(abc.ABC):
    """One rule; `faults` are its violations."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    @abc.abstractmethod
    def check(self, state: State, event: Event) -> None:
        """Look at the state after an event."""


class EndingRule(Rule):
    """A rule that also counts what has lasted until the end of the history."""

    @abc.abstractmethod
    def end(self, at: float) -> None:
        """Count it, at the time of the last event."""


class OverLimit(Rule):
    """No team holds more, running and terminating, than its nominal quota and what it may borrow."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet
        self._over: set[str] = set()

    def check(self, state: State, event: Event) -> None:
        """Look at the team of a pod; each time that it exceeds its limit counts once."""
        team = event.value.team
        if not isinstance(event.value, Pod) or team not in self._fleet.quotas:
            return
        limit = self._fleet.quotas[team].limit
        held = _sum(_quota_of(pod) for pod in state.holding() if pod.team == team)
        if _fits(held, limit):
            self._over.discard(team)
        elif team not in self._over:
            self._over.add(team)
            self.faults.append(f"{event.at:.1f} {team} holds {held}, allowed are {limit}")


class _Lasting(EndingRule):
    """What may be so for some seconds, but no longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._since: dict[str, tuple[float, str]] = {}
        self._counted: set[str] = set()

    def _note(self, key: str, at: float, what: str, *, is_so: bool) -> None:
        if is_so:
            self._since.setdefault(key, (at, what))
        else:
            self._count(at)
            self._since.pop(key, None)

    def _count(self, at: float) -> None:
        for key, (since, what) in self._since.items():
            if at - since > self._seconds and key not in self._counted:
                self._counted.add(key)
                self.faults.append(f"{since:.1f} {what} for more than {self._seconds:g} s")

    def end(self, at: float) -> None:
        """Count what has lasted too long at the end."""
        self._count(at)


class Stranded(_Lasting):
    """Each pod of an admitted Workload gets a node."""

    def __init__(self) -> None:
        super().__init__(STRANDED_SECONDS)

    def check(self, state: State, event: Event) -> None:
        """Look at the Workload that the event concerns, and at how long others wait."""
        value = event.value
        name = value.name if isinstance(value, Workload) else value.workload
        workload = state.named.get((value.team, name))
        key = f"{value.team}/{name}"
        is_stranded = workload is not None and _is_running(workload) and any(map(_waits, state.pods_of(workload)))
        self._note(key, event.at, f"{key} is admitted and has a pod without a node", is_so=is_stranded)
        self._count(event.at)


def _is_running(workload: Workload) -> bool:
    return workload.is_admitted and not workload.is_evicted and not workload.is_over


def _waits(pod: Pod) -> bool:
    return not (pod.node or pod.is_over or pod.is_ending)


class EvictedTwice(Rule):
    """Nothing is evicted twice for one place: by Kueue for the same Workload, or by Kueue and then by the scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self._evicted: set[str] = set()
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._disrupted: set[str] = set()

    def check(self, state: State, event: Event) -> None:
        """Look at what the event evicts."""
        if isinstance(event.value, Workload):
            self._see_workload(event, event.value)
        elif event.value.is_disrupted and event.uid not in self._disrupted:
            self._disrupted.add(event.uid)
            self._see_pod(state, event, event.value)

    def _see_workload(self, event: Event, workload: Workload) -> None:
        if not workload.preemptor:
            self._evicted.discard(event.uid)
        elif event.uid not in self._evicted:
            self._evicted.add(event.uid)
            pair = event.uid, workload.preemptor
            self._pairs[pair] += 1
            if self._pairs[pair] > 1:
                self.faults.append(f"{event.at:.1f} {workload.team}/{workload.name} again for {workload.preemptor}")

    def _see_pod(self, state: State, event: Event, pod: Pod) -> None:
        for uid in self._evicted:
            workload = state.workloads.get(uid)
            if workload is not None and (workload.team, workload.name) == (pod.team, pod.workload):
                self.faults.append(f"{event.at:.1f} {pod.team}/{pod.name} by Kueue and by the scheduler")


class Reclaimed(Rule):
    """Who gets back what its team lends has its quota soon after the first eviction."""

    def __init__(self, grace: float) -> None:
        super().__init__()
        self._allowed = RECLAIM_SECONDS + grace
        self._since: dict[str, float] = {}
        self._counted: set[str] = set()

    def check(self, state: State, event: Event) -> None:
        """Look at evictions, and at who waits for one."""
        value = event.value
        if isinstance(value, Workload) and value.is_reclaimed and value.preemptor:
            preemptor = state.workloads.get(value.preemptor)
            if preemptor is not None and not preemptor.has_quota:
                self._since.setdefault(value.preemptor, event.at)
        for uid in list(self._since):
            self._see(state.workloads.get(uid), uid, event.at)

    def _see(self, workload: Workload | None, uid: str, at: float) -> None:
        if workload is None or workload.has_quota or workload.is_over:
            del self._since[uid]
        elif at - self._since[uid] > self._allowed and uid not in self._counted:
            self._counted.add(uid)
            self.faults.append(f"{at:.1f} {workload.team}/{workload.name} has reclaimed nothing in {self._allowed:g} s")


class Heads(_Lasting):
    """The head of each queue does not wait while there are quota and places for it."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(HEAD_SECONDS)
        self._fleet = fleet
        self._checked = 0.0

    def check(self, state: State, event: Event) -> None:
        """Look at all heads, once a second."""
        if event.at - self._checked < CHECK_SECONDS:
            return
        self._checked = event.at
        heads = {each.uid: each for each in (_head(state, team) for team in self._fleet.quotas) if each}
        for uid in [uid for uid in self._since if uid not in heads]:
            self._note(uid, event.at, "", is_so=False)
        for uid, head in heads.items():
            is_free = self._has_quota(state, head) and self._has_places(state, head)
            what = f"{head.team}/{head.name} waits at the head of its queue with quota and places free"
            self._note(uid, event.at, what, is_so=is_free)
        self._count(event.at)

    def _has_quota(self, state: State, head: Workload) -> bool:
        if head.has_quota:
            return True
        if head.requested == NOTHING:  # Kueue has not considered it yet
            return False
        users = [each for each in state.workloads.values() if each.has_quota and not each.is_over]
        own = _sum([head.requested, *(each.requested for each in users if each.team == head.team)])
        of_all = _sum([head.requested, *(each.requested for each in users)])
        nominal = _sum(quota.nominal for quota in self._fleet.quotas.values())
        return _fits(own, self._fleet.quotas[head.team].limit) and _fits(of_all, nominal)

    def _has_places(self, state: State, head: Workload) -> bool:
        free = {node: [WHOLE] * self._fleet.cards for node in self._fleet.nodes}
        for pod in state.holding():
            for each in pod.held:
                free[pod.node][each.minor] -= each.hundredths
        return all(_place(free, each) for each in sorted(head.pods, reverse=True))


def _head(state: State, team: str) -> Workload | None:
    waiting = [
        each for each in state.workloads.values() if each.team == team and not each.is_admitted and not each.is_over
    ]
    return min(waiting, key=lambda each: (-each.priority, each.created, each.name), default=None)


def _place(free: Mapping[str, list[int]], shape: Shape) -> bool:
    """Take the first place for a pod; return whether there is one."""
    for cards in free.values():
        if shape.cards and cards.count(WHOLE) >= shape.cards:
            for _ in range(shape.cards):
                cards[cards.index(WHOLE)] = 0
            return True
        fitting = [minor for minor, left in enumerate(cards) if left >= shape.part]
        if not shape.cards and fitting:
            cards[min(fitting, key=cards.__getitem__)] -= shape.part
            return True
    return False


class Large(EndingRule):
    """A large workload comes through a stream of small ones.

    Attributes:
        waited: seconds until all its pods had a node, the longest of all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0
        self._since: dict[str, float] = {}

    def check(self, state: State, event: Event) -> None:
        """Look at large workloads that do not run yet."""
        if isinstance(event.value, Workload) and len(event.value.pods) >= LARGE and not event.value.is_admitted:
            self._since.setdefault(event.uid, event.at)
        for uid, since in list(self._since.items()):
            workload = state.workloads.get(uid)
            if workload is not None and sum(bool(pod.node) for pod in state.pods_of(workload)) >= LARGE:
                self.waited = max(self.waited, event.at - since)
                del self._since[uid]

    def end(self, at: float) -> None:
        """Count those that have waited too long or wait in the end."""
        self.waited = max([self.waited, *(at - since for since in self._since.values())])
        if self.waited > LARGE_SECONDS or self._since:
            self.faults.append(f"a workload of {LARGE} pods waited for {self.waited:.0f} s")


def _quota_of(pod: Pod) -> Amount:
    return Amount(0, pod.amount.size) if pod.by_size else Amount(pod.amount.hundredths, 0)


def _sum(amounts: Iterable[Amount]) -> Amount:
    listed = list(amounts)
    return Amount(sum(each.hundredths for each in listed), sum(each.size for each in listed))


def _fits(amount: Amount, limit: Amount) -> bool:
    return amount.hundredths <= limit.hundredths and amount.size <= limit.size


class Audit:
    """All rules over one history."""

    def __init__(self, fleet: Fleet, *, grace: float) -> None:
        """Create it; `grace` are the seconds in which pods may terminate."""
        self.over_limit, self.stranded, self.evicted_twice = OverLimit(fleet), Stranded(), EvictedTwice()
        self.late_reclaims, self.waiting_heads, self.large = Reclaimed(grace), Heads(fleet), Large()

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The rules by the names of their figures."""
        return {name: rule for name, rule in vars(self).items() if isinstance(rule, Rule)}

    def run(self, history: Iterable[Event]) -> None:
        """Check each revision of a history, in order."""
        state, at = State(), 0.0
        for event in sorted(history, key=lambda each: each.revision):
            at = max(at, event.at)
            state.apply(event)
            for rule in self.rules.values():
                rule.check(state, event)
        for rule in self.rules.values():
            if isinstance(rule, EndingRule):
                rule.end(at)
