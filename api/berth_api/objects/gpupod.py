"""The GpuPod object: the GPUs of a pod, as kubelet reports them, or as Berth allocated them if kubelet has no report.

A GpuPod is namespaced and owned by its Pod. The node's agent writes the spec, and the operator writes the status. Its
name consists of the pod's and the node's names, `half-1.node-0`. Admission lets a node's agent create only names that
end in its node, so that no agent can take names that another agent needs.
"""

from typing import Annotated, Final

from pydantic import Field

from berth_api.device import MAX_DEVICES, Condition, HeldDevice, LongText, Model, Name, Text

MAX_CONTAINERS: Final = 128
"""Containers with devices; a pod with more containers is not scheduled by Berth."""
MAX_NAME: Final = 253
"""Characters of the name of an object."""


def name_of(pod: str, node: str) -> str:
    """Return the name of the GpuPod of a pod on a node; the API server refuses one longer than `MAX_NAME`."""
    return pod + _suffix(node)


def pod_of(name: str, node: str) -> str:
    """Return the pod of a GpuPod; agents of the version before gave it the pod's name as it is."""
    return name.removesuffix(_suffix(node))


def _suffix(node: str) -> str:
    """Return the node as the last label of a name: `.ip-10-0-0-1--ec2--internal`.

    It has no dot, so that no name ends in two nodes. Dots become two dashes; two dashes of the node become three,
    because the nodes `a.b` and `a--b` would share a label. The policy `berth-agents` computes the same.
    """
    return "." + node.replace("--", "---").replace(".", "--")


class ContainerDevices(Model):
    """The devices of one container. A container with more devices than one entry has room for has several entries."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the container."""
    devices: Annotated[list[HeldDevice], Field(max_length=MAX_DEVICES)] = []
    """What kubelet gave the container."""


class HeldCard(Model):
    """A GPU of which the pod holds all or a part, as the Device describes it."""

    minor: Annotated[int, Field(ge=0, le=65535)]
    """Number of the card on its node; the pod's devices on the card have the same minor."""
    id: Annotated[str, Field(min_length=1, max_length=128)]
    """UUID of the card."""
    model: Text = ""
    """Full name as the driver reports it: `NVIDIA A100-SXM4-80GB`."""
    bus_id: Annotated[str, Field(alias="busID", max_length=64)] = ""
    """PCI address, `0000:3b:00.0`."""


class GpuPodSpec(Model):
    """What the pod has."""

    node_name: Name
    """The pod's node."""
    pod_uid: Annotated[str, Field(alias="podUID", max_length=64)]
    """UID of the pod."""
    containers: Annotated[list[ContainerDevices], Field(max_length=MAX_CONTAINERS)] = []
    """What kubelet gave each container. The pod is charged for these devices."""
    allocated: Annotated[list[HeldDevice], Field(max_length=256)] = []
    """The GPUs of a pod that kubelet gives none: shares, and cards by `kubernetes.io/gpu`. They are copied from the
    pod's allocation, for which it is charged."""
    cards: Annotated[list[HeldCard], Field(max_length=256)] = []
    """The GPUs on which these devices are, if the node still has them."""
    devices: LongText = ""
    """The pod's GPUs in words: `GPU 0; GPU 1, MIG 3g.40gb, replica 2 of 4`."""
    ids: LongText = ""
    """The ids of the pod's GPUs, instances and replicas."""
    memory: Annotated[str, Field(max_length=32)] = ""
    """GPU memory that the pod may use, the sum over all its GPUs: `40Gi`. Empty if it is not known."""
    core: Annotated[int, Field(ge=0)] | None = None
    """Hundredths of a GPU's cores that the pod may use, the sum over all its GPUs. Absent for MIG instances, and if the
    pod requests none."""


class GpuPodStatus(Model):
    """Whether the devices agree with the allocation of the pod."""

    conditions: Annotated[list[Condition], Field(max_length=16)] = []
    """`Consistent`, for pods that kubelet gave devices."""


class GpuPod(Model):
    """The devices that one pod holds; its name is `<pod>.<node>`, with `--` for each dot of the node's name."""

    spec: GpuPodSpec
    status: GpuPodStatus = GpuPodStatus()
