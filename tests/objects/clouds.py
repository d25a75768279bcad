"""Nodes with GPUs as three clouds create them: labels and taints, and the labels that feature discovery adds.

Written by hand from the clouds' documentation and from `kubectl get node -o yaml` in issues of other projects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Strings = Mapping[str, str]

NFD: Final = {
    "feature.node.kubernetes.io/cpu-model.vendor_id": "Intel",
    "feature.node.kubernetes.io/kernel-version.full": "6.1.0",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-10de.sriov.capable": "true",
}
"""What Node Feature Discovery writes."""
GFD: Final = {
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/gfd.timestamp": "1764460800",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.deploy.device-plugin": "true",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/mig.strategy": "single",
}
"""What GPU Feature Discovery and the GPU Operator write; some differ from what Berth's agent would write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The GPU nodes of one cloud."""

    zone: str
    region: str
    instance_type: str
    labels: Strings
    taint: Strings
    """Of its pools of GPU nodes: GKE and AKS add it, and most users of EKS do."""

    def all_labels(self) -> Strings:
        """Return all labels of a node except its name."""
        return {
            "topology.kubernetes.io/zone": self.zone,
            "topology.kubernetes.io/region": self.region,
            "failure-domain.beta.kubernetes.io/zone": self.zone,
            "failure-domain.beta.kubernetes.io/region": self.region,
            "node.kubernetes.io/instance-type": self.instance_type,
            "beta.kubernetes.io/instance-type": self.instance_type,
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": "amd64",
            **self.labels,
            **NFD,
            **GFD,
        }


GKE: Final = Cloud(
    zone="us-central1-c",
    region="us-central1",
    instance_type="a2-highgpu-8g",
    labels={
        "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
        "cloud.google.com/gke-accelerator-count": "8",
        "cloud.google.com/gke-boot-disk": "pd-balanced",
        "cloud.google.com/gke-container-runtime": "containerd",
        "cloud.google.com/gke-gpu-driver-version": "latest",
        "cloud.google.com/gke-nodepool": "gpus",
        "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/machine-family": "a2",
        "topology.gke.io/zone": "us-central1-c",
    },
    taint={"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
)
EKS: Final = Cloud(
    zone="eu-west-1b",
    region="eu-west-1",
    instance_type="p4d.24xlarge",
    labels={
        "eks.amazonaws.com/capacityType": "ON_DEMAND",
        "eks.amazonaws.com/nodegroup": "gpus",
        "eks.amazonaws.com/nodegroup-image": "ami-0123456789abcdef0",
        "k8s.amazonaws.com/accelerator": "nvidia-tesla-a100",
        "topology.ebs.csi.aws.com/zone": "eu-west-1b",
        "topology.k8s.aws/zone-id": "euw1-az2",
    },
    taint={"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
)
AKS: Final = Cloud(
    zone="westeurope-1",
    region="westeurope",
    instance_type="Standard_ND96asr_v4",
    labels={
        "agentpool": "gpus",
        "kubernetes.azure.com/accelerator": "nvidia",
        "kubernetes.azure.com/agentpool": "gpus",
        "kubernetes.azure.com/cluster": "MC_g_c_westeurope",
        "kubernetes.azure.com/mode": "user",
        "kubernetes.azure.com/os-sku": "Ubuntu",
        "topology.disk.csi.azure.com/zone": "westeurope-1",
    },
    taint={"key": "sku", "value": "gpu", "effect": "NoSchedule"},
)
CLOUDS: Final[Mapping[str, Cloud]] = {"gke": GKE, "eks": EKS, "aks": AKS}
