"""The Device object: the inventory of one node, and what the operator says of it.

Cluster-scoped, named like its Node. The node's agent writes the spec and its own conditions; the operator
writes the rest of the status. The CRD in `crds/` is generated from these models (`make generate`).
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from berth_api.allocation import TYPE

DeviceType = Annotated[str, Field(max_length=32, pattern=f"^{TYPE}$")]
"""`gpu`, `rdma`, `fpga`, or what a plug-in brings (docs/plugins.md)."""
MigStrategy = Literal["none", "single", "mixed"]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Text = Annotated[str, Field(max_length=256)]
LongText = Annotated[str, Field(max_length=1024)]
_QUANTITY_FORM = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$"
Quantity = Annotated[
    str | int,
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "pattern": _QUANTITY_FORM,
            "minimum": 0,
        },
    ),
]
"""An amount as Kubernetes writes it: `100`, `"16Gi"`, `"500m"`."""
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]

MAX_DEVICES = 256
MAX_HOLDERS = 128
MAX_INSTANCES = 16
MAX_HELD = 256


class Model(BaseModel):
    """Base of all parts: camelCase on the wire, fields of other versions ignored, values immutable.

    Lists and mappings come by factory where they are left out: a default that stands there would be copied in depth for
    each object, which took more time than all of the reading.
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
    """One condition, in the form of metav1.Condition; conditions are a map by type."""

    type: Annotated[str, Field(max_length=63)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    message: Annotated[str, Field(max_length=4096)] = ""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    observed_generation: Annotated[int, Field(ge=0)] | None = None


class Topology(Model):
    """Where a device sits in its machine. -1 stands for what the machine does not tell."""

    socket_id: Annotated[int, Field(alias="socketID", ge=-1, le=1023)] = -1
    """CPU socket."""
    node_id: Annotated[int, Field(alias="nodeID", ge=-1, le=1023)] = -1
    """NUMA node."""
    pcie_id: Annotated[str, Field(alias="pcieID", max_length=64)] = ""
    """The PCIe switch (its upstream port's address), or the root complex where there is no switch."""
    bus_id: Annotated[str, Field(alias="busID", max_length=64)] = ""
    """PCI address, `0000:3b:00.0`."""


class Link(Model):
    """One entry of the link matrix: how this card reaches another; a pair that the driver cannot tell has none."""

    minor: Annotated[int, Field(ge=0, le=65535)]
    """The other card."""
    type: Literal["NVLink", "SameBoard", "SingleSwitch", "MultiSwitch", "HostBridge", "SameNUMANode", "System"]
    """The best path: NVLink (also through NVSwitch), else the common ancestor of the PCIe paths."""
    count: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of active NVLinks; 0 for paths over PCIe."""
    peer_to_peer: bool = False
    """Whether the driver allows direct reads and writes between the two."""


class VirtualFunction(Model):
    """One SR-IOV virtual function of a device."""

    minor: Annotated[int, Field(ge=-1, le=65535)]
    bus_id: Annotated[str, Field(alias="busID", max_length=64)] = ""


class VirtualFunctionGroup(Model):
    """Virtual functions that share labels."""

    labels: Labels = Field(default_factory=dict)
    vfs: Annotated[list[VirtualFunction], Field(max_length=256)] = Field(default_factory=list)


class MigInstance(Model):
    """One GPU instance with its compute instance."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    """MIG UUID."""
    profile: Annotated[str, Field(max_length=63)]
    """`1g.10gb`, `1g.10gb+me`."""
    gpu_instance: Annotated[int, Field(ge=0, le=255)]
    compute_instance: Annotated[int, Field(ge=0, le=255)]
    memory: Quantity
    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    """Into how many equal slices of time the instance is given out; 1 where it is not sliced."""
    replica_resource: Annotated[str, Field(max_length=63)] = ""
    """By which name kubelet counts the slices: `nvidia.com/mig-1g.10gb.shared`; empty where nobody tells."""


class Mig(Model):
    """MIG state of a card that is capable of it."""

    enabled: bool = False
    instances: Annotated[list[MigInstance], Field(max_length=MAX_INSTANCES)] = Field(default_factory=list)


class DeviceInfo(Model):
    """One card."""

    type: DeviceType
    minor: Annotated[int, Field(ge=0, le=65535)]
    """Number on the node; with the type it is the card's key."""
    id: Annotated[str, Field(min_length=1, max_length=128)]
    """UUID of a GPU, PCI address of the rest."""
    module_id: Annotated[int, Field(alias="moduleID", ge=-1, le=65535)] = -1
    """Position on the baseboard, where the driver tells."""
    health: bool = False
    model: Text = ""
    """Full name as the driver gives it: `NVIDIA A100-SXM4-80GB`."""
    resources: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """What the whole card offers: `kubernetes.io/gpu-core: 100`, `…/gpu-memory: 80Gi`, `…/gpu-memory-ratio: 100`."""
    topology: Topology | None = None
    links: Annotated[list[Link], Field(max_length=64)] = Field(default_factory=list)
    labels: Labels = Field(default_factory=dict)
    """For selectors of device hints."""
    vf_groups: Annotated[list[VirtualFunctionGroup], Field(max_length=16)] = Field(default_factory=list)
    mig: Mig | None = None
    """Only on cards that are capable of it."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    """Into how many equal slices of time the card is given out; 1 where it is not sliced."""
    replica_resource: Literal["", "nvidia.com/gpu", "nvidia.com/gpu.shared"] = ""
    """By which name kubelet counts the slices; empty where nobody tells: then pods may ask for them by either."""
    conditions: Annotated[list[Condition], Field(max_length=8)] = Field(default_factory=list)


class DeviceSpec(Model):
    """What the node's agent found."""

    driver_version: Text = ""
    cuda_version: Text = ""
    """Newest CUDA that the driver supports: `12.8`."""
    mig_strategy: MigStrategy = "mixed"
    """What cards in MIG mode are to pods: whole cards all the same, `nvidia.com/gpu` for each instance, or
    `nvidia.com/mig-<profile>`."""
    boot_id: Annotated[str, Field(alias="bootID", max_length=64)] = ""
    """Of the boot in which the devices were seen like this. After another boot no fault of theirs is remembered."""
    devices: Annotated[list[DeviceInfo], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)


class Holder(Model):
    """A pod's part of one card."""

    namespace: Name
    name: Name
    uid: Annotated[str, Field(max_length=64)]
    id: Annotated[str, Field(max_length=160)] | None = None
    """Of the instance or slice that it holds; none where it holds a card or a share of one."""
    resources: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)


class DeviceUse(Model):
    """What is taken and free on one card, as the operator accounts it."""

    type: DeviceType
    minor: Annotated[int, Field(ge=-MAX_DEVICES, le=65535)]
    """-1, -2 and so on stand for cards that pods hold and that the spec lists no more."""
    id: Annotated[str, Field(max_length=160)] | None = None
    """Of a card that the spec lists no more."""
    free: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    holders: Annotated[list[Holder], Field(max_length=MAX_HOLDERS)] = Field(default_factory=list)


class HeldDevice(Model):
    """One device in a container."""

    type: DeviceType
    minor: Annotated[int, Field(ge=0, le=65535)]
    """Of an instance or slice its card's."""
    id: Annotated[str, Field(min_length=1, max_length=128)]


class HeldByContainer(Model):
    """What kubelet says a container holds, whether its Pod object is still there or not."""

    pod_uid: Annotated[str, Field(alias="podUID", max_length=64)]
    namespace: Name
    pod: Name
    container: Annotated[str, Field(min_length=1, max_length=63)]
    devices: Annotated[list[HeldDevice], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)


class ForeignUse(Model):
    """Processes on a card that belong to no pod."""

    type: DeviceType
    minor: Annotated[int, Field(ge=0, le=65535)]
    processes: Annotated[int, Field(ge=1)]
    memory: Quantity = 0
    """What they have of the card's memory; 0 where the driver does not tell."""


class DeviceStatus(Model):
    """What the operator says, and what the agent does: its conditions and all from `held` to `foreign`."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    gpus: Annotated[int, Field(ge=0)] = 0
    healthy: Annotated[int, Field(ge=0)] = 0
    """GPUs that can be handed out, or could be were they free."""
    allocated: Annotated[str, Field(max_length=16)] = "0"
    """GPUs in use; half a card counts 0.5."""
    model: LongText = ""
    """The GPUs' model; several are joined by commas."""
    others: LongText = ""
    """How many devices of other types there are, and how many of them somebody holds: `npu 2/4`."""
    devices: Annotated[list[DeviceUse], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    held: Annotated[list[HeldByContainer], Field(max_length=MAX_HELD)] = Field(default_factory=list)
    """By the agent. Devices of a pod that is gone stay charged while they are listed here."""
    boot_id: Annotated[str, Field(alias="bootID", max_length=64)] = ""
    """By the agent: of the boot in which `held` was seen. After another boot nothing of it holds."""
    withheld: Annotated[list[Annotated[int, Field(ge=0, le=65535)]], Field(max_length=MAX_DEVICES)] = Field(
        default_factory=list
    )
    """By the agent: minors of GPUs that kubelet is told to be unhealthy, for pods that kubelet knows no devices of hold
    parts of them. `nvidia.com/*` pods cannot have them."""
    foreign: Annotated[list[ForeignUse], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)
    """By the agent: what processes outside Kubernetes use."""
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(default_factory=list)


class Device(Model):
    """The devices of one node."""

    spec: DeviceSpec
    status: DeviceStatus = DeviceStatus()
