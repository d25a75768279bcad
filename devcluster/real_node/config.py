"""The configuration of kubelet and containerd. Pure functions: nothing is written or started here.

Paths are relative to the node's own mounts (see `namespaces`). Neither program listens on the network.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster.control_plane import nodes
from devcluster.real_node import image
from devcluster.real_node.namespaces import CONTAINERD, KUBELET

SOCKET: Final = CONTAINERD / "containerd.sock"
NAMESPACE: Final = "k8s.io"
"""The containerd namespace of kubelet's containers."""
POD_LOGS: Final = KUBELET / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetup:
    """What the configuration depends on."""

    node: str
    folder: Path
    """The node's folder, where everything is written."""
    group: str
    """The node's control group, below the root of each hierarchy."""
    programs: Mapping[str, Path]
    tools: Path
    """The folder of our own small programs."""
    seccomp: bool
    """Whether runc was built with libseccomp."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def cdi(self) -> Path:
        """Where containerd looks for CDI specifications."""
        return self.folder / "cdi"

    def files(self, *, kubeconfig: str) -> Mapping[str, str]:
        """Return each file's text by its name in the node's folder; `kubeconfig` is an administrator's."""
        # An administrator acts as the node, with no more than a node's rights.
        config = yaml.safe_load(kubeconfig)
        config["users"][0]["user"] |= {"as": f"system:node:{self.node}", "as-groups": ["system:nodes"]}
        return {
            "kubelet.yaml": yaml.safe_dump(_kubelet(self), sort_keys=False),
            "kubeconfig": yaml.safe_dump(config, sort_keys=False),
            "containerd.toml": _containerd(self),
            "cni/10-no-network.conflist": json.dumps(_CNI),
        }

    def kubelet(self) -> list[str]:
        """Return kubelet's command line."""
        labels = {**nodes.cloud_labels(self.node), **self.labels}
        del labels["kubernetes.io/hostname"]  # kubelet's own
        return [
            str(self.programs["kubelet"]),
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--cert-dir={KUBELET / 'pki'}",
            f"--hostname-override={self.node}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        ]

    def containerd(self) -> list[str]:
        """Return containerd's command line."""
        return [str(self.programs["containerd"]), f"--config={self.folder / 'containerd.toml'}"]

    def ctr(self, *arguments: str) -> Sequence[str]:
        """Return the command line of ctr, among kubelet's containers."""
        return [str(self.programs["ctr"]), f"--address={SOCKET}", f"--namespace={NAMESPACE}", *arguments]

    @property
    def runc(self) -> Path:
        """The runtime of containers: runc, or what removes seccomp profiles before an runc that would refuse them."""
        return self.programs["runc"] if self.seccomp else self.tools / "runc-without-seccomp"

    def search_path(self, path: str) -> str:
        """Return PATH for containerd: our wrapper of runc looks for it there."""
        return f"{self.programs['runc'].parent}:{path}"


def _kubelet(setup: NodeSetup) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "enableServer": False,
        "providerID": nodes.provider_id(setup.node),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "podLogsDir": str(POD_LOGS),
        "volumePluginDir": str(KUBELET / "volume-plugins"),
        # Nothing resolves: a pod has no network.
        "resolvConf": "",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{setup.group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # Tests wait for the devices in the Node's status.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "5m",
        "enforceNodeAllocatable": [],
        # A development machine may be short of disk; that must not evict pods.
        "evictionHard": {"memory.available": "64Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        # Do not change the machine: its firewall, its kernel's settings, and the OOM killer's choice.
        "makeIPTablesUtilChains": False,
        "protectKernelDefaults": True,
        "oomScoreAdj": 0,
    }


_CNI: Final = {"cniVersion": "1.0.0", "name": "no-network", "plugins": [{"type": "no-network"}]}

# Left out are what makes folders elsewhere on the machine, and what asks for kernel modules.
_CONTAINERD: Final = """\
version = 3
root = "{folder}/containerd"
state = "{state}"
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{socket}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{image}"

[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
netns_mounts_under_state_dir = true
# Without the right to lower it, runc fails.
restrict_oom_score_adj = true
cdi_spec_dirs = ["{cdi}"]

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{tools}"]
conf_dir = "{folder}/cni"
use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{shim}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def _containerd(setup: NodeSetup) -> str:
    return _CONTAINERD.format(
        folder=setup.folder,
        state=CONTAINERD,
        socket=SOCKET,
        image=image.NAME,
        cdi=setup.cdi,
        tools=setup.tools,
        runc=setup.runc,
        shim=setup.programs["containerd-shim-runc-v2"],
    )
