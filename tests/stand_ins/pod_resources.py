"""PodResources as a kubelet serves it, on its own socket. The test sets what it reports."""

from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc

from berth_agent.kubelet_api import podresources_pb2 as messages
from berth_agent.kubelet_api import podresources_pb2_grpc

services: Any = podresources_pb2_grpc
"""Its types are those of asyncio; this server uses threads, so that it answers while a test waits."""

ActualAllocation = Mapping[tuple[str, str, str], Mapping[str, list[str]]]
"""(namespace, pod, container) -> resource -> ids."""


class PodResourcesServer:
    """A socket that reports the devices of containers."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.given: ActualAllocation = {}
        self.claimed: Mapping[tuple[str, str, str], list[tuple[str, ...]]] = {}
        """(namespace, pod, container) -> (claim, driver, pool, device) of each device of a claim in its namespace."""
        self.offered: Mapping[str, list[str]] = {}
        """Resource -> ids of the devices that kubelet can allocate."""
        self.requests = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        services.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()
        self.socket.unlink(missing_ok=True)

    def List(self, request: Any, context: Any) -> messages.ListPodResourcesResponse:  # noqa: ARG002, N802 -- its name
        self.requests += 1
        pods: dict[tuple[str, str], messages.PodResources] = {}
        for (namespace, name, container), by_resource in self.given.items():
            reported = messages.PodResources(namespace=namespace, name=name)
            devices = [
                messages.ContainerDevices(resource_name=resource, device_ids=[each])
                for resource, ids in by_resource.items()
                for each in ids
            ]
            pods.setdefault((namespace, name), reported).containers.append(
                messages.ContainerResources(name=container, devices=devices)
            )
        for (namespace, name, container), claimed in self.claimed.items():
            claims = [
                messages.DynamicResource(
                    claim_name=claim,
                    claim_namespace=namespace,
                    claim_resources=[messages.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)],
                )
                for claim, driver, pool, device in claimed
            ]
            pods.setdefault((namespace, name), messages.PodResources(namespace=namespace, name=name)).containers.append(
                messages.ContainerResources(name=container, dynamic_resources=claims)
            )
        return messages.ListPodResourcesResponse(pod_resources=pods.values())

    def GetAllocatableResources(self, request: Any, context: Any) -> messages.AllocatableResourcesResponse:  # noqa: ARG002, N802 -- its name
        devices = [
            messages.ContainerDevices(resource_name=resource, device_ids=[unit])
            for resource, ids in self.offered.items()
            for unit in ids
        ]
        return messages.AllocatableResourcesResponse(devices=devices)

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802 -- its name
        raise NotImplementedError("no test calls this method")
