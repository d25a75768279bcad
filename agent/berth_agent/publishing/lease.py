"""The heartbeat: one Lease per node, renewed as long as the agent lives, whatever the hardware does.

kubelet does the same for the Node. This Lease shows that an agent watches the node's devices. At its end, the agent
does not change the Lease, because an agent that is being replaced is back before the Lease expires.

Each renewal names the version of the renewal before. If the API server has another one, etcd may have been restored
from a copy. The agent then lists and publishes again.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final

import structlog

from berth_agent.cluster import ClientOf
from berth_agent.configuration.settings import Settings
from berth_agent.publishing.node_cache import NodeCache
from berth_api.values.backoff import ExponentialBackoff
from berth_client import times
from berth_client.agreement import Agreement, Restores, why_earlier
from berth_client.errors import CallError
from berth_client.objects import Object

PAUSES: Final = (0.0, 10.0, 20.0, 60.0, 300.0)
"""Seconds of agreement before the agent lists again after an earlier state, and after further ones."""
FIRST_RETRY: Final = 0.5
"""Seconds before the first retry of a failed renewal; they double up to the renew interval."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Heartbeat:
    """Renews the Leases of any number of nodes, each in a task of its own."""

    def __init__(
        self,
        *,
        client_of: ClientOf,
        restores: Restores,
        nodes: NodeCache,
        settings: Settings,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_of = client_of
        self._restores = restores
        self._nodes = nodes
        self._settings = settings
        self._tasks = tasks
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._clock = clock
        self._written: dict[str, Object] = {}
        """Node -> its Lease as last answered."""
        self._agreement = Agreement(clock=clock, pauses=PAUSES)
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
        backoff = ExponentialBackoff(first=FIRST_RETRY, longest=self._settings.renew_interval)
        pause, logged = backoff.first, ""
        while (problem := await self._try_renew(name)) is not None:
            if problem not in ("", logged):
                logged = problem
                _log.warning("Lease not renewed, will try again", node=name, error=problem)
            await asyncio.sleep(pause * self._spread())
            pause = backoff.following(pause)

    async def _try_renew(self, name: str) -> str | None:
        """Renew once; return why it failed, empty while the Node is not known, or None if it succeeded."""
        owner = self._nodes.owner_reference(name)
        if owner is None:
            return ""
        try:
            async with self._gate:
                spec = {
                    "holderIdentity": self._settings.pod_name or name,
                    "leaseDurationSeconds": self._settings.lease_duration,
                    "renewTime": times.micro_time(times.now()),
                }
                await self._write(name, spec, owner)
        except CallError as error:
            return str(error)
        return None

    async def _write(self, name: str, spec: Object, owner: Object) -> None:
        """Write a Lease. If the API server has an earlier one than before, note a restore."""
        client, path, known = self._client_of(name), f"{self._leases}/{name}", self._written.get(name)
        version = {"metadata": {"resourceVersion": known["metadata"]["resourceVersion"]}} if known else {}
        try:
            written = await client.merge_patch(path, {**version, "spec": spec})
        except CallError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                metadata = {"name": name, "namespace": self._settings.lease_namespace, "ownerReferences": [owner]}
                found = written = await client.create(self._leases, {**kind, "metadata": metadata, "spec": spec})
            elif error.status == HTTPStatus.CONFLICT and known:
                # Of another agent of the node, of a renewal whose answer was lost, or of an earlier state.
                # A patch without changes reads the Lease. Agents have no right to `get` it.
                found = await client.merge_patch(path, {})
                written = await client.merge_patch(path, {"spec": spec})
            else:
                raise
            if known and (why := why_earlier(found, known, holder=spec["holderIdentity"], sent="")):
                _log.warning("the API server shows an earlier state", node=name, why=why)
                self._agreement.doubt()
                # The other Leases are of the state before, too.
                self._written.clear()
        self._written[name] = written
        if self._agreement.settle(self._clock()):
            self._restores.note()

    def _spread(self) -> float:
        jitter = self._settings.jitter
        return random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 -- nothing secret hangs on it
