"""Kubelet's PodResources: which containers it gave which devices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from berth_agent import rpc
from berth_agent.admission.chooser import Away
from berth_agent.admission.mirror import Told
from berth_agent.admission.pods import is_of_plugin
from berth_agent.kubelet import podresources_pb2 as messages
from berth_agent.kubelet.podresources_grpc import PodResourcesListerStub

ANSWER_SECONDS: Final = 2.0
"""Kubelet answers in a millisecond, or hangs."""


class PodResources:
    """Asks kubelet at its socket; the connection is kept, and made anew when kubelet comes back."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._line = rpc.Line(socket)

    async def told(self) -> tuple[Told, ...]:
        """Ask what containers have.

        Raises:
            Away: kubelet does not answer.
        """
        stub = PodResourcesListerStub(self._line.channel())
        try:
            answer = await rpc.call(stub.List, messages.ListPodResourcesRequest(), seconds=ANSWER_SECONDS)
        except rpc.CallError as error:
            raise Away(f"{self._socket}: {error}") from error
        return tuple(_told(answer))

    async def close(self) -> None:
        """Let go of the connection."""
        self._line.close()


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
