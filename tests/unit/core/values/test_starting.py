"""The evidence that a new node will have devices, and the taints that are removed without Berth."""

from collections.abc import Mapping
from typing import Any

import pytest

from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import Taint
from berth_operator.core.values.starting import is_startup_taint, will_have_devices
from tests.objects.builders import NVIDIA, node_info


def node_shows(amounts: Mapping[str, int], **fields: Any) -> NodeInfo:
    return node_info(sums={}, offered=amounts, **fields)


def labelled(key: str, value: str = "1") -> NodeInfo:
    return node_shows({}, labels={key: value})


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(node_shows({}), False, id="nothing"),
        pytest.param(node_shows({NVIDIA: 8}), True, id="a device plugin's resource"),
        pytest.param(node_shows({NVIDIA: 0}), False, id="a resource that kubelet remembers from before"),
        pytest.param(node_shows({"example.com/thing": 8}), False, id="another extended resource"),
        pytest.param(node_shows({}, taints=[Taint(key="berth.dev/agent-not-ready")]), True, id="Berth's startup taint"),
        pytest.param(node_shows({}, taints=[Taint(key="node.cilium.io/agent-not-ready")]), False, id="another taint"),
        pytest.param(labelled("nvidia.com/gpu.present", "true"), True, id="NVIDIA's discovery"),
        pytest.param(labelled("feature.node.kubernetes.io/pci-10de.present", "false"), False, id="says no"),
        pytest.param(labelled("karpenter.k8s.aws/instance-gpu-count", "8"), True, id="Karpenter on AWS"),
        pytest.param(labelled("karpenter.azure.com/sku-gpu-count", "0"), False, id="Karpenter on Azure, no GPU"),
        pytest.param(labelled("cloud.google.com/gke-accelerator", "nvidia-tesla-t4"), True, id="GKE"),
        pytest.param(labelled("model.berth.dev/Tesla-T4", "4"), True, id="Berth's label, by a node pool"),
        pytest.param(labelled("karpenter.sh/nodepool", "default"), False, id="any node of Karpenter"),
    ],
)
def test_a_node_shows_that_it_will_have_devices(node: NodeInfo, *, expected: bool) -> None:
    assert will_have_devices(node) is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("node.kubernetes.io/not-ready", True),
        ("node.cloudprovider.kubernetes.io/uninitialized", True),
        ("karpenter.sh/unregistered", True),
        ("berth.dev/agent-not-ready", True),
        ("ebs.csi.aws.com/agent-not-ready", True),
        ("startup-taint.cluster-autoscaler.kubernetes.io/driver", True),
        ("readiness.k8s.io/network", True),
        ("node.kubernetes.io/unschedulable", False),
        ("node.kubernetes.io/disk-pressure", False),
        ("karpenter.sh/disrupted", False),
        ("ToBeDeletedByClusterAutoscaler", False),
        ("nvidia.com/gpu", False),
    ],
)
def test_startup_taints(key: str, *, expected: bool) -> None:
    assert is_startup_taint(Taint(key=key)) is expected
