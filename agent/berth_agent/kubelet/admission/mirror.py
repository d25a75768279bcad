"""The mirror of kubelet's admission: the node's pods in its order, allocations, and kubelet's reports.

kubelet's own watch delivers pods one by one, in the order of their versions. The pods that exist when the watch begins
are admitted in the order of their creation. kubelet records a container's devices only after the agent has answered, so
until then only the agent's record has them. kubelet never reports init containers that have ended, so the agent's
record is the only one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.snapshot import NONE, AdmissionSnapshot, ContainerKey, Ids
from berth_agent.kubelet.admission.units import Units
from berth_api.values import keys

RECORDED_SECONDS: Final = 1.0
"""After this kubelet has recorded the allocation, or never will: admission failed elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a container has, by names that outlive its Pod object."""

    uid: str
    namespace: str
    pod: str
    container: str
    ids: tuple[str, ...]

    @property
    def key(self) -> ContainerKey:
        """Return the container's name on the node."""
        return ContainerKey(uid=self.uid, container=self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAllocation:
    """An allocation that kubelet was answered and has not reported yet."""

    key: ContainerKey
    resource: str
    ids: Ids
    at: float
    """Monotonic seconds."""
    never_reported: bool = False
    """Whether kubelet never reports it: it is of an init container that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReport:
    """A container's devices as kubelet reports them. The report names pods, but not their UIDs."""

    namespace: str
    pod: str
    container: str
    by_resource: Mapping[str, Ids]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class UnmatchedUnit:
    """A unit that a container has by an id that does not show its card."""

    id: str
    resource: str
    """Empty if kubelet does not report it any more."""
    pod: str
    """namespace/name."""
    cards: tuple[str, ...]
    """Ids of the cards that the id may stand for, sorted; all of the node if it stands for none."""
    is_named: bool
    """Whether the id stands for a card at all."""


class Mirror:
    """The state of one node's admission."""

    def __init__(self) -> None:
        self.units = Units()
        self._pods: dict[str, Pod] = {}
        """The pods in kubelet's order."""
        self._reports: dict[ContainerKey, ContainerReport] = {}
        self._pending: dict[tuple[ContainerKey, str], PendingAllocation] = {}
        self._lingering: dict[ContainerKey, Holding] = {}
        """What containers had and kubelet no longer reports, as long as their processes may run."""
        self._running: frozenset[str] = frozenset()
        """UIDs of the pods that had processes at the last look."""
        self._unreported: set[str] = set()
        """UIDs of pods that kubelet reported once and does not any more: it will not admit them again."""
        self._doubtful: set[str] = set()
        """UIDs of pods with an allocation that kubelet never reported."""
        self.stopped: frozenset[str] = frozenset()
        """UIDs of pods that are being deleted and have stopped (`idle`)."""
        self._version = -1
        """The resourceVersion of the last list."""
        self.version = -1
        """The highest resourceVersion of the last list and of the events since then; -1 before the first list."""

    def see(self, units: Units) -> None:
        """Store the units of a reading, and match what kubelet reported before with them."""
        self.units = self.units.joined(units)
        self._reports = {key: self._matched(report) for key, report in self._reports.items()}

    # --- the node's pods ----------------------------------------------------------------------------------------

    def put(self, pod: Pod) -> bool:
        """Store a new or changed pod unless it is older than the last list; return whether anything changed."""
        if pod.version <= self._version:
            return False
        self.version = max(self.version, pod.version)
        previous, self._pods[pod.uid] = self._pods.get(pod.uid), pod
        if previous is None:
            self._name_again()
        return previous is None or replace(previous, version=pod.version) != pod

    def remove(self, pod: Pod) -> bool:
        """Remove a pod unless the event is older than the last list. Its devices may stay in use for a while."""
        is_there = pod.version > self._version and pod.uid in self._pods
        self.version = max(self.version, pod.version)
        if is_there:
            self._remove(pod.uid)
        return is_there

    def _remove(self, uid: str) -> None:
        pod = self._pods.pop(uid)
        self._unreported.discard(uid)
        self._doubtful.discard(uid)
        self._lingering |= {holding.key: holding for holding in self._had(pod)}

    def replace(self, pods: Collection[Pod], version: int) -> None:
        """Replace the pods by a list of a version. Known pods keep their places, and new ones follow them.

        A list that is older than `self.version` undoes the events after it. Only the watch's own list may be older: the
        watch repeats these events. After a restore of etcd, the watch's list has a lower version.
        """
        first = self._version < 0
        for uid in self._pods.keys() - {pod.uid for pod in pods}:
            self._remove(uid)
        for pod in sorted(pods, key=lambda listed: (listed.created, listed.version) if first else ("", listed.version)):
            self._pods[pod.uid] = pod
        self._version = self.version = version
        self._name_again()

    def reorder(self) -> None:
        """Sort pods by creation: a kubelet that starts a new watch admits them in that order."""
        self._pods = dict(sorted(self._pods.items(), key=lambda item: (item[1].created, item[1].version)))

    # --- what was allocated, and what kubelet reports -----------------------------------------------------------

    def record_allocation(self, key: ContainerKey, resource: str, ids: Ids, now: float) -> None:
        """Record what kubelet was answered.

        If some of it was recorded for another pod, that was this pod: kubelet admits one pod after the other.
        """
        ends = any(container.ends for container in self._pods[key.uid].containers if container.name == key.container)
        allocation = PendingAllocation(key=key, resource=resource, ids=ids, at=now, never_reported=ends)
        mistaken = {allocated.key.uid for allocated in self._pending.values() if allocated.ids & ids} - {key.uid}
        for mistake in [allocated for allocated in self._pending.values() if allocated.key.uid in mistaken]:
            del self._pending[mistake.key, mistake.resource]
            self._reassign(mistake, key.uid)
        self._pending[key, resource] = allocation

    def _reassign(self, mistake: PendingAllocation, uid: str) -> None:
        """Assign an allocation to another pod's first init container of this size. Later containers reuse it."""
        for container in self._pods[uid].containers if uid in self._pods else ():
            if container.ends and container.wants.get(mistake.resource) == len(mistake.ids):
                owner = ContainerKey(uid=uid, container=container.name)
                self._pending.setdefault((owner, mistake.resource), replace(mistake, key=owner, never_reported=True))
                return

    def apply_reports(self, reports: Iterable[ContainerReport], asked_at: float) -> None:
        """Apply kubelet's reports, of a moment after `asked_at`; keep the pending allocations that they leave open."""
        matched = (self._matched(report) for report in reports)
        reports_before, self._reports = self._reports, {self._named(report): report for report in matched}
        for key, report in reports_before.items():
            if key not in self._reports:
                self._unreported.add(key.uid)
                self._lingering[key] = Holding(
                    uid=key.uid,
                    namespace=report.namespace,
                    pod=report.pod,
                    container=report.container,
                    ids=tuple(sorted(NONE.union(*report.by_resource.values()))),
                )
        recorded = {
            unit: key.uid
            for key, report in self._reports.items()
            for ids in report.by_resource.values()
            for unit in ids
        }
        dropped = [given for given in self._pending.values() if not self._stands(given, recorded, asked_at)]
        for allocation in dropped:
            del self._pending[allocation.key, allocation.resource]
        named = {key.uid for key in self._reports}
        self._doubtful = (self._doubtful | {allocation.key.uid for allocation in dropped}) - named
        # What another pod's container is reported to have was that pod's from the beginning. Kubelet keeps all of it
        # for that pod, and never reports what only its init container has.
        for mistake in dropped:
            for uid in {recorded[unit] for unit in mistake.ids if unit in recorded} - {mistake.key.uid}:
                self._reassign(mistake, uid)
        # What is restored lingers until kubelet reports it, and so does what a starting kubelet did not report yet.
        self._lingering = {key: holding for key, holding in self._lingering.items() if self._lingers(holding)}
        # A removed pod never returns, and kubelet reports a pod that the watch has not shown under its name.
        self._unreported &= self._pods.keys()
        self._doubtful &= self._pods.keys()

    def _lingers(self, holding: Holding) -> bool:
        """Return whether a holding is of a removed pod, or is more than what its pod has now."""
        pod = self._pods.get(holding.uid)
        if pod is None:
            return True
        reported = (report.by_resource.values() for key, report in self._reports.items() if key.uid == holding.uid)
        kept = (given.ids for given in self._pending.values() if given.key == holding.key and given.never_reported)
        by_annotation = (had.ids for had in _had_by_annotation(pod))
        return not NONE.union(*chain.from_iterable(reported), *kept, *by_annotation).issuperset(holding.ids)

    def release_offered(self, resource: str, free: Ids) -> None:
        """Drop pending allocations of devices that kubelet offers as free: they came to nothing.

        An init container may still run though kubelet has given up its pod.
        """
        void = {
            key: allocation
            for key, allocation in self._pending.items()
            if allocation.resource == resource and not allocation.ids.isdisjoint(free)
        }
        self._pending = {key: allocation for key, allocation in self._pending.items() if key not in void}
        self._doubtful |= {key.uid for key, _ in void}
        for (key, _), allocation in void.items():
            if allocation.never_reported and key.uid in self._pods:
                self._lingering[key] = _holding(self._pods[key.uid], key.container, sorted(allocation.ids))

    def _matched(self, report: ContainerReport) -> ContainerReport:
        """Return the report with the UUIDs of cards, where a device plugin has other ids for them."""
        by_resource = {
            name: frozenset(self.units.matched(unit) or unit for unit in ids)
            for name, ids in report.by_resource.items()
        }
        return replace(report, by_resource=by_resource)

    def _named(self, report: ContainerReport) -> ContainerKey:
        """Return the container of a report.

        A pod with a removed pod's name owns the report only if it has that allocation.
        """
        name = keys.join(report.namespace, report.pod)
        pod = next((candidate for candidate in self._pods.values() if candidate.key == name), None)
        key = ContainerKey(uid=pod.uid if pod else name, container=report.container)
        lingering = (
            other_key
            for other_key, other_report in self._reports.items()
            if other_report == report and other_key in self._lingering
        )
        is_pending = any(container == key for container, _ in self._pending)
        return key if is_pending else next(lingering, key)

    def _name_again(self) -> None:
        """Assign reports to pods that kubelet knew before this watch did."""
        self._reports = {self._named(report): report for report in self._reports.values()}

    def _stands(self, allocation: PendingAllocation, recorded: Mapping[str, str], asked_at: float) -> bool:
        if allocation.key.uid not in self._pods or self._pods[allocation.key.uid].ended:
            return False
        if any(recorded.get(unit, allocation.key.uid) != allocation.key.uid for unit in allocation.ids):
            return False
        if allocation.never_reported:
            return True
        known = self._reports.get(allocation.key)
        is_recorded = known is not None and allocation.resource in known.by_resource
        return not is_recorded and asked_at - allocation.at < RECORDED_SECONDS

    # --- what follows -------------------------------------------------------------------------------------------

    @property
    def is_confirmed(self) -> bool:
        """Return whether kubelet reported all allocations."""
        return all(allocation.never_reported for allocation in self._pending.values())

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Return the pods that have not ended or stopped, in their order."""
        return tuple(pod for pod in self._pods.values() if not pod.ended and pod.uid not in self.stopped)

    @property
    def has_deleting(self) -> bool:
        """Return whether a pod that has not ended is being deleted."""
        return any(pod.deleting and not pod.ended for pod in self._pods.values())

    def idle(self, running: Collection[str], claiming: Collection[str]) -> frozenset[str]:
        """Return the UIDs of pods that are being deleted and have neither processes nor devices of kubelet.

        A pod with the annotations of a mirror pod may name any UID. Processes that another pod of the node has, which
        is not being deleted, are the other pod's.

        Args:
            running: the UIDs in the cgroups of processes.
            claiming: the pods (namespace/name) for which kubelet reports devices of ResourceClaims.
        """
        pods = [pod for pod in self._pods.values() if not pod.ended]
        others = {pod.cgroup_uid for pod in pods if not pod.deleting}
        living = frozenset(running) - others
        holding = {holding.uid for holding in self.holdings()} | {key.uid for key, _ in self._pending}
        return frozenset(
            pod.uid
            for pod in pods
            if pod.deleting
            and pod.uid not in holding
            and pod.key not in claiming
            and living.isdisjoint((pod.uid, pod.cgroup_uid))
        )

    def pod(self, uid: str) -> Pod:
        """Return a pod by its UID."""
        return self._pods[uid]

    @property
    def pending(self) -> tuple[PendingAllocation, ...]:
        """Return the allocations that kubelet has not reported yet."""
        return tuple(self._pending.values())

    @property
    def has_lingering(self) -> bool:
        """Return whether containers that kubelet no longer reports may still use devices."""
        return bool(self._lingering)

    def snapshot(self) -> AdmissionSnapshot:
        """Return the current state."""
        allocated: dict[ContainerKey, dict[str, Ids]] = {
            key: dict(report.by_resource) for key, report in self._reports.items()
        }
        for allocation in self._pending.values():
            allocated.setdefault(allocation.key, {}).setdefault(allocation.resource, allocation.ids)
        lingering: dict[str, Ids] = {}
        for key, holding in self._lingering.items():
            lingering[key.uid] = lingering.get(key.uid, NONE).union(holding.ids)
        return AdmissionSnapshot(
            pods=self.pods,
            unreported=frozenset(self._unreported),
            doubtful=frozenset(self._doubtful),
            allocated=allocated,
            recorded=frozenset(key.uid for key in self._reports),
            unconfirmed=tuple(allocation.ids for allocation in self._pending.values()),
            lingering=lingering,
            running=self._running,
            units=self.units,
        )

    def holdings(self) -> tuple[Holding, ...]:
        """Return the devices of containers, by the order of each pod's containers, and of removed containers."""
        holdings = {holding.key: holding for pod in self._pods.values() for holding in self._had_of_kubelet(pod)}
        return tuple((self._lingering | holdings).values())

    def unmatched(self) -> tuple[UnmatchedUnit, ...]:
        """Return the units that containers have and whose ids do not show which card it is, sorted."""
        reported = {
            (unit, keys.join(report.namespace, report.pod)): resource
            for report in self._reports.values()
            for resource, ids in report.by_resource.items()
            for unit in ids
        }
        lingering = {
            (unit, keys.join(holding.namespace, holding.pod)): ""
            for holding in self._lingering.values()
            for unit in holding.ids
        }
        return tuple(
            sorted(
                UnmatchedUnit(
                    id=unit,
                    resource=resource,
                    pod=pod,
                    cards=tuple(sorted(self.units.candidates(unit))),
                    is_named=self.units.is_named(unit),
                )
                for (unit, pod), resource in {**lingering, **reported}.items()
                if self.units.matched(unit) is None
            )
        )

    def saved_holdings(self) -> tuple[Holding, ...]:
        """Return the holdings that the next run restores: also those by annotations.

        If such a pod is removed by force while no agent runs, its processes may still use its cards.
        """
        by_annotation = {holding.key: holding for pod in self._pods.values() for holding in _had_by_annotation(pod)}
        return tuple((by_annotation | {holding.key: holding for holding in self.holdings()}).values())

    def release_ended(self, running: Collection[str]) -> None:
        """Release what pods without processes had."""
        self._lingering = {key: holding for key, holding in self._lingering.items() if key.uid in running}
        self._running = frozenset(running)

    def restore(self, pending: Iterable[PendingAllocation], holdings: Iterable[Holding], now: float) -> None:
        """Restore the last run's data: pending allocations, as if made now, and what containers had."""
        self._pending = {(allocation.key, allocation.resource): replace(allocation, at=now) for allocation in pending}
        self._lingering |= {holding.key: holding for holding in holdings}

    def _had(self, pod: Pod) -> tuple[Holding, ...]:
        """Return what a pod has, of kubelet or by its annotation alone."""
        if pod.ended:
            return ()
        return tuple(self._had_of_kubelet(pod)) if pod.uses_plugin else _had_by_annotation(pod)

    def _had_of_kubelet(self, pod: Pod) -> Iterable[Holding]:
        """Return what kubelet gave a pod. An init container keeps devices that no later container took over."""
        ids_by_container: dict[str, Ids] = {
            key.container: NONE.union(*report.by_resource.values())
            for key, report in self._reports.items()
            if key.uid == pod.uid
        }
        listed_ids = NONE.union(*ids_by_container.values())
        for allocation in self._pending.values():
            if allocation.key.uid == pod.uid and allocation.never_reported:
                name = allocation.key.container
                ids_by_container[name] = ids_by_container.get(name, NONE) | (allocation.ids - listed_ids)
        return [
            _holding(pod, container.name, sorted(ids_by_container[container.name]))
            for container in pod.containers
            if ids_by_container.get(container.name)
        ]


def _had_by_annotation(pod: Pod) -> tuple[Holding, ...]:
    """Return what a pod has by its annotation alone; nothing if it has ended, or if kubelet gives it its devices."""
    if pod.ended or pod.uses_plugin:
        return ()
    visible_by_container = [(container.name, container.visible) for container in pod.containers if container.visible]
    listed = visible_by_container or [(container.name, pod.granted) for container in pod.containers[:1] if pod.granted]
    return tuple(_holding(pod, name, ids) for name, ids in listed)


def _holding(pod: Pod, container: str, ids: Iterable[str]) -> Holding:
    return Holding(uid=pod.uid, namespace=pod.namespace, pod=pod.name, container=container, ids=tuple(ids))
