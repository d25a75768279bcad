"""The agent's own watch of the pods of its node, of all schedulers, and the Events that it creates on them."""

from collections.abc import Sequence
from typing import Any, Final

import structlog

from berth_agent.cluster import PODS, CallError, Cluster
from berth_agent.conditions import now, rfc3339
from berth_agent.following import Object, follow
from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.admission import Admission, UnavailableError
from berth_agent.kubelet.admission.pods import Pod
from berth_api import names

MAX_MESSAGE: Final = 1000
"""Characters of an Event's message; the server takes 1024."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NodePods:
    """The pods of one node on the API server."""

    def __init__(self, *, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._field = f"spec.nodeName={node}"
        self._warned: set[tuple[str, str]] = set()
        """(UID, message) of the Events that were created."""

    async def pods(self) -> tuple[list[Pod], int]:
        """List them at quorum.

        Raises:
            Away: the server does not answer.
        """
        try:
            objects, version = await self._cluster.list(PODS, field=self._field)
        except CallError as error:
            raise UnavailableError(str(error)) from error
        return [pods.of_object(raw) for raw in objects], int(version)

    async def warn(self, of: Sequence[Pod], text: str) -> None:
        """Create an Event on pods that kubelet was refused, once for each text."""
        for pod in of:
            if (pod.uid, text) not in self._warned:
                self._warned.add((pod.uid, text))
                await self._warn(pod, text)

    async def _warn(self, pod: Pod, text: str) -> None:
        try:
            await self._cluster.create(f"/api/v1/namespaces/{pod.namespace}/events", event(pod, text, node=self._node))
        except CallError as error:
            _log.warning("Event not written", pod=pod.key, error=str(error))

    async def follow(self, admission: Admission) -> None:
        """Keep the mirror's pods up to date until cancelled."""

        def replace_pods(objects: list[Object], version: str) -> None:
            current = [pods.of_object(raw) for raw in objects]
            admission.replace_pods(current, int(version))
            self._warned = {key for key in self._warned if key[0] in {pod.uid for pod in current}}

        def changed(kind: str, raw: Object) -> None:
            take = admission.mirror.remove if kind == "DELETED" else admission.mirror.put
            if take(pods.of_object(raw)):
                admission.changed.set()

        await follow(self._cluster, PODS, field=self._field, listed=replace_pods, changed=changed)


def event(pod: Pod, text: str, *, node: str) -> dict[str, Any]:
    """Return the Event that says why kubelet was refused."""
    time = rfc3339(now())
    return {
        "metadata": {"generateName": f"{pod.name[:200]}.", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": "Warning",
        "reason": "DevicesRefused",
        "message": text[:MAX_MESSAGE],
        "source": {"component": names.AGENT, "host": node},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
