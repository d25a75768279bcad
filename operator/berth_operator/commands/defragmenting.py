"""`berth-operator defragment`: request that the operator moves other pods to make room for a pod, and wait.

The request is the pod's nominated node. An operator with `--defragment` then makes room on that node, or withdraws the
nomination if it cannot. The command waits for the result.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Final, Protocol

from berth_client.errors import ApiError
from berth_operator.commands.errors import InputError
from berth_operator.core.values.request import PendingPod

Object = dict[str, Any]

POLL: Final = 1.0
"""Seconds between two reads of the pod."""
ACTING: Final = "defragmentation:"
"""What the message of a pod's condition contains while pods are moved for it."""
NOBODY_ACTS: Final = 30.0
"""Seconds after which an operator that moves pods would have said so."""


class PodApi(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""

    async def patch_pod_status(self, namespace: str, name: str, patch: Object) -> None:
        """Patch a pod's status by strategic merge."""


async def make_room(pods: PodApi, pod: PendingPod, node: str, *, timeout: float) -> tuple[bool, str]:  # noqa: ASYNC109 - a deadline of the whole work
    """Request room for a pod on a node, and wait until the pod is bound; return whether it is bound, and a message.

    Raises:
        InputError: the pod already has a nominated node.
        CallError: the API server refused a request, or did not answer.
    """
    if pod.nominated_node:
        raise InputError(f"{pod.key} already has the nominated node {pod.nominated_node}: pods are leaving it")
    await _nominate(pods, pod, node)
    loop = asyncio.get_running_loop()
    began, acting = loop.time(), False
    while loop.time() - began < timeout:
        current: Object | None = None
        try:
            current = await pods.get_pod(pod.namespace, pod.name)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        # Another pod of its name may have replaced it.
        if current is None or current["metadata"]["uid"] != pod.uid:
            return False, f"{pod.key} was deleted"
        if bound_to := current["spec"].get("nodeName"):
            return True, f"{pod.key} was bound to {bound_to}"
        conditions = current["status"].get("conditions") or ()
        messages = (condition.get("message") for condition in conditions if condition["type"] == "PodScheduled")
        message = str(next(messages, "") or "")
        if not current["status"].get("nominatedNodeName"):
            return False, f"{pod.key}: no room could be made on {node}; its Events say why. It waits: {message}"
        acting = acting or ACTING in message
        if not acting and loop.time() - began > NOBODY_ACTS:
            await _nominate(pods, pod, "")
            return False, f"{pod.key}: no operator moves pods; is it started with --defragment?"
        await asyncio.sleep(POLL)
    return False, f"{pod.key} has not been bound within {timeout:g} s; the operator continues"


async def _nominate(pods: PodApi, pod: PendingPod, node: str) -> None:
    patch = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node or None}}
    await pods.patch_pod_status(pod.namespace, pod.name, patch)
