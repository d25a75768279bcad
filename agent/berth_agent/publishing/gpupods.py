"""Update the GpuPods of one node to what its pods hold. Only changes are written."""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog

from berth_agent.inventory.interface import label_value
from berth_api import names
from berth_api.objects import gpupod
from berth_api.objects.gpupod import GpuPodSpec
from berth_api.values import keys
from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_client.objects import Object
from berth_client.refusals import Pauses

ALL: Final = f"/apis/{names.API_VERSION}/{names.GPUPODS}"
Key = tuple[str, str]
"""Namespace and name, of a pod or of its GpuPod."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class GpuPods:
    """Owner of one node's GpuPods."""

    def __init__(self, *, client: ApiClient, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._label = f"{names.NODE_LABEL}={label_value(node)}"
        self._node = node
        self._known: dict[Key, tuple[GpuPodSpec, str]] = {}
        """What stands on the server as far as we know, and its UID."""
        self._too_long: frozenset[Key] = frozenset()
        """GpuPods whose names the API server would refuse."""
        self._pauses: Pauses[Key] = Pauses(clock)
        """The GpuPods whose writes are refused until a person acts."""

    async def resync(self) -> None:
        """List the API server's objects. The next call of `apply` repairs them.

        Raises:
            CallError: the list could not be read.
        """
        listed, _ = await self._client.read_list(ALL, {"labelSelector": self._label}, read=self._read)
        self._known = dict(known for known in listed if known is not None)

    def _read(self, obj: Object) -> tuple[Key, tuple[GpuPodSpec, str]] | None:
        """Return the key, spec and UID of a GpuPod; None for another node's, which may have the same label."""
        if obj["spec"].get("nodeName") != self._node:
            return None
        metadata = obj["metadata"]
        return (metadata["namespace"], metadata["name"]), (GpuPodSpec.model_validate(obj["spec"]), metadata["uid"])

    async def apply(self, pods: Mapping[Key, GpuPodSpec]) -> None:
        """Write the GpuPods of these pods that differ, and delete all other GpuPods.

        Raises:
            CallError: some writes failed; the next call repeats them.
        """
        wanted = {(space, gpupod.name_of(pod, self._node)): spec for (space, pod), spec in pods.items()}
        too_long = frozenset(key for key in wanted if len(key[1]) > gpupod.MAX_NAME)
        for key in sorted(too_long - self._too_long):
            # `held` of the Device has the devices of the pod in any case.
            _log.warning("pod has no GpuPod: its name would be too long", gpu_pod=keys.join(*key), most=gpupod.MAX_NAME)
        self._too_long = too_long
        wanted = {key: spec for key, spec in wanted.items() if key not in too_long}
        failed: CallError | None = None
        for key, spec in wanted.items():
            if key in self._known and self._known[key][0] == spec:
                continue
            if (refusal := self._pauses.refusal(key)) is not None:
                failed = refusal
                continue
            try:
                applied = await self._client.apply(_path(key), body(key, spec), names.AGENT, force=True)
            except CallError as error:
                if not error.status:
                    raise
                # A namespace that is being deleted, or whose webhook fails, must not delay what others hold or have
                # released.
                failed = error
                self._pauses.failed(key, error)
            else:
                self._pauses.end(key)
                self._known[key] = (spec, applied["metadata"]["uid"])
                _log.info("GpuPod published", gpu_pod=keys.join(*key), containers=len(spec.containers))
        for key in sorted(self._known.keys() - wanted.keys()):
            if (refusal := self._pauses.refusal(key)) is not None:
                failed = refusal
                continue
            try:
                await self._client.delete(_path(key), uid=self._known[key][1])
            except CallError as error:
                if not error.status:
                    raise
                # One that is gone, or has another UID, is not ours any more.
                if error.status != HTTPStatus.CONFLICT and not error.is_missing:
                    failed = error
                    self._pauses.failed(key, error)
                    continue
            self._pauses.end(key)
            del self._known[key]
        if failed is not None:
            raise failed


def body(key: Key, spec: GpuPodSpec) -> dict[str, Any]:
    """Compose the applied object. It is deleted with its Pod."""
    namespace, name = key
    pod = gpupod.pod_of(name, spec.node_name)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": spec.pod_uid}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GpuPod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {names.NODE_LABEL: label_value(spec.node_name)},
            "ownerReferences": [owner],
        },
        "spec": spec.model_dump(by_alias=True, exclude_unset=True, exclude_none=True),
    }


def _path(key: Key) -> str:
    namespace, name = key
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.GPUPODS}/{name}"
