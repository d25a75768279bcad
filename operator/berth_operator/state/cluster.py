"""The state of the cluster: API events are applied here, and decisions, binds and reports read its parts.

Everything runs in the scheduler's event loop, one event at a time, so nothing here needs a lock. Each part depends only
on parts above it in this list:

* `Waker` wakes the parked pods that a change may help.
* `Nominator` keeps nodes for pods that preempt others, or that have a node reservation.
* `Spares` keeps further nodes for pods of kube-scheduler, until others need them.
* `Gangs` and `PendingPods` keep the queue up to date.
* `AllocationTracker` corrects charges by what kubelet gave.
* `NodeCache` has Nodes, Devices and the agents' Leases.
* `GpuMetrics` has what was measured of the GPUs.
* `UnknownAllocations` reports bound pods that block devices.
* `Tenants` has the placed pods that defragmentation may move, if it is enabled.
* `Placements` assumes, confirms and forgets what pods hold.
"""

import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.gang import Gang
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.gang_tracker import GangTracker
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.allocation_tracker import AllocationTracker
from berth_operator.state.gangs import Gangs
from berth_operator.state.genius_priority import UNLIMITED, PriorityLimits
from berth_operator.state.gpu_metrics import GpuMetrics
from berth_operator.state.listener import Listener, NoListener
from berth_operator.state.node_cache import NodeCache
from berth_operator.state.nominator import Nominator
from berth_operator.state.pending_pods import PendingPods
from berth_operator.state.placements import Placements
from berth_operator.state.spares import Spares
from berth_operator.state.tenants import Tenants
from berth_operator.state.unknown_allocations import UnknownAllocations
from berth_operator.state.views import GpuPodView, StatusKind, View
from berth_operator.state.waker import Waker

Object = Mapping[str, Any]

NO_LISTENER: Final = NoListener()
NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Cluster:
    """Applies the events of the API server, and gives access to the parts of the state."""

    def __init__(
        self,
        *,
        grace: float,
        startup_timeout: float = 600.0,
        gang_timeout: float = 60.0,
        confined: bool = False,
        fleet: Fleet | None = None,
        charges_foreign: bool = True,
        trusted_schedulers: Collection[str] = (),
        priorities: PriorityLimits = UNLIMITED,
        listener: Listener = NO_LISTENER,
        tenants: Tenants | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty state.

        Args:
            grace: seconds after the end of its Lease at which an agent counts as dead.
            startup_timeout: seconds after its creation for which a Node counts as starting.
            gang_timeout: seconds that a gang may stay bound in part, where its PodGroup sets none.
            confined: whether a node selector leaves Nodes to other instances.
            fleet: a Fleet to use; by default an empty one.
            charges_foreign: whether cards that processes outside Kubernetes use are charged.
            trusted_schedulers: other schedulers whose allocations are trusted.
            priorities: how high pods may set `genius/priority`.
            listener: is called when the state changes.
            tenants: the placed pods that may be moved; None if no pods are moved.
            clock: monotonic seconds.
            wall: seconds since 1970, to compare with times of the API server.
        """
        self.clock = clock
        self.tenants = tenants
        self.fleet = Fleet() if fleet is None else fleet
        self.kinds = self.fleet.kinds
        """The device types."""
        self.trusted_schedulers = frozenset(trusted_schedulers)
        self.queue: Queue[PendingPod | Gang] = Queue()
        self.gang_tracker = GangTracker(timeout=gang_timeout)
        self.budgets = Budgets()
        pending: dict[str, PendingPod] = {}
        self.pending: Mapping[str, PendingPod] = pending
        """UID -> pod, for all pods that have no node on the API server."""
        self._device_classes: dict[str, str] = {}
        """Name of a DeviceClass -> the extended resource that it provides."""
        self.waker = waker = Waker(fleet=self.fleet, queue=self.queue, listener=listener)
        self.nominator = Nominator(
            fleet=self.fleet, pending=pending, gang_tracker=self.gang_tracker, waker=waker, listener=listener
        )
        self.spares = Spares(fleet=self.fleet, waker=waker)
        self.gangs = Gangs(
            gang_tracker=self.gang_tracker,
            queue=self.queue,
            nominator=self.nominator,
            waker=waker,
            listener=listener,
            clock=clock,
        )
        self._pending_pods = PendingPods(
            fleet=self.fleet,
            kinds=self.kinds,
            priorities=priorities,
            by_uid=pending,
            queue=self.queue,
            gangs=self.gangs,
            nominator=self.nominator,
            waker=waker,
            listener=listener,
            clock=clock,
            accepts_nominations=tenants is not None,
        )
        self.allocations = AllocationTracker(
            fleet=self.fleet, waker=waker, listener=listener, charges_foreign=charges_foreign
        )
        self.node_cache = NodeCache(
            fleet=self.fleet,
            kinds=self.kinds,
            allocations=self.allocations,
            waker=waker,
            listener=listener,
            clock=clock,
            wall=wall,
            grace=grace,
            startup_timeout=startup_timeout,
            confined=confined,
        )
        self.gpu_metrics = GpuMetrics(fleet=self.fleet, waker=waker, clock=clock)
        self.unknown_allocations = UnknownAllocations(
            fleet=self.fleet, node_cache=self.node_cache, listener=listener, clock=clock
        )
        self.placements = Placements(
            fleet=self.fleet,
            kinds=self.kinds,
            trusted_schedulers=self.trusted_schedulers,
            pending=self._pending_pods,
            gangs=self.gangs,
            allocations=self.allocations,
            unknown=self.unknown_allocations,
            waker=waker,
            listener=listener,
            clock=clock,
        )

    @property
    def version(self) -> int:
        """Return a counter of the changes that may change why a pod waits."""
        return self.waker.version

    @property
    def gated(self) -> int:
        """Return the number of pods that do not wait yet, because they have scheduling gates."""
        return len(self._pending_pods.gated)

    # --- events -----------------------------------------------------------------------------------------------

    def put_pending(self, raw: Object) -> None:
        """Add or update a pod without a node."""
        self._pending_pods.put(raw)
        if self.tenants is not None:
            self.tenants.put(raw)

    def remove_pending(self, uid: str) -> None:
        """Remove a pod that no longer waits: it is bound, or deleted."""
        self._pending_pods.remove(uid)
        if self.tenants is not None:
            self.tenants.remove(uid)

    def put_bound(self, raw: Object) -> None:
        """Add or update a pod that has a node."""
        self.placements.put_bound(raw)
        if self.tenants is not None:
            self.tenants.put(raw)

    def remove_bound(self, uid: str) -> None:
        """Remove a pod that has left its node."""
        self.placements.remove_bound(uid)
        if self.tenants is not None:
            self.tenants.remove(uid)

    def put_ended(self, raw: Object) -> None:
        """Record that a pod has succeeded or failed."""
        self.gangs.put_ended(raw)

    def remove_ended(self, uid: str) -> None:
        """Remove a pod that had ended."""
        self.gangs.remove_ended(uid)

    def put_group(self, raw: Object) -> None:
        """Add or update a PodGroup."""
        self.gangs.put_group(raw)

    def remove_group(self, name: str) -> None:
        """Remove a PodGroup (namespace/name)."""
        self.gangs.remove_group(name)

    def put_node(self, raw: Object) -> None:
        """Add or update a Node."""
        self.node_cache.put_node(raw)

    def remove_node(self, name: str) -> None:
        """Remove a Node that was deleted, or that our node selector no longer matches."""
        self.node_cache.remove_node(name)

    def put_device(self, raw: Object) -> None:
        """Add or update a Device."""
        self.node_cache.put_device(raw)

    def remove_device(self, name: str) -> None:
        """Remove a Device."""
        self.node_cache.remove_device(name)

    def put_lease(self, raw: Object) -> None:
        """Add or update an agent's Lease."""
        self.node_cache.put_lease(raw)

    def remove_lease(self, name: str) -> None:
        """Remove an agent's Lease."""
        self.node_cache.remove_lease(name)

    def put_gpu_pod(self, raw: Object) -> None:
        """Add or update what kubelet gave a pod."""
        self.allocations.put_gpu_pod(raw)

    def remove_gpu_pod(self, key: str) -> None:
        """Remove what kubelet gave a pod (namespace/name)."""
        self.allocations.remove_gpu_pod(key)

    def put_namespace(self, name: str, labels: Mapping[str, str], annotations: Mapping[str, str] = NONE) -> None:
        """Set the labels and annotations of a namespace; both are empty if it was deleted."""
        if self.tenants is not None:
            self.tenants.put_namespace(name, annotations)
        if self.fleet.affinity_index.put_namespace(name, labels):
            self.waker.changed(Change.NAMESPACE_LABELS)

    def put_device_class(self, name: str, resource: str) -> None:
        """Set the extended resource that a DeviceClass provides; empty if it was deleted or names none."""
        before = self._device_classes.pop(name, "")
        if resource:
            self._device_classes[name] = resource
        if before != resource:
            self.fleet.set_device_classes({resource: name for name, resource in sorted(self._device_classes.items())})
            self.waker.changed(Change.DEVICE_CLASS)

    # --- statuses ---------------------------------------------------------------------------------------------

    def names(self, kind: StatusKind) -> list[str]:
        """Return the names of all objects of a kind, sorted."""
        match kind:
            case StatusKind.NODE:
                return self.node_cache.names()
            case StatusKind.POD_GROUP:
                return self.gangs.group_names()
            case StatusKind.GPU_POD:
                return self.allocations.gpu_pod_names()

    def view(self, kind: StatusKind, name: str) -> View | None:
        """Return what the status of an object is computed from; None if there is no such object of ours."""
        match kind:
            case StatusKind.NODE:
                return self.node_cache.view(name)
            case StatusKind.POD_GROUP:
                return self.gangs.view(name)
            case StatusKind.GPU_POD:
                return self._gpu_pod_view(name)

    def _gpu_pod_view(self, name: str) -> GpuPodView | None:
        record = self.allocations.gpu_pod(name)
        if record is None or not self.node_cache.is_ours(record.actual.node):
            return None
        return GpuPodView(record=record, consistency=self.allocations.consistency(record))
