"""Writes what Nodes, Devices, PodGroups and GpuPods should show, as fast as a token bucket allows.

A node is marked when anything about it may have changed; what it should show is computed from one view of it when its
turn comes, and written only where it differs from what it shows. Sums come before statuses, since kubelet acts on
them; of the statuses the longest-marked comes first. Nothing here decides anything, and nothing that decides reads it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_operator.clients.bucket import Bucket
from berth_operator.clients.kube import ApiError, Unreachable
from berth_operator.metrics import counters
from berth_operator.reconcile import gpupods, groups, status, sums
from berth_operator.state.cluster import GpuPodView, GroupView, NodeView

RETRY: Final = 2.0
"""Seconds before a failed write is tried again."""
CONFLICT_RETRY: Final = 30.0
"""The same where another manager owns a field: only a person can mend that."""
PATIENCE: Final = 10.0
"""Seconds that statuses wait at most while binds are under way. Sums do not wait, since kubelet acts on them."""
LOOK: Final = 0.1
"""Seconds between two looks whether binds are still under way."""
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Api(Protocol):
    """What the writer needs of a `kube.KubeClient`."""

    async def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a JSON merge patch."""

    async def apply(self, path: str, body: dict[str, Any], field_manager: str) -> None:
        """Apply an object on the server's side, without force."""


class Writer:
    """Keeps Nodes and Devices current; lives in one event loop."""

    def __init__(
        self,
        *,
        api: Api,
        view: Callable[[str], Awaitable[NodeView]],
        group_view: Callable[[str], Awaitable[GroupView | None]],
        gpu_pod_view: Callable[[str], Awaitable[GpuPodView | None]],
        bucket: Bucket,
        busy: Callable[[], bool],
    ) -> None:
        self._api, self._bucket, self._busy = api, bucket, busy
        self._view, self._group_view, self._gpu_pod_view = view, group_view, gpu_pod_view
        self._busy_since: float | None = None
        self._nodes: dict[str, None] = {}
        self._devices: dict[str, None] = {}
        self._groups: dict[str, None] = {}
        self._gpu_pods: dict[str, None] = {}
        """Marked names, the longest-marked first."""
        self._shown: dict[str, tuple[str, dict[str, Any]]] = {}
        """PodGroup -> its UID and what we wrote: a definition that is not ours may not keep all of it."""
        self._marked = asyncio.Event()

    def mark(self, name: str) -> None:
        """Say that what a node shows may no longer be right."""
        self._nodes[name] = self._devices[name] = None
        self._marked.set()

    def mark_group(self, name: str) -> None:
        """Say the same of a PodGroup."""
        self._groups[name] = None
        self._marked.set()

    def mark_gpu_pod(self, name: str) -> None:
        """Say the same of a GpuPod."""
        self._gpu_pods[name] = None
        self._marked.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._marked.wait()
            if self._nodes:
                await self._turn(self._nodes, self._write_node, self.mark)
            elif self._waits():
                await asyncio.sleep(LOOK)
            elif self._devices:
                await self._turn(self._devices, self._write_device, self.mark)
            elif self._groups:
                await self._turn(self._groups, self._write_group, self.mark_group)
            elif self._gpu_pods:
                await self._turn(self._gpu_pods, self._write_gpu_pod, self.mark_gpu_pod)
            else:
                self._marked.clear()

    def _waits(self) -> bool:
        """Tell whether statuses let binds go first: one costs the API server as much as several of them."""
        now = asyncio.get_running_loop().time()
        if not self._busy():
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        return self._busy_since is not None and now - self._busy_since < PATIENCE

    async def _turn(
        self, marked: dict[str, None], write: Callable[[str], Awaitable[None]], mark: Callable[[str], None]
    ) -> None:
        name = next(iter(marked))
        # Before the view is taken: what changes from here on marks the node again.
        del marked[name]
        try:
            await write(name)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                self._again(name, error, CONFLICT_RETRY if error.status == _CONFLICT else RETRY, mark)
        except Unreachable as error:
            self._again(name, error, RETRY, mark)

    def _again(self, name: str, error: Exception, pause: float, mark: Callable[[str], None]) -> None:
        counters.STATUS_CONFLICTS.inc()
        log.warning("status not written", of=name, error=str(error), again_in=pause)
        asyncio.get_running_loop().call_later(pause, mark, name)

    async def _write_node(self, name: str) -> None:
        view = await self._view(name)
        path = f"/api/v1/nodes/{view.name}"
        if (patch := sums.status_patch(view)) is not None:
            await self._send("node", self._api.merge_patch(f"{path}/status", patch))
        if (patch := sums.label_patch(view)) is not None:
            await self._send("node", self._api.merge_patch(path, patch))

    async def _write_device(self, name: str) -> None:
        view = await self._view(name)
        if view.device is None or not view.ours:
            return
        wanted = status.wanted(view, _now)
        if wanted != status.shown(view):
            path = f"/apis/{names.API_VERSION}/{names.DEVICES}/{view.name}/status"
            await self._send("device", self._api.apply(path, status.body(view.name, wanted), names.OPERATOR))

    async def _write_group(self, name: str) -> None:
        view = await self._group_view(name)
        if view is None or not (groups.concerns_us(view) or name in self._shown):
            self._shown.pop(name, None)
            return
        wanted = groups.wanted(view)
        if not groups.shows(view, wanted) and self._shown.get(name) != (view.group.uid, wanted):
            await self._send("podgroup", self._api.merge_patch(groups.path(name), groups.patch(view, wanted, _now)))
        self._shown[name] = view.group.uid, wanted

    async def _write_gpu_pod(self, name: str) -> None:
        view = await self._gpu_pod_view(name)
        if view is not None and (patch := gpupods.patch(view, _now)) is not None:
            await self._send("gpupod", self._api.merge_patch(gpupods.path(name), patch))

    async def _send(self, kind: str, request: Awaitable[object]) -> None:
        await asyncio.sleep(self._bucket.delay())
        await request
        counters.STATUS_WRITES.labels(kind).inc()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
