"""The Device object: the inventory of one node, and its use as the operator accounts it.

A Device is cluster-scoped and has the name of its Node. The node's agent writes the spec, its own conditions and some
fields of the status. The operator writes the rest of the status. `make generate` writes the CRD in `crds/` from these
models.
"""

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from berth_api.allocation import TYPE

DeviceType = Annotated[str, Field(max_length=32, pattern=f"^{TYPE}$")]
"""`gpu`, `rdma`, `fpga`, or a type of a plug-in (docs/plugins.md)."""
MigStrategy = Literal["none", "single", "mixed"]
ReplicaChoice = Literal["scheduler", "kubelet", "one"]
ReplicaResource = Literal["", "nvidia.com/gpu", "nvidia.com/gpu.shared"]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Text = Annotated[str, Field(max_length=256)]
LongText = Annotated[str, Field(max_length=1024)]
_QUANTITY_FORM = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$"
_QUANTITY_LENGTH = 32
Quantity = Annotated[
    str | int,
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": _QUANTITY_LENGTH,
            "pattern": _QUANTITY_FORM,
            "minimum": 0,
        },
    ),
]
"""An amount as Kubernetes writes it: `100`, `"16Gi"`, `"500m"`."""


def is_served_quantity(amount: str | int) -> bool:
    """Return whether the API server takes an amount; the models take more forms, such as `+5`."""
    text = str(amount)
    return len(text) <= _QUANTITY_LENGTH and re.fullmatch(_QUANTITY_FORM, text) is not None


LinkType = Annotated[str, Field(max_length=32, pattern="^[A-Za-z][A-Za-z0-9-]*$")]
"""A type of `berth_api.links`, or one that a newer agent knows."""
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]

DeviceId = Annotated[str, Field(min_length=1, max_length=128)]
"""The definition does not check the form, since an older agent may write other ids; such cards are not allocated."""

MAX_DEVICES = 256
MAX_HOLDERS = 128
MAX_INSTANCES = 16
MAX_REPLICAS = 100
MAX_HELD = 256
MAX_TOPOLOGY_NUMBER = 1023
"""The highest number of a socket or NUMA node."""
MAX_MESSAGE = 4096
"""Characters of a condition's message."""


class Model(BaseModel):
    """Base of all models: camelCase in JSON, unknown fields (of other versions) ignored, values immutable.

    Defaults of lists and mappings come from factories: pydantic copies any other default in depth for each object,
    which took more time than all other parsing.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


class Condition(Model):
    """One condition, as metav1.Condition; conditions are a map by type."""

    type: Annotated[str, Field(max_length=63)]
    """What the condition is about. docs/reference/names.md lists the types."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """The cause in one word, for programs."""
    message: Annotated[str, Field(max_length=MAX_MESSAGE)] = ""
    """The cause in a sentence, for people."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When the status last changed."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The `metadata.generation` that the condition describes."""


class Topology(Model):
    """Where a device is in its machine. -1 means that the machine does not report it."""

    socket_id: Annotated[int, Field(alias="socketID", ge=-1, le=MAX_TOPOLOGY_NUMBER)] = -1
    """CPU socket."""
    node_id: Annotated[int, Field(alias="nodeID", ge=-1, le=MAX_TOPOLOGY_NUMBER)] = -1
    """NUMA node."""
    pcie_id: Annotated[str, Field(alias="pcieID", max_length=64)] = ""
    """The PCIe switch (address of its upstream port), or the root complex if there is no switch."""
    bus_id: Annotated[str, Field(alias="busID", max_length=64)] = ""
    """PCI address, `0000:3b:00.0`."""


class Link(Model):
    """One entry of the link matrix: the connection to another card. A pair that the driver does not report has none."""

    minor: Annotated[int, Field(ge=0, le=65535)]
    """The other card."""
    type: LinkType
    """The best connection: a direct link such as `NVLink` (also through NVSwitch) or `XGMI`, else the common ancestor
    of the PCIe paths: `SameBoard`, `SingleSwitch`, `MultiSwitch`, `HostBridge`, `SameNUMANode` or `System`.
    docs/protocol.md lists all known types. An unknown type counts as `System`."""
    count: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of active direct links; 0 for paths over PCIe, and where it is not known."""
    peer_to_peer: bool = False
    """Whether the driver allows direct reads and writes between the two cards."""


class VirtualFunction(Model):
    """One SR-IOV virtual function of a device."""

    minor: Annotated[int, Field(ge=-1, le=65535)]
    """Number of the function on its device; -1 if it has none."""
    bus_id: Annotated[str, Field(alias="busID", max_length=64)] = ""
    """PCI address, `0000:1f:00.2`."""


class VirtualFunctionGroup(Model):
    """Virtual functions with the same labels."""

    labels: Labels = Field(default_factory=dict)
    """Labels for the `vfSelector` of device hints."""
    vfs: Annotated[list[VirtualFunction], Field(max_length=256)] = Field(default_factory=list)
    """The functions; each is allocated to one pod."""


class MigInstance(Model):
    """One GPU instance with its compute instance."""

    id: DeviceId
    """MIG UUID."""
    profile: Annotated[str, Field(max_length=63)]
    """`1g.10gb`, `1g.10gb+me`."""
    gpu_instance: Annotated[int, Field(ge=0, le=255)]
    """Id of the GPU instance on its card, as `nvidia-smi mig -lgi` shows it."""
    compute_instance: Annotated[int, Field(ge=0, le=255)]
    """Id of the compute instance in its GPU instance, as `nvidia-smi mig -lci` shows it."""
    memory: Quantity
    """Memory of the instance."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of time-sliced replicas of the instance; 1 if it is not time-sliced."""
    replica_resource: Annotated[str, Field(max_length=63)] = ""
    """The resource by which kubelet counts the replicas, such as `nvidia.com/mig-1g.10gb.shared`. Empty if it is not
    known."""


class Mig(Model):
    """MIG state of a card that supports MIG."""

    enabled: bool = False
    """Whether the card is in MIG mode now."""
    instances: Annotated[list[MigInstance], Field(max_length=MAX_INSTANCES)] = Field(default_factory=list)
    """The instances that exist on the card."""


class DeviceInfo(Model):
    """One card."""

    type: DeviceType
    """`gpu`, `rdma`, `fpga`, or a type of a plug-in."""
    minor: Annotated[int, Field(ge=0, le=65535)]
    """Number of the card on its node; with the type it is the key of the card."""
    id: DeviceId
    """UUID of a GPU, PCI address of all others."""
    module_id: Annotated[int, Field(alias="moduleID", ge=-1, le=65535)] = -1
    """Position on the baseboard; -1 if the driver does not report it."""
    health: bool = False
    """Whether the agent found no fault; an unhealthy card is not allocated. The conditions name the fault."""
    model: Text = ""
    """Full name as the driver reports it: `NVIDIA A100-SXM4-80GB`."""
    resources: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """Capacity of the whole card: `kubernetes.io/gpu-core: 100`, `…/gpu-memory: 80Gi`, `…/gpu-memory-ratio: 100`."""
    multiprocessors: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Number of streaming multiprocessors of a GPU; absent if it is not known."""
    memory_bandwidth: Quantity | None = None
    """Peak bandwidth of the GPU's memory in bytes per second: `2039040M`; absent if it is not known."""
    encoders: Annotated[int, Field(ge=0, le=255)] | None = None
    """Number of video encoders (NVENC) of a GPU; some models have none. Absent if it is not known."""
    decoders: Annotated[int, Field(ge=0, le=255)] | None = None
    """Number of video decoders (NVDEC) of a GPU; absent if it is not known."""
    topology: Topology | None = None
    links: Annotated[list[Link], Field(max_length=64)] = Field(default_factory=list)
    """How the card is connected to the others of its node."""
    labels: Labels = Field(default_factory=dict)
    """Labels for the selectors of device hints."""
    vf_groups: Annotated[list[VirtualFunctionGroup], Field(max_length=16)] = Field(default_factory=list)
    """SR-IOV virtual functions of a NIC or FPGA, grouped by their labels."""
    mig: Mig | None = None
    """Only on cards that support MIG."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of time-sliced replicas of the card; 1 if it is not time-sliced."""
    replica_resource: ReplicaResource = ""
    """The resource by which kubelet counts the replicas. Empty if it is not known: then pods may request either."""
    conditions: Annotated[list[Condition], Field(max_length=8)] = Field(default_factory=list)
    """Faults of the card and what clears them."""


class DeviceSpec(Model):
    """What the agent of the node has read."""

    driver_version: Text = ""
    """Version of the GPU driver: `570.124.06`."""
    cuda_version: Text = ""
    """Newest CUDA version that the driver supports: `12.8`."""
    mig_strategy: MigStrategy = "mixed"
    """How cards in MIG mode are offered: as whole cards (none), each instance as `nvidia.com/gpu` (single), or each
    instance as `nvidia.com/mig-<profile>` (mixed)."""
    replica_choice: ReplicaChoice = "scheduler"
    """Who chooses the time-sliced replicas of a container. `scheduler`: the agent gives those that the scheduler chose.
    `kubelet`: kubelet, which may choose several of one card. `one`: the device plugin refuses containers that request
    several (failRequestsGreaterThanOne)."""
    boot_id: Annotated[str, Field(alias="bootID", max_length=64)] = ""
    """The boot in which the devices were read. Faults are not carried over to another boot."""
    devices: Annotated[list[DeviceInfo], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """The cards of the node, of all types."""


DESCRIBED: Final = tuple(info.alias or name for name, info in DeviceSpec.model_fields.items())
"""Fields of a Device's spec, which all are the agent's."""


class Holder(Model):
    """A pod that holds a card or a share of it."""

    namespace: Name
    """Namespace of the pod."""
    name: Name
    """Name of the pod."""
    uid: Annotated[str, Field(max_length=64)]
    """UID of the pod."""
    id: Annotated[str, Field(max_length=160)] | None = None
    """Id of the instance or replica that the pod holds; absent if it holds the card or a share of it."""
    resources: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """How much of the card the pod is charged for, in units of `spec.devices[].resources`."""


class DeviceUse(Model):
    """What is allocated and free on one card, as the operator accounts it."""

    type: DeviceType
    """Type of the card, as in the spec."""
    minor: Annotated[int, Field(ge=-MAX_DEVICES, le=65535)]
    """Minor of the card. -1, -2 and so on stand for cards that pods hold but that the spec no longer lists."""
    id: Annotated[str, Field(max_length=160)] | None = None
    """Id of a card that the spec no longer lists."""
    free: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """How much of the card can be allocated now, in units of `spec.devices[].resources`; for a card in MIG mode, its
    instances. Empty if the card is unhealthy or blocked, or if the node's Lease is not renewed."""
    held: Annotated[int, Field(ge=0, le=100)] | None = None
    """How much of the card is held, in hundredths of the resource of which most is held. Absent if nothing is."""
    blocked: bool | None = None
    """Whether the card is not allocated because a pod may hold any card of its type, or any MIG device. The condition
    `Accounted` names the pod."""
    holders: Annotated[list[Holder], Field(max_length=MAX_HOLDERS)] = Field(default_factory=list)
    """The pods that are charged for the card, a share of it or a part of it, and ResourceClaims as
    `resourceclaim/<name>`."""
    barred: Annotated[str, Field(max_length=1024)] | None = None
    """Why a healthy card is not allocated by name: a ResourceSlice lists it for claims, it has a device taint, or its
    vendor's device plugin needs more than Berth writes."""


class HeldDevice(Model):
    """One device that a container holds."""

    type: DeviceType
    """Type of the device, as in the Device."""
    minor: Annotated[int, Field(ge=0, le=65535)]
    """Minor of the card, also for an instance or replica."""
    id: Annotated[str, Field(min_length=1, max_length=128)]
    """UUID of the card or instance; `<UUID>::<n>` for a replica."""


class HeldByContainer(Model):
    """What a container holds as kubelet reports it, whether or not its Pod object still exists."""

    pod_uid: Annotated[str, Field(alias="podUID", max_length=64)]
    """UID of the pod."""
    namespace: Name
    """Namespace of the pod."""
    pod: Name
    """Name of the pod."""
    container: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the container."""
    devices: Annotated[list[HeldDevice], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """What kubelet gave the container."""


class RunningPod(Model):
    """A pod that has GPUs which kubelet does not know: shares, and cards by `kubernetes.io/gpu`."""

    pod_uid: Annotated[str, Field(alias="podUID", max_length=64)]
    """UID of the pod."""
    namespace: Name
    """Namespace of the pod."""
    pod: Name
    """Name of the pod."""
    devices: Annotated[list[HeldDevice], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """The GPUs of its allocation."""


class ClaimedDevice(Model):
    """A device of a ResourceClaim, by its name in ResourceSlices."""

    namespace: Name
    """Namespace of the claim."""
    claim: Name
    """Name of the claim."""
    driver: Annotated[str, Field(max_length=63)]
    """Driver of the device."""
    pool: Name
    """Pool of the driver."""
    device: Annotated[str, Field(max_length=63)]
    """Name of the device in its pool."""


class ForeignUse(Model):
    """Processes on a card that do not belong to a pod."""

    type: DeviceType
    """Type of the card."""
    minor: Annotated[int, Field(ge=0, le=65535)]
    """Minor of the card."""
    processes: Annotated[int, Field(ge=1)]
    """Number of the processes."""
    memory: Quantity = 0
    """Memory of the card that they use; 0 if the driver does not report it."""


class ExceedingUse(Model):
    """A pod that uses more memory of a card than its share."""

    type: DeviceType
    """Type of the card."""
    minor: Annotated[int, Field(ge=0, le=65535)]
    """Minor of the card."""
    namespace: Name
    """Namespace of the pod."""
    pod: Name
    """Name of the pod."""
    pod_uid: Annotated[str, Field(alias="podUID", max_length=64)]
    """UID of the pod."""
    memory: Quantity
    """Memory of the card that its processes use, rounded up to 1 GiB."""
    limit: Quantity
    """Memory of the card that the pod may use."""


class UnheldUse(Model):
    """A pod that uses a card which it does not hold."""

    type: DeviceType
    """Type of the card."""
    minor: Annotated[int, Field(ge=0, le=65535)]
    """Minor of the card."""
    id: Annotated[str, Field(min_length=1, max_length=128)]
    """UUID of the card."""
    namespace: Name
    """Namespace of the pod."""
    pod: Name
    """Name of the pod."""
    pod_uid: Annotated[str, Field(alias="podUID", max_length=64)]
    """UID of the pod."""
    memory: Quantity
    """Memory of the card that its processes use, rounded up to 1 GiB."""


REPORTED: Final = (
    "held",
    "bootID",
    "withheld",
    "foreign",
    "claimed",
    "exceeding",
    "unheld",
    "uncertain",
    "running",
    "stopped",
)
"""Fields of a Device's status that are the agent's, in addition to conditions."""


class DeviceStatus(Model):
    """Written by the operator; the agent writes its own conditions and the fields from `held` to `stopped`."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The `metadata.generation` from which the operator computed the status."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs in the spec, healthy or not."""
    healthy: Annotated[int, Field(ge=0)] = 0
    """GPUs that can be allocated, now or once they are free."""
    blocked: Annotated[int, Field(ge=0)] = 0
    """Healthy GPUs that are not allocated now because a pod may hold any of them. The condition `Accounted` names the
    pod."""
    allocated: Annotated[str, Field(max_length=16)] = "0"
    """Allocated GPUs; half a card counts as 0.5."""
    model: LongText = ""
    """Model of the GPUs; several models are joined by commas."""
    memory: LongText = ""
    """Memory of each GPU, `80Gi`; several sizes are joined by commas."""
    others: LongText = ""
    """For each other type of device, how many pods hold and how many there are: `npu 2/4`."""
    devices: Annotated[list[DeviceUse], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """What is allocated and free on each card."""
    held: Annotated[list[HeldByContainer], Field(max_length=MAX_HELD)] = Field(default_factory=list)
    """Written by the agent: what kubelet gave to containers. Devices of a deleted pod stay allocated while they are
    listed here."""
    boot_id: Annotated[str, Field(alias="bootID", max_length=64)] = ""
    """Written by the agent: the boot in which `held` was read. After another boot, `held` is not valid."""
    withheld: Annotated[list[Annotated[int, Field(ge=0, le=65535)]], Field(max_length=MAX_DEVICES)] = Field(
        default_factory=list
    )
    """Written by the agent: minors of GPUs that are reported to kubelet as unhealthy, because pods hold shares of them
    that kubelet does not know, or because only ResourceClaims get them. Pods that request `nvidia.com/*` cannot get
    these GPUs by name."""
    foreign: Annotated[list[ForeignUse], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """Written by the agent: cards that processes outside Kubernetes use."""
    claimed: Annotated[list[ClaimedDevice], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """Written by the agent: devices of ResourceClaims that kubelet has given to containers. They stay allocated while
    they are listed here, even if their claim no longer exists."""
    exceeding: Annotated[list[ExceedingUse], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """Written by the agent: pods that use over 1 GiB more memory of a card than their share."""
    unheld: Annotated[list[UnheldUse], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """Written by the agent: pods that use more than 1 GiB of a card that they do not hold."""
    uncertain: Annotated[list[Annotated[int, Field(ge=0, le=65535)]], Field(max_length=MAX_DEVICES)] = Field(
        default_factory=list
    )
    """Written by the agent: minors of GPUs that containers may have. The ids of the device plug-in do not show which
    GPU it is, so none of these GPUs is allocated. The condition `DeviceIDsMatched` names the ids."""
    running: Annotated[list[RunningPod], Field(max_length=MAX_HELD)] = Field(default_factory=list)
    """Written by the agent: pods with GPUs that kubelet does not know. A pod that is deleted or has ended is listed
    until it has no process any more, and its GPUs stay allocated until then."""
    stopped: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=MAX_HELD)] = Field(
        default_factory=list
    )
    """Written by the agent: UIDs of pods that are being deleted and still exist, for example because of a finalizer.
    They have no process, and kubelet reports no device for them. So their devices are free."""
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(default_factory=list)
    """`Ready`, `Valid`, `Accounted`, `GivenByName` and `ResourcesWritten.*` by the operator, others by the agent."""


class Device(Model):
    """The devices of one node."""

    spec: DeviceSpec
    status: DeviceStatus = DeviceStatus()
