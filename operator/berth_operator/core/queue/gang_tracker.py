"""Track which pods belong to which gang, and the progress of each gang.

A member waits, holds a node (first assumed, then bound), or has ended. A gang is *ready* to be decided when enough of
its members hold a node, have succeeded or wait. It has *formed* once enough members are bound. A deadline applies from
its first Binding until it has formed. Refused Bindings are retried, and if the gang has not formed in time, it is
aborted.

Decisions assume all needed members of a gang or none. So only some members hold nodes while Bindings are in flight, or
after a previous leader ended between Bindings. Both cases have a deadline, so no two gangs block each other for longer.

A gang that has formed stays formed while one member has a node and is not terminating. It is never aborted, and each
further member, including a replacement, is decided on its own. After the last of these members has left, the next
member that gets a node begins a new *generation*, which must form again. Members that have succeeded count, also after
they are deleted (`gone_members`).

A gang that a previous leader bound is judged once, by the records on its members (`core.values.bound_with`). It has
formed unless the records prove the contrary. The gang gets a deadline only if they do.

A gang that the members' controller defines waits for members only while the controller creates them. If it creates none
for `PATIENCE` seconds, the gang consists of the members that exist: others may exist only after these run. If an object
or the pods show how many come first, these do not wait for others at all. The unit then has the later pods, too, if it
is known what they request: all must get places.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from berth_api.names import POD_GROUP_GROUP, POD_GROUP_MIN_MEMBER
from berth_api.objects.leader_lease import SucceededMembers
from berth_api.values.backoff import ExponentialBackoff
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang, too_few
from berth_operator.core.queue import gone_members, group_rules
from berth_operator.core.queue.gone_members import GoneMembers, LeftGangs, is_final
from berth_operator.core.queue.newest import age, newest_revisions, revision
from berth_operator.core.queue.queue import MAX_BACKOFF, pause
from berth_operator.core.values import bound_with
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.controller_gangs import EQUAL, replica_of
from berth_operator.core.values.owner import NO_OWNER, Owner
from berth_operator.core.values.pod_admission import PodAdmission
from berth_operator.core.values.request import Membership, PendingPod

SETTLE: Final = 2.0
"""Seconds before missing members or a missing PodGroup are reported, because they are created one after the other."""
PATIENCE: Final = 30.0
"""Seconds without a new member after which a controller's gang no longer waits for missing members."""
FREE_ABORTS: Final = 2
"""How often a gang's members may be deleted in vain before it has to wait: their controller creates them again."""
BACKOFF: Final = ExponentialBackoff(first=60.0, longest=1800.0)
"""After that."""
MAX_ABORTED: Final = 1024
"""Aborted gangs that are remembered. The gang that was aborted first is forgotten first."""


MAX_EXPECTED: Final = 1000
"""Pods that come later and whose places a decision looks for: as many as may have a promised place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterMembers:
    """Equal pods that a controller creates once the members of a gang run."""

    gang: Membership
    """The gang that they join."""
    count: int
    pod: PendingPod | None = None
    """One of them; None if they request the same as the members that come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StillToCome:
    """How many pods come after the members of a gang."""

    count: int
    """All of them."""
    without_node: int
    """Those without a node."""
    missing: int
    """Those that do not exist yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The fields of a PodGroup, or of the controller that defines a gang, that scheduling reads."""

    name: str
    """The key, namespace/name."""
    uid: str
    controller: str = ""
    """The controller's kind, as in `Membership`; empty for a PodGroup."""
    minimum: int = 0
    timeout: float = 0.0
    """Seconds; 0 for the default."""
    created: str = ""
    formed: bool = False
    """Whether its status records that all needed members were bound, which may have been others of its name."""
    problem: str = ""
    """Why the object is invalid; empty if it is valid."""
    notes: str = ""
    """Which of its fields have no effect, and which fields to use instead; empty if all have an effect."""
    is_kubernetes: bool = False
    """Whether it is Kubernetes' PodGroup: its members must be alike as kube-scheduler requires."""
    priority: int = 0
    """The priority that the members of Kubernetes' PodGroups must have."""
    topology_key: str = ""
    """The label of nodes that must be the same for all members; empty if they may be anywhere."""
    leaves_whole: bool = False
    """Whether all members are preempted if one is."""
    later: tuple[LaterMembers, ...] = ()
    """The pods that the controller creates once members run."""
    is_replica: bool = False
    """Whether it is one of the equal gangs of its object. The tracker reads it again when a member comes, so it is not
    kept without members: an object may define very many."""


@dataclass(slots=True)
class _Held:
    """A member that has a node."""

    charge: Charge
    bound: bool
    running: bool = False
    to_delete: bool = False
    """Whether the operator must delete it."""
    is_ours: bool = True
    """Whether a Binding of Berth gave it its node; other members are never deleted."""
    bound_with: str = ""
    """The record on a member of a gang that is not judged yet."""
    pod: PendingPod | None = None
    """What it requested; None if it is not known, or no other member requests the same."""

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
    final: set[str] = field(default_factory=set)
    """UIDs of the ended members that succeeded and whose controllers never create them again."""
    gone: GoneMembers = field(default_factory=GoneMembers)
    """Such members that were deleted."""
    gated: set[str] = field(default_factory=set)
    """UIDs of the members with scheduling gates, which keep the others waiting."""
    version: int = 0
    formed: bool = False
    is_judged: bool = True
    """False if its first member was bound when this leader first saw it, and whether it has formed is not known yet."""
    needs: set[str] = field(default_factory=set)
    """Ids of the members that are bound together, until the gang has formed. Others are placed only as their
    replacements."""
    deadline: float | None = None
    resume_at: float = 0.0
    tries: int = 0
    unready_since: float | None = None
    is_complete: bool = False
    """Whether no more members are expected of a controller's gang, although it has fewer than its size."""
    expected: tuple[tuple[object, ...], tuple[PendingPod, ...]] | None = None
    """The pods that come later, with the state for which they were made: there may be many, and it is often read."""
    unscheduled: tuple[str, str] = ("", "")
    """Why the last decision placed too few members: reason and message; empty if none did, or if it has formed."""

    @property
    def key(self) -> str:
        return self.gang.key

    @property
    def is_empty(self) -> bool:
        is_kept = self.group is not None and not self.group.is_replica
        return not (is_kept or self.waiting or self.held or self.ended or self.gated)

    @property
    def idle(self) -> list[PendingPod]:
        return [pod for uid, pod in self.waiting.items() if uid not in self.held]

    @property
    def stays(self) -> bool:
        """Return whether a member has a node and is not on its way out."""
        return any(each.stays for each in self.held.values())

    @property
    def runs(self) -> bool:
        """Return whether it has formed, and one of these members is left."""
        return self.formed and self.stays

    @property
    def is_bound_in_part(self) -> bool:
        """Return whether Berth has bound members of it, and it has not formed."""
        held = self.held.values()
        return self.is_judged and not self.formed and any(each.stays and each.bound and each.is_ours for each in held)

    @property
    def candidates(self) -> list[PendingPod]:
        """Return the waiting members that may be placed now.

        While the gang forms, these are the members that it was decided with. Other members only replace members that
        are gone. So the decided members that still wait show the next leader whether the gang has formed.

        Before, members of earlier revisions with another minimum only fill up the newest revision. A StatefulSet
        replaces one pod after the other, so the newest revision alone may never be complete.
        """
        idle = self.idle
        if not self.formed and self.needs and self.stays:
            needed = [pod for pod in idle if bound_with.id_of(pod.uid) in self.needs]
            others = [pod for pod in idle if bound_with.id_of(pod.uid) not in self.needs]
        elif others := self.outdated:
            uids = {pod.uid for pod in others}
            needed = [pod for pod in idle if pod.uid not in uids]
        else:
            return idle
        return [*needed, *others[: max(0, self.minimum - self.placed - len(needed))]]

    @property
    def succeeded(self) -> int:
        return sum(self.ended.values()) + self.gone.count

    @property
    def placed(self) -> int:
        return self.succeeded + sum(each.stays for each in self.held.values())

    @property
    def bound(self) -> int:
        return self.succeeded + sum(each.stays and each.bound for each in self.held.values())

    @property
    def members(self) -> list[PendingPod | Charge]:
        """Return the members that wait or have a node."""
        return [*self.waiting.values(), *(each.charge for each in self.held.values())]

    @property
    def minima(self) -> set[int]:
        """Return the values of the members' annotation for the minimum; only of newest revisions, if they differ."""
        members = self.members
        minima = _minima(members)
        if len(minima) <= 1 or self.gang.controller:
            return minima
        newest = newest_revisions(self.waiting.values(), (each.charge for each in self.held.values()))
        return _minima([member for member in members if revision(member) in newest])

    @property
    def outdated(self) -> list[PendingPod]:
        """Return the waiting members of earlier revisions with another minimum than the newest, the newest first."""
        if self.formed or self.group is not None or self.gang.controller or len(_minima(self.members)) <= 1:
            return []
        newest = newest_revisions(self.waiting.values(), (each.charge for each in self.held.values()))
        outdated = [pod for pod in self.idle if revision(pod) not in newest]
        return sorted(outdated, key=age, reverse=True)

    @property
    def minimum(self) -> int:
        """Return how many members the gang needs; 0 if neither PodGroup nor annotation gives a number."""
        is_enough = self.is_complete or 0 < self.first <= self.size
        return min(self.of_all, self.size) if is_enough else self.of_all

    @property
    def of_all(self) -> int:
        """Return how many members the gang needs, with those that come later; 0 if it is not known.

        A controller's object may have changed since these members were created, so their own number counts.
        """
        minima = self.minima if self.group is None or self.group.controller else set[int]()
        return max(minima) if minima else self.group.minimum if self.group else 0

    @property
    def first(self) -> int:
        """Return how many members exist before the others are created; 0 if it is not known."""
        if self.group is None:
            return self.gang.first
        later = sum(part.count for part in self.group.later if part.gang.key == self.key)
        return max(0, self.group.minimum - later) if self.group.later else 0

    @property
    def size(self) -> int:
        """Return how many members wait, have a node or have succeeded."""
        return self.placed + len(self.idle)

    @property
    def problem(self) -> str:
        """Return why the gang cannot be decided; empty if it can.

        A gang that has formed no longer needs a minimum. Kube-scheduler requires a PodGroup of Kubernetes even then.
        """
        if self.runs and not self.gang.is_kubernetes:
            return ""
        if self.group:
            return self.group.problem or self._conflict
        minima = self.minima
        if not minima and self.gang.controller:
            return "" if self.is_complete else f"{self.key} does not exist yet"
        if not minima and self.gang.is_kubernetes:
            return group_rules.missing(self.gang.name)
        if not minima:
            # There are PodGroups in other API groups, too, and kubectl does not show which.
            return (
                f"{self.key} does not exist: create it in the API group {POD_GROUP_GROUP}, or remove the "
                f"{self.gang.word} from its pods"
            )
        if len(minima) > 1 and not self.gang.controller:
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


_NO_ENTRY: Final = _Entry(gang=Membership(group=""))


class GangTracker:
    """All gangs; `now` is a monotonic clock in seconds."""

    def __init__(
        self,
        *,
        timeout: float,
        priority_of: Callable[[PodAdmission], tuple[int, bool] | None] = lambda _: None,
        may_preempt: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create a tracker.

        Args:
            timeout: seconds that a gang may stay bound in part, where its PodGroup sets none.
            priority_of: returns the priority that pods will get, and whether they preempt; None if it is not known.
            may_preempt: returns whether pods may be evicted for pods that do not exist yet.
        """
        self._timeout, self._priority_of, self._may_preempt = timeout, priority_of, may_preempt
        self._entries: dict[str, _Entry] = {}
        self._of_replicas: dict[tuple[str, str], tuple[Group, int]] = {}
        """(kind, namespace/name) of an object that defines equal gangs -> one that has its name, and how many."""
        self._replicas: defaultdict[tuple[str, str], dict[str, _Entry]] = defaultdict(dict)
        """(kind, namespace/name) of an object that defines equal gangs, or may do so -> those with members, by key."""
        self._of: dict[str, Membership] = {}
        """UID -> the gang of a member."""
        self._open: dict[str, None] = {}
        """Keys of the unsettled gangs: some members wait, or it has not formed."""
        self._aborted: dict[str, tuple[int, float]] = {}
        """Key of a gang whose members were deleted -> how often since it last formed, and when it may try again."""
        self._left = LeftGangs()

    # --- events -----------------------------------------------------------------------------------------------

    def put_group(self, group: Group) -> None:
        """Record that a PodGroup exists or has changed."""
        entry = self._entry(Membership(group=group.name, controller=group.controller))
        if entry.group != group:
            entry.group = group
            self._changed(entry)

    def remove_group(self, name: str, controller: str = "") -> None:
        """Record that a PodGroup, or the controller that defines a gang, was deleted."""
        entry = self._entry(Membership(group=name, controller=controller))
        entry.group = None
        self._changed(entry)

    def put_replicas(self, group: Group, count: int) -> list[Membership]:
        """Record an object that defines equal gangs, and return those that have members.

        Args:
            group: one of the gangs, but with the object's name.
            count: the number of gangs.
        """
        self._of_replicas[group.controller, group.name] = replace(group, is_replica=True), count
        return self._replicas_changed(group.controller, group.name)

    def remove_replicas(self, controller: str, owner: str) -> list[Membership]:
        """Record that an object (namespace/name) was deleted; return those of its equal gangs that have members."""
        if self._of_replicas.pop((controller, owner), None) is None:
            return []
        return self._replicas_changed(controller, owner)

    def _replicas_changed(self, controller: str, owner: str) -> list[Membership]:
        """Read the equal gangs of an object that have members again, and return them."""
        entries = [*self._replicas.get((controller, owner), {}).values()]
        for entry in entries:
            if (group := self._replica(entry.gang)) != entry.group:
                entry.group = group
                self._changed(entry)
        return [entry.gang for entry in entries]

    def _replica(self, gang: Membership) -> Group | None:
        """Return a gang that is one of the equal gangs of an object; None if no object defines it."""
        owner, number = replica_of(gang.controller, gang.group) or ("", 0)
        group, count = self._of_replicas.get((gang.controller, owner), (None, 0))
        if group is None or number >= count:
            return None
        own = Membership(group=gang.group, controller=gang.controller)
        return replace(group, name=gang.group, later=tuple(replace(part, gang=own) for part in group.later))

    def wait(self, pod: PendingPod, gang: Membership) -> None:
        """Record that a member waits, or has changed while it waits."""
        entry = self._join(pod.uid, gang, pod.owner)
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

    def hold(
        self,
        charge: Charge,
        gang: Membership,
        *,
        bound: bool,
        running: bool = False,
        is_ours: bool = True,
        record: str = "",
    ) -> None:
        """Record that a member has a node, either assumed or bound.

        `is_ours`: whether Berth bound the member. `record`: the members with which it was bound.
        """
        entry = self._join(charge.uid, gang, charge.owner)
        before = entry.held.get(charge.uid)
        if before is None and not entry.stays:
            _begin_generation(entry, found=bound)
        if not (bound or entry.formed):
            entry.needs.add(bound_with.id_of(charge.uid))
        held = entry.held[charge.uid] = _Held(
            charge=charge,
            bound=bound,
            running=running,
            to_delete=before is not None and before.to_delete,
            is_ours=is_ours or (before is not None and before.is_ours),
            bound_with="" if entry.is_judged else record,
            pod=None if before is None else before.pod,
        )
        if before is None or before.stays != held.stays:
            self._changed(entry)
        elif before.bound != bound:
            self._update_progress(entry)

    def release(self, uid: str) -> None:
        """Record that a member no longer has a node."""
        if (entry := self._entry_of(uid)) is not None and entry.held.pop(uid, None) is not None:
            self._changed(entry)
            self._leave(uid, entry)

    def end(self, uid: str, gang: Membership, *, succeeded: bool, owner: Owner = NO_OWNER) -> None:
        """Record that a member has ended."""
        entry = self._join(uid, gang, owner)
        if succeeded and is_final(owner):
            entry.final.add(uid)
        # The watch of bound pods may be behind: do not count the member twice.
        released = entry.held.pop(uid, None)
        if released is not None or entry.ended.get(uid) != succeeded:
            entry.ended[uid] = succeeded
            self._changed(entry)

    def remove_ended(self, uid: str, *, is_followed: bool = True) -> None:
        """Record that a member that had ended was deleted, or that its pods are not followed any more."""
        if (entry := self._entry_of(uid)) is not None and uid in entry.ended:
            del entry.ended[uid]
            if uid in entry.final:
                entry.final.remove(uid)
                entry.gone.count += is_followed
            self._changed(entry)
            self._leave(uid, entry)

    # --- decisions --------------------------------------------------------------------------------------------

    def gang_of(self, uid: str) -> Membership | None:
        """Return the gang that a pod belongs to."""
        return self._of.get(uid)

    def ready(self, gang: Membership, now: float) -> Gang | None:
        """Return a gang's waiting members as a unit; None if there are too few or the gang backs off."""
        entry = self._entries.get(gang.key)
        if entry is None or now < entry.resume_at or not (pods := entry.candidates) or self._lacks(entry, pods):
            return None
        if now < self._aborted.get(entry.key, (0, 0.0))[1]:
            return None
        return self._unit(entry, pods)

    def waiting(self, gang: Membership) -> tuple[Gang | None, str]:
        """Return a gang's waiting members as a unit, even if they are too few, and why it cannot be decided otherwise.

        None if no member waits.
        """
        entry = self._entries.get(gang.key)
        if entry is None or not (idle := entry.idle):
            return None, ""
        return self._unit(entry, idle), entry.problem or entry.blocked

    def _unit(self, entry: _Entry, idle: list[PendingPod]) -> Gang:
        return Gang(
            membership=entry.gang,
            minimum=entry.minimum,
            members=tuple(idle),
            expected=() if entry.formed else self._expected(entry, idle),
            is_confirmed=entry.group is not None,
            placed=entry.placed,
            nodes=tuple(each.charge.node for each in entry.held.values() if each.stays),
            held=tuple(uid for uid, each in entry.held.items() if each.stays),
            unbound=tuple(uid for uid, each in entry.held.items() if each.stays and not each.bound),
            created=entry.group.created if entry.group else min(each.created for each in idle),
            arrived=min(each.arrived for each in idle),
            version=entry.version,
            topology_key=entry.group.topology_key if entry.group else "",
            formed=entry.runs,
            further_preempt=entry.group is not None and entry.group.is_kubernetes,
        )

    def expected(self, gang: Membership) -> tuple[PendingPod, ...]:
        """Return the pods without a node that come after the bound members of a gang; some may wait already."""
        entry = self._entries.get(gang.key)
        if entry is None:
            return ()
        members = [member.pod for member in entry.held.values() if member.pod and member.stays]
        return self._expected(entry, members, is_first=False)

    def _expected(
        self, entry: _Entry, members: Sequence[PendingPod], *, is_first: bool = True
    ) -> tuple[PendingPod, ...]:
        """Return the pods that come once members run, those of each gang with the numbers that its last members have.

        Nothing is expected before all members that come first exist, or if Kueue has promised places to all.

        `is_first`: whether pods that wait already need no place in addition.
        """
        gang, missing = entry.gang, max(0, entry.of_all - (entry.size if is_first else entry.placed))
        if not gang.controller or entry.minimum > entry.size or any(pod.workload for pod in members):
            return ()
        later = entry.group.later if entry.group else ()
        # Members without devices, such as a leader that only coordinates, may have others that are not equal.
        if entry.group is None and gang.controller in EQUAL and all(pod.request.devices for pod in members):
            later = (LaterMembers(gang=gang, count=missing),)
        bound = [member.charge for member in entry.held.values() if member.is_ours]
        if not (members or bound):
            return ()
        like: PendingPod | Charge = members[0] if members else bound[0]
        joined_entries = [self._entries.get(part.gang.key, _NO_ENTRY) for part in later]
        exists = [joined.size if is_first else joined.placed for joined in joined_entries]
        of_templates = [
            self._priority_of(part.pod.admission) if part.pod and part.pod.admission else None for part in later
        ]
        state = entry.version, is_first, like, len(members), *exists, *of_templates, self._may_preempt()
        if entry.expected is not None and entry.expected[0] == state:
            return entry.expected[1]
        pods: list[PendingPod] = []
        for part, joined, exist, found in zip(later, joined_entries, exists, of_templates, strict=True):
            left = min(part.count, missing) if joined is entry else max(0, part.count - exist)
            templates = [part.pod] if part.pod is not None else members
            # No pods are evicted for an unknown class. The object confirms the number: a pod may state any size.
            priorities = [found or (like.priority, False)]
            if part.pod is None:
                priorities = [(pod.priority, pod.preempts) for pod in members]
            is_confirmed = entry.group is not None and self._may_preempt()
            numbers = range(part.count - left, part.count) if templates else range(0)
            pods += (
                replace(
                    templates[number % len(templates)],
                    uid=f"{part.gang.key}:{number}",
                    name=f"{part.gang.name}:{number}",  # no pod's name has a colon
                    scheduler=like.scheduler,
                    priority=min(priorities[number % len(templates)][0], like.priority),
                    gang=gang,
                    workload=part.gang.key,
                    preempts=is_confirmed and priorities[number % len(templates)][1],
                    nominated_node="",
                    reserved_node="",
                )
                for number in numbers[: MAX_EXPECTED - len(pods)]
            )
        entry.expected = state, tuple(pods)
        return entry.expected[1]

    def still_to_come(self, gang: Membership) -> dict[str, StillToCome]:
        """Return how many pods come after the members of a gang, by the key of the gang that they join."""
        entry = self._entries.get(gang.key, _NO_ENTRY)
        parts = entry.group.later if entry.group else (LaterMembers(gang=gang, count=max(0, entry.of_all - 1)),)
        left: dict[str, StillToCome] = {}
        for part in parts:
            joined = self._entries.get(part.gang.key, _NO_ENTRY)
            # Members that come first are no later ones of their own gang.
            first = max(0, joined.of_all - part.count) if joined is entry else 0
            counts = joined.placed - first, joined.size - first
            without_node, missing = (max(0, part.count - max(0, count)) for count in counts)
            left[part.gang.key] = StillToCome(count=part.count, without_node=without_node, missing=missing)
        return left

    def living(self, gang: Membership) -> frozenset[str]:
        """Return the UIDs of the members that wait, have a node and stay, or have succeeded."""
        entry = self._entries.get(gang.key, _NO_ENTRY)
        staying = (uid for uid, each in entry.held.items() if each.stays)
        succeeded = (uid for uid, has_succeeded in entry.ended.items() if has_succeeded)
        return frozenset([*entry.waiting.keys() - entry.held.keys(), *staying, *succeeded])

    def has_object(self, gang: Membership) -> bool:
        """Return whether the object exists that defines a gang, or others of its kind."""
        owner, _ = replica_of(gang.controller, gang.group) or ("", 0)
        return self.is_confirmed(gang) or (gang.controller, owner) in self._of_replicas

    def is_confirmed(self, gang: Membership) -> bool:
        """Return whether an object defines a gang."""
        return self._entries.get(gang.key, _NO_ENTRY).group is not None

    def put_request(self, pod: PendingPod) -> None:
        """Record what a bound member requested, for the members that come later."""
        if (entry := self._entry_of(pod.uid)) is not None and pod.uid in entry.held:
            entry.held[pod.uid].pod = pod

    def needs_request(self, uid: str) -> bool:
        """Return whether it is not known what a bound member requested, although equal members may come."""
        entry = self._entry_of(uid)
        if entry is None or uid not in entry.held or entry.held[uid].pod or entry.size >= entry.of_all > 0:
            return False
        later = entry.group.later if entry.group else ()
        return any(part.pod is None for part in later) or (entry.group is None and entry.gang.controller in EQUAL)

    def placed_members(self, gang: Membership) -> list[Charge]:
        """Return the members of a gang that have a node."""
        entry = self._entries.get(gang.key)
        return [] if entry is None else [member.charge for member in entry.held.values() if member.stays]

    def unready(self, now: float) -> Iterator[tuple[str, list[PendingPod]]]:
        """Yield what each gang has lacked for at least SETTLE seconds, with the members to report it on."""
        for entry in self._unsettled():
            problem = self._lacks(entry, entry.candidates) or self._pause(entry, now) if (idle := entry.idle) else ""
            if not problem:
                entry.unready_since = None
                yield from self._left_out(entry)
            elif entry.unready_since is None:
                entry.unready_since = now
            elif now - entry.unready_since >= SETTLE:
                yield problem, idle

    @staticmethod
    def _left_out(entry: _Entry) -> Iterator[tuple[str, list[PendingPod]]]:
        """Yield the members of earlier revisions that are not decided with the newest, with the reason."""
        candidates = {pod.uid for pod in entry.candidates} if (outdated := entry.outdated) else ()
        if left := [pod for pod in outdated if pod.uid not in candidates]:
            yield f"{entry.key}: waiting for the members of a newer revision, whose minimum is {entry.minimum}", left

    def completed(self, now: float) -> list[Membership]:
        """Return the controllers' gangs that no longer wait for missing members, since now."""
        late = [
            entry
            for entry in self._unsettled()
            if entry.gang.controller
            and not entry.is_complete
            and (entry.size < entry.minimum or not (entry.group or entry.minima))
            and entry.unready_since is not None
            and now - entry.unready_since >= PATIENCE
        ]
        for entry in late:
            entry.is_complete = True
            self._changed(entry)
        return [entry.gang for entry in late]

    def _lacks(self, entry: _Entry, candidates: list[PendingPod]) -> str:
        if problem := entry.problem or entry.blocked:
            return problem
        if not candidates:
            return f"{entry.key}: waiting for the members that are being bound"
        count = entry.placed + len(candidates)
        return too_few(entry.key, count, entry.minimum) if count < entry.minimum and not entry.runs else ""

    def _pause(self, entry: _Entry, now: float) -> str:
        """Return that a gang must wait, because its members were deleted again and again; empty if it need not."""
        aborts, until = self._aborted.get(entry.key, (0, 0.0))
        if now >= until:
            return ""
        return (
            f"{entry.key}: its bound members were deleted {aborts} times, because it could not be completed; "
            f"it is tried again {_pause_after(aborts):g} s after the last time"
        )

    def unschedulable(self, gang: Membership, failure: Failure) -> bool:
        """Record why too few members were placed; return whether that has changed."""
        entry, why = self._entries.get(gang.key), (failure.condition, failure.message)
        if entry is None or entry.formed or entry.unscheduled == why:
            return False
        entry.unscheduled = why
        return True

    def leaving_with(self, victims: Iterable[Charge]) -> list[Charge]:
        """Return the victims of a preemption, and the other placed members of groups that leave only together."""
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

    def back_off(self, gang: Membership, now: float, longest: float = MAX_BACKOFF) -> None:
        """Start the gang's back-off, which gets longer each time."""
        entry = self._entries.get(gang.key)
        if entry is not None and entry.resume_at <= now:
            entry.tries += 1
            entry.resume_at = now + pause(entry.tries, longest)

    def resumed(self, now: float) -> list[Membership]:
        """Return the gangs whose back-off has just ended."""
        due = [entry for entry in self._unsettled() if 0.0 < entry.resume_at <= now]
        for entry in due:
            # The pause of one that was aborted may be longer.
            entry.resume_at = until if (until := self._aborted.get(entry.key, (0, 0.0))[1]) > now else 0.0
        return [entry.gang for entry in due]

    # --- the next leader ---------------------------------------------------------------------------------------

    def record(self) -> list[SucceededMembers]:
        """Return the members that have succeeded and are deleted, for the next leader."""
        return gone_members.record([*self._left, *((key, entry.gone) for key, entry in self._entries.items())])

    def restore(self, recorded: Iterable[SucceededMembers]) -> list[Membership]:
        """Count the deleted members that the last leader recorded, once all pods are read; return their gangs."""
        gangs = []
        for members in recorded:
            entry = self._entries.get(members.gang)
            gone = gone_members.restored(members, entry.gone.controllers if entry is not None else ())
            if entry is None and gone is not None:
                self._left.put(members.gang, gone)
            elif entry is not None and gone is not None:
                entry.gone = gone
                self._changed(entry)
                gangs.append(entry.gang)
        return gangs

    # --- gangs that another leader bound ------------------------------------------------------------------------

    def judge(self) -> list[tuple[Membership, str, list[Charge]]]:
        """Judge whether the gangs that were already bound have formed, once all their members have been read.

        Returns:
            each of these gangs. If a gang has too few members and nothing is known of it, also a message and its bound
            members.
        """
        found = [entry for entry in self._unsettled() if not entry.is_judged]
        return [(entry.gang, *self._judge(entry)) for entry in found]

    def _judge(self, entry: _Entry) -> tuple[str, list[Charge]]:
        members = [each for each in entry.held.values() if each.stays and each.is_ours]
        records = bound_with.united([each.bound_with for each in members])
        waiting = {bound_with.id_of(pod.uid) for pod in entry.idle}
        bound = {bound_with.id_of(uid) for uid in (*entry.held, *entry.ended)}
        was_formed = any(len(each.ids & bound) >= each.needed for each in records)
        unfinished = [each for each in records if not was_formed and each.is_unfinished(waiting, entry.minimum)]
        # A status is no proof: it may be of an earlier generation.
        says_formed = was_formed or (entry.group is not None and entry.group.formed)
        entry.is_judged = True
        entry.needs = {member for each in unfinished for member in each.ids}
        entry.formed = not unfinished and (bool(members) or says_formed)
        for member in entry.held.values():
            member.bound_with = ""
        self._changed(entry)
        # A controller's gang without records was placed by a version, or in a namespace, without a rule for it.
        was_alone = bool(entry.gang.controller) and not records
        if not members or unfinished or says_formed or not entry.minimum or was_alone:
            return "", []
        message = (
            f"{entry.bound} of {entry.minimum} members of {entry.key} are bound, and nothing records whether enough of "
            "them were before the operator restarted"
        )
        return message, [each.charge for each in members]

    # --- gangs that cannot be completed -------------------------------------------------------------------------

    def overdue(self, now: float) -> list[Membership]:
        """Return the gangs whose deadline has passed.

        Start the deadline of a gang that is bound in part and has none, as another leader left it.
        """
        due = []
        for entry in self._unsettled():
            if entry.deadline is None and entry.is_bound_in_part and entry.minimum:
                entry.deadline = now + self._time(entry)
            if entry.deadline is not None and entry.deadline <= now:
                due.append(entry.gang)
        return due

    def abort(self, gang: Membership, now: float, *, keep: bool) -> tuple[str, list[Charge]]:
        """Stop completing a gang; return a message and the bound members, which must be deleted unless `keep`.

        The bound members of a controller's gang always stay, and each other member is then placed by itself.
        """
        entry = self._entries[gang.key]
        message = (
            f"{gang.key} could not be completed within {self._time(entry):g} s: "
            f"{entry.bound} of {entry.minimum} members were bound"
        )
        entry.deadline = None
        held = [each for each in entry.held.values() if each.bound and each.stays and each.is_ours]
        to_delete = [] if keep or gang.controller else held
        entry.formed = entry.formed or bool(gang.controller)
        for member in to_delete:
            member.to_delete = True
        if to_delete:
            aborts = self._aborted.pop(entry.key, (0, 0.0))[0] + 1
            self._aborted[entry.key] = aborts, now + _pause_after(aborts)
            if len(self._aborted) > MAX_ABORTED:
                del self._aborted[next(iter(self._aborted))]
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
            failed=len(entry.ended) - sum(entry.ended.values()),
            formed=entry.formed,
        )

    def notes(self, gang: Membership) -> str:
        """Return which fields of a gang's PodGroup have no effect; empty if all have, or there is none."""
        entry = self._entries.get(gang.key)
        return entry.group.notes if entry is not None and entry.group else ""

    def size(self, gang: Membership) -> tuple[int, int]:
        """Return how many members of a gang wait, have a node or have succeeded, and how many it needs."""
        entry = self._entries.get(gang.key)
        return (0, 0) if entry is None else (entry.size, entry.minimum)

    def placed(self, gang: Membership) -> int:
        """Return how many members of a gang have a node or have succeeded."""
        entry = self._entries.get(gang.key)
        return 0 if entry is None else entry.placed

    # --- entries ----------------------------------------------------------------------------------------------

    def _entry(self, gang: Membership) -> _Entry:
        """Return a gang, which is tracked from now on."""
        if (entry := self._entries.get(gang.key)) is None:
            entry = _Entry(gang=gang, group=self._replica(gang), gone=self._left.take(gang.key))
            self._entries[gang.key] = entry
            if (found := replica_of(gang.controller, gang.group)) is not None:
                self._replicas[gang.controller, found[0]][gang.key] = entry
        return entry

    def _remove(self, entry: _Entry) -> None:
        """Stop tracking a gang."""
        del self._entries[entry.key]
        self._left.put(entry.key, entry.gone)
        if (found := replica_of(entry.gang.controller, entry.gang.group)) is not None:
            gangs = self._replicas[owner := (entry.gang.controller, found[0])]
            del gangs[entry.key]
            if not gangs:
                del self._replicas[owner]

    def _unsettled(self) -> list[_Entry]:
        return [self._entries[key] for key in self._open]

    def _join(self, uid: str, gang: Membership, owner: Owner | None = None) -> _Entry:
        """Return a member's gang, after removing the member from the gang that its labels named before.

        `owner`: the member's controller; None if it is not known here.
        """
        before = self._entry_of(uid)
        if before is not None and before.key != gang.key:
            before.waiting.pop(uid, None)
            before.held.pop(uid, None)
            before.ended.pop(uid, False)
            before.final.discard(uid)
            before.gated.discard(uid)
            self._changed(before)
        entry = self._entry(gang)
        if entry.gang.controller and self._of.get(uid) != gang:
            entry.is_complete, entry.unready_since = False, None
        self._of[uid] = gang
        entry.gang = gang
        if owner is not None:
            entry.gone.meet(owner)
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
            _begin_generation(entry, found=False)
        elif entry.minimum and entry.bound >= entry.minimum:
            entry.version += not entry.formed  # each waiting member is now decided for itself
            entry.formed, entry.is_judged, entry.deadline, entry.needs = True, True, None, set()
            entry.tries, entry.unscheduled, entry.expected = 0, ("", ""), None
            self._aborted.pop(entry.key, None)
            for member in entry.held.values():
                # Its deletion was refused, and it is a member of a complete gang now.
                member.to_delete = False
        if entry.waiting or (entry.held and not entry.formed):
            self._open[entry.key] = None
        else:
            self._open.pop(entry.key, None)
        if entry.is_empty:
            self._remove(entry)

    def _time(self, entry: _Entry) -> float:
        return (entry.group.timeout if entry.group else 0.0) or self._timeout


def _minima(members: Iterable[PendingPod | Charge]) -> set[int]:
    """Return the values of members' annotation for the minimum."""
    return {each.gang.minimum for each in members if each.gang is not None and each.gang.minimum is not None}


def _pause_after(aborts: int) -> float:
    """Return how long a gang must wait whose members were deleted so often in vain, in seconds."""
    return BACKOFF.after(aborts - FREE_ABORTS + 1)


def _begin_generation(entry: _Entry, *, found: bool) -> None:
    """Forget the state of the earlier members. `found`: whether the first new member is bound already."""
    entry.formed, entry.is_judged, entry.deadline, entry.needs = False, not found, None, set()


def _place(pod: PendingPod) -> tuple[object, ...]:
    return pod.class_key, pod.priority, pod.weight, pod.gang
