"""The GpuPod object: the devices that a pod's containers really hold, as kubelet reports them.

Namespaced, named like its Pod and owned by it; written by the node's agent.
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
    """Whether that agrees with the pod's allocation."""

    conditions: Annotated[list[Condition], Field(max_length=16)] = []


class GpuPod(Model):
    """The devices one pod holds."""

    spec: GpuPodSpec
    status: GpuPodStatus = GpuPodStatus()
