"""Track which pods belong to which gang, and the progress of each gang.

A member waits, holds a node (first assumed, then bound), or has ended. A gang is *ready* to be decided when its members
that hold a node, have succeeded or wait are at least as many as it needs. It has *formed* once that many are bound.
Between its first Binding and that moment a deadline applies: refused Bindings are retried, and if the gang has not
formed in time it is aborted.

Decisions assume all needed members of a gang or none. So a gang holds nodes in part only while Bindings are in flight,
or because a previous leader ended between Bindings. Both have a deadline, so no two gangs block each other for longer.

A gang that has formed is not aborted when it loses a member; a replacement is decided like any missing member.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from berth_api.names import POD_GROUP_GROUP, POD_GROUP_MIN_MEMBER
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang, too_few
from berth_operator.core.queue import group_rules
from berth_operator.core.queue.queue import pause
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership, PendingPod

SETTLE: Final = 2.0
"""Seconds before missing members or a missing PodGroup are reported, because they are created one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The fields of a PodGroup that scheduling reads."""

    name: str
    """The key, namespace/name."""
    uid: str
    minimum: int = 0
    timeout: float = 0.0
    """Seconds; 0 for the default."""
    created: str = ""
    formed: bool = False
    """Whether its status records that all needed members were bound."""
    problem: str = ""
    """Why the object is invalid; empty if it is valid."""
    notes: str = ""
    """Which of its fields have no effect, and what has; empty if all have."""
    is_kubernetes: bool = False
    """Whether it is Kubernetes' PodGroup: its members must be alike as kube-scheduler requires."""
    priority: int = 0
    """The priority that the members of Kubernetes' PodGroups must have."""
    topology_key: str = ""
    """The label of nodes that must be the same for all members; empty if they may be anywhere."""
    leaves_whole: bool = False
    """Whether all members are preempted if one is."""


@dataclass(slots=True)
class _Held:
    """A member that has a node."""

    charge: Charge
    bound: bool
    running: bool = False
    to_delete: bool = False
    """Whether the operator must delete it."""

    @property
    def stays(self) -> bool:
        return not (self.to_delete or self.charge.terminating)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The number of members in each state."""

    waiting: int
    bound: int
    running: int
    succeeded: int
    failed: int
    formed: bool


@dataclass(slots=True, kw_only=True)
class _Entry:
    """One gang."""

    gang: Membership
    """The membership, as the latest member has it."""
    group: Group | None = None
    waiting: dict[str, PendingPod] = field(default_factory=dict)
    """UID -> member without a node in the API server; members that are assumed are also in `held`."""
    held: dict[str, _Held] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)
    """UID -> whether it succeeded."""
    gated: set[str] = field(default_factory=set)
    """UIDs of the members with scheduling gates, which keep the others waiting."""
    version: int = 0
    formed: bool = False
    found_bound: bool = False
    """Whether a member was already bound when this leader first saw it."""
    deadline: float | None = None
    resume_at: float = 0.0
    tries: int = 0
    unready_since: float | None = None
    unscheduled: tuple[str, str] = ("", "")
    """Why the last decision placed too few members: reason and message; empty if none did, or if it has formed."""

    @property
    def key(self) -> str:
        return self.gang.key

    @property
    def is_empty(self) -> bool:
        return not (self.group or self.waiting or self.held or self.ended or self.gated)

    @property
    def idle(self) -> list[PendingPod]:
        return [pod for uid, pod in self.waiting.items() if uid not in self.held]

    @property
    def succeeded(self) -> int:
        return sum(self.ended.values())

    @property
    def placed(self) -> int:
        return self.succeeded + sum(each.stays for each in self.held.values())

    @property
    def bound(self) -> int:
        return self.succeeded + sum(each.stays and each.bound for each in self.held.values())

    @property
    def formed_before(self) -> bool:
        """Return whether an earlier leader recorded that it has formed; always False without a PodGroup object."""
        return self.group is not None and self.group.formed

    @property
    def minima(self) -> set[int]:
        """Return the values of the members' annotation for the minimum."""
        memberships = [pod.gang for pod in self.waiting.values()] + [each.charge.gang for each in self.held.values()]
        return {each.minimum for each in memberships if each is not None and each.minimum is not None}

    @property
    def minimum(self) -> int:
        """Return how many members it needs; 0 if neither PodGroup nor annotation gives a number."""
        return self.group.minimum if self.group else max(self.minima, default=0)

    @property
    def problem(self) -> str:
        """Return why the gang cannot be decided; empty if it can."""
        if self.group:
            return self.group.problem or self._conflict
        minima = self.minima
        if not minima and self.gang.is_kubernetes:
            return group_rules.missing(self.gang.name)
        if not minima:
            # There are PodGroups in other API groups, too, and kubectl does not show which.
            return (
                f"{self.key} does not exist: create it in the API group {POD_GROUP_GROUP}, or remove the "
                f"{self.gang.word} from its pods"
            )
        if len(minima) > 1:
            values = ", ".join(map(str, sorted(minima)))
            return f"{self.key}: annotation {POD_GROUP_MIN_MEMBER} must be the same on all its pods; it is {values}"
        return ""

    @property
    def blocked(self) -> str:
        """Return why members that are enough wait; empty if they do not."""
        number = len(self.gated)
        return f"{self.key}: waiting for members with scheduling gates: {number}" if number else ""

    @property
    def _conflict(self) -> str:
        """Return how the members contradict the group; empty if they do not."""
        if self.group is None or not self.group.is_kubernetes:
            return ""
        placed = [each.charge for each in self.held.values() if each.stays]
        return group_rules.conflict(self.group.priority, self.idle, placed)


class GangTracker:
    """All gangs; `now` is a monotonic clock in seconds."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._entries: dict[str, _Entry] = {}
        self._of: dict[str, Membership] = {}
        """UID -> the gang of a member."""
        self._open: dict[str, None] = {}
        """Keys of the unsettled gangs: some members wait, or it has not formed."""

    # --- events -----------------------------------------------------------------------------------------------

    def put_group(self, group: Group) -> None:
        """Record that a PodGroup exists or has changed."""
        entry = self._entry(Membership(group=group.name))
        if entry.group != group:
            entry.group = group
            self._changed(entry)

    def remove_group(self, name: str) -> None:
        """Record that a PodGroup was deleted."""
        entry = self._entry(Membership(group=name))
        entry.group = None
        self._changed(entry)

    def wait(self, pod: PendingPod, gang: Membership) -> None:
        """Record that a member waits, or has changed while it waits."""
        entry = self._join(pod.uid, gang)
        before = entry.waiting.get(pod.uid)
        entry.waiting[pod.uid] = pod
        if before is None or _place(before) != _place(pod):
            self._changed(entry)

    def no_longer_waits(self, uid: str) -> None:
        """Record that a member no longer waits: it was bound or deleted, or left the gang."""
        if (entry := self._entry_of(uid)) is not None and entry.waiting.pop(uid, None) is not None:
            self._changed(entry)
            self._leave(uid, entry)

    def gate(self, uid: str, gang: Membership) -> None:
        """Record that a member has scheduling gates: the gang waits until it has none."""
        entry = self._join(uid, gang)
        entry.gated.add(uid)
        self._changed(entry)

    def ungate(self, uid: str) -> None:
        """Record that a member has no scheduling gates any more, or was deleted."""
        if (entry := self._entry_of(uid)) is not None and uid in entry.gated:
            entry.gated.remove(uid)
            self._changed(entry)
            self._leave(uid, entry)

    def hold(self, charge: Charge, gang: Membership, *, bound: bool, running: bool = False) -> None:
        """Record that a member has a node, either assumed or bound."""
        entry = self._join(charge.uid, gang)
        before = entry.held.get(charge.uid)
        to_delete = before is not None and before.to_delete
        held = entry.held[charge.uid] = _Held(charge=charge, bound=bound, running=running, to_delete=to_delete)
        entry.found_bound = entry.found_bound or (bound and before is None)
        if before is None or before.stays != held.stays:
            self._changed(entry)
        elif before.bound != bound:
            self._update_progress(entry)

    def release(self, uid: str) -> None:
        """Record that a member no longer has a node."""
        if (entry := self._entry_of(uid)) is not None and entry.held.pop(uid, None) is not None:
            self._changed(entry)
            self._leave(uid, entry)

    def end(self, uid: str, gang: Membership, *, succeeded: bool) -> None:
        """Record that a member has ended."""
        entry = self._join(uid, gang)
        # The watch of bound pods may be behind: do not count the member twice.
        released = entry.held.pop(uid, None)
        if released is not None or entry.ended.get(uid) != succeeded:
            entry.ended[uid] = succeeded
            self._changed(entry)

    def remove_ended(self, uid: str) -> None:
        """Record that a member that had ended was deleted."""
        if (entry := self._entry_of(uid)) is not None and uid in entry.ended:
            del entry.ended[uid]
            self._changed(entry)
            self._leave(uid, entry)

    # --- decisions --------------------------------------------------------------------------------------------

    def gang_of(self, uid: str) -> Membership | None:
        """Return the gang that a pod belongs to."""
        return self._of.get(uid)

    def ready(self, gang: Membership, now: float) -> Gang | None:
        """Return a gang's waiting members as a unit; None if there are too few or the gang backs off."""
        entry = self._entries.get(gang.key)
        if entry is None or now < entry.resume_at or not (idle := entry.idle) or self._lacks(entry, idle):
            return None
        return self._unit(entry, idle)

    def waiting(self, gang: Membership) -> tuple[Gang | None, str]:
        """Return a gang's waiting members as a unit, even if they are too few, and why it cannot be decided otherwise.

        None if no member waits.
        """
        entry = self._entries.get(gang.key)
        if entry is None or not (idle := entry.idle):
            return None, ""
        return self._unit(entry, idle), entry.problem or entry.blocked

    @staticmethod
    def _unit(entry: _Entry, idle: list[PendingPod]) -> Gang:
        return Gang(
            membership=entry.gang,
            minimum=entry.minimum,
            members=tuple(idle),
            placed=entry.placed,
            nodes=tuple(each.charge.node for each in entry.held.values() if each.stays),
            held=tuple(uid for uid, each in entry.held.items() if each.stays),
            created=entry.group.created if entry.group else min(each.created for each in idle),
            arrived=min(each.arrived for each in idle),
            version=entry.version,
            topology_key=entry.group.topology_key if entry.group else "",
            further_preempt=entry.group is not None and entry.group.is_kubernetes,
        )

    def unready(self, now: float) -> Iterator[tuple[str, list[PendingPod]]]:
        """Yield what each gang has lacked for at least SETTLE seconds, with the members to report it on."""
        for entry in self._unsettled():
            problem = self._lacks(entry, idle) if (idle := entry.idle) else ""
            if not problem:
                entry.unready_since = None
            elif entry.unready_since is None:
                entry.unready_since = now
            elif now - entry.unready_since >= SETTLE:
                yield problem, idle

    def _lacks(self, entry: _Entry, idle: list[PendingPod]) -> str:
        if problem := entry.problem or entry.blocked:
            return problem
        count = entry.placed + len(idle)
        return too_few(entry.key, count, entry.minimum) if count < entry.minimum else ""

    def unschedulable(self, gang: Membership, failure: Failure) -> bool:
        """Record why too few members were placed; return whether that has changed."""
        entry, why = self._entries.get(gang.key), (failure.condition, failure.message)
        if entry is None or entry.formed or entry.unscheduled == why:
            return False
        entry.unscheduled = why
        return True

    def leaving_with(self, victims: Iterable[Charge]) -> list[Charge]:
        """Return the victims of a preemption, and the other placed members of groups of which all leave if one does."""
        leaving = {each.uid: each for each in victims}
        for uid in tuple(leaving):
            entry = self._entry_of(uid)
            if entry is not None and entry.group is not None and entry.group.leaves_whole:
                held = [each for each in entry.held.values() if each.bound and each.stays]
                leaving |= {each.charge.uid: each.charge for each in held}
        return list(leaving.values())

    # --- failed Bindings --------------------------------------------------------------------------------------

    def binding_started(self, gang: Membership, now: float) -> None:
        """Start the gang's deadline: its first Binding is sent."""
        entry = self._entries.get(gang.key)
        if entry is not None and not entry.formed and entry.deadline is None:
            entry.deadline = now + self._time(entry)

    def retry_until(self, uid: str) -> float | None:
        """Return the time until which a member's Binding is retried; None if it is not retried."""
        entry = self._entry_of(uid)
        return entry.deadline if entry is not None else None

    def back_off(self, gang: Membership, now: float) -> None:
        """Start the gang's back-off, which gets longer each time."""
        entry = self._entries.get(gang.key)
        if entry is not None and entry.resume_at <= now:
            entry.tries += 1
            entry.resume_at = now + pause(entry.tries)

    def resumed(self, now: float) -> list[Membership]:
        """Return the gangs whose back-off has just ended."""
        due = [entry for entry in self._unsettled() if 0.0 < entry.resume_at <= now]
        for entry in due:
            entry.resume_at = 0.0
        return [entry.gang for entry in due]

    # --- gangs that cannot be completed -------------------------------------------------------------------------

    def overdue(self, now: float) -> list[Membership]:
        """Return the gangs whose deadline has passed.

        Start the deadline of a gang that this leader found partly bound.
        """
        due = []
        for entry in self._unsettled():
            if entry.deadline is None and entry.bound > entry.succeeded and not entry.formed and entry.minimum:
                entry.deadline = now + self._time(entry)
            if entry.deadline is not None and entry.deadline <= now:
                due.append(entry.gang)
        return due

    def abort(self, gang: Membership, now: float, *, keep: bool) -> tuple[str, list[Charge]]:
        """Stop completing a gang; return a message and the bound members, which must be deleted unless `keep`."""
        entry = self._entries[gang.key]
        message = (
            f"{gang.key} could not be completed within {self._time(entry):g} s: "
            f"{entry.bound} of {entry.minimum} members were bound"
        )
        entry.deadline = None
        to_delete = [] if keep else [each for each in entry.held.values() if each.bound and each.stays]
        for member in to_delete:
            member.to_delete = True
        self.back_off(gang, now)
        self._changed(entry)
        return message, [each.charge for each in to_delete]

    def to_delete(self) -> list[Charge]:
        """Return the members that must be deleted and are not terminating yet."""
        held = [each for entry in self._unsettled() for each in entry.held.values()]
        return [each.charge for each in held if each.to_delete and not each.charge.terminating]

    # --- status -----------------------------------------------------------------------------------------------

    def why_not(self, name: str) -> tuple[str, tuple[str, str]]:
        """Return why a PodGroup cannot be decided, and why its last decision placed too few members."""
        gang = Membership(group=name)
        entry = self._entries.get(gang.key) or _Entry(gang=gang)
        return entry.problem if entry.idle else "", entry.unscheduled

    def counts(self, name: str) -> Counts:
        """Count the members of a PodGroup."""
        gang = Membership(group=name)
        entry = self._entries.get(gang.key) or _Entry(gang=gang)
        held = entry.held.values()
        return Counts(
            waiting=len(entry.idle),
            bound=sum(each.bound for each in held),
            running=sum(each.running for each in held),
            succeeded=entry.succeeded,
            failed=len(entry.ended) - entry.succeeded,
            formed=entry.formed,
        )

    def notes(self, gang: Membership) -> str:
        """Return which fields of a gang's PodGroup have no effect; empty if all have, or there is none."""
        entry = self._entries.get(gang.key)
        return entry.group.notes if entry is not None and entry.group else ""

    def size(self, gang: Membership) -> tuple[int, int]:
        """Return how many members of a gang wait, have a node or have succeeded, and how many it needs."""
        entry = self._entries.get(gang.key)
        return (0, 0) if entry is None else (entry.placed + len(entry.idle), entry.minimum)

    # --- entries ----------------------------------------------------------------------------------------------

    def _entry(self, gang: Membership) -> _Entry:
        return self._entries.setdefault(gang.key, _Entry(gang=gang))

    def _unsettled(self) -> list[_Entry]:
        return [self._entries[key] for key in self._open]

    def _join(self, uid: str, gang: Membership) -> _Entry:
        """Return a member's gang, after removing the member from the gang that its labels named before."""
        before = self._entry_of(uid)
        if before is not None and before.key != gang.key:
            before.waiting.pop(uid, None)
            before.held.pop(uid, None)
            before.ended.pop(uid, False)
            before.gated.discard(uid)
            self._changed(before)
        self._of[uid] = gang
        entry = self._entry(gang)
        entry.gang = gang
        return entry

    def _leave(self, uid: str, entry: _Entry) -> None:
        if not any(uid in members for members in (entry.waiting, entry.held, entry.ended, entry.gated)):
            del self._of[uid]

    def _entry_of(self, uid: str) -> _Entry | None:
        gang = self._of.get(uid)
        return None if gang is None else self._entries[gang.key]

    def _changed(self, entry: _Entry) -> None:
        """Increase the version, because the decision may change, and update the progress."""
        entry.version += 1
        self._update_progress(entry)

    def _update_progress(self, entry: _Entry) -> None:
        """Update whether a gang has formed, its deadline, and whether it is still tracked."""
        if not entry.held:
            entry.formed = entry.found_bound = False
            entry.deadline = None
        elif entry.minimum and (entry.bound >= entry.minimum or (entry.found_bound and entry.formed_before)):
            entry.formed, entry.deadline, entry.tries, entry.unscheduled = True, None, 0, ("", "")
        if entry.waiting or (entry.held and not entry.formed):
            self._open[entry.key] = None
        else:
            self._open.pop(entry.key, None)
        if entry.is_empty:
            del self._entries[entry.key]

    def _time(self, entry: _Entry) -> float:
        return (entry.group.timeout if entry.group else 0.0) or self._timeout


def _place(pod: PendingPod) -> tuple[object, ...]:
    return pod.class_key, pod.priority, pod.weight, pod.gang
