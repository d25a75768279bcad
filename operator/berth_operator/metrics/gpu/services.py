"""Find Prometheus by its Services.

Only Services in the namespaces of a setting are read. Otherwise, a tenant could create a Service of any name in the
tenant's own namespace, receive Berth's token, and influence where pods go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from berth_client.client import ApiClient

Object = Mapping[str, Any]

NAMES: Final = ("prometheus", "prometheus-server", "prometheus-k8s", "prometheus-operated")
"""Usual names, the best first."""
NAME_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
_COMPONENTS: Final = ("", "prometheus", "server")
_PORT_NAMES: Final = ("web", "http", "http-web", "https", "https-web")
_PORT: Final = 9090


async def found(api: ApiClient, namespaces: Sequence[str]) -> str:
    """Return the URL of the best Service of these namespaces; empty if there is none.

    Raises:
        CallError: the API server refused a list, or did not answer.
    """
    for namespace in namespaces:
        services, _ = await api.list(f"/api/v1/namespaces/{namespace}/services")
        if address := best(services):
            return address
    return ""


def best(services: Iterable[Object]) -> str:
    """Return the URL of the Service of a namespace that is most probably Prometheus; empty if none is."""
    rank = {name: number for number, name in enumerate(NAMES)}
    claiming = [(service["metadata"]["name"], service) for service in services if is_prometheus(service)]
    claiming.sort(key=lambda named: (rank.get(named[0], len(rank)), named[0]))
    return next((address for _, service in claiming if (address := url(service))), "")


def is_prometheus(service: Object) -> bool:
    """Return whether a Service claims to be Prometheus, by its name or labels, and has addresses of its own."""
    metadata, spec = service["metadata"], service.get("spec") or {}
    # A Service of type ExternalName has none: it names a server outside the cluster.
    if not spec.get("clusterIP"):
        return False
    labels = metadata.get("labels") or {}
    labelled = labels.get(NAME_LABEL) == "prometheus" and labels.get(COMPONENT_LABEL, "") in _COMPONENTS
    return metadata["name"] in NAMES or labelled


def url(service: Object) -> str:
    """Return the URL of a Service by its name in the cluster; empty if it has no Prometheus port."""
    ports: list[Object] = (service.get("spec") or {}).get("ports") or []
    usual = [port for port in ports if port.get("name") in _PORT_NAMES or port["port"] == _PORT]
    port = next(iter(usual), ports[0] if len(ports) == 1 else None)
    if port is None:
        return ""
    scheme = "https" if str(port.get("name", "")).startswith("https") else "http"
    metadata = service["metadata"]
    return f"{scheme}://{metadata['name']}.{metadata['namespace']}.svc:{port['port']}"


def is_secure(address: str) -> bool:
    """Return whether a token may be sent to an address."""
    return urlsplit(address).scheme == "https"
