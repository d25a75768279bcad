"""Brings the GpuPods of one node up to what its pods hold, and writes only what changed."""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from berth_agent.cluster import Cluster
from berth_agent.inventory.interface import label_value
from berth_api import names
from berth_api.gpupod import GpuPodSpec

ALL: Final = f"/apis/{names.API_VERSION}/{names.GPUPODS}"
Key = tuple[str, str]
"""Namespace and name."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class GpuPods:
    """Owner of one node's GpuPods."""

    def __init__(self, *, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._label = f"{names.NODE_LABEL}={label_value(node)}"
        self._node = node
        self._known: dict[Key, tuple[GpuPodSpec, str]] = {}
        """What stands on the server as far as we know, and its UID."""

    async def resync(self) -> None:
        """List what the API server has; the next call of `apply` repairs it.

        Raises:
            CallError: the list could not be read.
        """
        found, _ = await self._cluster.list(ALL, label=self._label)
        # Nodes whose names begin alike may share a label.
        mine = [each for each in found if each["spec"].get("nodeName") == self._node]
        self._known = {_key(each): (GpuPodSpec.model_validate(each["spec"]), each["metadata"]["uid"]) for each in mine}

    async def apply(self, wanted: Mapping[Key, GpuPodSpec]) -> None:
        """Write the GpuPods that differ from these, and delete the others.

        Raises:
            CallError: not all of it is done; the next call does the rest.
        """
        for key, spec in wanted.items():
            if key not in self._known or self._known[key][0] != spec:
                await self._apply(key, spec)
        for key in self._known.keys() - wanted.keys():
            await self._cluster.delete(_path(key), uid=self._known[key][1])
            del self._known[key]

    async def _apply(self, key: Key, spec: GpuPodSpec) -> None:
        applied = await self._cluster.apply(_path(key), body(key, spec))
        self._known[key] = (spec, applied["metadata"]["uid"])
        _log.info("GpuPod published", pod="/".join(key), containers=len(spec.containers))


def body(key: Key, spec: GpuPodSpec) -> dict[str, Any]:
    """Compose what we apply: it goes with its Pod."""
    namespace, name = key
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": spec.pod_uid}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GpuPod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {names.NODE_LABEL: label_value(spec.node_name)},
            "ownerReferences": [owner],
        },
        "spec": spec.model_dump(by_alias=True, exclude_unset=True),
    }


def _path(key: Key) -> str:
    namespace, name = key
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.GPUPODS}/{name}"


def _key(found: Mapping[str, Any]) -> Key:
    return found["metadata"]["namespace"], found["metadata"]["name"]
