"""The OpenAPI documents of this API; pure."""

from typing import Final

from berth_operator.apis.aggregated import openapi
from berth_operator.apis.aggregated.openapi import Schema, of_list, of_map, of_object, of_text, of_texts
from berth_operator.apis.list_watch.kinds import GROUP, KINDS, VERSION

_DEVICE: Final = of_object(
    "A GPU, or a part of one.",
    device_id=of_text("UUID of the GPU, or of the MIG instance."),
    device_brand=of_text("Not set."),
    device_model=of_text("Model of the GPU as the driver reports it."),
    device_busid=of_text("PCI address of the GPU."),
    device_node=of_text("Name of the node."),
)
_SCHEMAS: Final[dict[str, Schema]] = {
    "GpuNode": of_object(
        "The GPUs of one node.",
        spec=of_object(
            "What the node has.",
            device_infos=of_map("The GPUs by UUID.", _DEVICE),
            device_models=of_map("UUIDs by model, in lower case.", of_texts("UUIDs.")),
            device_busy=of_texts("UUIDs of the GPUs that cannot be allocated as a whole now."),
            report_time=of_text("When the agent last wrote the Device."),
        ),
        status=of_object(
            "Whether devices of the node can be allocated.",
            node=of_text("Name of the node."),
            health=of_text('"True" or "False".'),
            message=of_text("Why."),
            last_health_time=of_text("Since when the node is healthy, or until when it was."),
            last_transition_time=of_text("When the health last changed."),
        ),
    ),
    "GpuPod": of_object(
        "The GPUs of one pod.",
        spec=of_object(
            "What the pod has.",
            pod_name=of_text("Name of the pod."),
            pod_namespace=of_text("Namespace of the pod."),
            node_name=of_text("Name of the node."),
            containers_device=of_list(
                "The GPUs of each container; shares of GPUs have no container.",
                of_object(
                    "GPUs of one container.",
                    container_name=of_text("Name of the container."),
                    device_info=of_list("The GPUs.", _DEVICE),
                ),
            ),
        ),
        status=of_object(
            "When that changed.",
            last_changed_time=of_text("When the agent last wrote the GpuPod."),
        ),
    ),
}

DOCUMENTS: Final = openapi.documents(GROUP, VERSION, _SCHEMAS, KINDS)
"""Path -> document."""
