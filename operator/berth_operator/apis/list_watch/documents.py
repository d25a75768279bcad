"""The discovery and OpenAPI documents of this API. Pure functions."""

from typing import Final

from berth_operator.apis.aggregated import discovery, openapi
from berth_operator.apis.list_watch.kinds import GROUP, KINDS, VERSION
from berth_operator.apis.list_watch.objects import GpuNode, GpuPod

DOCUMENTS: Final = {
    **discovery.documents(GROUP, VERSION, [discovery.resource(kind) for kind in KINDS]),
    **openapi.documents(GROUP, VERSION, {"GpuNode": GpuNode, "GpuPod": GpuPod}, KINDS),
}
"""Path -> document."""
