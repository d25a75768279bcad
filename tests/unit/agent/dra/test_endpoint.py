"""The driver's end: whatever waits is refused in words that kubelet shows, and nothing of it is left."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from berth_agent.dra.endpoint import DriverEndpoint
from berth_agent.kubelet.channel import open_channel
from berth_agent.kubelet_api import dra_pb2 as messages
from tests.unit.agent.dra.test_preparation import Node


def service(kubelet: Path) -> Path | None:
    return next(kubelet.glob("plugins/gpu.berth.dev/dra-*.sock"), None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another task serves
            await asyncio.sleep(0.01)


async def served(kubelet: Path) -> Path:
    """Return the driver's socket when it is there."""
    for _ in range(1000):
        if path := service(kubelet):
            return path
        await asyncio.sleep(0.01)
    raise TimeoutError


@pytest.mark.parametrize("lost", ["plugins/gpu.berth.dev", "plugins_registry"])
async def test_sockets_that_another_program_removed_are_made_again(lost: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        kubelet = Path(name)
        serving = asyncio.create_task(DriverEndpoint(kubelet).run())
        async with asyncio.timeout(20):
            first = await served(kubelet)
            shutil.rmtree(kubelet / lost)
            # A name that comes back would be a socket that kubelet has given up.
            await until(lambda: service(kubelet) not in {None, first})
            await until(lambda: any(kubelet.glob("plugins_registry/gpu.berth.dev-*-reg.sock")))
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("waits_for", ["a card", "its turn"])
async def test_a_call_that_waits_when_the_agent_ends_is_refused_with_nothing_half_done(
    tmp_path: Path, waits_for: str
) -> None:
    node = Node(tmp_path)
    claims = node.restart()
    await claims.prepare(node.allocate("first", "gpu-0"))
    waiting, before = node.allocate("second", "gpu-0"), (node.files(), node.recorded())
    with tempfile.TemporaryDirectory() as kubelet:
        endpoint = DriverEndpoint(Path(kubelet))
        if waits_for == "a card":
            endpoint.begin(claims)
        serving = asyncio.create_task(endpoint.run())
        async with asyncio.timeout(10), open_channel(await served(Path(kubelet))) as channel:
            prepare = channel.unary_unary(
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
                request_serializer=messages.NodePrepareResourcesRequest.SerializeToString,
                response_deserializer=messages.NodePrepareResourcesResponse.FromString,
            )
            claim = messages.Claim(namespace=waiting.namespace, uid=waiting.uid, name=waiting.name)
            call = asyncio.ensure_future(prepare(messages.NodePrepareResourcesRequest(claims=[claim])))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await asyncio.shield(call)
            assert not call.done()
            serving.cancel()
            answer = await call
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await endpoint.close()
    message = (
        "gpu-0 is still prepared for ResourceClaim ns/first" if waits_for == "a card" else "the agent of this node"
    )
    assert message in answer.claims[waiting.uid].error
    assert (node.files(), node.recorded()) == before
