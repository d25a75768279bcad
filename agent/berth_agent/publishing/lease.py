"""The heartbeat: one Lease per node, renewed as long as the agent lives, whatever the hardware does.

kubelet does the same for the Node. This Lease shows that an agent watches the node's devices. At its end, the agent
does not change the Lease, because an agent that is being replaced is back before the Lease expires.
"""

import asyncio
import random
from collections.abc import Collection
from http import HTTPStatus
from typing import Final

import structlog

from berth_agent.configuration.settings import Settings
from berth_agent.publishing.node_cache import NodeCache
from berth_client import times
from berth_client.client import ApiClient
from berth_client.errors import CallError

FIRST_RETRY: Final = 0.5
"""Seconds before the first retry of a failed renewal; they double up to the renew interval."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Heartbeat:
    """Renews the Leases of any number of nodes, each in a task of its own."""

    def __init__(self, *, client: ApiClient, nodes: NodeCache, settings: Settings, tasks: asyncio.TaskGroup) -> None:
        self._client = client
        self._nodes = nodes
        self._settings = settings
        self._tasks = tasks
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{settings.lease_namespace}/leases"

    def keep(self, names: Collection[str]) -> None:
        """Renew the Leases of exactly these nodes from now on."""
        for name in self._beating.keys() - set(names):
            self._beating.pop(name).cancel()
        fresh = [name for name in names if name not in self._beating]
        for index, name in enumerate(fresh):
            beat = self._beat(name, share=(index + 1) / len(fresh))
            self._beating[name] = self._tasks.create_task(beat)

    async def _beat(self, name: str, *, share: float) -> None:
        """Renew at once, then after a share of the interval, so that a fleet's renewals are spread over it."""
        await self._renew(name)
        await asyncio.sleep(share * self._settings.renew_interval)
        while True:
            await self._renew(name)
            await asyncio.sleep(self._settings.renew_interval * self._spread())

    async def _renew(self, name: str) -> None:
        """Renew one Lease, however long the API server is away."""
        pause, logged = FIRST_RETRY, ""
        while (problem := await self._try_renew(name)) is not None:
            if problem not in ("", logged):
                logged = problem
                _log.warning("Lease not renewed, will try again", node=name, error=problem)
            await asyncio.sleep(pause * self._spread())
            pause = min(2 * pause, self._settings.renew_interval)

    async def _try_renew(self, name: str) -> str | None:
        """Renew once; return why it failed, empty while the Node is not known, or None if it succeeded."""
        owner = self._nodes.owner_reference(name)
        if owner is None:
            return ""
        try:
            async with self._gate:
                lease = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {
                        "name": name,
                        "namespace": self._settings.lease_namespace,
                        "ownerReferences": [owner],
                    },
                    "spec": {
                        "holderIdentity": self._settings.pod_name or name,
                        "leaseDurationSeconds": self._settings.lease_duration,
                        "renewTime": times.micro_time(times.now()),
                    },
                }
                try:
                    await self._client.merge_patch(f"{self._leases}/{name}", lease)
                except CallError as error:
                    if error.status != HTTPStatus.NOT_FOUND:
                        raise
                    await self._client.create(self._leases, lease)
        except CallError as error:
            return str(error)
        return None

    def _spread(self) -> float:
        jitter = self._settings.jitter
        return random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 -- nothing secret hangs on it
