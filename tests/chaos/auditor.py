"""Audit the history of a cluster: every revision of every pod, LeaderLease and Event, in the order of etcd.

The auditor shares no code with the audited programs, reads objects as plain JSON, and identifies cards only by UUID. It
is a pure function of the history. Times are the recorder's. `python -m tests.chaos.auditor FILE` audits a recorded
history again.

The rules hold at every revision:

* no revision of an object is missing;
* all pods that exist and have not ended hold at most a whole card of each UUID, and a UUID is on one node;
* node, allocation and term of a pod appear in one revision, and never change;
* no term binds a pod after a later term has bound a pod, or `pause` seconds after a later term began. During this
  pause, a new leader reads nothing (docs/decisions/0002-fencing.md);
* no member of a gang is bound before the gang is complete, and no gang stays bound in part;
* a pod is preempted only if a pod of a higher priority waited shortly before, and the Event names such a pod;
* Events contradict nothing, and no Event is missing for what happened in a calm time;
* at the end, no pod waits, and no pod has gone without a reason.

A pod of a lower priority may be bound early because of back-off and gangs, so this cannot be audited soundly.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos import history
from tests.chaos.findings import Finding, FindingKind
from tests.chaos.history import Kind, Revision, Versions

ALLOCATION: Final = "scheduling.koordinator.sh/device-allocated"
TERM: Final = "berth.dev/epoch"
GANG: Final = "berth.dev/pod-group"
GANG_SIZE: Final = "berth.dev/pod-group-min-member"
COUNTED: Final = ("gpu-core", "gpu-memory-ratio")
WHOLE: Final = 100
DISRUPTED: Final = "DisruptionTarget"
PREEMPTED: Final = "PreemptionByScheduler"
EXPLAINING: Final = {"PodGroupTimedOut", "DeviceFailed"}
"""Reasons of Events about pods that the operator deletes without a condition."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the auditor has to know of a run; times are in seconds."""

    pause: float = 1.5
    """How long after a later term began a bind of the term before may arrive: the takeover pause, and a margin for the
    recorder's clock."""
    gang: float = 120.0
    """How long a gang may be bound in part: its timeout, and that of all leaders that may have been lost meanwhile."""
    memory: float = 60.0
    """How long before an eviction the pod of a higher priority may have waited."""
    ended: frozenset[str] = frozenset()
    """UIDs of the pods that the workload deleted."""
    scheduler: str = ""
    """Berth's `schedulerName`; empty if all pods are Berth's."""
    deleted: frozenset[str] | None = None
    """UIDs of the pods that Berth deleted; None for all that are not in `ended`."""
    calm_from: float = float("inf")
    """From when on no Event may be missing: there were no more faults."""


@dataclass(slots=True, kw_only=True)
class Pod:
    """A pod as of its last revision."""

    key: str
    uid: str
    priority: int
    is_ours: bool = True
    allocation_is_optional: bool = False
    """Whether it requests no devices."""
    gang: str = ""
    gang_size: int = 0
    node: str = ""
    allocation: str = ""
    term: str = ""
    held: Mapping[str, Counter[str]] = field(default_factory=dict)
    """UUID -> resource -> hundredths."""
    disrupted: str = ""
    """The reason of its condition DisruptionTarget."""
    bound_at: float = 0.0
    succeeded: bool = False


@dataclass(slots=True)
class Gang:
    """The live members of a gang."""

    size: int
    members: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)
    """UIDs of members that are gone, and need no replacement."""
    left: dict[str, float] = field(default_factory=dict)
    """UID of a member that is gone -> when it went: a Binding that was under way then may still arrive."""
    bound: set[str] = field(default_factory=set)
    formed: bool = False
    in_part_since: float | None = None
    reported: bool = False


def audit(revisions: Iterable[Revision], limits: Limits) -> list[Finding]:
    """Return everything that contradicts the rules, in the order of the history."""
    auditor = Auditor(limits)
    findings = [finding for revision in revisions for finding in auditor.take(revision)]
    return [*findings, *auditor.end()]


class Auditor:
    """The state of the cluster at one revision."""

    def __init__(self, limits: Limits) -> None:
        self.binds = 0
        self._limits = limits
        self._versions = Versions()
        self._pods: dict[str, Pod] = {}
        """`namespace/name` -> pod that exists."""
        self._ever: dict[str, Pod] = {}
        """UID -> pod, also those that have gone."""
        self._keys: dict[str, list[Pod]] = defaultdict(list)
        self._holders: dict[str, dict[str, Pod]] = defaultdict(dict)
        """UUID of a card -> UID -> pod that holds it."""
        self._terms: dict[int, float] = {}
        """Term -> when the LeaderLease first showed it."""
        self._highest_bound = 0
        self._gangs: dict[str, Gang] = {}
        self._waited: dict[int, float] = {}
        """Priority -> when a pod of it last waited."""
        self._waiting: Counter[int] = Counter()
        self._gone: dict[str, tuple[int, Pod]] = {}
        """UID -> pod that has gone for a reason that is not known yet, and the revision."""
        self._explained: set[str] = set()
        self._scheduled: dict[str, int] = {}
        """UID -> number of its Scheduled Events."""
        self._now = 0.0
        self._number = 0

    def take(self, revision: Revision) -> Iterator[Finding]:
        """Yield what one more revision contradicts."""
        self._number, self._now = revision.number, revision.time
        if gap := self._versions.gap(revision):
            yield self._finding(FindingKind.REVISION_MISSING, revision.name, gap)
        if revision.kind is Kind.POD:
            yield from self._pod(revision)
        elif revision.kind is Kind.LEASE:
            self._lease(revision)
        elif revision.kind is Kind.EVENT and revision.object is not None:
            yield from self._event(revision.object)

    def end(self) -> Iterator[Finding]:
        """Yield what is missing at the end of the history."""
        for gang in self._gangs:
            yield from self._overdue(gang)
        for number, pod in self._gone.values():
            if pod.uid not in self._explained and (self._limits.deleted is None or pod.uid in self._limits.deleted):
                yield self._finding(
                    FindingKind.LOST, pod.key, f"it was deleted at revision {number}, no Event says why"
                )
        for pod in self._pods.values():
            if not pod.node:
                yield self._finding(FindingKind.LOST, pod.key, "it exists, and was never bound")
        for pod in self._ever.values():
            if pod.bound_at >= self._limits.calm_from and not self._scheduled.get(pod.uid):
                yield self._finding(FindingKind.NO_EVENT, pod.key, f"it was bound to {pod.node}, by term {pod.term}")

    # --- revisions --------------------------------------------------------------------------------------------

    def _lease(self, revision: Revision) -> None:
        if revision.object is not None:
            self._terms.setdefault(int(revision.object["spec"]["term"]), self._now)

    def _pod(self, revision: Revision) -> Iterator[Finding]:
        known = self._pods.get(revision.name)
        if revision.object is None:
            if known is not None:
                yield from self._remove(known)
            return
        raw = revision.object
        if known is None:
            known = self._add(revision.name, raw)
        known.disrupted = known.disrupted or _disruption(raw)
        if known.disrupted:
            yield from self._eviction(known)
        yield from self._bind(known, raw)
        if has_ended(raw):
            self._release(known)
            known.succeeded = raw["status"]["phase"] == "Succeeded"

    def _add(self, key: str, raw: Object) -> Pod:
        annotations = raw["metadata"].get("annotations") or {}
        pod = Pod(
            key=key,
            uid=raw["metadata"]["uid"],
            priority=int(raw["spec"].get("priority") or 0),
            is_ours=raw["spec"].get("schedulerName") == self._limits.scheduler if self._limits.scheduler else True,
            allocation_is_optional=_requests_no_devices(raw),
            gang=annotations.get(GANG, ""),
            gang_size=int(annotations.get(GANG_SIZE, 0)),
        )
        self._pods[key] = self._ever[pod.uid] = pod
        self._keys[key].append(pod)
        self._waiting[pod.priority] += 1
        if pod.gang:
            self._gangs.setdefault(pod.gang, Gang(pod.gang_size)).members.add(pod.uid)
        return pod

    def _remove(self, pod: Pod) -> Iterator[Finding]:
        if pod.gang:
            yield from self._overdue(pod.gang)
        del self._pods[pod.key]
        self._gone[pod.uid] = (self._number, pod)
        if pod.uid in self._limits.ended or pod.disrupted:
            self._explained.add(pod.uid)
        if not pod.node:
            self._stops_waiting(pod)
        self._release(pod)
        if (gang := self._gangs.get(pod.gang)) is not None:
            gang.members.discard(pod.uid)
            gang.left[pod.uid] = self._now
            gang.bound.discard(pod.uid)
            if pod.succeeded:
                gang.succeeded.add(pod.uid)
            self._count(gang)
            if not gang.members and not gang.succeeded:
                del self._gangs[pod.gang]

    def _stops_waiting(self, pod: Pod) -> None:
        self._waiting[pod.priority] -= 1
        self._waited[pod.priority] = self._now

    def _release(self, pod: Pod) -> None:
        for card in pod.held:
            self._holders[card].pop(pod.uid, None)

    # --- binds ------------------------------------------------------------------------------------------------

    def _bind(self, pod: Pod, raw: Object) -> Iterator[Finding]:
        annotations = raw["metadata"].get("annotations") or {}
        node = raw["spec"].get("nodeName") or ""
        shown = (node, annotations.get(ALLOCATION, ""), annotations.get(TERM, ""))
        before = (pod.node, pod.allocation, pod.term)
        if shown == before:
            return
        if not pod.is_ours:
            if not pod.node:
                self._stops_waiting(pod)
            pod.node = node
            return
        if any(before):
            yield self._finding(FindingKind.CHANGED, pod.key, f"{before} became {shown}")
        if not (node and annotations.get(TERM) and (pod.allocation_is_optional or annotations.get(ALLOCATION))):
            yield self._finding(FindingKind.NOT_AT_ONCE, pod.key, f"node, allocation and term are {shown}")
        first = not pod.node
        self._release(pod)
        pod.node, pod.allocation, pod.term = shown
        pod.held = held_cards(pod.allocation)
        yield from self._overbooked(pod)
        if first and node:
            yield from self._bound(pod)

    def _overbooked(self, pod: Pod) -> Iterator[Finding]:
        for card in pod.held:
            holders = self._holders[card]
            holders[pod.uid] = pod
            total = sum((each.held[card] for each in holders.values()), Counter[str]())
            by = ", ".join(f"{each.key} (term {each.term})" for each in holders.values())
            if any(amount > WHOLE for amount in total.values()):
                yield self._finding(FindingKind.OVERBOOKED, card, f"{dict(total)} by {by}")
            if len(nodes := {each.node for each in holders.values()}) > 1:
                yield self._finding(FindingKind.TWO_NODES, card, f"on {', '.join(sorted(nodes))} by {by}")

    def _bound(self, pod: Pod) -> Iterator[Finding]:
        self.binds += 1
        pod.bound_at = self._now
        self._stops_waiting(pod)
        if pod.term.isdecimal():
            yield from self._term(pod, int(pod.term))
        if pod.gang:
            yield from self._member_bound(pod)

    def _term(self, pod: Pod, term: int) -> Iterator[Finding]:
        if term not in self._terms:
            yield self._finding(FindingKind.UNKNOWN_TERM, pod.key, f"no LeaderLease had term {term}")
        if term < self._highest_bound:
            text = f"term {term} bound it after term {self._highest_bound} had bound a pod"
            yield self._finding(FindingKind.ENDED_TERM, pod.key, text)
        self._highest_bound = max(self._highest_bound, term)
        ended_at = min((at for other, at in self._terms.items() if other > term), default=self._now)
        if self._now - ended_at > self._limits.pause:
            text = f"term {term} bound it {self._now - ended_at:.1f} s after the next term had begun"
            yield self._finding(FindingKind.ENDED_TERM, pod.key, text)

    # --- gangs ------------------------------------------------------------------------------------------------

    def _member_bound(self, pod: Pod) -> Iterator[Finding]:
        gang = self._gangs[pod.gang]
        just_left = sum(self._now - at <= self._limits.pause for at in gang.left.values())
        if not gang.formed and len(gang.members | gang.succeeded) + just_left < gang.size:
            text = f"{pod.key} was bound while {len(gang.members)} of {gang.size} members existed"
            yield self._finding(FindingKind.GANG_STARTED_EARLY, pod.gang, text)
        gang.bound.add(pod.uid)
        yield from self._overdue(pod.gang)
        self._count(gang)

    def _count(self, gang: Gang) -> None:
        gang.formed = gang.formed or len(gang.bound) >= gang.size
        if gang.formed or not gang.bound:
            gang.in_part_since = None
        elif gang.in_part_since is None:
            gang.in_part_since = self._now

    def _overdue(self, name: str) -> Iterator[Finding]:
        gang = self._gangs[name]
        since = gang.in_part_since
        if since is not None and self._now - since > self._limits.gang and not gang.reported:
            gang.reported = True
            text = f"{len(gang.bound)} of {gang.size} members were bound for {self._now - since:.0f} s"
            yield self._finding(FindingKind.GANG_IN_PART, name, text)

    # --- preemption and Events --------------------------------------------------------------------------------

    def _eviction(self, victim: Pod) -> Iterator[Finding]:
        if victim.disrupted != PREEMPTED or victim.uid in self._explained:
            return
        self._explained.add(victim.uid)
        waited = [priority for priority, count in self._waiting.items() if count > 0]
        waited += [each for each, at in self._waited.items() if self._now - at <= self._limits.memory]
        if max(waited, default=victim.priority) <= victim.priority:
            text = f"its priority is {victim.priority}, and no pod of a higher one waited"
            yield self._finding(FindingKind.PRIORITY, victim.key, text)

    def _event(self, event: Object) -> Iterator[Finding]:
        about, reason, note = event["involvedObject"], event["reason"], event.get("message") or ""
        pod = self._ever.get(about.get("uid", ""))
        if pod is None:
            return
        if reason == "Scheduled":
            yield from self._scheduled_event(pod, note)
        elif reason == "Preempted":
            yield from self._preempted_event(pod, note)
        elif reason in EXPLAINING:
            self._explained.add(pod.uid)

    def _scheduled_event(self, pod: Pod, note: str) -> Iterator[Finding]:
        self._scheduled[pod.uid] = self._scheduled.get(pod.uid, 0) + 1
        expected = f"Successfully assigned {pod.key} to {pod.node}"
        if not pod.node or not f"{note} ".startswith(f"{expected} "):
            text = f'it is bound to {pod.node or "no node"}, and the Event says "{note}"'
            yield self._finding(FindingKind.WRONG_EVENT, pod.key, text)
        if self._scheduled[pod.uid] > 1:
            yield self._finding(FindingKind.WRONG_EVENT, pod.key, "it has two Scheduled Events")

    def _preempted_event(self, victim: Pod, note: str) -> Iterator[Finding]:
        self._explained.add(victim.uid)
        preemptor, _, node = note.removeprefix("Preempted by pod ").partition(" on node ")
        if node != victim.node:
            text = f'it was bound to {victim.node or "no node"}, and the Event says "{note}"'
            yield self._finding(FindingKind.WRONG_EVENT, victim.key, text)
        priorities = [each.priority for each in self._keys.get(preemptor, ())]
        if max(priorities, default=victim.priority) <= victim.priority:
            text = f"its priority is {victim.priority}, that of {preemptor} {priorities}"
            yield self._finding(FindingKind.PRIORITY, victim.key, text)

    def _finding(self, kind: FindingKind, about: str, text: str) -> Finding:
        return Finding(kind=kind, revision=self._number, about=about, text=text)


def held_cards(allocation: str) -> Mapping[str, Counter[str]]:
    """Return UUID -> resource -> hundredths of what an allocation names."""
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for grant in json.loads(allocation).get("gpu", ()) if allocation else ():
        for name, amount in grant["resources"].items():
            if (short := name.partition("/")[2]) in COUNTED:
                held[grant["id"]][short] += int(amount)
    return dict(held)


def _disruption(raw: Object) -> str:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return next((each["reason"] for each in conditions if each["type"] == DISRUPTED and each["status"] == "True"), "")


def _requests_no_devices(raw: Object) -> bool:
    requested = [(each.get("resources") or {}).get("requests") or {} for each in raw["spec"].get("containers", ())]
    return bool(requested) and not any("/" in name for amounts in requested for name in amounts)


def has_ended(raw: Object) -> bool:
    return (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed")


if __name__ == "__main__":
    for found in audit(history.read(Path(sys.argv[1])), Limits()):
        sys.stdout.write(f"{found}\n")
