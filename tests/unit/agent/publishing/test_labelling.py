"""When labels of a Node are written: at first, when they differ, and never before the Node is known."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from berth_agent.publishing.labelling import TRY_AGAIN, Labeller
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.readings import Reading
from berth_agent.vendors.nvidia.labels import Facts
from berth_api.device import DeviceSpec
from berth_client.client import ApiClient
from berth_client.errors import ApiError
from tests.unit.agent.publishing.test_labels import AMPERE, gpu

CARD = gpu(0)
FACTS = Facts(cards={CARD.id: AMPERE})
READINGS = {"a": Reading(spec=DeviceSpec(driver_version="570", devices=[CARD]), findings=(), facts=FACTS)}


class Server:
    """One Node, if it exists, and what was applied to it; `error` is the answer to an apply, if there is one."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.applied: list[dict[str, Any]] = []
        self.error: ApiError | None = None
        self.theirs: set[str] = set()
        """Labels of another manager."""
        self.calls = 0

    async def list(self, _path: str, _params: object, *, accept: str) -> tuple[list[dict[str, Any]], str]:
        assert "PartialObjectMetadata" in accept
        return self.nodes, "1"

    async def apply(self, _path: str, body: dict[str, Any], _manager: str) -> dict[str, Any]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if fields := [f".metadata.labels.{key}" for key in body["metadata"]["labels"] if key in self.theirs]:
            raise ApiError(409, "Conflict", f"conflicts with gpu-feature-discovery: {fields}", fields=fields)
        self.applied.append(body["metadata"])
        return body


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def nodes(server: Server) -> NodeCache:
    return NodeCache(client=cast("ApiClient", server))


@pytest.fixture
def labeller(server: Server, nodes: NodeCache) -> Labeller:
    return Labeller(client=cast("ApiClient", server), nodes=nodes)


async def test_a_node_is_labelled_once_it_is_known_and_when_labels_differ(
    server: Server, nodes: NodeCache, labeller: Labeller
) -> None:
    await labeller.publish(READINGS, renamed=False)
    assert server.applied == []
    server.nodes = [{"metadata": {"name": "a", "uid": "1"}}]
    await nodes.refresh(["a"])
    for _ in range(2):
        await labeller.publish(READINGS, renamed=False)
    [written] = server.applied
    assert (written["uid"], written["labels"]["nvidia.com/gpu.count"]) == ("1", "1")
    await nodes.refresh(["a"])  # somebody removed the labels
    await labeller.publish(READINGS, renamed=False)
    assert len(server.applied) == 2


async def test_a_failure_is_logged_once_and_tried_again(server: Server, nodes: NodeCache, labeller: Labeller) -> None:
    server.nodes = [{"metadata": {"name": "a", "uid": "1"}}]
    await nodes.refresh(["a"])
    server.error = ApiError(409, "Conflict", "nvidia.com/gpu.count is owned by gpu-feature-discovery")
    with capture_logs() as logs:
        for _ in range(2):
            await labeller.publish(READINGS, renamed=False)
    assert [line["event"] for line in logs] == ["Node not labelled, will try again"]
    server.error = None
    await labeller.publish(READINGS, renamed=False)
    assert len(server.applied) == 1


async def test_labels_are_written_again_after_a_write_without_an_answer(
    server: Server, nodes: NodeCache, labeller: Labeller
) -> None:
    server.nodes = [{"metadata": {"name": "a", "uid": "1"}}]
    await nodes.refresh(["a"])
    await labeller.publish(READINGS, renamed=False)
    server.error = ApiError(504, "Timeout", "the request was cut")
    await labeller.publish({"a": replace(READINGS["a"], spec=DeviceSpec())}, renamed=False)
    server.error = None
    await labeller.publish(READINGS, renamed=False)
    assert len(server.applied) == 2


@pytest.mark.looptime
async def test_labels_that_are_refused_for_good_are_tried_once_a_minute(
    server: Server, nodes: NodeCache, labeller: Labeller
) -> None:
    server.nodes = [{"metadata": {"name": "a", "uid": "1"}}]
    await nodes.refresh(["a"])
    server.error = ApiError(403, "Forbidden", "denied by a policy")
    for _ in range(600):
        await labeller.publish(READINGS, renamed=False)
        await asyncio.sleep(1)
    assert server.calls < 18
    server.error = None
    await asyncio.sleep(60)
    await labeller.publish(READINGS, renamed=False)
    assert len(server.applied) == 1


@pytest.mark.looptime
async def test_labels_of_another_manager_are_left_out_and_tried_every_ten_minutes(
    server: Server, nodes: NodeCache, labeller: Labeller
) -> None:
    server.nodes = [{"metadata": {"name": "a", "uid": "1"}}]
    await nodes.refresh(["a"])
    server.theirs = {"nvidia.com/gpu.count", "nvidia.com/gpu.product"}

    async def live(seconds: float) -> list[str]:
        """Publish every five seconds, as an agent does; return what was logged."""
        with capture_logs() as logs:
            end = asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < end:
                await labeller.publish(READINGS, renamed=False)
                await asyncio.sleep(5)
        return [line["event"] for line in logs if line["log_level"] == "warning"]

    assert await live(TRY_AGAIN) == ["Node not labelled in full: another manager owns labels"]
    assert server.calls == 2
    [written] = server.applied
    assert server.theirs.isdisjoint(written["labels"])
    assert "nvidia.com/gpu.memory" in written["labels"]
    assert await live(TRY_AGAIN) == []
    assert server.calls == 4
    server.theirs = set()
    await live(2 * TRY_AGAIN)
    assert server.calls == 5
    assert server.applied[-1]["labels"]["nvidia.com/gpu.count"] == "1"
