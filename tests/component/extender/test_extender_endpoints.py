"""The EndpointSlice that points the extender's Service at the leader, under virtual time."""

import asyncio
from typing import Any

import pytest

from berth_client.errors import Unreachable
from berth_operator.apis.extender import endpoints
from berth_operator.apis.extender.endpoints import PERIOD, RETRY

pytestmark = pytest.mark.looptime
PATH = "/apis/discovery.k8s.io/v1/namespaces/berth-system/endpointslices/berth-extender"


class Api:
    """Records what is applied; the first attempts fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.applied: list[tuple[float, str, dict[str, Any]]] = []

    async def apply(self, path: str, body: dict[str, Any], field_manager: str, *, force: bool = False) -> None:
        assert (field_manager, force) == ("berth-operator", True)
        if self.failures:
            self.failures -= 1
            raise Unreachable("no route")
        self.applied.append((asyncio.get_running_loop().time(), path, body))


async def written(api: Api, seconds: float, *, leads: bool = True, address: str = "10.0.0.7") -> list[float]:
    """Run for some seconds; return when the slice was written."""
    running = endpoints.run(api, service="berth-system/berth-extender", address=address, port=1, leads=lambda: leads)
    task = asyncio.create_task(running)
    await asyncio.sleep(seconds)
    task.cancel()
    return [at for at, _, _ in api.applied]


async def test_the_leader_writes_itself_as_the_only_endpoint() -> None:
    api = Api()
    await written(api, 1)
    [(_, path, body)] = api.applied
    assert path == PATH
    assert body["metadata"]["labels"]["kubernetes.io/service-name"] == "berth-extender"
    assert (body["addressType"], body["endpoints"]) == (
        "IPv4",
        [{"addresses": ["10.0.0.7"], "conditions": {"ready": True}}],
    )
    assert body["ports"] == [{"name": "https", "port": 1, "protocol": "TCP"}]


async def test_an_address_of_version_6_is_named_so() -> None:
    api = Api()
    await written(api, 1, address="fd00::7")
    assert api.applied[0][2]["addressType"] == "IPv6"


async def test_a_failed_write_is_retried_and_the_slice_is_repaired_now_and_then() -> None:
    assert await written(Api(failures=2), 2 * RETRY + PERIOD + 1) == [2 * RETRY, 2 * RETRY + PERIOD]


async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    assert await written(Api(), 3 * PERIOD, leads=False) == []
