"""Look after pods that were bound and that no watch has shown.

A pod that comes and goes while a watch is listing anew leaves no event behind, and its charge would stay. So a bound
pod that stays unseen is asked for, and released if it is gone or has ended.
"""

import asyncio
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from berth_api import keys
from berth_client.errors import CallError
from berth_client.objects import Object
from berth_operator.core.values.charge import Charge
from berth_operator.state.cluster import Cluster

PERIOD: Final = 5.0
PATIENCE: Final = 10.0
"""Seconds for which a watch may be late: it is taken up again within a few."""
_ENDED: Final = ("Succeeded", "Failed")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Pods(Protocol):
    """What this needs of a `kube.KubeClient`."""

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""


async def run(cluster: Cluster, pods: Pods) -> None:
    """Look after them until cancelled."""
    while True:
        for charge in cluster.placements.unseen(PATIENCE):
            if await _is_gone(pods, charge):
                log.warning("released a pod that came and went unseen", pod=charge.pod, node=charge.node)
                cluster.remove_bound(charge.uid)
        await asyncio.sleep(PERIOD)


async def _is_gone(pods: Pods, charge: Charge) -> bool:
    """Return whether the pod is certainly no more; without an answer it is asked for again next time."""
    namespace, name = keys.split(charge.pod)
    try:
        found = await pods.get_pod(namespace, name)
    except CallError as error:
        return error.status == HTTPStatus.NOT_FOUND
    ended = (found.get("status") or {}).get("phase") in _ENDED
    return ended or bool(found["metadata"]["uid"] != charge.uid)
