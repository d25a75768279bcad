"""What kubelet gave to pods, as agents report it, node by node.

GpuPods report what existing pods hold. A Device's `held` also reports what deleted pods still hold. Both may arrive
before or after the pod itself.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from berth_api.objects import gpupod
from berth_api.values import keys
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.fleet.kubelet_allocation import ActualAllocation, KubeletDevice
from berth_operator.core.values.charge import Charge
from berth_operator.state.objects.kubelet import NO_REPORT, AgentReport, GpuPodRecord


class KubeletReports:
    """The latest report of each node and pod."""

    def __init__(self) -> None:
        self._gpu_pods: dict[str, GpuPodRecord] = {}
        """namespace/name -> GpuPod."""
        self._reports: dict[str, AgentReport] = {}
        """Node -> report in the status of its Device."""
        self._boots: dict[str, str] = {}
        """Node -> its boot ID."""

    def put_gpu_pod(self, record: GpuPodRecord) -> ActualAllocation | None:
        """Add or update a GpuPod; return its previous report."""
        before = self.remove_gpu_pod(record.key)
        self._gpu_pods[record.key] = record
        return before

    def remove_gpu_pod(self, key: str) -> ActualAllocation | None:
        """Remove a GpuPod; return its last report."""
        record = self._gpu_pods.pop(key, None)
        return None if record is None else record.actual

    def gpu_pod(self, key: str) -> GpuPodRecord | None:
        """Return a GpuPod by namespace/name."""
        return self._gpu_pods.get(key)

    def gpu_pod_names(self) -> Iterable[str]:
        """Return namespace/name of all GpuPods."""
        return self._gpu_pods

    def gpu_pod_of(self, charge: Charge) -> GpuPodRecord | None:
        """Return the GpuPod of a pod. A GpuPod with its name and another UID or node does not belong to this pod."""
        if (record := self.gpu_pod_named(charge)) is None:
            return None
        actual = record.actual
        return record if (actual.pod, actual.uid, actual.node) == (charge.pod, charge.uid, charge.node) else None

    def gpu_pod_named(self, charge: Charge) -> GpuPodRecord | None:
        """Return the GpuPod with the name of a pod's."""
        namespace, pod = keys.split(charge.pod)
        return self._gpu_pods.get(keys.join(namespace, gpupod.name_of(pod, charge.node)))

    def put_report(self, node: str, report: AgentReport) -> None:
        """Set what a node's agent reports in the status of its Device."""
        self._reports[node] = report

    def put_boot(self, node: str, boot_id: str) -> bool:
        """Set a node's boot ID; return whether it has changed."""
        before, self._boots[node] = self._boots.get(node), boot_id
        return before != boot_id

    def forget_node(self, node: str) -> None:
        """Forget a node that has neither Node nor Device."""
        self._reports.pop(node, None)
        self._boots.pop(node, None)

    def held(self, node: str) -> Mapping[str, ActualAllocation]:
        """Return {UID: what the pod holds} for a node, also for deleted pods; empty for a report of an earlier boot."""
        return self._current(node).held

    def running(self, node: str) -> Mapping[str, ActualAllocation]:
        """Return {UID: the pod's GPUs} of pods with GPUs that kubelet does not know, as `AgentReport.running`."""
        return self._current(node).running

    def stopped(self, node: str) -> AbstractSet[str]:
        """Return the UIDs of pods that are being deleted and have stopped, as `AgentReport.stopped`."""
        return self._current(node).stopped

    def claimed(self, node: str) -> Mapping[str, tuple[DeviceID, ...]]:
        """Return {claim: its devices that containers have} for a node, also of claims that are gone, as `held`."""
        return self._current(node).claimed

    def _current(self, node: str) -> AgentReport:
        """Return a node's report; an empty report if the last one is of an earlier boot."""
        report, boot_id = self._reports.get(node, NO_REPORT), self._boots.get(node)
        return NO_REPORT if boot_id and report.boot_id and boot_id != report.boot_id else report

    def reported_on(self, node: str) -> AbstractSet[str]:
        """Return the UIDs of the pods in a node's report, even one of an earlier boot."""
        return self._reports.get(node, NO_REPORT).held.keys()

    def foreign(self, node: str) -> tuple[KubeletDevice, ...]:
        """Return the cards of a node that processes outside Kubernetes use."""
        return self._reports.get(node, NO_REPORT).foreign

    def uncertain(self, node: str) -> tuple[KubeletDevice, ...]:
        """Return the cards of a node that containers may have."""
        return self._reports.get(node, NO_REPORT).uncertain

    def unheld(self, node: str) -> tuple[KubeletDevice, ...]:
        """Return the cards of a node that pods use which do not hold them."""
        uses = self._reports.get(node, NO_REPORT).unheld
        return tuple(KubeletDevice(type=use.type, minor=use.minor, id=use.id) for use in uses)

    def actual(self, promised: Charge) -> ActualAllocation | None:
        """Return kubelet's allocation for a pod; None if unknown, or if the report names another pod or node."""
        record = self.gpu_pod_of(promised)
        actual = record.actual if record is not None and record.actual.devices else None
        if actual is None:
            actual = self.held(promised.node).get(promised.uid)
        return actual if actual is not None and (actual.pod, actual.node) == (promised.pod, promised.node) else None
