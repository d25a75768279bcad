"""The names of annotations, labels, taints, resources and conditions: a row per constant of `berth_api.names`."""

from collections.abc import Iterator, Mapping
from typing import Final

from berth_api import names
from berth_api.request import amounts
from reference.markdown import code, page, section, table

Rows = Mapping[str, str]
"""Constant -> meaning."""

VARIABLE: Final = {
    "VISIBLE_SUFFIX": f"<container>{names.VISIBLE_SUFFIX}",
    "BY_CLASS_SUFFIX": f"<container>{names.BY_CLASS_SUFFIX}",
    "LIMIT_PREFIX": f"<container>{names.LIMIT_PREFIX.format('<memory|sm>')}<i>",
    "MODEL_PREFIX": f"{names.MODEL_PREFIX}<model>",
}
"""Names that have parts which vary."""

REQUESTS: Final[Rows] = {
    "MODEL_GLOBS": "annotation: globs of GPU models, one of which must match, and after `!` none of which must "
    "([models](../protocol.md#models))",
    "MODEL_EXACT": "annotation: the whole name of the GPU model",
    "MODEL_REGEX": "label: a regular expression that is found in the GPU model",
    "MIN_GPU_MEMORY": "annotation: the least memory of what the pod gets of each card",
    "GPU_TOPOLOGY": "annotation: what any two of the pod's GPUs share, such as `nvlink`",
    "GPU_TOPOLOGY_POLICY": "annotation: whether that is required (the default)",
    "GPU_SUBDEVICES": "annotation: whether `nvidia.com/gpu` may be slices",
    "MIXED_GPUS": "annotation: `true` if the GPUs may be of several models and kinds",
    "CONTROLLER_GANGS": "annotation of namespaces: `false` if controllers' pods form no gangs unless they name one "
    "([gangs of controllers](../gangs-of-controllers.md))",
    "MOVABLE": "annotation of pods and namespaces: whether the pod may be evicted to make room for another "
    "([defragmentation](../defragmentation.md))",
    "ISOLATION_KEY": "annotation: what limits the containers to their shares; label of namespaces: the same for their "
    "pods without it; label of Nodes: `mps` if they share GPUs by MPS alone ([limits](../containers.md#limits))",
    "ALLOCATE_HINT": "annotation: selector, strategy, scope and exclusivity by device type",
    "JOINT_ALLOCATE": "annotation: device types that are placed together",
    "PARTITION_SPEC": "annotation: which partitions of the node's NVSwitch are allowed",
    "POD_GROUP_LABEL": "label: the pod's PodGroup ([gangs](../gangs.md))",
    "OLD_POD_GROUP_LABEL": "label: the same, as older versions of scheduler-plugins name it",
    "POD_GROUP": "annotation: the pod's group without a PodGroup object",
    "POD_GROUP_MIN_MEMBER": "annotation: how many members that group needs",
    "GENIUS_PRIORITY": "label: order among pods of equal priority; above 0 only as `--genius-priorities` allows",
    "GENIUS_NUMBER": "label: number of cards, for pods that request no device resource",
    "GENIUS_MEMORY_EACH": "label: MiB of each card",
    "GENIUS_MEMORY_TOTAL": "label: MiB of all cards together",
    "ISOLATION": "label: `HAMi-core` for limits of shares by HAMi-core ([limits](../containers.md#limits))",
}
WRITTEN: Final[Rows] = {
    "ALLOCATED": "annotation: the devices of the pod ([allocations](../allocations.md#what-berth-writes))",
    "ORIGINAL_RESOURCES": "annotation: what containers requested by resources that "
    "[admission](../admission.md#words-of-other-systems) has renamed, as JSON",
    "NPU_MINORS": "annotation: the minors of the pod's NPUs, `0,1`, for Huawei's device plugin "
    "([GPUs from files](../device-infos.md))",
    "PREDICATE_TIME": "annotation: when the pod with these NPUs was bound, in Unix nanoseconds, for the same plugin",
    "EPOCH": "annotation: the leader's term; the pod was bound by Berth",
    "BOUND_WITH": "annotation: how many members of the pod's gang had to be bound with it, of how many, and the ends "
    "of their UIDs ([decision 9](../decisions/0009-gangs.md))",
    "WORKLOAD": "annotation: the Workload of Kueue for which the pod's place was promised "
    "([admission check](../kueue.md))",
    "POD_SET": "annotation: the pod set of that Workload",
    "FENCED_BY": "label: the LeaderLease whose fence applied to the Binding",
    "VISIBLE_SUFFIX": "annotation: the UUIDs that the container sees, joined by commas",
    "BY_CLASS_SUFFIX": "annotation: the extended resources that the container gets by "
    "[DeviceClasses](../claims.md#extended-resources), joined by commas",
    "LIMIT_PREFIX": "annotation: bytes or hundredths of the cores that the container may use of a card",
    "MPS_MEMORY_SUFFIX": "annotation: MiB that the container may use of each card, as MPS reads them",
    "MPS_THREADS_SUFFIX": "annotation: hundredths of each card's multiprocessors, as MPS reads them",
}
OBJECTS: Final[Rows] = {
    "ROUTING": "label of namespaces: which of their pods are [routed](../admission.md#routing)",
    "UNLIMITED_SHARES": "label of namespaces: whether pods may share cards without isolation",
    "CARDS_KEY": "label of Nodes: how pods get the node's cards if the agent runs with `--dra` "
    "([GPUs by claim](../tasks/gpus-by-claim.md))",
    "PARTITIONS_KEY": "label of Nodes: `all` opens the node's cards for MIG instances on demand, with "
    "`--dra-partitions` ([MIG on demand](../mig-on-demand.md))",
    "MANAGED": "label of Nodes: Berth writes the sums of devices in their capacity",
    "NODE_LABEL": "label of GpuPods: the node, cut to the length of a label",
    "HINDRANCE": "annotation of the LeaderLease: what keeps its holder from binding pods, such as a policy",
    "EARLIER_STATES": "annotation of the LeaderLease: how often the API server has recently shown an earlier state",
    "DRAINED": "annotation of the LeaderLease: no request of this term can still be executed",
    "LOST_PLACES": "annotation of the LeaderLease, by operators of the version before: places that evictions freed "
    "and others took ([preemption](../placement.md#preemption-next-to-other-schedulers))",
    "PREEMPTING": "taint (NoSchedule) of Nodes that pods leave for a pod of Berth: it keeps other schedulers "
    "[from their place](../next-to.md#preemption-next-to-kube-scheduler)",
    "VISIBILITY_ADDRESS": "annotation of the LeaderLease: host:port of the leader's [visibility API](../visibility.md)",
    "VENDOR_LABEL": "label of Devices and Nodes: the vendor of the GPUs",
    "MODEL_LABEL": "label of Devices and Nodes: the model, if all cards have the same one",
    "DRIVER_LABEL": "label of Devices and Nodes: the driver's version",
    "MODEL_PREFIX": "label of Nodes: the number of cards of the model",
    "PARTITIONS": "annotation of Devices: the partitions of the node's NVSwitch",
    "PARTITION_POLICY_LABEL": "label of Devices with partitions of their own, else of Nodes: `Honor` for these only",
    "CORDONED_DEVICES": "annotation of Devices: they are unhealthy while it is set ([why](../health.md))",
    "RECOVERED_DEVICES": "annotation of Devices: these devices are healthy again; the agent removes it",
    "RESERVED_MINORS": "annotation of Devices: minors of NICs and FPGAs that are gone",
    "HELD_BY_NAME": "key of the taint of a device in Berth's ResourceSlices that a pod has by name "
    "([GPUs by claim](../tasks/gpus-by-claim.md#both-ways-on-one-node))",
    "OWN_POOL": "label of DeviceTaintRules, and the key of their taint: other schedulers are kept from [Berth's pools]"
    "(../claims.md#give-cards-by-name-that-a-driver-lists)",
    "DEVICE_MODEL": "label of single devices, for selectors of hints: the model",
    "DEVICE_NUMA_NODE": "label of single devices: the NUMA node",
    "DEVICE_PCIE_SWITCH": "label of single devices: the PCIe switch",
    "DEVICE_UUID": "label of single devices: the UUID of a card, the PCI address of a NIC",
    "DEVICE_PARTITION": "label of GPUs: the partition mode, if the agent offers them by a resource of the mode",
    "DEVICE_RDMA": "label of NICs: the RDMA device, such as `mlx5_0`",
    "DEVICE_LINK_LAYER": "label of NICs: `InfiniBand` or `Ethernet`",
}
CONDITIONS: Final[Rows] = {
    "READY": "of Devices: the agent renews its Lease, can read the driver, and owns the values that it published",
    "VALID": "of Devices: the spec does not contradict itself",
    "ACCOUNTED": "of Devices: the allocation of every pod on the node is known",
    "HELD_ONCE": "of Devices: False while two pods hold a card that only one may hold",
    "BOUND_BY_BERTH": "of Devices: False while pods that another program bound see none of the GPUs that they request",
    "GIVEN_BY_NAME": "of Devices: False if slices, taints or the vendor keep some cards from being given by name",
    "RESOURCES_WRITTEN": "of Devices: the Node shows the resources of the [plug-in](../plugins.md) behind the dot",
    "DRIVER_LOADED": "of Devices: the driver answers",
    "INVENTORY_READ": "of Devices: all devices were read; with a type behind a dot, those of the type",
    "DEVICES_OFFERED": "of Devices: the agent offers the cards to kubelet, if it is the device plugin",
    "MPS_SERVING": "of Devices: the MPS daemon answers and has the limits of the node's shares ([MPS](../mps.md))",
    "HAMI_CORE_INSTALLED": "of Devices: HAMi-core's library is on the node ([MPS and HAMi-core](../mps.md#hami-core))",
    "CLAIMS_SERVED": "of Devices: kubelet has registered the agent as a driver of ResourceClaims, if it is one",
    "NICS_OFFERED": "of Devices: containers get the device files of RDMA NICs ([RDMA](../tasks/rdma.md))",
    "ANNOTATIONS_READ": "of Devices: the annotations about cordoned and recovered devices name devices of the node",
    "DEVICE_IDS_MATCHED": "of Devices: False if ids of a [device plug-in](../device-plugin.md#other-ids) do not show "
    "which cards containers have",
    "WRITES_ACCEPTED": "of Devices: False while the API server refuses writes of the agent until a person acts",
    "CONSISTENT": "of GpuPods: the pod holds the devices of its allocation",
}
RESOURCES: Final[Rows] = {
    names.GPU: "hundredths of cards: of their cores and memory",
    names.GPU_CORE: "hundredths of the cores",
    names.GPU_MEMORY: "bytes of one card's memory",
    names.GPU_MEMORY_RATIO: "hundredths of the memory",
    names.GPU_SHARED: "the number of cards over which core and memory are spread",
    names.RDMA: "hundredths of RDMA NICs",
    names.FPGA: "hundredths of FPGAs",
}
"""Resources of Berth's, by their names without prefix."""
OF_PLUGINS: Final[Rows] = {
    amounts.NVIDIA_GPU: "whole cards; slices or instances where no whole cards are free",
    f"{names.NVIDIA_PREFIX}gpu.shared": "slices of time-sliced cards",
    f"{names.NVIDIA_PREFIX}mig-<profile>": "MIG instances",
    names.MPS_RESOURCE: "1 for each container that MPS limits; admission adds it",
    names.HAMI_CORE_RESOURCE: "1 for each container that HAMi-core limits; admission adds it",
    names.RDMA_RESOURCE: "1 for each container that gets device files of RDMA NICs; admission adds it",
    amounts.AMD_GPU: "whole cards",
    "amd.com/<compute>_<memory>": "GPUs that are partitions of a card, such as `amd.com/cpx_nps4`",
    amounts.DCU_GPU: "whole cards",
    amounts.NPU_CORE: "NPUs; parts of them are not supported yet",
    amounts.NPU_CPU: "of a part of an NPU: not supported yet",
    amounts.NPU_DVPP: "of a part of an NPU: not supported yet",
}
ELSEWHERE_DEFINED: Final[Rows] = {
    "nvidia.com/gpu.clique": "label of Nodes, from GPU Feature Discovery: [gangs](../gangs.md) prefer one value",
}
"""Names that no constant of `berth_api.names` has."""
ELSEWHERE: Final = frozenset(
    {
        *("GROUP", "VERSION", "API_VERSION", "DEVICES", "GPUPODS", "LEADER_LEASE", "LEADER_LEASES"),
        *("POD_GROUP_GROUP", "POD_GROUPS", "POD_GROUP_API", "AGENT", "AGENT_LABELS", "OPERATOR", "SCHEDULER"),
        *("DRA_DRIVER", "CARDS_BY_NAME", "CARDS_BY_CLAIMS", "CARDS_BY_SHARES"),
        *("CARDS_BY_CLAIMS_AND_NAME", "PARTITIONS_ON_ALL"),
        *("APP_NAME", "AGENT_SYSTEM", "LEASE_NAMESPACE", "FENCE", "KOORDINATOR_PREFIX", "GANG_PREFIX", "GENIUS_PREFIX"),
        *("PREFIX", "OTHER_PREFIX", "NVIDIA_PREFIX", "MPS_RESOURCE", "HAMI_CORE_RESOURCE", "RDMA_RESOURCE"),
        *("GPU", "GPU_SHARED", "GPU_CORE", "GPU_MEMORY", "GPU_MEMORY_RATIO", "RDMA", "FPGA"),
    }
)
"""Constants that are no annotation, label or condition: groups, kinds, namespaces, managers, values; and parts of
resources."""


def text() -> str:
    """Return the page; raise KeyError if a constant has no row."""
    if missing := without_row(constants()):
        raise KeyError(f"give {', '.join(missing)} of berth_api.names a row in reference/names.py")
    prefixes = f"`{names.PREFIX}` or `{names.OTHER_PREFIX}`"
    return page(
        "Names",
        "Every annotation, label, taint, resource and condition that Berth reads or writes, except the labels of GPU "
        "Feature Discovery, which [the agent](../agent.md#labels-of-the-node) writes. [Keys](keys.md) has the allowed "
        "values of Berth's own labels and annotations, [requests](../protocol.md) what they mean together, and "
        "[words](words.md) the names of other systems that Berth reads.",
        section(
            "Resources",
            f"Berth's own, with the prefix {prefixes}:",
            table(("resource", "what is counted"), _named(RESOURCES)),
            "Resources that device plugins offer to kubelet:",
            table(("resource", "what is counted"), _named(OF_PLUGINS)),
        ),
        section("What pods request", table(("name", "meaning"), _rows(REQUESTS))),
        section("What Berth writes to pods", table(("name", "meaning"), _rows(WRITTEN))),
        section("On other objects", table(("name", "meaning"), [*_rows(OBJECTS), *_named(ELSEWHERE_DEFINED)])),
        section("Conditions", table(("type", "meaning"), _rows(CONDITIONS))),
        section(
            "Taints",
            "Node pools put them on new nodes, and the operator removes them once the devices of the node are known "
            "([autoscalers](../autoscalers.md#nodes-that-are-starting)):",
            "\n".join(f"* {code(taint)}" for taint in names.AGENT_NOT_READY),
        ),
    )


def constants() -> set[str]:
    """Return the names of the constants that are texts."""
    return {name for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}


def without_row(constants: set[str]) -> list[str]:
    """Return the constants that the page lacks."""
    return sorted(constants - {*REQUESTS, *WRITTEN, *OBJECTS, *CONDITIONS, *ELSEWHERE})


def _rows(rows: Rows) -> Iterator[tuple[str, str]]:
    return ((code(VARIABLE.get(name, getattr(names, name))), meaning) for name, meaning in rows.items())


def _named(rows: Rows) -> Iterator[tuple[str, str]]:
    return ((code(name), meaning) for name, meaning in rows.items())
