"""What kubelet gave, as agents report it, node by node.

GpuPods report what living pods hold; a Device's `held` also reports what pods hold that are gone. Both may arrive
before the pod that they are about, and after it.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from berth_operator.core.fleet.kubelet_allocation import ActualAllocation, Device
from berth_operator.core.values.charge import Charge
from berth_operator.state.kubelet import NO_WORD, AgentReport, GpuPodRecord


class KubeletReports:
    """The latest reports."""

    def __init__(self) -> None:
        self._gpu_pods: dict[str, GpuPodRecord] = {}
        """By namespace/name."""
        self._by_pod: dict[str, GpuPodRecord] = {}
        """By the UID of the pod."""
        self._words: dict[str, AgentReport] = {}
        """By node."""
        self._boots: dict[str, str] = {}
        """Node -> the id of its boot."""

    def put_gpu_pod(self, record: GpuPodRecord) -> ActualAllocation | None:
        """Add or update a GpuPod; return what it reported before."""
        before = self.remove_gpu_pod(record.key)
        self._gpu_pods[record.key] = self._by_pod[record.actual.uid] = record
        return before

    def remove_gpu_pod(self, key: str) -> ActualAllocation | None:
        """Remove a GpuPod; return what it reported."""
        record = self._gpu_pods.pop(key, None)
        if record is None:
            return None
        if self._by_pod.get(record.actual.uid) is record:
            del self._by_pod[record.actual.uid]
        return record.actual

    def gpu_pod(self, key: str) -> GpuPodRecord | None:
        """Return a GpuPod by namespace/name."""
        return self._gpu_pods.get(key)

    def gpu_pod_names(self) -> Iterable[str]:
        """Return namespace/name of all GpuPods."""
        return self._gpu_pods

    def has_gpu_pod_of(self, uid: str) -> bool:
        """Return whether there is a GpuPod of the pod with this UID."""
        return uid in self._by_pod

    def put_report(self, node: str, word: AgentReport) -> None:
        """Set what a node's agent reports in the status of its Device."""
        self._words[node] = word

    def put_boot(self, node: str, boot_id: str) -> bool:
        """Set in which boot a node is; return whether it was another before."""
        before, self._boots[node] = self._boots.get(node), boot_id
        return before != boot_id

    def forget_node(self, node: str) -> None:
        """Forget a node that has neither Node nor Device."""
        self._words.pop(node, None)
        self._boots.pop(node, None)

    def held(self, node: str) -> Mapping[str, ActualAllocation]:
        """Return what pods hold on a node, also those that are gone; what was held before its last boot is free."""
        word, boot_id = self._words.get(node, NO_WORD), self._boots.get(node)
        return {} if boot_id and word.boot_id and boot_id != word.boot_id else word.held

    def reported_on(self, node: str) -> AbstractSet[str]:
        """Return the UIDs of pods that a node's Device reports, even of an earlier boot."""
        return self._words.get(node, NO_WORD).held.keys()

    def foreign(self, node: str) -> tuple[Device, ...]:
        """Return the cards of a node that processes outside Kubernetes use."""
        return self._words.get(node, NO_WORD).foreign

    def given(self, promised: Charge) -> ActualAllocation | None:
        """Return what kubelet gave a pod; None if unknown, or if the report is about another name or node."""
        record = self._by_pod.get(promised.uid)
        given = record.actual if record is not None and record.actual.devices else None
        if given is None:
            given = self.held(promised.node).get(promised.uid)
        return given if given is not None and (given.pod, given.node) == (promised.pod, promised.node) else None
