"""Kubelet's PodResources: which containers it gave which devices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc

from berth_agent.admission.chooser import Away
from berth_agent.admission.mirror import Told
from berth_agent.admission.pods import is_of_plugin
from berth_agent.kubelet import podresources_pb2 as messages
from berth_agent.kubelet import podresources_pb2_grpc as services

ANSWER_SECONDS: Final = 2.0
"""Kubelet answers in a millisecond, or hangs."""
MAX_ANSWER: Final = 16 * 2**20
"""Bytes; kubelet's own limit."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_ANSWER),
    # A kubelet that restarts is back within seconds; the default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class PodResources:
    """Asks kubelet at its socket; the connection is kept, and made anew when kubelet comes back."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)
        self._stub: Any = services.PodResourcesListerStub(self._channel)

    async def told(self) -> tuple[Told, ...]:
        """Ask what containers have.

        Raises:
            Away: kubelet does not answer.
        """
        try:
            answer = await self._stub.List(messages.ListPodResourcesRequest(), timeout=ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise Away(f"{self._socket}: {error.details() or error.code().name}") from error
        return tuple(_told(answer))

    async def close(self) -> None:
        """Let go of the connection."""
        await self._channel.close()


def _told(answer: messages.ListPodResourcesResponse) -> Iterator[Told]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            found: dict[str, frozenset[str]] = {}
            for each in container.devices:
                if is_of_plugin(each.resource_name):
                    # Devices of several NUMA nodes stand in an entry each.
                    found[each.resource_name] = found.get(each.resource_name, frozenset()).union(each.device_ids)
            if found:
                yield Told(namespace=pod.namespace, pod=pod.name, container=container.name, by_resource=found)
