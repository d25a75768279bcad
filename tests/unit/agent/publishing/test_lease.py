"""The heartbeat's log of failed renewals, in virtual time: each reason once, until a renewal succeeds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from berth_agent.configuration.settings import Settings
from berth_agent.publishing.lease import Heartbeat
from berth_agent.publishing.node_cache import NodeCache
from berth_client.client import ApiClient
from berth_client.errors import ApiError

pytestmark = pytest.mark.looptime

MINUTE = 60
NOT_FOUND = ApiError(404, "NotFound", 'namespaces "berth-node-lease" not found')
FORBIDDEN = ApiError(403, "Forbidden", 'cannot create resource "leases"')
LEASE_MISSING = ApiError(404, "NotFound", 'leases.coordination.k8s.io "a" not found')


class Server:
    """The Nodes, and the Lease of one; `error` is the answer to a create, if there is one."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.error: ApiError | None = None
        self.calls: list[str] = []
        self.leases: dict[str, dict[str, Any]] = {}

    async def list(self, _path: str, _params: object, *, accept: str) -> tuple[list[dict[str, Any]], str]:
        assert "PartialObjectMetadata" in accept
        return self.nodes, "1"

    async def merge_patch(self, path: str, body: dict[str, Any]) -> None:
        self.calls.append("PATCH")
        if path not in self.leases:
            raise LEASE_MISSING
        self.leases[path] = body

    async def create(self, path: str, body: dict[str, Any]) -> None:
        self.calls.append("POST")
        if self.error is not None:
            raise self.error
        self.leases[f"{path}/{body['metadata']['name']}"] = body


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
        own = Heartbeat(client=client, nodes=nodes, settings=Settings(node_name="a"), tasks=tasks)
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
