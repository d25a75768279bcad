"""The heartbeat in virtual time: its log of failed renewals, and how it notices that etcd was restored."""

import asyncio
import contextlib
import copy
import itertools
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from berth_agent.configuration.settings import Settings
from berth_agent.publishing.lease import Heartbeat
from berth_agent.publishing.node_cache import NodeCache
from berth_client.agreement import Restores
from berth_client.client import ApiClient
from berth_client.errors import ApiError

pytestmark = pytest.mark.looptime

MINUTE = 60
NOT_FOUND = ApiError(404, "NotFound", 'namespaces "berth-node-lease" not found')
FORBIDDEN = ApiError(403, "Forbidden", 'cannot create resource "leases"')
CONFLICT = ApiError(409, "Conflict", "the object has been modified")
LEASE_MISSING = ApiError(404, "NotFound", 'leases.coordination.k8s.io "a" not found')


class Server:
    """The Nodes, and the Lease of one; `error` is the answer to a create, if there is one."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.error: ApiError | None = None
        self.calls: list[str] = []
        self.leases: dict[str, dict[str, Any]] = {}
        self.restores = Restores()
        self._versions = itertools.count(100)

    async def list(self, _path: str, _params: object, *, accept: str) -> tuple[list[dict[str, Any]], str]:
        assert "PartialObjectMetadata" in accept
        return self.nodes, "1"

    async def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append("PATCH")
        # Owners are set once, at the creation: to change them needs the right to delete the Lease.
        assert body.get("metadata", {}).keys() <= {"resourceVersion"}
        if path not in self.leases:
            raise LEASE_MISSING
        stored = self.leases[path]
        if not body:
            return copy.deepcopy(stored)
        metadata = {**stored["metadata"], **body.get("metadata", {})}
        if metadata["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            raise CONFLICT
        return self._store(path, metadata, body["spec"])

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append("POST")
        if self.error is not None:
            raise self.error
        metadata = {**body["metadata"], "uid": f"uid-{next(self._versions)}"}
        return self._store(f"{path}/{body['metadata']['name']}", metadata, body["spec"])

    def _store(self, path: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        metadata["resourceVersion"] = str(next(self._versions))
        self.leases[path] = {"metadata": metadata, "spec": spec}
        return copy.deepcopy(self.leases[path])

    def renumber(self, writes: int) -> None:
        """Continue with the versions of the newest Lease, after this number of other writes."""
        newest = max(int(lease["metadata"]["resourceVersion"]) for lease in self.leases.values())
        self._versions = itertools.count(newest + 1 + writes)

    def other_write(self) -> None:
        """Renew all Leases as another agent of the node."""
        for path, lease in self.leases.items():
            self._store(path, lease["metadata"], {**lease["spec"], "renewTime": "2999-01-01T00:00:00.000000Z"})


class Beating:
    """A heartbeat of node `a`, and what it has logged."""

    def __init__(self, server: Server, nodes: NodeCache, logs: list[Any]) -> None:
        self.server, self._nodes, self._logs = server, nodes, logs

    async def add_node(self) -> None:
        """Create the Node, and refresh what the agent knows of Nodes."""
        self.server.nodes = [{"metadata": {"name": "a", "uid": "1"}}]
        await self._nodes.refresh(["a"])

    async def logged_within(self, seconds: float) -> list[str]:
        """Return the errors that are logged within so many seconds."""
        before = len(self._logs)
        await asyncio.sleep(seconds)
        return [line["error"] for line in self._logs[before:]]


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncIterator[Beating]:
    """Start a heartbeat; a fixture would start it before virtual time begins."""
    server = Server()
    client = cast("ApiClient", server)
    nodes = NodeCache(client=client)
    async with asyncio.TaskGroup() as tasks:
        own = Heartbeat(
            client_of=lambda _: client,
            restores=client.restores,
            nodes=nodes,
            settings=Settings(node_name="a"),
            tasks=tasks,
            clock=asyncio.get_running_loop().time,
        )
        with capture_logs() as logs:
            own.keep(["a"])
            yield Beating(server, nodes, logs)
        own.keep([])


async def test_a_node_that_is_not_known_yet_is_no_error() -> None:
    async with heartbeat() as beating:
        assert await beating.logged_within(MINUTE) == []
        assert beating.server.calls == []


async def test_each_new_reason_is_logged_once() -> None:
    async with heartbeat() as beating:
        beating.server.error = NOT_FOUND
        await beating.logged_within(MINUTE)
        await beating.add_node()
        assert await beating.logged_within(MINUTE) == [str(NOT_FOUND)]
        assert beating.server.calls.count("POST") > 2
        beating.server.error = FORBIDDEN
        assert await beating.logged_within(MINUTE) == [str(FORBIDDEN)]
        beating.server.error = None
        assert await beating.logged_within(MINUTE) == []
        assert [lease["spec"]["holderIdentity"] for lease in beating.server.leases.values()] == ["a"]


async def test_a_reason_that_comes_back_after_a_success_is_logged_again() -> None:
    async with heartbeat() as beating:
        beating.server.error = FORBIDDEN
        await beating.add_node()
        assert await beating.logged_within(MINUTE) == [str(FORBIDDEN)]
        beating.server.error = None
        await beating.logged_within(MINUTE)
        beating.server.leases.clear()
        beating.server.error = FORBIDDEN
        assert await beating.logged_within(MINUTE) == [str(FORBIDDEN)]


class Restored:
    """Counts the restores that are noted."""

    def __init__(self, server: Server) -> None:
        self.times: list[float] = []
        self._server = server

    async def run(self) -> None:
        while True:
            await self._server.restores.next()
            self.times.append(asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[tuple[Beating, list[float]]]:
    """Start a heartbeat that renews for a minute; yield it, and the times at which it notes restores."""
    async with heartbeat() as beating:
        restored = Restored(beating.server)
        task = asyncio.create_task(restored.run())
        await beating.add_node()
        await asyncio.sleep(MINUTE)
        try:
            yield beating, restored.times
        finally:
            task.cancel()


@pytest.mark.parametrize("writes", [0, 500], ids=["versions are lower", "other writes came first"])
async def test_a_lease_of_an_earlier_state_is_noted_at_the_next_renewal(writes: int) -> None:
    async with watched() as (beating, times):
        backup = copy.deepcopy(beating.server.leases)
        await asyncio.sleep(MINUTE)
        assert times == []
        beating.server.leases = backup
        beating.server.renumber(writes)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(MINUTE)
        [noted] = times
        assert noted - began <= 11


async def test_a_lease_that_is_gone_is_noted() -> None:
    async with watched() as (beating, times):
        beating.server.leases.clear()
        await asyncio.sleep(MINUTE)
        assert len(times) == 1


async def test_another_agent_of_the_node_is_no_restore() -> None:
    async with watched() as (beating, times):
        beating.server.other_write()
        await asyncio.sleep(MINUTE)
        assert times == []


async def test_servers_that_take_turns_are_noted_ever_more_rarely() -> None:
    async with watched() as (beating, times):
        earlier = copy.deepcopy(beating.server.leases)
        await asyncio.sleep(MINUTE)
        for _ in range(20):
            earlier, beating.server.leases = beating.server.leases, earlier
            await asyncio.sleep(0.5 * MINUTE)
        assert 2 <= len(times) <= 5
