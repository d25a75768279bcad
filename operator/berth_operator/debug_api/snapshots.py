"""Where a replica takes the Fleet from that it shows.

One that leads has it. One that stands by knows nodes and devices, but no pods: they are most of the memory, and what it
decides by must be read when it leads. It lists them when it is asked, and keeps what comes of it for a few seconds.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from berth_client.reflector import Api, Reflector
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.state import pods
from berth_operator.state.cluster import Cluster
from berth_operator.state.pod_watches import ALIVE, BOUND, pods_where
from berth_operator.state.sinks import Once

KEPT_SECONDS: Final = 10.0
"""How long a picture of all nodes is shown again."""


class Snapshots(Protocol):
    """Who gives what is to be shown."""

    async def whole(self) -> Fleet:
        """Return all nodes."""

    async def of(self, node: str) -> Fleet:
        """Return at least one node, if it exists."""


class Live:
    """The Fleet that decisions read."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def whole(self) -> Fleet:
        """Return all nodes."""
        return self._cluster.fleet

    async def of(self, node: str) -> Fleet:  # noqa: ARG002 - it is among all
        """Return all nodes."""
        return self._cluster.fleet


class UnreadError(Exception):
    """This replica has just started."""


class Listed:
    """What every replica knows of nodes and devices, and the pods read for the occasion."""

    def __init__(self, *, api: Api, cluster: Cluster, knows_nodes: Callable[[], bool]) -> None:
        self._api, self._cluster, self._knows_nodes = api, cluster, knows_nodes
        self._reading: asyncio.Task[Fleet] | None = None
        """Those who ask at the same time get the same."""

    async def whole(self) -> Fleet:
        """Return all nodes, as they were a few seconds ago at most.

        Raises:
            UnreadError: nodes and devices are not known yet.
            ApiError: the API server refused to list pods.
            Unreachable: it did not answer.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(BOUND))
            self._reading.add_done_callback(self._expire)
        return await asyncio.shield(self._reading)

    async def of(self, node: str) -> Fleet:
        """Return all nodes, and the pods of one; errors as those of `whole`."""
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
        sink = Once(lambda pod: charges.append(pods.charge(pod, kinds, trusted)))
        await Reflector(api=self._api, source=pods_where(selector), sink=sink).read()
        # Only a leader looks at its clock all the time.
        self._cluster.node_cache.check_all_alive()
        fleet = self._cluster.fleet.copy()
        for each in charges:
            fleet.release(kubelet_allocation.left_uid(each.node, each.uid))
            fleet.charge(self._cluster.allocations.effective_charge(each))
        return fleet
