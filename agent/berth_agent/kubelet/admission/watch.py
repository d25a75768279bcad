"""The agent's own watch of its node's pods, of all schedulers, and the Events that it creates on them."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from berth_agent.cluster import PODS
from berth_agent.following import follow
from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.admission import Admission, UnavailableError
from berth_agent.kubelet.admission.pods import Pod
from berth_api import names
from berth_client import times
from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_client.objects import READING_ERRORS, Object
from berth_client.reflector import EventType

MAX_MESSAGE: Final = 1000
"""Characters of an Event's message; the server takes 1024."""
MAX_EVENTS: Final = 256
"""Events that wait to be created."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NodePods:
    """The pods of one node on the API server."""

    def __init__(self, *, client: ApiClient, node: str, plugin: Collection[str] = pods.PLUGIN) -> None:
        """Read pods by the device plugin's resources (`pods.of_object`)."""
        self._client, self._plugin = client, plugin
        self._node = node
        self._selector = f"spec.nodeName={node}"
        self._read: dict[str, Pod] = {}
        """UID -> pod as it was read last."""
        self._warned: set[tuple[str, str]] = set()
        """(UID, message) of the Events that were created, or are in `_events`."""
        self._events: asyncio.Queue[tuple[Pod, dict[str, Any]]] = asyncio.Queue(MAX_EVENTS)
        """Pods with the Events that are still to be created on them."""

    async def pods(self) -> tuple[list[Pod], int]:
        """List them at quorum.

        Raises:
            UnavailableError: the server does not answer.
        """
        try:
            objects, version = await self._client.list(PODS, {"fieldSelector": self._selector})
        except CallError as error:
            raise UnavailableError(str(error)) from error
        return self._read_all(objects), int(version)

    def warn(self, of: Sequence[Pod], text: str) -> None:
        """Have `write_events` create an Event on pods that kubelet was refused, once for each text."""
        for pod in of:
            # While no Event can be written, kubelet repeats the question, and its refusal.
            if (pod.uid, text) not in self._warned and not self._events.full():
                self._warned.add((pod.uid, text))
                self._events.put_nowait((pod, event(pod, text, node=self._node)))

    async def write_events(self) -> None:
        """Create the Events of `warn` one by one until cancelled; a failure is logged."""
        while True:
            pod, body = await self._events.get()
            try:
                await self._client.create(f"/api/v1/namespaces/{pod.namespace}/events", body)
            except CallError as error:
                _log.warning("Event not written", pod=pod.key, error=str(error))

    async def follow(self, admission: Admission) -> None:
        """Keep the mirror's pods up to date until cancelled."""

        def replace_pods(objects: list[Object], version: str) -> None:
            present = self._read_all(objects)
            admission.replace_pods(present, int(version))
            uids = {pod.uid for pod in present}
            self._warned = {(uid, text) for uid, text in self._warned if uid in uids}

        def changed(event_type: EventType, obj: Object) -> None:
            pod, is_deleted = self._read_one(obj), event_type == "DELETED"
            if is_deleted:
                self._read.pop(pod.uid, None)
            update = admission.mirror.remove if is_deleted else admission.mirror.put
            if update(pod):
                admission.changed.set()

        await follow(self._client, PODS, selector=self._selector, listed=replace_pods, changed=changed)

    def _read_all(self, objects: Iterable[Object]) -> list[Pod]:
        """Read a list of all pods."""
        listed = [self._read_one(obj) for obj in objects]
        self._read = {pod.uid: pod for pod in listed}
        return listed

    def _read_one(self, obj: Object) -> Pod:
        """Read a pod. A pod that cannot be read must not end the agent, and is logged once for each version.

        It keeps what was read before, so that its cards are not given to another pod. Otherwise it may hold any card.
        """
        try:
            pod = pods.of_object(obj, self._plugin)
        except READING_ERRORS as error:
            pod = pods.unreadable(obj)
            if (known := self._read.get(pod.uid)) is not None:
                pod = replace(known, version=pod.version)
            if pod != known:
                # It may be a defect of Berth.
                _log.warning("pod cannot be read", pod=pod.key, error=repr(error)[:MAX_MESSAGE], exc_info=error)
        self._read[pod.uid] = pod
        return pod


def event(pod: Pod, text: str, *, node: str) -> dict[str, Any]:
    """Return the Event that shows why kubelet was refused."""
    time = times.time(times.now())
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
