"""Release bound pods that were deleted before a watch showed them.

If a pod is created and deleted while a watch lists again, there is no event, and its charge would stay. So Berth reads
a bound pod from the API server if no watch has shown it for a while. If the pod is gone or has ended, Berth releases
it.
"""

import asyncio
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from berth_api.values import keys
from berth_client.errors import CallError
from berth_client.objects import Object
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 5.0
PATIENCE: Final = 10.0
"""Seconds after a bind before the pod is read; a broken watch continues within a few seconds."""
_ENDED: Final = ("Succeeded", "Failed")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BoundPodReader(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""


async def run(cluster: Cluster, pods: BoundPodReader) -> None:
    """Check bound pods that no watch has shown, until cancelled."""
    while True:
        for charge in cluster.placements.unseen(PATIENCE):
            namespace, name = keys.split(charge.pod)
            try:
                pod = await pods.get_pod(namespace, name)
                ended = (pod.get("status") or {}).get("phase") in _ENDED
                is_gone = ended or pod["metadata"]["uid"] != charge.uid
            except CallError as error:
                # Without an answer, it is read again later.
                is_gone = error.status == HTTPStatus.NOT_FOUND
            if is_gone:
                log.warning(
                    "released a pod that was deleted before any watch showed it", pod=charge.pod, node=charge.node
                )
                cluster.remove_bound(charge.uid)
        await asyncio.sleep(PERIOD)
