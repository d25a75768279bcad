"""Write the status of Nodes, Devices, PodGroups and GpuPods, at the rates of two token buckets.

An object is marked when anything about it may have changed. When its turn comes, its status is computed from one view,
and is written only if it differs. Nodes have their own bucket, because pods wait until a new node shows its sums. On
most nodes, pods change only the Device. The Device's turn shows whether the node's sums depend on pods. Other statuses
let sums and binds go first, but for at most `PATIENCE`. Among statuses, the one written longest ago comes first, so
that objects which change all the time do not delay others. Decisions read only the sums, and no other status.
"""

import asyncio
import functools
import heapq
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

import structlog

from berth_api import names
from berth_api.device import DeviceStatus
from berth_api.request import Kind
from berth_api.words import KUBERNETES_GROUPS
from berth_client import times
from berth_client.errors import CallError
from berth_client.refusals import is_for_good
from berth_operator.binding.reports.events import drop
from berth_operator.clients.bucket import Bucket
from berth_operator.controllers.reconcile import (
    exceeding,
    gpupods,
    groups,
    kubernetes_groups,
    startup,
    status,
    sums,
    unheld,
)
from berth_operator.controllers.reconcile.refusals import BACKOFF, Refusals
from berth_operator.metrics import counters
from berth_operator.state.cache.views import GpuPodView, GroupView, NodeView, StatusKind, View

RETRY: Final = 2.0
"""Seconds before a failed write is retried."""
CONFLICT_RETRY: Final = 30.0
"""Seconds before a retry after a conflict."""
SAME: Final = 4
"""Writes of one status of a Device within `RECENT`: another client that writes it all the time is answered no more."""
PATIENCE: Final = 5.0
"""Seconds that statuses let sums and binds go first: half of the ten seconds within which they should be current."""
RECENT: Final = 60.0
"""Seconds for which the time of a write is remembered."""
CHECK_SECONDS: Final = 0.1
"""Seconds between two checks whether sums or binds are still due."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

T = TypeVar("T")

_Status = tuple[StatusKind, str]
"""The kind and name of an object whose status is written."""
_SUMS: Final = "sums"
_Marked = _Status | tuple[str, str]
"""A status, or `_SUMS` and the name of a Node."""


class ObjectWriter(Protocol):
    """The subset of `kube.KubeClient` that the writer uses."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object at quorum."""

    async def delete(self, path: str, *, uid: str, version: str) -> None:
        """Delete an object if it still has this UID and resourceVersion."""

    async def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a JSON merge patch."""

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
        """Send a JSON patch."""

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None:
        """Create an events.k8s.io/v1 Event."""

    async def apply(self, path: str, body: dict[str, Any], field_manager: str, *, force: bool) -> dict[str, Any]:
        """Send a server-side apply."""


class Writer:
    """Keeps statuses up to date; used in one event loop."""

    def __init__(
        self,
        *,
        api: ObjectWriter,
        view: Callable[[StatusKind, str], Awaitable[View | None]],
        node_bucket: Bucket,
        bucket: Bucket,
        busy: Callable[[], bool],
        instance: str = "",
    ) -> None:
        """Create a writer; `instance` is the reporting instance of its Events."""
        self._api, self._view, self._node_bucket, self._bucket, self._busy = api, view, node_bucket, bucket, busy
        self._instance = instance
        self._nodes: dict[str, None] = {}
        """Names of Nodes whose sums are marked, the longest-marked first."""
        self._node_marked = asyncio.Event()
        self._is_writing_node = False
        self._tried: dict[str, Sequence[dict[str, Any]]] = {}
        """Node -> the patches of its sums at its last turn, if any."""
        self._statuses: dict[_Status, float] = {}
        """Marked status -> since when, the longest-marked first."""
        self._turns: list[tuple[float, int, _Status]] = []
        """A heap of the marked statuses: when each was written last, and its number in the order of marks."""
        self._order = itertools.count()
        self._written: dict[_Status, float] = {}
        """Recently written status -> when, the longest ago first."""
        self._shown: dict[str, tuple[str, dict[str, Any]]] = {}
        """PodGroup -> its UID and the status that we wrote; another version of its CRD may drop some fields."""
        self._written_devices: dict[str, tuple[int, deque[float]]] = {}
        """Device -> a digest of the status that we wrote last, and when: the last `SAME` times."""
        self._held_back: set[str] = set()
        """Devices whose last status is written again only after a pause."""
        self._misused: dict[str, frozenset[str]] = {}
        """Node -> the Events that exist about exceeded shares, and about cards that pods use and do not hold."""
        self._marked = asyncio.Event()
        self._refusals = Refusals()
        self._pauses: dict[_Marked, float] = {}
        """What was refused -> seconds before its next retry."""

    def mark(self, kind: StatusKind, name: str) -> None:
        """Mark an object whose status may be out of date."""
        if kind is StatusKind.NODE:
            self._nodes[name] = None
            self._node_marked.set()
            kind = StatusKind.DEVICE
        self._mark_status((kind, name))

    def _mark_status(self, marked: _Status) -> None:
        if marked in self._statuses:
            return
        self._statuses[marked] = asyncio.get_running_loop().time()
        heapq.heappush(self._turns, (self._written.get(marked, -math.inf), next(self._order), marked))
        self._marked.set()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_nodes())
            tasks.create_task(self._write_statuses())

    async def _write_nodes(self) -> None:
        while True:
            await self._node_marked.wait()
            self._is_writing_node = True
            while self._nodes:
                name = next(iter(self._nodes))
                # Before the view is read, so that later changes mark the node again.
                del self._nodes[name]
                mark = functools.partial(self.mark, StatusKind.NODE, name)
                await self._turn((_SUMS, name), self._write_node(name), mark)
            self._is_writing_node = False
            self._node_marked.clear()

    async def _write_statuses(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._marked.wait()
            if not self._statuses:
                self._marked.clear()
                continue
            # Sums and binds go first: a status costs the API server as much as several binds.
            others_are_due = self._is_writing_node or bool(self._nodes) or self._busy()
            if others_are_due and clock() - next(iter(self._statuses.values())) < PATIENCE:
                await asyncio.sleep(CHECK_SECONDS)
                continue
            *_, chosen = heapq.heappop(self._turns)
            del self._statuses[chosen]
            now = clock()
            self._written.pop(chosen, None)
            self._written[chosen] = now
            while now - next(iter(self._written.values())) > RECENT:
                del self._written[next(iter(self._written))]
            await self._turn(chosen, self._write(*chosen), functools.partial(self._mark_status, chosen))

    async def _turn(self, marked: _Marked, write: Awaitable[None], mark: Callable[[], None]) -> None:
        """Write once, and again after a pause, which grows while a policy, a webhook or the rights refuse it."""
        try:
            await write
        except CallError as error:
            if error.is_missing:
                return
            pause = CONFLICT_RETRY if error.status == HTTPStatus.CONFLICT else RETRY
            if error.status == HTTPStatus.FORBIDDEN or is_for_good(error):
                self._pauses[marked] = pause = BACKOFF.following(self._pauses.get(marked, 0.0))
            counters.STATUS_CONFLICTS.inc()
            log.warning("status not written", of=marked[1], error=str(error), again_in=pause)
            asyncio.get_running_loop().call_later(pause, mark)
        else:
            self._pauses.pop(marked, None)

    async def _write_node(self, name: str) -> None:
        view = await self._view(StatusKind.NODE, name)
        self._tried.pop(name, None)
        if not isinstance(view, NodeView):
            return
        if due := self._due(view):
            self._tried[name] = due
        path = f"/api/v1/nodes/{view.name}"
        if (patch := sums.status_patch(view)) is not None:
            await self._send("node", functools.partial(self._api.merge_patch, f"{path}/status", patch))
        for kind in sums.plugin_kinds(view):
            await self._write_plugin_sums(view, kind)
        if (patch := sums.label_patch(view)) is not None:
            await self._send("node", functools.partial(self._api.merge_patch, path, patch))
        if (operations := startup.patch(view)) is not None:
            await self._send("node", functools.partial(self._api.json_patch, path, operations))

    async def _write_plugin_sums(self, view: NodeView, kind: Kind) -> None:
        """Write a plug-in's sums, which a policy may not name; apart, so that the others are written in any case."""
        patch = sums.status_patch(view, kind.resources)
        if patch is None:
            return
        if not self._refusals.holds_back(kind, view.name):
            path = f"/api/v1/nodes/{view.name}/status"
            try:
                await self._send("node", functools.partial(self._api.merge_patch, path, patch))
            except CallError as error:
                if error.status != HTTPStatus.FORBIDDEN:
                    raise
                counters.STATUS_CONFLICTS.inc()
                is_first = self._refusals.refused(kind, view.name, str(error))
                log.warning("plug-in's resources refused", of=view.name, type=kind.name, error=str(error))
                if is_first:
                    asyncio.get_running_loop().call_later(BACKOFF.first, self._try_refused, kind)
            else:
                for name in self._refusals.accepted(kind):
                    self.mark(StatusKind.NODE, name)
                return
        self._mark_status((StatusKind.DEVICE, view.name))

    def _try_refused(self, kind: Kind) -> None:
        if (turn := self._refusals.turn(kind)) is not None:
            name, pause = turn
            self.mark(StatusKind.NODE, name)
            asyncio.get_running_loop().call_later(BACKOFF.following(pause), self._try_refused, kind)

    async def _write(self, kind: StatusKind, name: str) -> None:
        match await self._view(kind, name):
            case NodeView() as view:
                await self._write_device(view)
                await self._report_misuse(view)
            case GroupView() as view:
                await self._write_group(view)
            case GpuPodView() as view:
                await self._write_gpu_pod(view)
            case None if kind is StatusKind.POD_GROUP:
                self._shown.pop(name, None)
            case None if kind is StatusKind.DEVICE:
                self._misused.pop(name, None)
                self._written_devices.pop(name, None)

    async def _write_device(self, view: NodeView) -> None:
        """Write the status of a Device, and mark its Node if pods have changed its sums."""
        if view.device is not None and view.ours:
            wanted = status.wanted(view, _now, self._refusals)
            if wanted != status.shown(view):
                await self._write_device_status(view.name, wanted)
        due = self._due(view)
        # The same sums are not sent again before their retry.
        if due and due != self._tried.get(view.name):
            self._nodes[view.name] = None
            self._node_marked.set()

    async def _write_device_status(self, name: str, wanted: DeviceStatus) -> None:
        """Write our part of a status by force, but only so often against a client that changes it all the time."""
        loop, digest = asyncio.get_running_loop(), hash(status.without_times(wanted).model_dump_json())
        before, times_written = self._written_devices.get(name, (0, deque()))
        if before != digest:
            times_written = deque(maxlen=SAME)
        elif len(times_written) == SAME and (pause := times_written[0] + RECENT - loop.time()) > 0:
            if name not in self._held_back:
                self._held_back.add(name)
                loop.call_later(pause, self._write_again, name)
            return
        path, body = f"/apis/{names.API_VERSION}/{names.DEVICES}/{name}/status", status.body(name, wanted)
        device = await self._send("device", functools.partial(self._api.apply, path, body, names.OPERATOR, force=True))
        if patch := status.surplus(device, body):
            await self._send("device", functools.partial(self._api.merge_patch, path, patch))
        times_written.append(loop.time())
        self._written_devices[name] = digest, times_written

    def _write_again(self, name: str) -> None:
        self._held_back.discard(name)
        self._mark_status((StatusKind.DEVICE, name))

    async def _report_misuse(self, view: NodeView) -> None:
        """Create Events on the pods that exceed their shares, or use cards of others, since the last look."""
        misuse = {event.name: event for event in (*exceeding.events(view), *unheld.events(view))}
        for name in misuse.keys() - self._misused.get(view.name, frozenset()):
            event = misuse[name]
            create = functools.partial(self._api.create_event, event.subject.namespace, event.body(self._instance))
            try:
                await self._send("event", create)
            except CallError as error:
                if error.status == HTTPStatus.FORBIDDEN or is_for_good(error):
                    # Its namespace is being deleted, or a policy refuses it.
                    drop(event, error)
                # It exists, or its namespace is gone.
                elif error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                    raise
        if misuse:
            self._misused[view.name] = frozenset(misuse)
        else:
            self._misused.pop(view.name, None)

    def _due(self, view: NodeView) -> Sequence[dict[str, Any]]:
        """Return the patches of a Node's sums, except refused patches of plug-ins, which wait for their turn."""
        plugins = (kind for kind in sums.plugin_kinds(view) if self._refusals.of(kind) is None)
        patches = (sums.status_patch(view, ours) for ours in (sums.OURS, *(kind.resources for kind in plugins)))
        return [patch for patch in patches if patch is not None]

    async def _write_group(self, view: GroupView) -> None:
        name = view.group.name
        if view.kind == KUBERNETES_GROUPS:
            condition = kubernetes_groups.wanted(view)
            if groups.concerns_us(view) and not kubernetes_groups.shows(view, condition):
                patch = kubernetes_groups.patch(view, condition, _now)
                path = kubernetes_groups.path(view)
                await self._send("podgroup", functools.partial(self._api.merge_patch, path, patch))
            return
        if not (groups.concerns_us(view) or name in self._shown):
            return
        wanted = groups.wanted(view)
        # A write without an answer may have been done, and the watch may not show it yet.
        written, self._shown[name] = self._shown.get(name), (view.group.uid, {})
        if groups.shows(view, wanted):
            return
        if written != (view.group.uid, wanted):
            await self._send(
                "podgroup",
                functools.partial(self._api.merge_patch, groups.path(name), groups.patch(view, wanted, _now)),
            )
        self._shown[name] = view.group.uid, wanted

    async def _write_gpu_pod(self, view: GpuPodView) -> None:
        record, path = view.record, gpupods.path(view.record.key)
        if gpupods.may_be_orphan(view):
            # Its pod is read, because the watch may be behind.
            await asyncio.sleep(self._bucket.delay())
            try:
                pod = await self._api.get(gpupods.pod_path(view))
            except CallError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                pod = None
            if gpupods.is_orphan(view, pod):
                # If its agent has corrected it meanwhile, it stays.
                delete = functools.partial(self._api.delete, path, uid=record.uid, version=record.version)
                await self._send("gpupod", delete)
                node = record.actual.node
                log.warning("GpuPod deleted: no pod has its name, UID and node", of=record.key, node=node)
                return
        if (patch := gpupods.patch(view, _now)) is not None:
            await self._send("gpupod", functools.partial(self._api.merge_patch, f"{path}/status", patch))

    async def _send(self, kind: str, request: Callable[[], Awaitable[T]]) -> T:
        bucket = self._node_bucket if kind == "node" else self._bucket
        await asyncio.sleep(bucket.delay())
        answer = await request()
        counters.STATUS_WRITES.labels(kind).inc()
        return answer


def _now() -> str:
    return times.time(times.now())
