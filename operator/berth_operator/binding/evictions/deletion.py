"""Deletions and evictions of pods, and what their errors mean.

The API server answers a request for a pod that was replaced with 409, because the UID differs. But a webhook may refuse
a deletion with 409, too, and the pod stays. So the pod is read after this answer.
"""

from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from berth_client.errors import CallError


class PodReader(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Read a pod."""


async def unless_gone(request: Awaitable[object], pods: PodReader, namespace: str, name: str, uid: str) -> bool:
    """Await a request that deletes or evicts a pod; return False if the pod is gone, replaced or terminating already.

    Raises:
        ApiError: the API server refused the request.
        Unreachable: the API server did not answer.
    """
    try:
        await request
    except CallError as error:
        if error.is_missing:
            return False
        if error.status != HTTPStatus.CONFLICT or await _stays(pods, namespace, name, uid):
            raise
        return False
    return True


async def _stays(pods: PodReader, namespace: str, name: str, uid: str) -> bool:
    """Return whether a pod exists and is not terminating."""
    try:
        metadata = (await pods.get_pod(namespace, name))["metadata"]
    except CallError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return False
        raise
    return metadata["uid"] == uid and not metadata.get("deletionTimestamp")
