"""Every name that Berth reads from or writes to Kubernetes, in one place."""

from typing import Final

# API group and objects.
GROUP: Final = "berth.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
DEVICES: Final = "devices"
GPUPODS: Final = "gpupods"
LEADER_LEASE: Final = "LeaderLease"
LEADER_LEASES: Final = "leaderleases"

# The group of pods that are scheduled together; the object and its label belong to Kubernetes' scheduler-plugins.
POD_GROUP_GROUP: Final = "scheduling.x-k8s.io"
POD_GROUPS: Final = "podgroups"
POD_GROUP_API: Final = f"/apis/{POD_GROUP_GROUP}/{VERSION}"
POD_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
OLD_POD_GROUP_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
POD_GROUP: Final = "berth.dev/pod-group"
POD_GROUP_MIN_MEMBER: Final = "berth.dev/pod-group-min-member"
"""The last two are annotations, for groups without an object."""

# Field managers of server-side apply: each owns its own fields and never forces.
AGENT: Final = "berth-agent"
AGENT_LABELS: Final = "berth-agent-labels"
OPERATOR: Final = "berth-operator"

SCHEDULER: Final = "berth-scheduler"
"""The `schedulerName` of Berth's pods where nothing else is configured."""

LEASE_NAMESPACE: Final = "berth-node-lease"
"""Namespace of the agents' heartbeat Leases, one per node and named like it."""

# Annotations on pods.
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
MIN_GPU_MEMORY: Final = "berth.dev/min-gpu-memory"
GPU_TOPOLOGY: Final = "berth.dev/gpu-topology"
GPU_TOPOLOGY_POLICY: Final = "berth.dev/gpu-topology-policy"
EPOCH: Final = "berth.dev/epoch"
VISIBLE_SUFFIX: Final = ".devices.berth.dev/visible"
"""`<container>.devices.berth.dev/visible`: the UUIDs of that container, joined by commas."""

LIMIT_PREFIX: Final = ".devices.berth.dev/{}-limit-"
"""`<container>.devices.berth.dev/memory-limit-0`, `…/sm-limit-0`: bytes, and hundredths, of each card that it sees."""
NODE_LABEL: Final = "berth.dev/node"
"""On GpuPods, so that an agent finds those of its node; cut to a label's length."""

# The annotation on the LeaderLease by which a leader says that nothing of its term can still be executed.
DRAINED: Final = "berth.dev/drained-term"

# The label on Bindings that brings them under the fence of one LeaderLease.
FENCED_BY: Final = "berth.dev/fenced-by"
FENCE: Final = "berth-fence"
"""Begins the names of the admission policies that refuse Bindings of a past term (`manifests/base/fence.yaml`)."""

# Model constraints: an annotation and a label of older systems, and our own.
MODEL_EXACT: Final = "nvidia-gpu-scheduler/gpu.model"
MODEL_REGEX: Final = "genius/gpu-model"
MODEL_GLOBS: Final = "berth.dev/gpu-model"

# Genius' other labels.
GENIUS_PRIORITY: Final = "genius/priority"
GENIUS_NUMBER: Final = "genius/gpu-number"
GENIUS_MEMORY_EACH: Final = "genius/gpu-memory-each"
GENIUS_MEMORY_TOTAL: Final = "genius/gpu-memory-total"

# Labels on Devices (written by agents) and Nodes (copied by the operator).
VENDOR_LABEL: Final = "node.koordinator.sh/gpu-vendor"
MODEL_LABEL: Final = "node.koordinator.sh/gpu-model"
DRIVER_LABEL: Final = "node.koordinator.sh/gpu-driver-version"

# On Devices alone: an annotation with the partitions of the node's NVSwitch. How they are used says
# the label of the Device if it has the annotation, else that of the Node.
PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
PARTITION_POLICY_LABEL: Final = "node.koordinator.sh/gpu-partition-policy"

# Also on Devices: what people say of single devices. The agent obeys the second once, and removes it.
CORDONED_DEVICES: Final = "berth.dev/cordoned-devices"
RECOVERED_DEVICES: Final = "berth.dev/recovered-devices"

# And one of the agent's own: the minors of NICs and FPGAs that are gone, which no other device takes.
RESERVED_MINORS: Final = "berth.dev/reserved-minors"

# Labels of single devices, which selectors of hints may ask beside those that their Device tells.
DEVICE_MODEL: Final = "berth.dev/model"
DEVICE_NUMA_NODE: Final = "berth.dev/numa-node"
DEVICE_PCIE_SWITCH: Final = "berth.dev/pcie-switch"

# Labels that the agent gives to NICs: the name of their RDMA device, and what their ports speak.
DEVICE_RDMA: Final = "berth.dev/rdma-device"
DEVICE_LINK_LAYER: Final = "berth.dev/link-layer"

# Resource names. The first prefix is what Berth writes where the pod used none.
PREFIX: Final = "kubernetes.io/"
OTHER_PREFIX: Final = "koordinator.sh/"
NVIDIA_PREFIX: Final = "nvidia.com/"
"""Of resources that kubelet gives out, as a device plugin announces them."""
GPU: Final = "gpu"
GPU_SHARED: Final = "gpu.shared"
GPU_CORE: Final = "gpu-core"
GPU_MEMORY: Final = "gpu-memory"
GPU_MEMORY_RATIO: Final = "gpu-memory-ratio"
RDMA: Final = "rdma"
FPGA: Final = "fpga"

# Condition types. The agent owns the first three, the operator the others.
DRIVER_LOADED: Final = "DriverLoaded"
INVENTORY_READ: Final = "InventoryRead"
DEVICES_OFFERED: Final = "DevicesOffered"
"""Whether kubelet has the node's cards from the agent; only where the agent is its device plugin."""
ANNOTATIONS_READ: Final = "AnnotationsRead"
READY: Final = "Ready"
VALID: Final = "Valid"
ACCOUNTED: Final = "Accounted"
CONSISTENT: Final = "Consistent"
"""Of a GpuPod: whether its pod holds what it was allocated."""
