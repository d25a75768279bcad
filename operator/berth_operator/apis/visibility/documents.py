"""The discovery and OpenAPI documents of the visibility API. Pure functions."""

from typing import Final

from berth_api.objects.visibility import (
    GROUP,
    VERSION,
    FleetNode,
    HoldingPod,
    OperatorSettings,
    PodExplanation,
    QueuedPod,
)
from berth_operator.apis.aggregated import discovery, openapi
from berth_operator.apis.visibility.kinds import EXPLANATION, EXPLANATIONS, KINDS, PODS, SETTINGS

OBJECTS: Final[dict[str, type]] = {
    "FleetNode": FleetNode,
    "QueuedPod": QueuedPod,
    "Holder": HoldingPod,
    EXPLANATION: PodExplanation,
    SETTINGS: OperatorSettings,
}
"""Kind -> what its objects hold."""
_EXPLANATION_RESOURCE: Final[discovery.Document] = {
    "name": f"{PODS}/{EXPLANATIONS}",
    "singularName": "",
    "namespaced": True,
    "kind": EXPLANATION,
    "verbs": ["get"],
}

DOCUMENTS: Final = {
    **discovery.documents(GROUP, VERSION, [*map(discovery.resource, KINDS), _EXPLANATION_RESOURCE]),
    **openapi.documents(GROUP, VERSION, OBJECTS, KINDS),
}
"""Path -> document."""
