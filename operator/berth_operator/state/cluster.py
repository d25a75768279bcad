"""The operator's picture of the cluster: API events folded into the Fleet, the queue and the heartbeats.

Everything happens in the scheduler's loop, one event at a time, so nothing here needs a lock. A pod's charge goes
through three states: *assumed* when it is decided, *confirmed* when the watch shows the pod bound, and released when
the pod leaves; an assumed charge whose bind failed is *forgotten*.
"""

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from berth_api import names
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.preemption import Emptied
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue import waking
from berth_operator.core.queue.gang_tracker import Group, Roster
from berth_operator.core.queue.queue import NOT_CONCERNED, Queue
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state import devices, groups, kubelet, nodes, pods
from berth_operator.state.devices import DeviceRecord
from berth_operator.state.heartbeats import Heartbeats
from berth_operator.state.ledger import Ledger
from berth_operator.state.listener import Listener, NoListener
from berth_operator.state.nodes import NodeRecord
from berth_operator.state.views import GpuPodView, GroupView, NodeView, StatusKind, View

Object = Mapping[str, Any]

KUBELET_SECONDS: Final = 5.0
"""How long kubelet and its node's agent may take to tell what a pod was given."""

NO_LISTENER: Final = NoListener()

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Cluster:
    """The state that decisions read, and whom to tell when it changes."""

    def __init__(
        self,
        *,
        grace: float,
        gang_timeout: float = 60.0,
        confined: bool = False,
        listener: Listener = NO_LISTENER,
        fleet: Fleet | None = None,
        charges_foreign: bool = True,
        trusted_schedulers: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.listener = listener
        self.fleet = fleet or Fleet()
        self.ledger = Ledger(self.fleet)
        self.ledger.on_drift = self._drifts
        self.kinds = self.fleet.kinds
        """The types of devices that there are."""
        self.trusted_schedulers = frozenset(trusted_schedulers)
        """Other schedulers whose allocations are believed."""
        self.queue: Queue[PendingPod | Gang] = Queue()
        self.roster = Roster(timeout=gang_timeout)
        self.groups: dict[str, tuple[Group, Mapping[str, Any]]] = {}
        """namespace/name of a PodGroup -> what was read of it, and its status."""
        self.heartbeats = Heartbeats(grace=grace)
        self.budgets = Budgets()
        self.nodes: dict[str, NodeRecord] = {}
        self.devices: dict[str, DeviceRecord] = {}
        self.pending: dict[str, PendingPod] = {}
        """UID -> pod, all that wait for a node by the API server's word."""
        self.clock = clock
        self.version = 0
        """Changes whenever anything does that a pod's reason to wait may tell; nominations do not count."""
        self.schedulers: Collection[str] | None = None
        """The names whose pods are in our gangs; None for all."""
        self._charges_foreign = charges_foreign
        """Whether what processes outside Kubernetes use is handed out to nobody."""
        self._confined = confined
        """Whether a node selector leaves Nodes to other instances."""
        self._device_classes: dict[str, str] = {}
        """Name -> the extended resource that it provides."""
        self._unreported: dict[str, float] = {}
        """UID of pods with unknown devices -> since when, until their Node and Device are known too."""
        self._assumed: dict[str, float | None] = {}
        """UID of pods not yet seen bound -> when their bind succeeded."""
        self._arrivals = itertools.count()

    # --- pods that wait ---------------------------------------------------------------------------------------

    def put_pending(self, raw: Object) -> None:
        """A pod waits for a node, or changed while it waits."""
        uid = raw["metadata"]["uid"]
        if pods.is_gated(raw):
            self.remove_pending(uid)
            return
        pod, known = pods.pending(raw, self.kinds), self.pending.get(uid)
        pod = replace(pod, arrived=next(self._arrivals) if known is None else known.arrived)
        if known is not None and known.nominated != pod.nominated:
            # What we decided since counts: the watch may be behind.
            pod = replace(pod, nominated=known.nominated)
        if known is not None and known.gang != pod.gang:
            self.remove_pending(uid)
        if known is None and uid not in self.fleet.charges:
            self.fleet.workload.see(pod.request)
        self.pending[uid] = pod
        if pod.gang is not None:
            self.roster.wait(pod, pod.gang)
            self.gather(pod.gang)
        elif uid not in self.fleet.charges:
            self.queue.put(pod)
            self.listener.work_ready()

    def remove_pending(self, uid: str) -> None:
        """A pod waits no more: it is bound, or gone."""
        if (pod := self.pending.pop(uid, None)) is not None:
            self.queue.remove(uid)
            self.listener.pod_settled(uid)
            self._withdraw(uid)
            if pod.gang is not None:
                self.roster.no_longer_waits(uid)
                self.gather(pod.gang)

    def gather(self, gang: Membership) -> None:
        """Put a gang's waiting members into the queue if there are enough of them, else take them out."""
        if (unit := self.unit(gang)) is None:
            self.queue.remove(gang.key)
            self.withdraw_all(gang)
        else:
            self.queue.put(unit)
            self.listener.work_ready()
        if gang.minimum is None:
            self.listener.status_changed(StatusKind.POD_GROUP, gang.group)

    # --- pods that hold something -----------------------------------------------------------------------------

    def put_bound(self, raw: Object) -> None:
        """A pod is on a node, whoever put it there."""
        uid = raw["metadata"]["uid"]
        charge, known = self._read_bound(raw), self.fleet.charges.get(uid)
        if known is not None and known.gang is not None and known.gang != charge.gang:
            self._leaves_gang(uid, known.gang)
        if charge.gang is not None:
            # Before it waits no more: its gang would look smaller in between.
            self.roster.hold(charge, charge.gang, bound=True, running=pods.is_running(raw))
            self.gather(charge.gang)
        self._see_bound(raw, charge)
        self.remove_pending(uid)
        if uid in self._assumed:
            # The watch may be faster than the bind's own answer, which then has nothing left to tell.
            del self._assumed[uid]
            self.listener.status_changed(StatusKind.NODE, charge.node)
            self._confirmed()
        if known is not None and _same(known, charge):
            if known.chosen:
                # The API server itself now says what was promised.
                self.fleet.charge(charge)
            elif known.started != charge.started:
                self.fleet.started(uid, charge.started)
            return
        self._unreported.pop(uid, None)
        self.fleet.charge(charge)
        self.listener.status_changed(StatusKind.NODE, charge.node)
        if known is not None:
            self.listener.status_changed(StatusKind.NODE, known.node)
            self.happened(
                ClusterEvent(change=_change(known, charge), node=known.node, before=known, after=charge),
            )
        self._settle(kubelet_allocation.left_uid(charge.node, uid), None)
        self._review(charge.node)
        if charge.pod in self.ledger.gpu_pods:
            self.listener.status_changed(StatusKind.GPU_POD, charge.pod)
        self._placed(charge)
        if charge.unknown:
            self._unreported[uid] = self.clock()

    def _read_bound(self, raw: Object) -> Charge:
        charge = pods.charge(raw, self.kinds, self.trusted_schedulers, self.fleet.on_cards)
        if charge.gang is not None and not self._is_ours(charge.gang):
            charge = replace(charge, gang=None)
        return self.ledger.charged(charge)

    def _see_bound(self, raw: Object, charge: Charge) -> None:
        """Let a pod count for the typical mix that was not heard of while it waited."""
        if charge.grants and charge.uid not in self.pending and charge.uid not in self.fleet.charges:
            self.fleet.workload.see(pods.wanted(raw, self.kinds))

    def remove_bound(self, uid: str) -> None:
        """A pod has left its node: deleted, succeeded or failed."""
        self._assumed.pop(uid, None)
        self._unreported.pop(uid, None)
        self.fleet.unmark_leaving(uid)
        charge = self.fleet.charges.get(uid)
        if charge is not None:
            # First: between the two nobody must take what its containers may still use.
            self._settle(kubelet_allocation.left_uid(charge.node, uid), self.ledger.left_behind(charge.node, uid))
            self.fleet.release(uid)
            self.ledger.dismiss(charge)
            self._review(charge.node)
            if charge.gang is not None:
                self._leaves_gang(uid, charge.gang)
            self.listener.status_changed(StatusKind.NODE, charge.node)
            self._left(charge)

    def assume(self, placement: Placement) -> None:
        """Charge a decision at once, so that the next one sees it."""
        self._assumed[placement.pod.uid] = None
        kept = self.fleet.withdraw(placement.pod.uid)
        self.fleet.charge(placement.charge)
        if placement.pod.gang is not None:
            self.roster.hold(placement.charge, placement.pod.gang, bound=False)
        if kept is not None and not _same(kept, placement.charge):
            # Also on the same node: it may take other cards than were kept for it.
            self._left(kept)
        self._placed(placement.charge)

    def assume_all(self, placements: Sequence[Placement]) -> None:
        """Charge the placements of one gang."""
        for each in placements:
            self.assume(each)
        for gang in _gangs(placements):
            self.gather(gang)

    def bound(self, uid: str) -> None:
        """The bind of an assumed pod succeeded."""
        if uid in self._assumed:
            self._assumed[uid] = self.clock()
            charge = self.fleet.charges[uid]
            self.listener.status_changed(StatusKind.NODE, charge.node)
            if charge.gang is not None:
                self.roster.hold(charge, charge.gang, bound=True)
                self.gather(charge.gang)
            self._confirmed()

    def forget(self, uid: str) -> None:
        """The bind of an assumed pod failed; one that the watch has shown bound stays."""
        if uid not in self._assumed:
            return
        pod = self.pending.get(uid)
        if pod is not None and pod.gang is not None:
            self.roster.back_off(pod.gang, self.clock())
        self.remove_bound(uid)
        if pod is not None and pod.gang is None:
            self.queue.back_off(pod, self.clock())
            self.listener.work_ready()

    def may_be_bound_since(self, uid: str, requested_at: float) -> bool:
        """Tell whether a pod may have been bound after a list was asked for, which then need not show it."""
        return uid in self._assumed and ((at := self._assumed[uid]) is None or at >= requested_at)

    # --- gangs ------------------------------------------------------------------------------------------------

    def put_group(self, raw: Object) -> None:
        """A PodGroup exists or changed."""
        group = groups.group(raw)
        self.groups[group.name] = group, raw.get("status") or {}
        self.roster.put_group(group)
        self.gather(Membership(group=group.name))

    def remove_group(self, name: str) -> None:
        """A PodGroup is gone."""
        del self.groups[name]
        self.roster.remove_group(name)
        self.gather(Membership(group=name))

    def begin(self, placements: Sequence[Placement]) -> None:
        """The Bindings of an assumed gang are about to be sent."""
        for gang in _gangs(placements):
            self.roster.begin(gang, self.clock())

    def put_off(self, gang: Membership) -> None:
        """A gang cannot be bound or helped as it was decided: decide it again after a while."""
        self.roster.back_off(gang, self.clock())
        self.gather(gang)

    def undo(self, gang: Membership, *, keep: bool) -> tuple[str, list[Charge]]:
        """A gang's time is up; tell what happened, and give the members that are to be deleted."""
        undone = self.roster.undo(gang, self.clock(), keep=keep)
        self.gather(gang)
        return undone

    def put_ended(self, raw: Object) -> None:
        """A pod has ended."""
        gang = groups.of_placed(raw)
        if gang is not None:
            succeeded = raw["status"]["phase"] == "Succeeded"
            self.roster.end(raw["metadata"]["uid"], gang, succeeded=succeeded)
            self.gather(gang)

    def remove_ended(self, uid: str) -> None:
        """A pod that had ended is gone."""
        gang = self.roster.gang_of(uid)
        self.roster.remove_ended(uid)
        if gang is not None:
            self.gather(gang)

    def unit(self, gang: Membership) -> Gang | None:
        """Give a gang's waiting members as they are decided, if there are enough of them."""
        return self.roster.ready(gang, self.clock())

    def _is_ours(self, gang: Membership) -> bool:
        """Tell whether we schedule a gang: that of another scheduler is its own affair."""
        return self.schedulers is None or gang.scheduler in self.schedulers

    def _leaves_gang(self, uid: str, gang: Membership) -> None:
        self.roster.release(uid)
        self.gather(gang)

    def unconfirmed(self) -> Collection[str]:
        """Give the UIDs of pods whose bind is under way."""
        return [uid for uid, bound_at in self._assumed.items() if bound_at is None]

    def is_assumed(self, uid: str) -> bool:
        """Tell whether no watch has shown a pod bound yet."""
        return uid in self._assumed

    def _confirmed(self) -> None:
        """A pod is certainly bound."""
        if self.queue.wake(Change.BOUND):
            self.listener.work_ready()

    # --- pods that others make room for -----------------------------------------------------------------------

    def nominate(self, pod: PendingPod, charge: Charge) -> PendingPod:
        """Keep a place for a pod that waits for others to leave it; give the pod as it is known from now on."""
        self.fleet.nominate(charge)
        return self._nominated(pod, charge.node)

    def withdraw(self, pod: PendingPod) -> PendingPod:
        """Keep nothing for a pod any more; give the pod as it is known from now on."""
        self._withdraw(pod.uid)
        return self._nominated(pod, "")

    def _withdraw(self, uid: str) -> None:
        if (kept := self.fleet.withdraw(uid)) is not None:
            self._left(kept)

    def nominees_of(self, gang: Membership) -> list[Charge]:
        """Give what is kept for the members of a gang."""
        return [each for each in self.fleet.nominees.values() if each.gang is not None and each.gang.key == gang.key]

    def withdraw_all(self, gang: Membership) -> None:
        """Keep nothing for a gang any more: it holds all that it needs or nothing."""
        for each in self.nominees_of(gang):
            self.listener.nomination_withdrawn(self.withdraw(self.pending[each.uid]))

    def _nominated(self, pod: PendingPod, node: str) -> PendingPod:
        pod = replace(pod, nominated=node)
        if pod.uid in self.pending:
            self.pending[pod.uid] = pod
            if pod.gang is not None:
                self.roster.wait(pod, pod.gang)
        return pod

    # --- DeviceClasses ----------------------------------------------------------------------------------------

    def put_device_class(self, name: str, resource: str) -> None:
        """A DeviceClass provides an extended resource; none where it is gone or names none."""
        before = self._device_classes.pop(name, "")
        if resource:
            self._device_classes[name] = resource
        if before == resource:
            return
        self.fleet.set_device_classes({resource: name for name, resource in sorted(self._device_classes.items())})
        self.changed(Change.DEVICE_CLASS)

    # --- nodes, Devices and Leases ----------------------------------------------------------------------------

    def put_node(self, raw: Object) -> None:
        """A Node exists or changed."""
        record = nodes.record(raw, self.kinds)
        info, known = record.info, self.nodes.get(record.info.name)
        self.nodes[info.name] = record
        if known is None or known.info != info:
            self.fleet.put_node(info)
        if self.ledger.put_boot(info.name, nodes.boot_id(raw)):
            self._recount_all(info.name)
        before = known.info if known else None
        if change := nodes.change(before, info):
            self.happened(ClusterEvent(change=change, node=info.name, labels=nodes.changed_labels(before, info)))
        self.listener.status_changed(StatusKind.NODE, info.name)

    def remove_node(self, name: str) -> None:
        """A Node is gone, or no longer ours."""
        known = self.nodes.pop(name, None)
        self.fleet.remove_node(name)
        self._forget_if_gone(name)
        labels = nodes.changed_labels(known.info if known else None, None)
        self.happened(ClusterEvent(change=Change.NODE_REMOVED, node=name, labels=labels))
        self.listener.status_changed(StatusKind.NODE, name)

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """A namespace has these labels; none if it is gone."""
        if self.fleet.neighbours.put_namespace(name, labels):
            self.changed(Change.NAMESPACE_LABELS)

    def put_device(self, raw: Object) -> None:
        """A Device exists or changed."""
        known = self.devices.get(raw["metadata"]["name"])
        record = devices.record(raw, known)
        self.devices[record.name] = record
        if known is None:
            self.heartbeats.expect(record.name, self.clock(), doubted=_is_unknown(record))
        is_new = known is None or known.inventory != record.inventory
        if is_new:
            self.fleet.put_device(record.name, record.inventory)
            self.fleet.set_fresh(record.name, fresh=self.heartbeats.alive(record.name, self.clock()))
        if is_new or (known is not None and known.word is not record.word):
            self._heed(record, known)
        if is_new:
            self.happened(ClusterEvent(change=Change.DEVICE, node=record.name))
        self.listener.status_changed(StatusKind.NODE, record.name)

    def remove_device(self, name: str) -> None:
        """A Device is gone; what its pods hold stays charged."""
        self.version += 1
        self.devices.pop(name, None)
        self.heartbeats.dismiss(name)
        self.fleet.remove_device(name)
        self._forget_if_gone(name)
        self.listener.status_changed(StatusKind.NODE, name)

    def put_lease(self, raw: Object) -> None:
        """An agent's Lease was seen."""
        spec = raw.get("spec") or {}
        renew_time, duration = spec.get("renewTime") or "", spec.get("leaseDurationSeconds")
        self.heartbeats.observe(raw["metadata"]["name"], renew_time, duration, self.clock())
        self.check_alive(raw["metadata"]["name"])

    def remove_lease(self, name: str) -> None:
        """An agent's Lease is gone."""
        self.heartbeats.lost(name)

    def check_alive(self, name: str) -> None:
        """Bring a node's freshness up to date."""
        row, alive = self.fleet.rows.get(name), self.heartbeats.alive(name, self.clock())
        if row is None or name not in self.devices or bool(self.fleet.fresh[row]) == alive:
            return
        self.version += 1
        self.fleet.set_fresh(name, fresh=alive)
        if name in self.nodes:
            log.info("agent heard" if alive else "agent not heard", node=name)
        self.listener.status_changed(StatusKind.NODE, name)
        if alive:
            self.happened(ClusterEvent(change=Change.DEVICE, node=name))

    def unseen(self, seconds: float) -> list[Charge]:
        """Give what was bound at least so long ago and has not been seen bound."""
        before = self.clock() - seconds
        return [
            self.fleet.charges[uid]
            for uid, bound_at in self._assumed.items()
            if bound_at is not None and bound_at <= before
        ]

    def report_unknown(self) -> None:
        """Report bound pods that block devices of ours; lists come in any order, so this waits for all of them."""
        for uid, since in list(self._unreported.items()):
            charge = self.fleet.charges[uid]
            patience = KUBELET_SECONDS if kubelet_allocation.by_kubelet(charge) else 0.0
            if charge.node in self.nodes and charge.node in self.devices and self.clock() - since >= patience:
                del self._unreported[uid]
                if charge.unknown:
                    self.listener.allocation_unknown(charge)

    # --- what kubelet gave ------------------------------------------------------------------------------------

    def put_gpu_pod(self, raw: Object) -> None:
        """A node's agent tells what kubelet gave a pod."""
        record = kubelet.gpu_pod(raw)
        before = self.ledger.put_gpu_pod(record)
        for given in filter(None, {before, record.given}):
            self._recount(given.node, given.uid)
        self.listener.status_changed(StatusKind.GPU_POD, record.key)

    def remove_gpu_pod(self, key: str) -> None:
        """Nobody tells any more what kubelet gave a pod."""
        if (given := self.ledger.remove_gpu_pod(key)) is not None:
            self._recount(given.node, given.uid)

    def _heed(self, record: DeviceRecord, known: DeviceRecord | None) -> None:
        """Take what a node's agent says of kubelet, and charge by it."""
        name, before = record.name, () if known is None else known.word.withheld
        if known is not None or record.word.boot_id:
            # An agent that puts a deleted Device back tells of its inventory first, and only then of what is held.
            self.ledger.put_word(name, record.word)
        self._recount_all(name)
        if known is None or known.word is not record.word:
            # Its minors are of the inventory that the agent saw then; from here on those cards count by their ids.
            used = self.ledger.foreign(name) if self._charges_foreign else ()
            self._settle(kubelet_allocation.foreign_uid(name), kubelet_allocation.foreign(self.fleet, name, used))
        if before or record.word.withheld:
            self.fleet.withhold(name, record.word.withheld)
            self.happened(ClusterEvent(change=Change.RELEASED, node=name))

    def _recount_all(self, node: str) -> None:
        for uid in self.ledger.known_on(node):
            self._recount(node, uid)

    def _recount(self, node: str, uid: str) -> None:
        """Charge anew what a pod, or what it has left behind, takes of a node."""
        known, left = self.fleet.charges.get(uid), kubelet_allocation.left_uid(node, uid)
        if known is None or known.node != node:
            self._settle(left, self.ledger.left_behind(node, uid))
        else:
            self._settle(left, None)
            self._settle(uid, self.ledger.charged(self.ledger.promised(known)))
        self._review(node)

    def _review(self, node: str) -> None:
        """Charge anew those that hold something else than they were promised: what they keep depends on others."""
        for case in self.ledger.drifted_on(node) if self.ledger.drifted else ():
            self._settle(case.given.uid, self.ledger.charged(case.promised))

    def _settle(self, uid: str, wanted: Charge | None) -> None:
        """Bring what is charged under a UID to what it should be."""
        known = self.fleet.charges.get(uid)
        wanted = None if wanted is None else self.fleet.resolved(wanted)
        if wanted is None:
            if known is not None:
                self.fleet.release(uid)
                self.listener.status_changed(StatusKind.NODE, known.node)
                self._left(known)
        elif known is None or not _same(known, wanted):
            self.version += 1
            self.fleet.charge(wanted)
            self.listener.status_changed(StatusKind.NODE, wanted.node)
            if known is not None:
                self.happened(ClusterEvent(change=Change.RELEASED, node=wanted.node))

    def _forget_if_gone(self, node: str) -> None:
        if node not in self.nodes and node not in self.devices:
            self.ledger.forget_node(node)
            self._recount_all(node)
            self._settle(kubelet_allocation.foreign_uid(node), None)

    def _drifts(self, promised: Charge) -> None:
        self.listener.status_changed(StatusKind.GPU_POD, promised.pod)
        self.listener.drift_changed()

    # --- what others ask --------------------------------------------------------------------------------------

    def changed(self, change: Change) -> None:
        """Wake the pods that a change may help."""
        self.version += 1
        self.queue.wake(change)
        self.listener.work_ready()

    def happened(self, event: ClusterEvent) -> None:
        """Wake the pods that an event may help."""
        self.version += 1
        if not self.queue.awaits(event.change):
            return
        # What is kept on the node for a pod must not let that pod sleep, nor one above it.
        with self.fleet.without([each for each in self.fleet.nominees.values() if each.node == event.node]):
            woken = self.queue.wake(event.change, waking.EventHint(self.fleet, event))
        if woken:
            self.listener.work_ready()

    def _left(self, gone: Charge) -> None:
        """Wake the pods that may fit, or may evict others, now that one has left its node."""
        change = Change.GONE | Change.RELEASED
        # Volumes that it was promised are free again.
        self.happened(
            ClusterEvent(change=change | Change.VOLUME if gone.chosen else change, node=gone.node, before=gone)
        )
        if self.queue.awaits(Change.EVICTABLE) and gone.node in self.fleet.rows:
            self._wake_preempting(gone)

    def _wake_preempting(self, gone: Charge) -> None:
        with self.fleet.without([each for each in self.fleet.nominees.values() if each.node == gone.node]):
            emptied = Emptied(self.fleet, gone.node)
            woken = self.queue.wake(
                Change.EVICTABLE,
                lambda parked: None if emptied.may_take(parked.unit, gone, parked.failure.asked) else NOT_CONCERNED,
            )
        if woken:
            self.listener.work_ready()

    def _placed(self, charge: Charge) -> None:
        """Wake the pods that wait for such a pod."""
        self.happened(ClusterEvent(change=Change.PLACED, node=charge.node, after=charge))

    def is_our_node(self, name: str) -> bool:
        """Tell whether this instance may write what is said of a node's devices."""
        return name in self.nodes or not self._confined

    def names(self, kind: StatusKind) -> list[str]:
        """Return the names of all objects of a kind."""
        match kind:
            case StatusKind.NODE:
                return sorted({*self.nodes, *self.devices})
            case StatusKind.POD_GROUP:
                return sorted(self.groups)
            case StatusKind.GPU_POD:
                return sorted(self.ledger.gpu_pods)

    def view(self, kind: StatusKind, name: str) -> View | None:
        """Return what the status of an object is computed from; None if there is no such object of ours."""
        match kind:
            case StatusKind.NODE:
                return self.node_view(name)
            case StatusKind.POD_GROUP:
                return self._group_view(name)
            case StatusKind.GPU_POD:
                return self._gpu_pod_view(name)

    def node_view(self, name: str) -> NodeView:
        """Return what is known of a node, even if that is nothing."""
        return NodeView(
            name=name,
            node=self.nodes.get(name),
            device=self.devices.get(name),
            ours=self.is_our_node(name),
            alive=self.heartbeats.alive(name, self.clock()),
            charges=tuple(self.fleet.on_node(name)),
            kinds=self.kinds,
        )

    def _group_view(self, name: str) -> GroupView | None:
        if (known := self.groups.get(name)) is None:
            return None
        return GroupView(group=known[0], status=known[1], counts=self.roster.counts(name))

    def _gpu_pod_view(self, name: str) -> GpuPodView | None:
        record = self.ledger.gpu_pods.get(name)
        if record is None or not self.is_our_node(record.given.node):
            return None
        return GpuPodView(record=record, consistency=self.ledger.consistency(record))


def _gangs(placements: Sequence[Placement]) -> set[Membership]:
    return {each.pod.gang for each in placements if each.pod.gang is not None}


def _change(known: Charge, charge: Charge) -> Change:
    """Tell what it means to others that a pod takes something else than before."""
    shown = replace(known, identity=charge.identity, terminating=charge.terminating)
    return Change.POD_LABELS if _same(shown, charge) else Change.POD_LABELS | Change.RELEASED


def _same(known: Charge, charge: Charge) -> bool:
    """Tell whether two charges take the same; what the Fleet filled in by itself does not count."""
    if known == charge:
        return True
    if replace(known, grants=()) != replace(charge, grants=(), chosen=known.chosen):
        return False
    # The annotation has the types in another order than the decision.
    kept, told = _by_card(known), _by_card(charge)
    return len(kept) == len(told) and all(
        k[:-1] == t[:-1] and t[-1].items() <= k[-1].items() for k, t in zip(kept, told, strict=True)
    )


def _by_card(charge: Charge) -> list[tuple[str, int, tuple[str, ...], dict[str, int]]]:
    grants = sorted(charge.grants, key=lambda each: (each.type, each.minor, each.handles))
    return [(each.type, each.minor, each.handles, dict(each.amounts)) for each in grants]


def _is_unknown(record: DeviceRecord) -> bool:
    return any(each.type == names.READY and each.status == "Unknown" for each in record.conditions)
