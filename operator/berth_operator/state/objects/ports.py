"""The host ports of pods, parsed from the API."""

from collections.abc import Mapping
from typing import Any

from berth_operator.core.fleet.pods.ports import ALL_ADDRESSES
from berth_operator.core.values.request import HostPort

Object = Mapping[str, Any]


def of_pod(spec: Object) -> tuple[HostPort, ...]:
    """Read the host ports of a pod's containers and sidecars; other init containers hold none."""
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    containers = (*sidecars, *(spec.get("containers") or ()))
    host_ports = {_host_port(port) for each in containers for port in each.get("ports") or () if port.get("hostPort")}
    return tuple(sorted(host_ports, key=lambda each: (each.protocol, each.port, each.address)))


def _host_port(raw: Object) -> HostPort:
    return HostPort(
        protocol=raw.get("protocol") or "TCP",
        port=raw["hostPort"],
        address=raw.get("hostIP") or ALL_ADDRESSES,
    )
