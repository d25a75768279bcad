"""Audit what happens to pods over time: revisions of pods, Nodes, Devices, heartbeats and Events, in etcd's order.

The auditor shares no code with the audited programs, and is a pure function of the history. Times are the recorder's.
`python -m tests.chaos.month FOLDER` audits a recorded month again.

* HARMED: Berth deletes a running pod only for a recorded reason that was true at that moment. The pod's gang had not
  formed, its card had failed, or a pod of a higher priority waited. In the last case, the node would take the waiting
  pod without the pods of lower priorities.
* EVICTED_AGAIN: at most two complete sets of victims are lost for one preemptor (by its controller) and node. Then a
  minute passes before each further set, until the preemptor is bound.
* IDLE: no pod that requests cards waits longer than a bound while it fits on a node. Capacity may be kept for another
  pod of at least its priority that is nominated or has a node reservation. For a bounded time, this capacity does not
  count as free.
* RESERVED_IN_VAIN: no node is reserved for a pod that waits there for pods of its own rollout.
* NOT_REPLACED: the same bound holds for a member of a gang that has formed, while another member runs.
* NOT_STARTING: no pod waits with the reason NodeStarting unless a node is starting that could be meant.

Once nothing has changed for some time:

* UNTRUE: each waiting pod has a message that counts all nodes. Each number in the message is at most the number of
  nodes for which the reason holds.
* STARVED: no pod fits, and no complete gang of up to four members, by an exhaustive search.

UNREPORTED: if a pod uses a card that it does not hold, it gets an Event about this within a bound.

The auditor concludes nothing for pods with constraints that `tests.chaos.fitting` does not know.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos import fitting, waiting_reasons
from tests.chaos.findings import Finding, FindingKind
from tests.chaos.fitting import CARDS, SHARE, Room
from tests.chaos.harm_auditor import HarmAuditor
from tests.chaos.history import Kind, Revision
from tests.chaos.life_state import ClusterState, Gang, Object, Pod

TICK: Final = 1.0
"""Seconds between two looks at what waits."""
EXHAUSTIVE: Final = 4
"""Members of gangs for which every assignment is tried."""
HASH: Final = "pod-template-hash"
STARTING: Final = "NodeStarting"
NOT_HELD: Final = "CardNotHeld"
HOLDERS: Final = re.compile(r"held by pods? (?P<names>[a-z0-9, -]+)\.$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Misuse:
    """A pod that used a card that it did not hold."""

    uid: str
    name: str
    node: str
    since: float
    """By the recorder's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeLimits:
    """What the auditor has to know of a run; times are in seconds."""

    scheduler: str
    """Berth's `schedulerName`."""
    deleted: frozenset[str] = frozenset()
    """UIDs of the pods that Berth has deleted or evicted."""
    idle: float = 60.0
    """How long a pod may wait that fits: back-off, a change of the leader, and Events that come late."""
    nominated: float = 120.0
    """How long a node may be kept for a nominated pod."""
    reserved: float = 900.0
    """How long a node may be reserved while nothing becomes free there."""
    shown: float = 30.0
    """How long a reason may be out of date while the cluster changes."""
    quiet: float = 35.0
    """How long nothing has changed before each reason must be true."""
    pause: float = 60.0
    """Between two sets of victims, after two were lost."""
    lag: float = 10.0
    """How long ago a node may have changed that an eviction relies on."""
    startup: float = 600.0
    """How long a new node may count as starting."""
    reported: float = 30.0
    misuses: Sequence[Misuse] = ()


def audit(revisions: Iterable[Revision], limits: LifeLimits) -> list[Finding]:
    """Return everything that contradicts the rules, in the order of the history."""
    auditor = LifeAuditor(limits)
    findings = [finding for revision in revisions for finding in auditor.take(revision)]
    return [*findings, *auditor.end()]


class LifeAuditor:
    """The state of the cluster at one revision."""

    def __init__(self, limits: LifeLimits) -> None:
        self.reasons_checked = 0
        self._limits = limits
        self._state = ClusterState(limits.scheduler)
        self._harm = HarmAuditor(self._state, deleted=limits.deleted, lag=limits.lag, pause=limits.pause)
        self._fits_since: dict[tuple[str, str], float] = {}
        """UID of a waiting pod, and a node -> since when the pod fits there."""
        self._starting_since: dict[str, float] = {}
        """UID of a pod with the reason NodeStarting -> since when all nodes are up."""
        self._reported: set[tuple[FindingKind, str]] = set()
        self._named: set[str] = set()
        """UIDs of pods that an Event names as users of cards that they do not hold."""
        self._ticked_at = 0.0
        self._number = 0

    @property
    def pods(self) -> int:
        """Return the number of pods so far."""
        return len(self._state.ever)

    def take(self, revision: Revision) -> Iterator[Finding]:
        """Yield what one more revision contradicts."""
        if revision.time - self._ticked_at >= TICK:
            # The state before this revision has lasted until now.
            self._state.now = self._ticked_at = revision.time
            yield from self._tick()
        self._number = revision.number
        self._harm.before(revision)
        self._state.take(revision)
        if revision.kind is Kind.EVENT and revision.object is not None:
            self._event(revision.object)

    def end(self) -> Iterator[Finding]:
        """Yield what is missing at the end of the history."""
        yield from self._tick()
        yield from self._harm.end()
        for misuse in self._limits.misuses:
            if misuse.uid not in self._named:
                text = f"it used a card of {misuse.node} for {self._limits.reported:g} s"
                yield self._finding(FindingKind.UNREPORTED, misuse.name, text)

    # --- Events -----------------------------------------------------------------------------------------------

    def _event(self, event: Object) -> None:
        self._harm.take(event)
        for misuse in self._limits.misuses:
            about = event["involvedObject"].get("uid")
            within = misuse.since <= self._state.now <= misuse.since + self._limits.reported
            if misuse.uid == about and within and event["reason"] == NOT_HELD:
                self._named.add(misuse.uid)

    # --- what waits -------------------------------------------------------------------------------------------

    def _tick(self) -> Iterator[Finding]:
        waiting = [pod for pod in self._state.pods.values() if pod.waits]
        rooms = self._state.rooms()
        yield from self._overdue(waiting, rooms)
        for pod in waiting:
            yield from self._reserved(pod)
            yield from self._starting(pod, rooms)
        if self._state.now - self._state.changed_at >= self._limits.quiet:
            yield from self._quiet(waiting, rooms)

    def _overdue(self, waiting: Sequence[Pod], rooms: Mapping[str, Room]) -> Iterator[Finding]:
        single = [pod for pod in waiting if pod.request.is_simple and (not pod.gang or self._state.has_formed(pod))]
        still: dict[tuple[str, str], float] = {}
        for pod in single:
            for name in self._fitting(pod, waiting, rooms):
                since = still[pod.uid, name] = self._fits_since.get((pod.uid, name), self._state.now)
                if self._state.now - since > self._limits.idle:
                    kind = FindingKind.NOT_REPLACED if pod.gang else FindingKind.IDLE
                    if not pod.gang and not pod.request.has_devices:
                        kind = FindingKind.STARVED
                    text = (
                        f"it has fitted on {name} for {self._state.now - since:.0f} s; its message is {pod.message!r}"
                    )
                    yield from self._once(kind, pod.key, text)
        self._fits_since = still

    def _fitting(self, pod: Pod, waiting: Sequence[Pod], rooms: Mapping[str, Room]) -> list[str]:
        """Return the nodes on which a pod fits, in addition to what is kept for others."""
        fits = [name for name, room in rooms.items() if room.fits(pod.request)]
        kept = {name: self._kept(name, pod, waiting) for name in fits}
        return [name for name in fits if not kept[name] or self._fits_with(pod, name, kept[name])]

    def _kept(self, node: str, pod: Pod, waiting: Sequence[Pod]) -> list[Pod]:
        """Return the other pods for which the node may be kept."""
        return [
            each
            for each in waiting
            if each is not pod
            and each.priority >= pod.priority
            and (
                (each.nominated == node and self._state.now - each.nominated_at <= self._limits.nominated)
                or (each.reserved == node and self._state.now - each.reserved_at <= self._limits.reserved)
            )
        ]

    def _fits_with(self, pod: Pod, node: str, kept: Sequence[Pod]) -> bool:
        room = self._state.rooms()[node]
        if any(not each.request.is_simple for each in kept):
            return False
        for each in kept:
            # What is not free yet is kept as it becomes free.
            if room.lacks_cards(each.request):
                return False
            room.take(each.request)
        return room.fits(pod.request)

    def _reserved(self, pod: Pod) -> Iterator[Finding]:
        """Yield a reservation all of whose holders are of the pod's own rollout."""
        match = HOLDERS.search(pod.message) if pod.reserved else None
        if match is None or self._state.now - pod.reserved_at <= self._limits.lag:
            return
        namespace = pod.key.partition("/")[0]
        holders = [
            self._state.pods.get(f"{namespace}/{name.strip()}") for name in re.split(r", | and ", match["names"])
        ]
        if (
            holders
            and all(each is not None and _rollout(each) == _rollout(pod) for each in holders)
            and HASH in _labels(pod)
        ):
            yield from self._once(FindingKind.RESERVED_IN_VAIN, pod.key, pod.message)

    def _starting(self, pod: Pod, rooms: Mapping[str, Room]) -> Iterator[Finding]:
        now = self._state.now
        if pod.reason != STARTING or any(self._may_be_starting(name, rooms[name]) for name in rooms):
            self._starting_since.pop(pod.uid, None)
            return
        since = self._starting_since.setdefault(pod.uid, now)
        if now - since > self._limits.shown:
            text = f"all nodes were up for {now - since:.0f} s: {pod.message}"
            yield from self._once(FindingKind.NOT_STARTING, pod.key, text)

    def _may_be_starting(self, name: str, room: Room) -> bool:
        """Return whether a node is new, and neither a pod that held a card nor its allocatable shows that it is up."""
        is_new = self._state.now - self._state.born[name] <= self._limits.startup
        is_filled = room.healthy and room.total[CARDS] >= 1000 * room.healthy and room.total[SHARE]
        return is_new and self._state.nodes[name]["metadata"]["uid"] not in self._state.proved and not is_filled

    # --- once it is quiet -------------------------------------------------------------------------------------

    def _quiet(self, waiting: Sequence[Pod], rooms: Mapping[str, Room]) -> Iterator[Finding]:
        kept = {node for pod in waiting for node in (pod.nominated, pod.reserved) if node}
        for pod in waiting:
            self.reasons_checked += 1
            # What other members of its gang take is counted as taken.
            others = set(rooms) if pod.gang else kept
            if why := waiting_reasons.untrue(pod.message, pod.request, rooms, others):
                yield from self._once(FindingKind.UNTRUE, pod.key, f"{why}: {pod.reason}: {pod.message}")
        for name, gang in self._state.gangs.items():
            members = [pod for pod in gang.members.values() if pod.waits]
            if self._gang_starves(gang, members, [room for room in rooms.values() if room.name not in kept]):
                text = f"{gang.size} members fit at once; the message of {members[0].key} is {members[0].message!r}"
                yield from self._once(FindingKind.STARVED, name, text)

    def _gang_starves(self, gang: Gang, waiting: Sequence[Pod], rooms: Sequence[Room]) -> bool:
        placed = sum(bool(pod.node) for pod in gang.members.values())
        needed = gang.size - placed
        if gang.has_formed or not 0 < needed <= len(waiting) or gang.size > EXHAUSTIVE:
            return False
        requests_ = [pod.request for pod in waiting]
        alike = all(each == requests_[0] for each in requests_)
        return alike and requests_[0].is_simple and fitting.gang_fits(requests_[:needed], rooms)

    # --- findings ---------------------------------------------------------------------------------------------

    def _once(self, kind: FindingKind, about: str, text: str) -> Iterator[Finding]:
        if (kind, about) not in self._reported:
            self._reported.add((kind, about))
            yield self._finding(kind, about, text)

    def _finding(self, kind: FindingKind, about: str, text: str) -> Finding:
        return Finding(kind=kind, revision=self._number, about=about, text=text)


def _labels(pod: Pod) -> Mapping[str, str]:
    return pod.raw["metadata"].get("labels") or {}


def _rollout(pod: Pod) -> object:
    return {key: value for key, value in _labels(pod).items() if key != HASH}
