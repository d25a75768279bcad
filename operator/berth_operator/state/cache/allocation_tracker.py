"""What pods are charged for: their allocation, corrected by what kubelet gave.

A pod's *promised* charge is what its allocation names. Its *effective* charge also takes the agents' reports into
account. The Fleet has effective charges. This tracker keeps the promised charge of each pod for which the two differ.
It also charges what deleted pods still hold, what processes outside Kubernetes use, and what containers may have. If
the setting is on, it also charges what pods use without holding it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from berth_api.allocation import Grant
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import ActualAllocation, Mismatch
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache import charges
from berth_operator.state.cache.kubelet_reports import KubeletReports
from berth_operator.state.cache.leaving_pods import LeavingPods
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.views import StatusKind
from berth_operator.state.cache.waker import Waker
from berth_operator.state.objects import kubelet
from berth_operator.state.objects.devices import DeviceRecord
from berth_operator.state.objects.kubelet import Consistency, GpuPodRecord

Object = Mapping[str, Any]

AS_ALLOCATED: Final[Consistency] = ("True", "AsAllocated", "kubelet gave the pod nothing but what it was allocated")
NOTHING_ALLOCATED: Final[Consistency] = (
    "True",
    "NothingAllocated",
    "the pod has no allocation; what it holds is charged to it",
)
DRIFTED: Final = "Drifted"


class AllocationTracker:
    """Keeps the charges of a Fleet in agreement with what agents report."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        leaving_pods: LeavingPods,
        waker: Waker,
        listener: Listener,
        charges_foreign: bool,
        charges_unheld: bool,
    ) -> None:
        """Create a tracker.

        Args:
            fleet: where pods are charged.
            leaving_pods: records since when pods are leaving.
            waker: wakes the pods that may fit now.
            listener: called when a status may be out of date.
            charges_foreign: whether cards that processes outside Kubernetes use are charged.
            charges_unheld: whether cards are charged that pods use without holding them.
        """
        self._fleet, self._leaving, self._waker, self._listener = fleet, leaving_pods, waker, listener
        self._charges_foreign, self._charges_unheld = charges_foreign, charges_unheld
        self._reports = KubeletReports()
        self._promised: dict[str, Charge] = {}
        """UID -> promised charge, for pods whose effective charge differs."""
        self.drifted: dict[str, Mismatch] = {}
        """UID -> promised and actual devices, for pods where they differ."""

    # --- what agents report -----------------------------------------------------------------------------------

    def put_gpu_pod(self, raw: Object) -> None:
        """Add or update what kubelet gave a pod."""
        record = kubelet.gpu_pod(raw)
        before = self._reports.put_gpu_pod(record)
        for actual in filter(None, {before, record.actual}):
            self._update(actual.node, actual.uid)
        self._listener.status_changed(StatusKind.GPU_POD, record.key)

    def remove_gpu_pod(self, key: str) -> None:
        """Remove what kubelet gave a pod."""
        if (actual := self._reports.remove_gpu_pod(key)) is not None:
            self._update(actual.node, actual.uid)

    def apply_report(self, record: DeviceRecord, known: DeviceRecord | None) -> None:
        """Apply an agent's report about kubelet. `known` is the node's earlier Device."""
        name, before = record.name, () if known is None else known.agent_report.withheld
        if known is not None or record.agent_report.boot_id:
            # An agent that creates a deleted Device again reports the inventory first, and held devices later.
            self._reports.put_report(name, record.agent_report)
        self._update_node(name)
        if known is None or known.agent_report is not record.agent_report:
            # Cards that processes use which do not hold them, or that containers may have, each once. Their minors
            # refer to the inventory of the report; from here on those cards are identified by their ids.
            foreign = self._reports.foreign(name) if self._charges_foreign else ()
            unheld = self._reports.unheld(name) if self._charges_unheld else ()
            cards = (*foreign, *unheld, *self._reports.uncertain(name))
            used = {(device.type, device.minor): device for device in cards}.values()
            charge = kubelet_allocation.foreign_charge(self._fleet, name, used)
            self.set_charge(kubelet_allocation.foreign_uid(name), charge)
        if before or record.agent_report.withheld:
            self._fleet.withhold(name, record.agent_report.withheld)
            self._waker.happened(ClusterEvent(change=Change.CAPACITY_FREED, node=name))

    def put_boot(self, node: str, boot_id: str) -> None:
        """Set a node's boot ID. Devices that were held before that boot are free."""
        if self._reports.put_boot(node, boot_id):
            self._update_node(node)

    def forget_node(self, node: str) -> None:
        """Forget a node that has neither Node nor Device."""
        self._reports.forget_node(node)
        self._update_node(node)
        self.set_charge(kubelet_allocation.foreign_uid(node), None)

    # --- pods -------------------------------------------------------------------------------------------------

    def effective_charge(self, promised: Charge) -> Charge:
        """Return a pod's effective charge for a promised one."""
        return self._effective(promised, self._reports.actual(promised))

    def track(self, promised: Charge) -> Charge:
        """Return a pod's effective charge on the current cards, and keep its promised one if they differ."""
        self._leaving.see(promised)
        promised = self._fleet.resolve_charge(promised)
        actual = self._reports.actual(promised)
        effective = self._effective(promised, actual)
        if effective is promised:
            self._promised.pop(promised.uid, None)
        else:
            self._promised[promised.uid] = promised
        mismatch = None
        if actual is not None and kubelet_allocation.difference(promised, actual, self._fleet.kinds):
            mismatch = Mismatch(promised=promised, actual=actual)
        if mismatch != self.drifted.get(promised.uid):
            if mismatch is None:
                del self.drifted[promised.uid]
            else:
                self.drifted[promised.uid] = mismatch
            self._drift_changed(promised)
        return effective if effective is promised else self._fleet.resolve_charge(effective)

    def pod_charged(self, charge: Charge) -> None:
        """Correct the other charges of a node after a pod was charged there."""
        self.set_charge(kubelet_allocation.leftover_uid(charge.node, charge.uid), None)
        self._update_drifted(charge.node)
        self._gpu_pod_changed(charge)

    def release(self, charge: Charge) -> None:
        """Release the charge of a pod that was deleted or has ended. What its containers still hold stays charged."""
        # Charged before the release, so that no other pod can take it in between.
        leftover_uid = kubelet_allocation.leftover_uid(charge.node, charge.uid)
        self.set_charge(leftover_uid, self._leftover_charge(charge.node, charge.uid, charge))
        self._fleet.release(charge.uid)
        self._leaving.forget(charge.uid)
        self._promised.pop(charge.uid, None)
        if self.drifted.pop(charge.uid, None) is not None:
            self._drift_changed(charge)
        self._update_drifted(charge.node)

    # --- queries ----------------------------------------------------------------------------------------------

    def gpu_pod(self, key: str) -> GpuPodRecord | None:
        """Return a GpuPod by namespace/name."""
        return self._reports.gpu_pod(key)

    def gpu_pod_names(self) -> list[str]:
        """Return namespace/name of all GpuPods, sorted."""
        return sorted(self._reports.gpu_pod_names())

    def claimed(self, node: str) -> Mapping[str, tuple[DeviceID, ...]]:
        """Return {ResourceClaim: its devices that containers have} of a node, as its agent reports."""
        return self._reports.claimed(node)

    def is_of_known_pod(self, record: GpuPodRecord) -> bool:
        """Return whether a bound pod has the name, the UID and the node of a GpuPod."""
        known = self._fleet.charges.get(record.actual.uid)
        return known is not None and self._reports.gpu_pod_of(known) is record

    def consistency(self, record: GpuPodRecord) -> Consistency | None:
        """Return whether a pod holds its allocated devices; None if that, or the pod, is unknown.

        Kubelet gives pods with shares no devices. Their GpuPods only show their allocation.
        """
        actual, known = record.actual, self._fleet.charges.get(record.actual.uid)
        if not actual.devices or known is None or (known.pod, known.node) != (actual.pod, actual.node):
            return None
        promised = self.promised_of(known)
        if difference := kubelet_allocation.difference(promised, actual, self._fleet.kinds):
            return "False", DRIFTED, difference
        return AS_ALLOCATED if promised.grants else NOTHING_ALLOCATED

    def to_be_rewritten(self, node: str) -> Iterator[tuple[Mismatch, Mapping[str, Grant]]]:
        """Return the pods of a node whose allocations need a rewrite, each with {device id: its replacement}."""
        consistent = (
            charge
            for charge in self._fleet.on_node(node)
            if kubelet_allocation.is_pod(charge) and charge.uid not in self.drifted
        )
        others = [actual for charge in consistent if (actual := self._reports.actual(charge)) is not None]
        return kubelet_allocation.to_be_rewritten(self._fleet, self._drifted_on(node), others)

    # --- charges ----------------------------------------------------------------------------------------------

    def _effective(self, promised: Charge, actual: ActualAllocation | None) -> Charge:
        if actual is None:
            return self._without_devices(promised)
        # Whether it holds devices promised to another pod to which kubelet has given none yet.
        unexpected = kubelet_allocation.unexpected_devices(promised, actual)
        is_claimed = bool(unexpected) and any(
            kubelet_allocation.is_grant_of(grant, device)
            for other in self._fleet.on_node(actual.node)
            if other.uid != actual.uid
            and kubelet_allocation.count_plugin_devices(other, self._fleet.kinds)
            and self._reports.actual(other) is None
            for grant in other.grants
            for device in unexpected
        )
        return kubelet_allocation.effective_charge(self._fleet, promised, actual, claimed=is_claimed)

    def _without_devices(self, promised: Charge) -> Charge:
        """Return a pod's charge without devices if the pod is being deleted and has stopped, else the charge."""
        if not promised.terminating or promised.uid not in self._reports.stopped(promised.node):
            return promised
        if not (promised.grants or promised.unknown or promised.lacks_cards or promised.plugin_requests):
            return promised
        # Kubelet does not count such a pod, so the Node's resources of its devices are free, too.
        of_devices = {name for name, _ in promised.plugin_requests}
        resources = tuple((name, amount) for name, amount in promised.resources if name not in of_devices)
        return replace(promised, resources=resources, plugin_requests=(), grants=(), unknown=(), lacks_cards=False)

    def promised_of(self, known: Charge) -> Charge:
        """Return the promised charge of a pod with this effective charge."""
        return self._promised.get(known.uid, known)

    def _leftover_charge(self, node: str, uid: str, last: Charge | None = None) -> Charge | None:
        """Return the charge for a deleted pod's remaining devices; None if it holds none. `last` is its own charge."""
        if (actual := self._reports.held(node).get(uid)) is not None:
            return kubelet_allocation.leftover_charge(self._fleet, actual)
        if (running := self._reports.running(node).get(uid)) is None:
            return None
        # A pod that this operator has not seen may have had any part of its cards.
        known = last or self._fleet.charges.get(kubelet_allocation.leftover_uid(node, uid))
        return kubelet_allocation.leftover_charge(self._fleet, running, known.grants if known else None)

    def _update_node(self, node: str) -> None:
        """Correct the charges of all pods on a node with a current or previous report."""
        on_node = self._fleet.on_node(node)
        gpu_pod_of = self._reports.gpu_pod_of
        reported = {charge.uid for charge in on_node if gpu_pod_of(charge) or charge.uid in self._promised}
        left = {charge.uid.rpartition("/")[2] for charge in on_node if not kubelet_allocation.is_pod(charge)}
        gone = self._reports.running(node).keys() - self._fleet.charges.keys()
        stopped = self._reports.stopped(node) & self._fleet.charges.keys()
        for uid in reported | left | gone | stopped | self._reports.reported_on(node):
            self._update(node, uid)

    def _update(self, node: str, uid: str) -> None:
        """Correct the charge of a pod on a node, or of what a deleted pod still holds there."""
        known, leftover_uid = self._fleet.charges.get(uid), kubelet_allocation.leftover_uid(node, uid)
        if known is None or known.node != node:
            self.set_charge(leftover_uid, self._leftover_charge(node, uid))
        else:
            self.set_charge(leftover_uid, None)
            self.set_charge(uid, self.track(self.promised_of(known)))
        self._update_drifted(node)

    def _update_drifted(self, node: str) -> None:
        """Correct the charges of drifted pods: which promised devices they keep depends on other pods."""
        for mismatch in self._drifted_on(node) if self.drifted else ():
            self.set_charge(mismatch.actual.uid, self.track(mismatch.promised))

    def set_charge(self, uid: str, charge: Charge | None) -> None:
        """Replace the charge of a UID; None releases it."""
        known = self._fleet.charges.get(uid)
        charge = None if charge is None else self._fleet.resolve_charge(charge)
        if charge is None:
            if known is not None:
                self._fleet.release(uid)
                self._leaving.forget(uid)
                self._listener.status_changed(StatusKind.DEVICE, known.node)
                self._waker.capacity_freed(known)
        elif known is None or not charges.is_same(known, charge):
            self._waker.record_change()
            self._fleet.charge(charge)
            self._leaving.see(charge)
            self._listener.status_changed(StatusKind.DEVICE, charge.node)
            if known is not None:
                self._waker.happened(ClusterEvent(change=Change.CAPACITY_FREED, node=charge.node))

    # --- drift ------------------------------------------------------------------------------------------------

    def _drifted_on(self, node: str) -> list[Mismatch]:
        return [mismatch for mismatch in self.drifted.values() if mismatch.actual.node == node]

    def _drift_changed(self, promised: Charge) -> None:
        self._gpu_pod_changed(promised)
        self._listener.drift_changed()

    def _gpu_pod_changed(self, charge: Charge) -> None:
        if (record := self._reports.gpu_pod_named(charge)) is not None:
            self._listener.status_changed(StatusKind.GPU_POD, record.key)
