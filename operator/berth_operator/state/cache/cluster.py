"""The state of the cluster. API events are applied to its parts. Decisions, binds and reports read them.

Everything runs in the scheduler's event loop, one event at a time, so nothing here needs a lock. Each part depends only
on parts above it in this list:

* `Waker` wakes the parked pods that a change may help.
* `Nominator` keeps nodes for pods that preempt others, or that have a node reservation.
* `Spares` keeps further nodes for pods of kube-scheduler, until others need them.
* `PlacePromises` keeps nodes for pods that do not exist yet. These pods belong to Kueue's Workloads with Berth's
  AdmissionCheck. `Workloads` has these Workloads.
* `Gangs` and `PendingPods` keep the queue up to date.
* `RejectedPods` counts the pods that kubelet rejects, and sets the pauses of their controllers.
* `LeavingPods` has the pods that are leaving their nodes, and marks those that are overdue.
* `AllocationTracker` corrects charges by what kubelet gave.
* `ClaimTracker` charges what ResourceClaims hold.
* `NodeCache` has Nodes, Devices and the agents' Leases.
* `GpuMetrics` has the measurements of the GPUs.
* `UnknownAllocations` reports bound pods that block devices.
* `Tenants` has the placed pods that defragmentation may move, if it is enabled.
* `Placements` assumes, confirms and forgets what pods hold.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import structlog

from berth_api import names
from berth_operator.core.claims.objects import extended
from berth_operator.core.claims.objects.slices import PoolID
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.gang import MAX_SEARCHED, Gang
from berth_operator.core.filters import Filter
from berth_operator.core.fleet import claim_choice, claim_counts
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.gang_tracker import GangTracker
from berth_operator.core.queue.queue import NOT_CONCERNED, Parked, Queue
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.admission_rules import AdmissionRules
from berth_operator.state.cache.allocation_tracker import AllocationTracker
from berth_operator.state.cache.claim_tracker import ClaimTracker
from berth_operator.state.cache.gangs import Gangs
from berth_operator.state.cache.gpu_metrics import GpuMetrics
from berth_operator.state.cache.leaving_pods import LeavingPods
from berth_operator.state.cache.listener import Listener, NoListener
from berth_operator.state.cache.node_cache import NodeCache
from berth_operator.state.cache.nominator import Nominator
from berth_operator.state.cache.pending_pods import PendingPods
from berth_operator.state.cache.placements import Placements
from berth_operator.state.cache.promises import PlacePromises
from berth_operator.state.cache.rejected_pods import RejectedPods
from berth_operator.state.cache.spares import Outcome, Spares, nodes_of
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.cache.unknown_allocations import UnknownAllocations
from berth_operator.state.cache.views import GpuPodView, StatusKind, View
from berth_operator.state.cache.waker import Waker
from berth_operator.state.cache.workloads import Workloads
from berth_operator.state.objects.genius_priority import UNLIMITED, PriorityLimits

Object = Mapping[str, Any]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NO_LISTENER: Final = NoListener()
MAX_FAILED: Final = 4096
NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(kw_only=True, eq=False)
class Cluster:
    """Holds the parts of the state, and applies the API server's events that concern several parts."""

    grace: float
    """Seconds after its Lease expired at which an agent counts as dead."""
    startup_timeout: float = 600.0
    """Seconds for which a new Node counts as starting."""
    gang_timeout: float = 60.0
    """Seconds that a gang may stay bound in part, where its PodGroup sets none."""
    confined: bool = False
    """Whether a node selector leaves Nodes to other instances."""
    fleet: Fleet = field(default_factory=Fleet)
    charges_foreign: bool = True
    charges_unheld: bool = False
    """Whether cards that processes outside Kubernetes use are charged."""
    agent_pods_namespace: str = names.AGENT_SYSTEM
    """Namespace of the agents' pods."""
    trusted_schedulers: Collection[str] = ()
    """Other schedulers whose allocations are trusted."""
    priorities: PriorityLimits = UNLIMITED
    """How high pods may set `genius/priority`."""
    listener: Listener = NO_LISTENER
    """Is called when the state changes."""
    tenants: Tenants | None = None
    """The placed pods that may be moved; None if no pods are moved."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    wall: Callable[[], float] = time.time
    """Seconds since 1970, to compare with times of the API server."""

    def __post_init__(self) -> None:
        """Create the parts."""
        self.kinds = self.fleet.kinds
        """The device types."""
        self.budgets = Budgets()
        self.on_namespace_removed: Callable[[str], None] = lambda _name: None
        """Called with each namespace that was deleted."""
        self.failed: dict[str, None] = {}
        """UIDs of the last `MAX_FAILED` pods of ours that have failed, without those that kubelet rejected."""
        self._refreshed_later: set[str] = set()
        """Nodes for whose devices slices or taint rules have changed."""
        pending: dict[str, PendingPod] = {}
        self.pending: Mapping[str, PendingPod] = pending
        """UID -> pod, for all pods that have no node on the API server."""
        self.queue: Queue[PendingPod | Gang] = Queue(self.is_costly)
        self.admission_rules = AdmissionRules()
        self.gang_tracker = GangTracker(
            timeout=self.gang_timeout,
            priority_of=self.admission_rules.priority_of,
            may_preempt=self.admission_rules.are_known,
        )
        self.workload_queue: Queue[PendingPod | Gang] = Queue()
        """Workloads with quota whose AdmissionCheck is undecided, each as a gang of its pods."""
        self.waker = waker = Waker(
            fleet=self.fleet,
            queue=self.queue,
            others=(self.workload_queue,),
            listener=self.listener,
            clock=self.clock,
        )
        self.nominator = Nominator(
            fleet=self.fleet, pending=pending, gang_tracker=self.gang_tracker, waker=waker, listener=self.listener
        )
        self.spares = Spares(fleet=self.fleet, waker=waker)
        self.promises = PlacePromises(fleet=self.fleet, nominator=self.nominator, waker=waker, wall=self.wall)
        self.workloads = Workloads(listener=self.listener)
        self.gangs = Gangs(
            gang_tracker=self.gang_tracker,
            queue=self.queue,
            nominator=self.nominator,
            promises=self.promises,
            rules=self.admission_rules,
            waker=waker,
            listener=self.listener,
            clock=self.clock,
        )
        self.pending_pods = PendingPods(
            fleet=self.fleet,
            kinds=self.kinds,
            priorities=self.priorities,
            by_uid=pending,
            queue=self.queue,
            gangs=self.gangs,
            nominator=self.nominator,
            promises=self.promises,
            waker=waker,
            listener=self.listener,
            clock=self.clock,
            accepts_nominations=self.tenants is not None,
        )
        self.rejected_pods = RejectedPods(
            fleet=self.fleet, pending=self.pending_pods, waker=waker, schedules=self.gangs.schedules, clock=self.clock
        )
        self.leaving_pods = LeavingPods(fleet=self.fleet, clock=self.clock, wall=self.wall)
        self.allocations = AllocationTracker(
            fleet=self.fleet,
            leaving_pods=self.leaving_pods,
            waker=self.waker,
            listener=self.listener,
            charges_foreign=self.charges_foreign,
            charges_unheld=self.charges_unheld,
        )
        self.claim_tracker = ClaimTracker(fleet=self.fleet, allocations=self.allocations)
        self.node_cache = NodeCache(
            fleet=self.fleet,
            kinds=self.kinds,
            allocations=self.allocations,
            claim_tracker=self.claim_tracker,
            waker=self.waker,
            listener=self.listener,
            clock=self.clock,
            wall=self.wall,
            grace=self.grace,
            startup_timeout=self.startup_timeout,
            confined=self.confined,
        )
        self.gpu_metrics = GpuMetrics(fleet=self.fleet, waker=self.waker, clock=self.clock)
        self.unknown_allocations = UnknownAllocations(
            fleet=self.fleet, node_cache=self.node_cache, listener=self.listener, clock=self.clock
        )
        self.placements = Placements(
            fleet=self.fleet,
            kinds=self.kinds,
            trusted_schedulers=frozenset(self.trusted_schedulers),
            pending=self.pending_pods,
            gangs=self.gangs,
            allocations=self.allocations,
            claim_tracker=self.claim_tracker,
            rejected=self.rejected_pods,
            unknown=self.unknown_allocations,
            waker=self.waker,
            listener=self.listener,
            clock=self.clock,
            # Other instances' pods would change how this one scores its nodes.
            is_counted=lambda scheduler: not self.confined or self.gangs.schedules(scheduler),
        )

    # --- events -----------------------------------------------------------------------------------------------

    def put_pending(self, raw: Object) -> None:
        """Add or update a pod without a node."""
        self.pending_pods.put(raw)
        self._put_own_pod(raw)
        if self.tenants is not None:
            self.tenants.put(raw)

    def remove_pending(self, uid: str) -> None:
        """Remove a pod that no longer waits: it is bound, or deleted."""
        self.pending_pods.remove(uid)
        self.fleet.claims.remove_own_pod(uid)
        if self.tenants is not None:
            self.tenants.remove(uid)

    def put_bound(self, raw: Object) -> None:
        """Add or update a pod that has a node."""
        self.placements.put_bound(raw)
        self.rejected_pods.put_bound(raw)
        metadata = raw["metadata"]
        if metadata["namespace"] == self.agent_pods_namespace and (
            (metadata.get("labels") or {}).get(names.APP_NAME) == names.AGENT
        ):
            self.node_cache.put_agent(metadata["uid"], raw["spec"]["nodeName"])
        if self.gangs.schedules(raw["spec"].get("schedulerName", "")):
            self._put_own_pod(raw)
        if self.tenants is not None:
            self.tenants.put(raw)

    def remove_bound(self, uid: str) -> None:
        """Remove a pod that has left its node."""
        self.placements.remove_bound(uid)
        self.node_cache.remove_agent(uid)
        self.fleet.claims.remove_own_pod(uid)
        if self.tenants is not None:
            self.tenants.remove(uid)

    def _put_own_pod(self, raw: Object) -> None:
        """Record a pod of ours whose claims no other scheduler allocates."""
        uses_claims = raw["spec"].get("resourceClaims") or raw.get("status", {}).get("extendedResourceClaimStatus")
        if uses_claims and (pools := self.fleet.claims.put_own_pod(raw["metadata"]["uid"])):
            self.served_changed(pools)

    def put_ended(self, raw: Object) -> None:
        """Record that a pod has succeeded or failed."""
        if not self.rejected_pods.put_ended(raw) and raw["status"]["phase"] == "Failed":
            self.failed[raw["metadata"]["uid"]] = None
            if len(self.failed) > MAX_FAILED:
                del self.failed[next(iter(self.failed))]
        self.gangs.put_ended(raw)

    def put_namespace(self, name: str, labels: Mapping[str, str], annotations: Mapping[str, str] = NONE) -> None:
        """Set the labels and annotations of a namespace."""
        if self.tenants is not None:
            self.tenants.put_namespace(name, annotations)
        if self.gangs.put_namespace(name, annotations):
            self.pending_pods.gangs_changed()
        if self.fleet.affinity_index.put_namespace(name, labels):
            self.waker.changed(Change.NAMESPACE_LABELS)

    def remove_namespace(self, name: str) -> None:
        """Remove a namespace. Its pods follow."""
        self.put_namespace(name, {})
        self.on_namespace_removed(name)

    def put_owner(self, kind: str, raw: Object) -> None:
        """Add or update a controller of a kind, with the sizes of its gangs."""
        if self.gangs.put_owner(kind, raw):
            self.pending_pods.gangs_changed()

    def remove_owner(self, kind: str, key: str) -> None:
        """Remove a controller (namespace/name)."""
        self.gangs.remove_owner(kind, key)

    def set_device_classes(self, classes: Mapping[str, tuple[str, str]]) -> None:
        """Set all DeviceClasses, and wake the pods that request what another class, or none, provides now.

        Each name has the extended resource that the class names, or an empty text, and when it was created.
        """
        before, after = self.fleet.device_classes, extended.providers(classes)
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        self.fleet.set_device_classes(after)

        def hint(parked: Parked[PendingPod | Gang]) -> Sequence[Filter] | None:
            requested = (name for request in parked.requests for name, _ in request.resources)
            return NOT_CONCERNED if changed.isdisjoint(requested) else None

        if changed:
            self.waker.changed_for(Change.DEVICE_CLASS, hint)

    def device_class_changed(self, name: str) -> None:
        """Wake the pods whose claims, including claims for extended resources, request devices of a DeviceClass."""

        def hint(parked: Parked[PendingPod | Gang]) -> Sequence[Filter] | None:
            used = (claim_counts.device_classes(self.fleet, request) for request in parked.requests)
            return None if any(name in classes for classes in used) else NOT_CONCERNED

        if self.fleet.claims.own:
            self.waker.changed_for(Change.DEVICE_CLASS, hint)

    def claim_devices_changed(self, node: str = "") -> None:
        """Wake the pods with claims that a change of devices may help, on one node or, without a name, on any."""
        if not self.fleet.claims.own:
            return
        if node:
            self.waker.happened(ClusterEvent(change=Change.CLAIM_DEVICES, node=node))
        else:
            self.waker.changed(Change.CLAIM_DEVICES)

    def needs_devices(self, unit: PendingPod | Gang) -> bool:
        """Return whether devices for ResourceClaims may have to be found for a unit."""
        by_class = self.fleet.device_classes.keys() if self.fleet.claims.own else ()
        return any(
            request.claims or (by_class and any(part.resource in by_class for part in request.extended))
            for request in unit.requests
        )

    def is_costly(self, unit: PendingPod | Gang) -> bool:
        """Return whether the decision of a unit may take long, by what somebody wrote into an object."""
        return len(unit.requests) > MAX_SEARCHED or self.needs_devices(unit)

    def decide(self, priority: int, decide: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of a decision; if it has no placement, decide again with less that is kept for others.

        Spare nodes make way first, then the promised places of workloads of a lower priority.
        """
        if nodes_of(outcome := decide()):
            return outcome
        if (again := self._without_spares(decide)) is not None:
            return again
        with self.promises.without_lower(priority) as is_any:
            if not is_any or nodes_of(outcome := decide()):
                return outcome
            again = self._without_spares(decide)
        return outcome if again is None else again

    def _without_spares(self, decide: Callable[[], Outcome]) -> Outcome | None:
        """Return the outcome of a decision without spare nodes, which make way for it; None if it has no placement."""
        if not self.spares:
            return None
        with self.fleet.without(self.spares.charges()):
            outcome = decide()
        self.spares.make_way(nodes := nodes_of(outcome))
        return outcome if nodes else None

    def search_on(self) -> bool:
        """Resume the search for the devices of a pod that ended at its bound, and wake the pod.

        Return whether there was one. Call it while the active queue is empty.
        """
        request = self.fleet.claims.supply.go_on(claim_choice.MAX_DOUBLINGS)
        if request is None:
            return False
        for pod in self.pending.values():
            if claim_counts.key_of(self.fleet, pod.request) == request:
                self.queue.wake_class(pod.class_key)
        return True

    def node_devices_changed(self, nodes: Iterable[str]) -> None:
        """Record that slices or taint rules for devices of nodes have changed; `refresh_devices` applies it.

        The slices of a node change one by one, and each change would compute all devices of the node again.
        """
        before = len(self._refreshed_later)
        self._refreshed_later.update(nodes)
        if len(self._refreshed_later) > before:
            self.waker.record_change()

    def refresh_devices(self) -> None:
        """Compute again which cards of changed nodes are given by name, and wake the pods that may get their devices.

        Called before decisions, and each second where nothing is decided.
        """
        nodes, self._refreshed_later = self._refreshed_later, set()
        for node in sorted(nodes):
            self.node_cache.claims_changed(node)
            self.claim_devices_changed(node=node)

    def served_changed(self, pools: Iterable[PoolID]) -> None:
        """Record that pools of ResourceSlices began or ceased to be served by Berth."""
        claims = self.fleet.claims
        claims.served_changed()
        for pool in sorted(pools):
            log.warning("pool of Berth", pool=str(pool), served=claims.serves(pool))
            self.node_devices_changed(claims.nodes_of_pool(*pool))

    def set_own_pools(self, own: OwnPools) -> None:
        """Set the pools of ResourceSlices that no other scheduler serves."""
        claims = self.fleet.claims
        if claims.own != own:
            claims.set_own(own)
            for node in sorted(claims.nodes()):
                self.node_cache.claims_changed(node)

    def expire_slices(self) -> None:
        """Stop keeping the cards of drivers that have been gone for too long, by the clock."""
        for node in sorted(self.fleet.claims.expire(self.clock())):
            self.node_cache.claims_changed(node)

    # --- statuses ---------------------------------------------------------------------------------------------

    def names(self, kind: StatusKind) -> list[str]:
        """Return the names of all objects of a kind, sorted."""
        match kind:
            case StatusKind.NODE | StatusKind.DEVICE:
                return self.node_cache.names()
            case StatusKind.POD_GROUP:
                return self.gangs.group_names()
            case StatusKind.GPU_POD:
                return self.allocations.gpu_pod_names()

    def view(self, kind: StatusKind, name: str) -> View | None:
        """Return the view from which an object's status is computed; None if Berth has no such object."""
        match kind:
            case StatusKind.NODE | StatusKind.DEVICE:
                return self.node_cache.view(name)
            case StatusKind.POD_GROUP:
                return self.gangs.view(name)
            case StatusKind.GPU_POD:
                record = self.allocations.gpu_pod(name)
                if record is None:
                    return None
                is_ours = self.node_cache.is_ours(record.actual.node)
                # One of another node with the UID of a pod of ours may be forged.
                if not is_ours and record.actual.uid not in self.fleet.charges:
                    return None
                return GpuPodView(
                    record=record,
                    consistency=self.allocations.consistency(record) if is_ours else None,
                    is_of_known_pod=self.allocations.is_of_known_pod(record),
                )
