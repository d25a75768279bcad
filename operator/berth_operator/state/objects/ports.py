"""The host ports of pods, parsed from the API."""

from collections.abc import Mapping
from typing import Any

from berth_operator.core.fleet.pods.ports import ALL_ADDRESSES
from berth_operator.core.values.request import HostPort

Object = Mapping[str, Any]


def of_pod(spec: Object) -> tuple[HostPort, ...]:
    """Read the host ports of a pod's containers and sidecars; other init containers hold none."""
    sidecars = (init for init in spec.get("initContainers") or () if init.get("restartPolicy") == "Always")
    containers = (*sidecars, *(spec.get("containers") or ()))
    host_ports = {
        HostPort(
            protocol=port.get("protocol") or "TCP",
            port=port["hostPort"],
            address=port.get("hostIP") or ALL_ADDRESSES,
        )
        for container in containers
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }
    return tuple(sorted(host_ports, key=lambda port: (port.protocol, port.port, port.address)))
