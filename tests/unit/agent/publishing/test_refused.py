"""A part of a Device that the API server refuses: the other part is written, and the node does not pass for well."""

import asyncio
from dataclasses import fields
from itertools import chain
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from berth_agent.conditions import Finding
from berth_agent.dra import devices, slices
from berth_agent.publishing import gpupods
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.publishing.publish import FROZEN_SECONDS, Publisher, device_body, status_body
from berth_agent.readings import NodeUse, Reading
from berth_api.device import DeviceInfo, DeviceSpec
from berth_client.client import ApiClient
from berth_client.errors import ApiError, Unreachable
from berth_client.refusals import BACKOFF
from tests.component.world import now
from tests.objects.optional_fields import CONDITION, GPU_POD, SPEC, USE, nulls, without_each
from tests.unit.agent.publishing.device_server import PATH, STATUS, DeviceServer

pytestmark = pytest.mark.looptime

INVALID = ApiError(422, "Invalid", 'spec.devices[0].mig: Invalid value: "null"')
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1"}


def reading(*, health: bool, reason: str = "Registered", **use: Any) -> dict[str, Reading]:
    card = DeviceInfo(type="gpu", minor=0, id="GPU-0", health=health)
    finding = Finding(type="DevicesOffered", ok=reason == "Registered", reason=reason)
    return {"a": Reading(spec=DeviceSpec(devices=[card]), findings=(finding,), use=NodeUse(boot_id="b", **use))}


class Node:
    """An agent's publisher, and its API server."""

    def __init__(self, server: DeviceServer | None = None) -> None:
        self.server = server or DeviceServer()
        client = cast("ApiClient", self.server)
        self.nodes = NodeCache(client=client)
        self.publisher = Publisher(client=client, client_of=lambda _: client, nodes=self.nodes, concurrency=1)

    async def publish(self, readings: dict[str, Reading], *, seconds: float = 0) -> None:
        """Publish once a second, for so long."""
        await self.nodes.refresh(["a"])
        end = now() + seconds
        await self.publisher.publish(readings)
        while now() < end:
            await asyncio.sleep(1)
            await self.publisher.publish(readings)

    def shown(self) -> tuple[bool, str, list[int]]:
        """Return the health of the card, the reason of the condition and the withheld cards, as published."""
        assert self.server.device is not None
        spec, status = self.server.device["spec"], self.server.device["status"]
        return spec["devices"][0]["health"], status["conditions"][0]["reason"], status["withheld"]


async def test_the_status_does_not_wait_for_a_spec_that_is_refused() -> None:
    node = Node()
    await node.publish(reading(health=True))
    node.server.errors[PATH] = INVALID
    await node.publish(reading(health=False, reason="Misconfigured", withheld=(0,)))
    assert node.shown() == (True, "Misconfigured", [0])
    node.server.writes.clear()
    await node.publish(reading(health=False, reason="Misconfigured", withheld=(0,)), seconds=600)
    assert 9 <= node.server.writes.count(PATH) < 18
    assert STATUS not in node.server.writes, "it is written when it changes"
    node.server.errors.clear()
    await node.publish(reading(health=False), seconds=BACKOFF.longest)
    assert node.shown() == (False, "Registered", [])


async def test_the_spec_does_not_wait_for_a_status_that_is_refused() -> None:
    node = Node()
    await node.publish(reading(health=True))
    node.server.errors[STATUS] = INVALID
    await node.publish(reading(health=False, reason="Misconfigured"), seconds=60)
    assert node.shown() == (False, "Registered", [])


async def test_a_refused_spec_without_a_device_is_no_request_for_a_status_and_logged_once() -> None:
    node = Node()
    node.server.errors[PATH] = INVALID
    with capture_logs() as logs:
        await node.publish(reading(health=True), seconds=300)
    assert STATUS not in node.server.writes
    assert [(line["part"], line["error"]) for line in logs] == [("spec", str(INVALID))]


@pytest.mark.parametrize("path", [PATH, STATUS])
async def test_a_device_that_is_refused_is_frozen_until_it_is_written(path: str) -> None:
    node = Node()
    await node.publish(reading(health=True))
    node.server.errors[path] = INVALID
    await node.publish(reading(health=False, reason="Misconfigured"), seconds=FROZEN_SECONDS - 1)
    assert not node.publisher.is_frozen("a"), "the policies of an upgrade may come late"
    await node.publish(reading(health=False, reason="Misconfigured"), seconds=2)
    assert node.publisher.is_frozen("a")
    node.server.errors.clear()
    await node.publish(reading(health=False, reason="Misconfigured"), seconds=BACKOFF.longest)
    assert not node.publisher.is_frozen("a")
    assert node.shown()[:2] == (False, "Misconfigured")


@pytest.mark.parametrize("path", [PATH, STATUS])
@pytest.mark.parametrize("status", [0, 404, 429, 500])
async def test_a_device_that_is_deleted_after_a_write_without_an_answer_is_created_again(
    path: str, status: int
) -> None:
    node = Node()
    await node.publish(reading(health=True))
    node.server.errors[path] = ApiError(status, "Failed", "no") if status else Unreachable("no answer")
    await node.publish(reading(health=False, reason="Misconfigured"))
    node.server.delete()
    node.publisher.see("a", None)
    await node.publish(reading(health=False, reason="Misconfigured"))
    node.server.errors.clear()
    await node.publish(reading(health=False, reason="Misconfigured"), seconds=BACKOFF.longest)
    assert node.shown()[:2] == (False, "Misconfigured")


@pytest.mark.parametrize("refused", [PATH, STATUS])
async def test_after_a_restart_the_part_that_is_accepted_is_written_at_once(refused: str) -> None:
    """What the agent before applied is not the change of another client."""
    before = Node()
    await before.publish(reading(health=True))
    node = Node(before.server)
    await node.publisher.resync(reading(health=True))
    node.server.errors[refused] = INVALID
    await node.publish(reading(health=True, reason="Misconfigured"), seconds=20)
    await node.publish(reading(health=False, reason="Other"), seconds=2)
    assert (False in node.shown()) if refused == STATUS else ("Other" in node.shown())
    await node.publish(reading(health=False, reason="Other"), seconds=600)
    node.server.errors.clear()
    await node.publish(reading(health=False, reason="Other"), seconds=BACKOFF.longest + 1)
    assert not node.publisher.is_frozen("a")


async def test_an_api_server_that_does_not_answer_freezes_nothing() -> None:
    """Then the Lease is not renewed either. Its absence says how long."""
    node = Node()
    await node.publish(reading(health=True))
    node.server.errors[PATH] = Unreachable("no answer")
    await node.publish(reading(health=False), seconds=300)
    assert not node.publisher.is_frozen("a")


@pytest.mark.parametrize(("path", "spec"), [("nothing", SPEC), *without_each(SPEC)])
def test_a_published_spec_has_no_null(path: str, spec: DeviceSpec) -> None:
    body = device_body("a", reading=Reading(spec=spec, findings=()), cards=spec.devices, owners=[OWNER])
    listed = slices.by_card(devices.listed(spec, None, roots={}), with_taints=True)
    found = [*nulls(body), *nulls(listed)]
    assert found == [], path


def test_a_published_status_and_a_gpu_pod_have_no_null() -> None:
    conditions = [condition for _, condition in chain([("", CONDITION)], without_each(CONDITION))]
    assert len(conditions) > 1
    for condition in conditions:
        assert list(nulls(status_body("a", conditions=[condition], use=USE))) == []
    specs = [GPU_POD, *(spec for _, spec in without_each(GPU_POD))]
    assert len(specs) > 1
    for spec in specs:
        assert list(nulls(gpupods.body(("default", "p.a"), spec))) == []
    for name in (field.name for field in fields(USE)):
        assert getattr(USE, name), f"the example has no {name}"
