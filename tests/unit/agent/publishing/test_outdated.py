"""A Device that lacks fields, because its definition lacked them, is applied again until it has them."""

from typing import cast

import pytest

from berth_agent.publishing.node_cache import NodeCache
from berth_agent.publishing.publish import Publisher
from berth_agent.readings import Reading
from berth_api.device import DeviceSpec
from berth_client.client import ApiClient
from tests.unit.agent.publishing.device_server import PATH, DeviceServer

READINGS = {"a": Reading(spec=DeviceSpec(driver_version="570"), findings=())}


@pytest.mark.parametrize(("outdated", "applied"), [(False, [1, 1, 1]), (True, [1, 2, 3])])
async def test_an_incomplete_device_is_applied_again_at_each_resync(*, outdated: bool, applied: list[int]) -> None:
    server = DeviceServer()
    client = cast("ApiClient", server)
    nodes = NodeCache(client=client)
    publisher = Publisher(client=client, client_of=lambda _: client, nodes=nodes, concurrency=1)
    await nodes.refresh(READINGS)
    counts = []
    for _ in range(3):
        await publisher.resync(READINGS)
        await publisher.publish(READINGS)
        await publisher.publish(READINGS)
        server.is_old = outdated
        counts.append(server.writes.count(PATH))
    assert counts == applied
