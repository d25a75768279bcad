"""A Device that lacks fields, because its definition lacked them, is applied again until it has them."""

from typing import Any, cast

import pytest

from berth_agent.publishing.node_cache import NodeCache
from berth_agent.publishing.publish import Publisher
from berth_agent.readings import Reading
from berth_api.device import DeviceSpec
from berth_client.client import ApiClient

READINGS = {"a": Reading(spec=DeviceSpec(driver_version="570"), findings=())}


class Server:
    """One Node and one Device, and whether the definition is older than the agent."""

    def __init__(self) -> None:
        self.schemas, self.outdated, self.applied = self, False, 0
        self.device = {"metadata": {"name": "a", "uid": "1", "generation": 1}}

    def is_outdated(self, kind: str) -> bool:
        assert kind == "Device"
        return self.outdated

    async def list(self, path: str, _params: object, *, accept: str) -> tuple[list[Any], str]:
        assert "PartialObjectMetadata" in accept
        return [] if path.endswith("devices") and not self.applied else [self.device], "1"

    async def get(self, _path: str) -> Any:
        return self.device

    async def apply(self, path: str, body: Any, _manager: str) -> Any:
        self.applied += not path.endswith("/status")
        metadata = {**self.device["metadata"], **body["metadata"]}
        self.device = {**self.device, **body, "metadata": metadata}
        return self.device


@pytest.mark.parametrize(("outdated", "applied"), [(False, [1, 1, 1]), (True, [1, 2, 3])])
async def test_an_incomplete_device_is_applied_again_at_each_resync(*, outdated: bool, applied: list[int]) -> None:
    server = Server()
    client = cast("ApiClient", server)
    nodes = NodeCache(client=client)
    publisher = Publisher(client=client, nodes=nodes, concurrency=1)
    await nodes.refresh(READINGS)
    counts = []
    for _ in range(3):
        await publisher.resync(READINGS)
        await publisher.publish(READINGS)
        await publisher.publish(READINGS)
        server.outdated = outdated
        counts.append(server.applied)
    assert counts == applied
