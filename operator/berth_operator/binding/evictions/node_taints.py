"""A taint that keeps pods of other schedulers off a node while its pods leave for a pod of Berth.

kube-scheduler sees neither another scheduler's nominations nor the charges of Berth's cards, but it sees taints.
Without a taint, kube-scheduler binds the replacement of a victim into the victim's place. The taint is placed before
the first victim is deleted. It is placed only if a controller will create victims again for another scheduler, or if a
place was lost before. So preemption among Berth's own pods costs no write. Berth's filters ignore the taint, because
nominations keep the place.

The taint is removed once the pod is bound or no longer waits for the node. It is also removed `PATIENCE` seconds after
the last victim has gone, and after `LONGEST` in any case. If this term knows no pod for a node's taint, the last leader
left the taint there, and it is removed, too.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api.values.backoff import ExponentialBackoff
from berth_client.errors import CallError
from berth_operator.core.filters import taints
from berth_operator.core.fleet.kubelet_allocation import leaves_soon
from berth_operator.core.values.charge import Charge
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two looks at the nodes with the taint."""
PATIENCE: Final = 60.0
"""Seconds after the last victim has gone for which the pod's place is kept."""
LONGEST: Final = 900.0
"""Seconds after which the taint is removed even if victims are still leaving."""
SEEN: Final = 1.0
"""Seconds after the pod was bound within which other schedulers see it on its node."""
MAX_NODES: Final = 256
"""Nodes that may have the taint at once; beyond that pods are evicted without it."""
PAUSES: Final = (0.2, 1.0, None)
"""Seconds between the attempts to place it: the state may be older than the Node's list of taints."""
BACKOFF: Final = ExponentialBackoff(first=PERIOD, longest=60.0)
"""Between two attempts to remove it."""

Patch = Sequence[Mapping[str, Any]]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Nodes(Protocol):
    """The subset of `ApiClient` that is used here."""

    async def json_patch(self, path: str, operations: Patch) -> object:
        """Patch an object that exists by JSON patch."""


@dataclass(slots=True, eq=False)
class _Hold:
    """A node that is kept for pods."""

    pods: set[str]
    """UIDs of the pods that the node is nominated for."""
    since: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_tried: bool = False
    """Whether the API server was asked to place the taint."""
    gone_at: float | None = None
    """Since when no victim is on the node."""
    over_at: float | None = None
    """Since when no pod waits for the node."""


class NodeTaints:
    """Places and removes the taint for one term."""

    def __init__(self, *, cluster: Cluster, nodes: Nodes, leads: Callable[[], bool]) -> None:
        self._cluster, self._nodes, self._leads = cluster, nodes, leads
        self._holds: dict[str, _Hold] = {}
        """Node -> the pods for which it is kept."""
        self._retry_at: dict[str, tuple[float, float]] = {}
        """Node whose taint could not be removed -> when to try again, and the pause after that."""
        self._removed: set[str] = set()
        """Nodes whose taint was or may have been removed, although the watch still shows it."""

    def keep(self, nominees: Iterable[Charge]) -> None:
        """Keep the nodes of some pods from other schedulers; `placed` waits until a node has the taint."""
        now = self._cluster.clock()
        for nominee in nominees:
            hold = self._holds.get(nominee.node)
            if hold is not None:
                hold.pods.add(nominee.uid)
            elif len(self._holds) < MAX_NODES:
                self._holds[nominee.node] = _Hold(pods={nominee.uid}, since=now)
            else:
                log.warning("node not tainted, too many are", node=nominee.node, nodes=len(self._holds))

    def adopt(self, nominees: Iterable[Charge]) -> None:
        """Keep the nodes that the last leader kept for these pods."""
        self.keep(nominee for nominee in nominees if self._position(nominee.node) is not None)

    async def placed(self, node: str) -> None:
        """Wait until a node that is kept has the taint, or it could not be placed."""
        if (hold := self._holds.get(node)) is None:
            return
        async with hold.lock:
            if not hold.is_tried:
                hold.is_tried = True
                await self._place(node)

    async def _place(self, node: str) -> None:
        for pause in PAUSES:
            if not self._leads() or (self._position(node) is not None and node not in self._removed):
                return
            # The list has no merge key, and others write it too.
            taint = {"key": taints.PREEMPTING.key, "effect": taints.PREEMPTING.effect}
            patch: Patch = [{"op": "add", "path": "/spec/taints/-", "value": taint}]
            if all(other.key == taints.PREEMPTING.key for other in self._taints(node)):
                patch = [
                    {"op": "test", "path": "/spec/taints", "value": None},
                    {"op": "add", "path": "/spec/taints", "value": [taint]},
                ]
            try:
                await self._nodes.json_patch(f"/api/v1/nodes/{node}", patch)
            except CallError as error:
                if pause is None or error.refuser or error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
                    # The place may be lost then; lost places are bounded in any case.
                    log.warning("node not tainted, other schedulers may take the place", node=node, error=str(error))
                    return
                await asyncio.sleep(pause)
            else:
                self._removed.discard(node)
                log.info("node tainted until victims have made room", node=node)
                return

    # --- removing -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Remove the taint where it is no longer needed, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            if self._leads():
                for node in [*self._over()]:
                    # The node may be kept again since the removal of the taints before it.
                    hold = self._holds.get(node)
                    if hold is None or self._is_over(node, hold, self._cluster.clock()):
                        await self._remove(node)

    def _over(self) -> Iterator[str]:
        """Yield the nodes that have the taint and need it no more."""
        now, kept = self._cluster.clock(), set()
        for node, hold in [*self._holds.items()]:
            if not self._is_over(node, hold, now):
                kept.add(node)
            elif self._position(node) is None and (not hold.is_tried or now >= (hold.over_at or now) + PATIENCE):
                # The watch shows a taint that was placed long before that.
                del self._holds[node]
        tainted = self._cluster.fleet.tainted(taints.PREEMPTING)
        self._retry_at = {node: retry for node, retry in self._retry_at.items() if node in tainted}
        self._removed.intersection_update(tainted)
        yield from (node for node in tainted if node not in kept and self._retry_at.get(node, (0.0, 0.0))[0] <= now)

    def _is_over(self, node: str, hold: _Hold, now: float) -> bool:
        """Return whether a node need not be kept any more."""
        fleet = self._cluster.fleet
        # A pod waits for its place on the node, or other schedulers may not see it there yet.
        waits = any(
            ((nominee := fleet.nominees.get(uid)) is not None and nominee.node == node)
            or self._cluster.placements.is_assumed(uid)
            for uid in hold.pods
        )
        hold.over_at = None if waits else hold.over_at or now
        is_left = not any(leaves_soon(fleet, charge) for charge in fleet.on_node(node))
        hold.gone_at = (hold.gone_at or now) if is_left else None
        if hold.over_at is not None and now >= hold.over_at + SEEN:
            return True
        return now >= hold.since + LONGEST or (hold.gone_at is not None and now >= hold.gone_at + PATIENCE)

    async def _remove(self, node: str) -> None:
        # First, so that what is kept meanwhile stays.
        self._holds.pop(node, None)
        if (position := self._position(node)) is None:
            return
        path = f"/spec/taints/{position}"
        patch = [{"op": "test", "path": f"{path}/key", "value": taints.PREEMPTING.key}, {"op": "remove", "path": path}]
        # Before the answer: a node that is kept meanwhile gets the taint again.
        self._removed.add(node)
        try:
            await self._nodes.json_patch(f"/api/v1/nodes/{node}", patch)
        except CallError as error:
            if error.is_refused:
                self._removed.discard(node)
            _, pause = self._retry_at.get(node, (0.0, PERIOD))
            self._retry_at[node] = self._cluster.clock() + pause, BACKOFF.following(pause)
            log.warning("taint not removed, trying again", node=node, again_in=pause, error=str(error))
        else:
            # Until the watch shows it, the patch would be sent again.
            self._retry_at[node] = self._cluster.clock() + 5 * PERIOD, PERIOD
            log.info("node no longer tainted", node=node)

    def _position(self, node: str) -> int | None:
        """Return the position of the taint in a Node's list; None if it is not there."""
        keys = [taint.key for taint in self._taints(node)]
        return keys.index(taints.PREEMPTING.key) if taints.PREEMPTING.key in keys else None

    def _taints(self, node: str) -> Sequence[Any]:
        record = self._cluster.node_cache.nodes.get(node)
        return () if record is None else record.info.taints
