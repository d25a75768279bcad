"""The EndpointSlice that points the extender's Service at the leader only.

The Service has no selector. Each leader writes the slice when it begins to lead. It writes the slice again from time to
time, to repair changes by others. The last leader to write wins. A former leader answers 503.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_client.errors import CallError

PERIOD: Final = 30.0
"""Seconds between two writes, and between two attempts."""
RETRY: Final = 2.0
PORT_NAME: Final = "https"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EndpointSliceApi(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def apply(self, path: str, body: dict[str, Any], field_manager: str, *, force: bool = False) -> Any:
        """Apply an object on the server side."""


async def run(api: EndpointSliceApi, *, service: str, address: str, port: int, leads: Callable[[], bool]) -> None:
    """Write the EndpointSlice of a Service (namespace/name) while we lead, until cancelled."""
    namespace, name = service.split("/")
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}"
    while True:
        pause = PERIOD
        try:
            if leads():
                await api.apply(path, endpoint_slice(namespace, name, address, port), names.OPERATOR, force=True)
        except CallError as error:
            log.warning("EndpointSlice of the extender not written", service=service, error=str(error))
            pause = RETRY
        await asyncio.sleep(pause)


def endpoint_slice(namespace: str, service: str, address: str, port: int) -> dict[str, Any]:
    """Return the EndpointSlice with our address as the only endpoint."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": service,
            "namespace": namespace,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": names.OPERATOR,
            },
        },
        "addressType": f"IPv{ipaddress.ip_address(address).version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}],
    }
