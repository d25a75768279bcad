"""All names that Berth reads from or writes to Kubernetes."""

from typing import Final

# API group and objects.
GROUP: Final = "berth.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
DEVICES: Final = "devices"
GPUPODS: Final = "gpupods"
LEADER_LEASE: Final = "LeaderLease"
LEADER_LEASES: Final = "leaderleases"

# PodGroups and their label are defined by Kubernetes' scheduler-plugins.
POD_GROUP_GROUP: Final = "scheduling.x-k8s.io"
POD_GROUPS: Final = "podgroups"
POD_GROUP_API: Final = f"/apis/{POD_GROUP_GROUP}/{VERSION}"
POD_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
OLD_POD_GROUP_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
POD_GROUP: Final = "berth.dev/pod-group"
POD_GROUP_MIN_MEMBER: Final = "berth.dev/pod-group-min-member"
"""The last two are annotations, for groups without a PodGroup object."""

# Field managers of server-side apply; each owns its fields and never forces.
AGENT: Final = "berth-agent"
AGENT_LABELS: Final = "berth-agent-labels"
OPERATOR: Final = "berth-operator"

DRA_DRIVER: Final = "gpu.berth.dev"
"""The agent as a driver of dynamic resource allocation, in ResourceSlices and ResourceClaims."""

SCHEDULER: Final = "berth-scheduler"
"""The `schedulerName` of Berth's pods by default."""

APP_NAME: Final = "app.kubernetes.io/name"
"""Kubernetes' label for the program that a pod runs, such as `berth-agent`."""

AGENT_SYSTEM: Final = "berth-agent-system"
"""Namespace of the agents' pods."""

LEASE_NAMESPACE: Final = "berth-node-lease"
"""Namespace of the heartbeat Leases of the agents; each has the name of its node."""

# Annotations on pods.
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
MIN_GPU_MEMORY: Final = "berth.dev/min-gpu-memory"
GPU_TOPOLOGY: Final = "berth.dev/gpu-topology"
GPU_TOPOLOGY_POLICY: Final = "berth.dev/gpu-topology-policy"
GPU_SUBDEVICES: Final = "berth.dev/gpu-subdevices"
MIXED_GPUS: Final = "berth.dev/mixed-gpus"
MOVABLE: Final = "berth.dev/movable"
"""Whether defragmentation may move the pod; also on namespaces, for their pods without it."""
CONTROLLER_GANGS: Final = "berth.dev/controller-gangs"
"""An annotation of namespaces: `false` if pods there form no gangs by their controllers."""
ISOLATION_KEY: Final = "berth.dev/isolation"
"""How containers are limited to their shares of cards. It is an annotation of pods and a label of namespaces. On Nodes,
it is the label with the only mode that the node has."""
EPOCH: Final = "berth.dev/epoch"
ORIGINAL_RESOURCES: Final = "berth.dev/original-resources"
"""What containers requested by resources that admission has renamed, as JSON."""

# Written by Kueue, from the AdmissionCheck: the Workload and the pod set for which the pod's place was promised.
WORKLOAD: Final = "berth.dev/workload"
POD_SET: Final = "berth.dev/pod-set"
VISIBLE_SUFFIX: Final = ".devices.berth.dev/visible"
"""`<container>.devices.berth.dev/visible`: the UUIDs that the container sees, joined by commas."""

BY_CLASS_SUFFIX: Final = ".devices.berth.dev/by-class"
"""`<container>.devices.berth.dev/by-class`: the extended resources that the container gets by DeviceClasses, joined by
commas."""
LIMIT_PREFIX: Final = ".devices.berth.dev/{}-limit-"
"""`<container>.devices.berth.dev/memory-limit-0` (bytes), `…/sm-limit-0` (hundredths): of each card that it sees."""
MPS_MEMORY_SUFFIX: Final = ".devices.berth.dev/mps-memory-limit"
"""`<container>.devices.berth.dev/mps-memory-limit`: MiB of each card, as MPS reads them (`0=4096M,1=…`)."""
MPS_THREADS_SUFFIX: Final = ".devices.berth.dev/mps-threads"
"""`<container>.devices.berth.dev/mps-threads`: hundredths of each card's multiprocessors, 1 to 100."""
BOUND_WITH: Final = "gang.devices.berth.dev/bound-with"
"""Which members of its gang a member was bound with, as `berth_operator.core.values.bound_with` writes it. The policy
that protects allocations protects names of this form."""
CARDS_KEY: Final = "berth.dev/cards"
"""A label of Nodes: how the node's cards are given to pods, `name` (the default), `claims`, `shares` or `both`."""
CARDS_BY_NAME: Final = "name"
CARDS_BY_CLAIMS: Final = "claims"
"""The value of this label with which claims alone get the node's cards."""
CARDS_BY_SHARES: Final = "shares"
"""The value of this label with which claims alone get the node's cards, or shares of them."""
CARDS_BY_CLAIMS_AND_NAME: Final = "both"
"""The value of this label with which Berth gives the node's cards by name and by claim."""
PARTITIONS_KEY: Final = "berth.dev/partitions"
"""A label of Nodes: on which cards the driver of claims makes MIG instances on demand, `all` or, without it, none."""
PARTITIONS_ON_ALL: Final = "all"
NODE_LABEL: Final = "berth.dev/node"
"""The label of GpuPods with their node's name, by which an agent lists them; truncated to a label's length."""

# The annotation on the LeaderLease by which a leader declares that no request of its term can still be executed.
DRAINED: Final = "berth.dev/drained-term"

# The annotation on the LeaderLease that says what keeps its holder from binding pods; absent if nothing does.
HINDRANCE: Final = "berth.dev/hindrance"

# The annotation on the LeaderLease with the number of times that the API server has recently shown an earlier state.
EARLIER_STATES: Final = "berth.dev/earlier-states"

# The annotation on the LeaderLease in which operators of the version before record lost places; now in its status.
LOST_PLACES: Final = "berth.dev/lost-places"

# The annotation on the LeaderLease with the address (host:port) at which the leader serves the visibility API.
VISIBILITY_ADDRESS: Final = "berth.dev/visibility-address"

# The label on Bindings that names the LeaderLease whose fence applies to them.
FENCED_BY: Final = "berth.dev/fenced-by"
FENCE: Final = "berth-fence"
"""Prefix of the admission policies that refuse Bindings of a past term (`manifests/base/fence.yaml`)."""

# Model constraints: an annotation and a label of older systems, and Berth's own annotation.
MODEL_EXACT: Final = "nvidia-gpu-scheduler/gpu.model"
MODEL_REGEX: Final = "genius/gpu-model"
MODEL_GLOBS: Final = "berth.dev/gpu-model"

# Genius' other labels.
GENIUS_PRIORITY: Final = "genius/priority"
GENIUS_NUMBER: Final = "genius/gpu-number"
GENIUS_MEMORY_EACH: Final = "genius/gpu-memory-each"
GENIUS_MEMORY_TOTAL: Final = "genius/gpu-memory-total"

# The names of other systems that Berth reads from pods. These systems have more names of the same prefixes.
KOORDINATOR_PREFIX: Final = "scheduling.koordinator.sh/"
KOORDINATOR_ANNOTATIONS: Final = (ALLOCATED, ALLOCATE_HINT, JOINT_ALLOCATE, PARTITION_SPEC)
GANG_PREFIX: Final = "gang.scheduling.koordinator.sh/"
GENIUS_PREFIX: Final = "genius/"
GENIUS_LABELS: Final = (MODEL_REGEX, GENIUS_PRIORITY, GENIUS_NUMBER, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL)

# Koordinator's label by which a pod asks for limits in its containers.
ISOLATION: Final = "koordinator.sh/gpu-isolation-provider"

ROUTING: Final = "berth.dev/routing"
"""Label of namespaces: which of their pods are routed."""
UNLIMITED_SHARES: Final = "berth.dev/unlimited-shares"
"""Label of namespaces: whether pods there may share cards without isolation (`allow`, `warn`, `deny`)."""

# Taints that node pools put on new nodes and that the operator removes once the devices of the node are known.
AGENT_NOT_READY: Final = (
    "berth.dev/agent-not-ready",
    # cluster-autoscaler knows this one by its prefix, where its flags cannot be set.
    "startup-taint.cluster-autoscaler.kubernetes.io/berth-agent-not-ready",
)

PREEMPTING: Final = "status-taint.cluster-autoscaler.kubernetes.io/berth-preempting"
"""Taint (NoSchedule) of a node from which Berth evicts pods for a pending pod. It keeps other schedulers' pods from
taking the evicted pods' place. cluster-autoscaler leaves it out of node templates, because of its prefix."""

MANAGED: Final = "berth.dev/devices"
"""Label of each Node whose sums Berth writes. It stays until the sums have been removed."""

# Labels on Devices (written by agents) and Nodes (copied by the operator).
MODEL_PREFIX: Final = "model.berth.dev/"
"""Prefix of labels such as `model.berth.dev/NVIDIA-A100-SXM4-80GB: "4"`, the number of cards of each model."""
VENDOR_LABEL: Final = "node.koordinator.sh/gpu-vendor"
MODEL_LABEL: Final = "node.koordinator.sh/gpu-model"
DRIVER_LABEL: Final = "node.koordinator.sh/gpu-driver-version"

# Only on Devices: an annotation with the partitions of the node's NVSwitch. The policy is the label of the Device if
# the Device has the annotation, else the label of the Node.
PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
PARTITION_POLICY_LABEL: Final = "node.koordinator.sh/gpu-partition-policy"

# Also on Devices: annotations by which people cordon devices or call them recovered. The agent applies the second once
# and removes it.
CORDONED_DEVICES: Final = "berth.dev/cordoned-devices"
RECOVERED_DEVICES: Final = "berth.dev/recovered-devices"

# Written by the agent: minors of NICs and FPGAs that are gone, which no other device may get.
RESERVED_MINORS: Final = "berth.dev/reserved-minors"

# Labels of single devices that hints may select by, in addition to the labels on the Device.
DEVICE_MODEL: Final = "berth.dev/model"
DEVICE_NUMA_NODE: Final = "berth.dev/numa-node"
DEVICE_PCIE_SWITCH: Final = "berth.dev/pcie-switch"
DEVICE_UUID: Final = "berth.dev/uuid"

# Label that the agent writes for GPUs that kubelet counts by a resource of their partition mode: `cpx_nps4`.
DEVICE_PARTITION: Final = "berth.dev/partition"

# Labels that the agent writes for NICs: the name of the RDMA device, and the link layer of its ports.
DEVICE_RDMA: Final = "berth.dev/rdma-device"
DEVICE_LINK_LAYER: Final = "berth.dev/link-layer"

# Annotations that Huawei's device plugin reads.
NPU_MINORS: Final = "huawei.com/npu-core"
PREDICATE_TIME: Final = "predicate-time"

# Resource names. Berth writes the first prefix if the pod used none.
PREFIX: Final = "kubernetes.io/"
OTHER_PREFIX: Final = "koordinator.sh/"
NVIDIA_PREFIX: Final = "nvidia.com/"
"""Prefix of the resources of NVIDIA's device plugin, which kubelet allocates."""
MPS_RESOURCE: Final = "berth.dev/mps"
HAMI_CORE_RESOURCE: Final = "berth.dev/hami-core"
"""The device plugin resources of the agent that give a container the means to limit it to its share."""
RDMA_RESOURCE: Final = "berth.dev/rdma"
"""The device plugin resource of the agent that gives a container the device files of its pod's RDMA NICs."""
GPU: Final = "gpu"
GPU_SHARED: Final = "gpu.shared"
GPU_CORE: Final = "gpu-core"
GPU_MEMORY: Final = "gpu-memory"
GPU_MEMORY_RATIO: Final = "gpu-memory-ratio"
RDMA: Final = "rdma"
FPGA: Final = "fpga"

# Condition types. The agent owns those before `READY`, the operator the others.
DRIVER_LOADED: Final = "DriverLoaded"
INVENTORY_READ: Final = "InventoryRead"
DEVICES_OFFERED: Final = "DevicesOffered"
"""Whether the agent offers the cards of the node to kubelet; only if the agent is the device plugin."""
MPS_SERVING: Final = "MpsServing"
"""Whether the MPS daemon of the node answers, and has the agent's limits; only on nodes that share by MPS."""
HAMI_CORE_INSTALLED: Final = "HamiCoreInstalled"
"""Whether the library HAMi-core is on the node; only if the agent is to give it to containers."""
NICS_OFFERED: Final = "NicsOffered"
"""Whether containers get the device files of RDMA NICs; only on nodes with a NIC whose agent is to give them."""
CLAIMS_SERVED: Final = "ClaimsServed"
"""Whether kubelet has registered the agent as a driver of ResourceClaims; only if it is one."""
WRITES_ACCEPTED: Final = "WritesAccepted"
"""False while the API server refuses writes of the agent until a person acts."""
ANNOTATIONS_READ: Final = "AnnotationsRead"
DEVICE_IDS_MATCHED: Final = "DeviceIDsMatched"
"""Whether the ids by which kubelet gave cards show which cards they are; False or absent."""
READY: Final = "Ready"
VALID: Final = "Valid"
ACCOUNTED: Final = "Accounted"
HELD_ONCE: Final = "HeldOnce"
"""False while two pods hold a card that only one may hold; absent otherwise."""
BOUND_BY_BERTH: Final = "BoundByBerth"
"""False while pods that another program bound see none of the GPUs that they request; absent otherwise."""
HELD_BY_NAME: Final = f"{DRA_DRIVER}/by-name"
"""Key of the taint of a device in Berth's ResourceSlices that a pod has by name. Berth does not read it."""
OWN_POOL: Final = "berth.dev/own-pool"
"""Key of the label and taint of the DeviceTaintRules with which Berth keeps other schedulers away from its pools."""
GIVEN_BY_NAME: Final = "GivenByName"
"""False if some healthy cards are not given by name. They may be given to ResourceClaims, or have a device taint."""
RESOURCES_WRITTEN: Final = "ResourcesWritten"
"""Followed by `.npu`: whether the Node shows the resources of a plug-in's type, which the operator writes."""
CONSISTENT: Final = "Consistent"
"""The condition of a GpuPod: whether its pod holds the devices of its allocation."""
