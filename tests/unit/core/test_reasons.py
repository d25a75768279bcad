"""Reasons are pinned to the letter: people search, alert and script on kube-scheduler's words."""

import pytest

from berth_operator.core.allocators import shortage, subdevices
from berth_operator.core.decision import cycle, gang, messages, preemption
from berth_operator.core.decision.messages import CUT, MAX_MESSAGE, cut, fit_error
from berth_operator.core.filters import (
    cordon,
    declared_features,
    existing_anti_affinity,
    host_ports,
    injected,
    node_affinity,
    node_ready,
    node_selector,
    pod_affinity,
    pod_anti_affinity,
    resources,
    supported,
    taints,
    topology_spread,
    volume_affinity,
    volume_binding,
    volume_claims,
    volume_conflicts,
    volume_in_use,
    volume_limits,
    volume_zones,
)

IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
KUBE_SCHEDULER = [
    # NodeUnschedulable, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit, NodeDeclaredFeatures
    (cordon.REASON, "node(s) were unschedulable"),
    (taints.REASON, "node(s) had untolerated taint(s)"),
    (node_selector.REASON, "node(s) didn't match Pod's node affinity/selector"),
    (node_affinity.REASON, "node(s) didn't match Pod's node affinity/selector"),
    (node_affinity.NOT_NAMED, "node(s) didn't satisfy plugin(s) [NodeAffinity]"),
    (host_ports.REASON, "node(s) didn't have free ports for the requested pod ports"),
    (resources.TOO_MANY_PODS, "Too many pods"),
    (declared_features.REASON, "node(s) didn't match Pod's required features"),
    # VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone
    (volume_conflicts.REASON, "node(s) had no available disk"),
    (volume_in_use.REASON, IN_USE),
    (volume_limits.REASON, "node(s) exceed max volume count"),
    (volume_limits.not_installed("csi"), "csi CSI driver is not installed on the node"),
    (volume_affinity.MISMATCH, "node(s) didn't match PersistentVolume's node affinity"),
    (volume_affinity.GONE, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
    (volume_binding.NO_VOLUME, "node(s) didn't find available persistent volumes to bind"),
    (volume_binding.NO_SPACE, "node(s) did not have enough free storage"),
    (volume_claims.UNBOUND, "pod has unbound immediate PersistentVolumeClaims"),
    (volume_zones.REASON, "node(s) had no available volume zone"),
    # PodTopologySpread, InterPodAffinity
    (topology_spread.UNEVEN, "node(s) didn't match pod topology spread constraints"),
    (topology_spread.UNLABELLED, "node(s) didn't match pod topology spread constraints (missing required label)"),
    (pod_affinity.REASON, "node(s) didn't match pod affinity rules"),
    (pod_anti_affinity.REASON, "node(s) didn't match pod anti-affinity rules"),
    (existing_anti_affinity.REASON, "node(s) didn't satisfy existing pods anti-affinity rules"),
    # DefaultPreemption
    (preemption.NOT_HELPFUL, "Preemption is not helpful for scheduling"),
    (preemption.NO_VICTIMS, "No preemption victims found for incoming pod"),
    (preemption.NEVER, "not eligible due to preemptionPolicy=Never."),
    (preemption.TERMINATING, "not eligible due to a terminating pod on the nominated node."),
    # The condition PodScheduled=False
    (messages.UNSCHEDULABLE, "Unschedulable"),
    (messages.SCHEDULER_ERROR, "SchedulerError"),
]
"""Our texts, and those of kube-scheduler 1.36 by its plugins."""

OWN = [
    (node_ready.REASON, "node(s) were not ready"),
    (cycle.ONLY_NOMINATED, "node(s) would fit only together with nominated pods"),
    (gang.OTHERS, "node(s) were taken by other members of the pod group"),
    (shortage.WITHHELD, "node(s) have too few GPUs that are offered to kubelet now"),
    (
        shortage.BY_CLAIM,
        (
            "node(s) give their GPUs by claims alone (label berth.dev/cards: request a DeviceClass, or set "
            "berth.dev/cards=both)"
        ),
    ),
    (shortage.unknown("gpu"), "node(s) have pods whose GPU allocation is unknown"),
    (subdevices.UNLOCATED, "node(s) withhold MIG devices (pods hold MIG devices that the Device no longer lists)"),
    # The condition PodScheduled=False
    (messages.INVALID_REQUEST, "InvalidRequest"),
    (messages.NODE_STARTING, "NodeStarting"),
    (messages.UNKNOWN_MODEL, "UnknownModel"),
    (messages.NAMESPACE_LIMIT, "NamespaceLimit"),
    (messages.POD_GROUP_NOT_READY, "PodGroupNotReady"),
    (supported.TRAITS.refusal, "NotSupported"),
    (injected.TRAITS.refusal, "NotInjected"),
]
"""Constant reasons of Berth alone; those with values are pinned where they are tested."""


@pytest.mark.parametrize(("ours", "text"), [pytest.param(*each, id=each[1]) for each in (*KUBE_SCHEDULER, *OWN)])
def test_a_reason_has_exactly_these_words(ours: str, text: str) -> None:
    assert ours == text


NOT_FOUND = 'persistentvolumeclaim "data" not found'
TAINTS_FIRST = "0/5 nodes are available: 2 node(s) had untolerated taint(s), 3 Insufficient cpu."


@pytest.mark.parametrize(
    ("nodes", "counts", "of_pod", "expected"),
    [
        pytest.param(0, {}, "", "no nodes available to schedule pods", id="no node"),
        pytest.param(5, {"Insufficient cpu": 3, taints.REASON: 2}, "", TAINTS_FIRST, id="several reasons"),
        pytest.param(12, {"b": 10, "a": 2, "c": 2}, "", "0/12 nodes are available: 10 b, 2 a, 2 c.", id="as text"),
        pytest.param(3, {NOT_FOUND: 3}, NOT_FOUND, f"0/3 nodes are available: {NOT_FOUND}.", id="of the pod"),
    ],
)
def test_the_frame_is_kube_schedulers(nodes: int, counts: dict[str, int], of_pod: str, expected: str) -> None:
    assert fit_error(nodes, counts, of_pod) == expected


def test_a_long_message_ends_with_kube_schedulers_mark() -> None:
    assert cut("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE
    assert cut("x" * (MAX_MESSAGE + 1)) == "x" * (MAX_MESSAGE - 4) + CUT
    assert CUT == " ..."
