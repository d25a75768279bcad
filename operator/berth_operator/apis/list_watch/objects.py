"""The objects of nvidia-gpu-scheduler, with their published descriptions."""

from typing import Annotated, NotRequired, TypedDict


class GpuInfo(TypedDict, total=False):
    """A GPU, or a part of one; what is not known is absent."""

    device_id: Annotated[str, "UUID of the GPU, or of the MIG instance."]
    device_brand: Annotated[str, "Not set."]
    device_model: Annotated[str, "Model of the GPU as the driver reports it."]
    device_busid: Annotated[str, "PCI address of the GPU."]
    device_node: Annotated[str, "Name of the node."]


class GpuNodeSpec(TypedDict):
    """What the node has."""

    device_infos: Annotated[dict[str, GpuInfo], "The GPUs by UUID."]
    device_models: Annotated[dict[str, list[str]], "UUIDs by model, in lower case."]
    device_busy: Annotated[list[str], "UUIDs of the GPUs that cannot be allocated as a whole now."]
    report_time: Annotated[str, "When the agent last wrote the Device."]


class GpuNodeStatus(TypedDict):
    """Whether devices of the node can be allocated."""

    node: Annotated[str, "Name of the node."]
    health: Annotated[str, '"True" or "False".']
    message: Annotated[str, "Why."]
    last_health_time: NotRequired[Annotated[str, "Since when the node is healthy, or until when it was."]]
    last_transition_time: NotRequired[Annotated[str, "When the health last changed."]]


class GpuNode(TypedDict):
    """The GPUs of one node."""

    spec: GpuNodeSpec
    status: GpuNodeStatus


class ContainerDevices(TypedDict):
    """GPUs of one container."""

    container_name: NotRequired[Annotated[str, "Name of the container."]]
    device_info: Annotated[list[GpuInfo], "The GPUs."]


class GpuPodSpec(TypedDict):
    """What the pod has."""

    pod_name: Annotated[str, "Name of the pod."]
    pod_namespace: Annotated[str, "Namespace of the pod."]
    node_name: Annotated[str, "Name of the node."]
    containers_device: Annotated[
        list[ContainerDevices], "The GPUs of each container; shares of GPUs have no container."
    ]


class GpuPodStatus(TypedDict):
    """When that changed."""

    last_changed_time: Annotated[str, "When the agent last wrote the GpuPod."]


class GpuPod(TypedDict):
    """The GPUs of one pod."""

    spec: GpuPodSpec
    status: GpuPodStatus
