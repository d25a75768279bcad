"""The agent's own watch of its node's pods, of all schedulers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import structlog

from berth_agent.cluster import PODS
from berth_agent.following import follow
from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.admission import Admission, UnavailableError
from berth_agent.kubelet.admission.pods import Pod
from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_client.objects import READING_ERRORS, Object
from berth_client.reflector import EventType

MAX_MESSAGE: Final = 1000
"""Characters of an error in the log."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NodePods:
    """The pods of one node on the API server."""

    def __init__(self, *, client: ApiClient, node: str, plugin: Collection[str] = pods.PLUGIN) -> None:
        """Read pods by the device plugin's resources (`pods.of_object`)."""
        self._client, self._plugin = client, plugin
        self._selector = f"spec.nodeName={node}"
        self._read: dict[str, Pod] = {}
        """UID -> pod as it was read last."""

    async def pods(self) -> tuple[list[Pod], int]:
        """List them at quorum.

        Raises:
            UnavailableError: the server does not answer.
        """
        try:
            listed, version = await self._client.read_list(PODS, {"fieldSelector": self._selector}, read=self._read_one)
        except CallError as error:
            raise UnavailableError(str(error)) from error
        self._keep(listed)
        return listed, int(version)

    async def follow(self, admission: Admission) -> None:
        """Keep the mirror's pods up to date until cancelled."""

        def replace_pods(listed: list[Pod], version: str) -> None:
            self._keep(listed)
            admission.replace_pods(listed, int(version))

        def changed(event_type: EventType, obj: Object) -> None:
            pod, is_deleted = self._read_one(obj), event_type == "DELETED"
            if is_deleted:
                self._read.pop(pod.uid, None)
            update = admission.mirror.remove if is_deleted else admission.mirror.put
            if update(pod):
                admission.changed.set()

        await follow(
            self._client,
            PODS,
            selector=self._selector,
            read=self._read_one,
            listed=replace_pods,
            changed=changed,
            restores=self._client.restores,
        )

    def _keep(self, listed: list[Pod]) -> None:
        """Forget the pods that a list of all pods has not shown."""
        self._read = {pod.uid: pod for pod in listed}

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
