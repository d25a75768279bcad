"""The GpuPod object: the devices that the containers of a pod hold, as kubelet reports them.

Namespaced, with the name of its Pod and owned by it. The agent of the node writes the spec, the operator the status.
"""

from typing import Annotated

from pydantic import Field

from berth_api.device import Condition, HeldDevice, Model, Name


class ContainerDevices(Model):
    """The devices of one container."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    devices: Annotated[list[HeldDevice], Field(max_length=256)] = []


class GpuPodSpec(Model):
    """What kubelet gave."""

    node_name: Name
    pod_uid: Annotated[str, Field(alias="podUID", max_length=64)]
    containers: Annotated[list[ContainerDevices], Field(max_length=64)] = []


class GpuPodStatus(Model):
    """Whether the devices agree with the allocation of the pod."""

    conditions: Annotated[list[Condition], Field(max_length=16)] = []


class GpuPod(Model):
    """The devices that one pod holds."""

    spec: GpuPodSpec
    status: GpuPodStatus = GpuPodStatus()
