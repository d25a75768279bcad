"""A Device is written again after a write without an answer: the API server may have what was sent."""

import asyncio
import copy
from typing import Any, cast

import pytest

from berth_agent.publishing.node_cache import NodeCache
from berth_agent.publishing.publish import Publisher
from berth_agent.readings import NodeUse, Reading
from berth_api.device import DeviceSpec
from berth_client.client import ApiClient
from berth_client.errors import Unreachable
from tests.unit.agent.publishing.device_server import PATH, DeviceServer


def readings(driver: str, *withheld: int) -> dict[str, Reading]:
    return {
        "a": Reading(spec=DeviceSpec(driver_version=driver), findings=(), use=NodeUse(boot_id="b", withheld=withheld))
    }


class Server(DeviceServer):
    """A write to `cut` is done, and has no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = ""
        self.is_silent = False
        """Whether there is no error either."""
        self.done = asyncio.Event()

    async def apply(self, path: str, body: Any, manager: str, *, force: bool) -> Any:
        answer = await super().apply(path, body, manager, force=force)
        if path == self.cut:
            self.done.set()
            if self.is_silent:
                await asyncio.Event().wait()
            raise Unreachable("no answer")
        return answer

    @property
    def shown(self) -> Any:
        assert self.device is not None
        return self.device["spec"], self.device["status"]


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("cut", [PATH, f"{PATH}/status"])
async def test_an_earlier_reading_is_written_again(cut: str, *, is_silent: bool) -> None:
    """An agent that leaves publishes that nothing is offered, as at its start, while a round says the opposite."""
    server = Server()
    client = cast("ApiClient", server)
    nodes = NodeCache(client=client)
    publisher = Publisher(client=client, client_of=lambda _: client, nodes=nodes, concurrency=1)
    await nodes.refresh(["a"])
    await publisher.publish(readings("570", 0, 1))
    first = copy.deepcopy(server.shown)
    server.cut, server.is_silent = cut, is_silent
    writing = asyncio.create_task(publisher.publish(readings("580")))
    await server.done.wait()
    assert server.shown != first
    writing.cancel() if is_silent else await writing
    server.cut = ""
    await asyncio.gather(writing, return_exceptions=True)
    await publisher.publish(readings("570", 0, 1))
    assert server.shown == first
