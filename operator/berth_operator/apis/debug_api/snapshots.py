"""The Fleet that a replica's debug API shows.

The leader shows the Fleet that it decides with. A standby replica knows nodes and devices but no pods. Pods take most
of the memory, and the replica must list them again anyway when it becomes leader. For a request, a standby replica
lists the pods and caches the result for a few seconds.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from berth_client.objects import READING_ERRORS
from berth_client.reflector import GetPage, list_once
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import pods
from berth_operator.state.watches.pod_watches import ALIVE, BOUND, pods_where
from berth_operator.state.watches.sinks import Once

KEPT_SECONDS: Final = 10.0
"""Seconds for which a snapshot of all nodes is cached."""


class Snapshots(Protocol):
    """The source of what is shown."""

    async def whole(self) -> Fleet:
        """Return a Fleet with all nodes."""

    async def of(self, node: str) -> Fleet:
        """Return a Fleet with at least this node, if it exists."""


class Live:
    """The Fleet that decisions read."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def whole(self) -> Fleet:
        """Return a Fleet with all nodes."""
        return self._cluster.fleet

    async def of(self, node: str) -> Fleet:  # noqa: ARG002 - it is among all
        """Return a Fleet with all nodes."""
        return self._cluster.fleet


class UnreadError(Exception):
    """This replica has just started."""


class Listed:
    """The nodes and devices that every replica knows, with pods listed for the request."""

    def __init__(self, *, get_page: GetPage, cluster: Cluster, knows_nodes: Callable[[], bool]) -> None:
        self._get_page, self._cluster, self._knows_nodes = get_page, cluster, knows_nodes
        self._reading: asyncio.Task[Fleet] | None = None
        """The list in progress or cached, shared by concurrent requests."""

    async def whole(self) -> Fleet:
        """Return a Fleet with all nodes, a few seconds old at most.

        Raises:
            UnreadError: nodes and devices are not known yet.
            ApiError: the API server refused to list pods.
            Unreachable: the API server did not answer.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(BOUND))
            self._reading.add_done_callback(self._expire)
        return await asyncio.shield(self._reading)

    async def of(self, node: str) -> Fleet:
        """Return a Fleet with all nodes, and the pods of one; raises the errors of `whole`."""
        return await self._read(f"spec.nodeName={node},{ALIVE}")

    def _expire(self, reading: asyncio.Task[Fleet]) -> None:
        if reading.cancelled() or reading.exception() is not None:
            self._reading = None
        else:
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget)

    def _forget(self) -> None:
        self._reading = None

    async def _read(self, selector: str) -> Fleet:
        if not self._knows_nodes():
            raise UnreadError("this replica has just started and has not read the cluster yet")
        charges: list[Charge] = []
        kinds, trusted = self._cluster.kinds, self._cluster.trusted_schedulers
        kubernetes = self._cluster.fleet.kubernetes

        def put(pod: Mapping[str, Any]) -> None:
            try:
                charges.append(pods.charge(pod, kinds, trusted, kubernetes=kubernetes))
            except READING_ERRORS:  # which the leader logs
                charges.append(pods.unreadable(pod, self._cluster.fleet.cards))

        await list_once(self._get_page, pods_where(selector), Once(put))
        # Only the leader checks the agents regularly.
        self._cluster.node_cache.check_all_alive()
        fleet = self._cluster.fleet.copy()
        for charge in charges:
            fleet.release(kubelet_allocation.leftover_uid(charge.node, charge.uid))
            fleet.charge(self._cluster.allocations.effective_charge(charge))
        return fleet
