"""The agent's Events: once an hour for each reason, within bounds, and lost if the API server refuses them."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from berth_agent.event_writer import (
    LIFETIME,
    MAX_OBJECTS,
    MAX_OF_ONE,
    MAX_WAITING,
    EventWriter,
    InvolvedObject,
    lasting,
)
from berth_client.client import ApiClient
from berth_client.errors import ApiError, CallError, Unreachable
from berth_client.refusals import RefusalGroup, Write
from tests.component.world import now

pytestmark = pytest.mark.looptime

NODE = InvolvedObject.node("n")


def pod(name: str) -> InvolvedObject:
    return InvolvedObject("Pod", "ns", name, f"uid-{name}")


class Client:
    """An API server that takes Events."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.error: CallError | None = None

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        self.sent.append((path, body))
        if self.error:
            raise self.error

    @property
    def messages(self) -> list[str]:
        return [body["message"] for _, body in self.sent]


class Agent:
    """The Events of an agent, and its API server."""

    def __init__(self) -> None:
        self.client = Client()
        self.events = EventWriter(client=cast("ApiClient", self.client), node="n", clock=now)

    async def write(self) -> None:
        """Write what waits."""
        writing = asyncio.create_task(self.events.run())
        await asyncio.sleep(1)
        writing.cancel()


async def test_an_event_on_the_node_is_as_kubelets() -> None:
    """`kubectl describe node` selects by kind, name, no namespace, and the Node's UID or name as UID."""
    agent = Agent()
    agent.events.warn(NODE, "WritesRefused", "no")
    agent.events.warn(pod("a"), "DevicesRefused", "no")
    await agent.write()
    (of_node, on_node), (of_pod, on_pod) = agent.client.sent
    assert (of_node, of_pod) == ("/api/v1/namespaces/default/events", "/api/v1/namespaces/ns/events")
    assert on_node["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}
    assert on_node["metadata"]["namespace"] == "default"
    assert on_pod["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "a",
        "uid": "uid-a",
    }
    for body in (on_node, on_pod):
        assert body["source"] == {"component": "berth-agent", "host": "n"}


async def test_what_lasts_is_reported_once_an_hour() -> None:
    agent = Agent()
    for minute in range(121):
        agent.events.warn(NODE, "WritesRefused", f"no {minute}", key="spec")
        await agent.write()
        await asyncio.sleep(59)
    assert agent.client.messages == ["no 0", "no 60", "no 120"]


async def test_each_reason_and_each_object_has_its_own() -> None:
    agent = Agent()
    for key in ("spec", "status"):
        agent.events.warn(NODE, "WritesRefused", key, key=key)
    agent.events.warn(NODE, "DevicesRefused", "spec")
    for name in ("a", "b", "a"):
        agent.events.warn(pod(name), "DevicesRefused", name)
    await agent.write()
    assert agent.client.messages == ["spec", "status", "spec", "a", "b"]


async def test_the_events_about_one_object_have_a_bound_within_the_hour() -> None:
    agent = Agent()
    for number in range(10 * MAX_OF_ONE):
        agent.events.warn(NODE, "DevicesRefused", str(number))
        await agent.write()
    assert len(agent.client.sent) == MAX_OF_ONE
    await asyncio.sleep(LIFETIME)
    agent.events.warn(NODE, "DevicesRefused", "later")
    await agent.write()
    assert agent.client.messages[MAX_OF_ONE:] == ["later"]


async def test_events_that_wait_have_a_bound_and_what_goes_on_is_reported_later() -> None:
    agent = Agent()
    pods = [pod(str(number)) for number in range(MAX_WAITING + 1)]
    for _ in range(2):
        for one in pods:
            agent.events.warn(one, "DevicesRefused", "no")
        await agent.write()
    assert [body["involvedObject"]["name"] for _, body in agent.client.sent] == [one.name for one in pods]


async def test_the_objects_that_are_remembered_have_a_bound() -> None:
    agent = Agent()
    for number in range(MAX_OBJECTS + 1):
        agent.events.warn(pod(str(number)), "DevicesRefused", "no")
        if number % MAX_WAITING == 0:
            await agent.write()
    await agent.write()
    for number in (1, 0):
        agent.events.warn(pod(str(number)), "DevicesRefused", "no")
    await agent.write()
    assert [body["involvedObject"]["name"] for _, body in agent.client.sent[MAX_OBJECTS + 1 :]] == ["0"]


async def test_an_event_that_is_refused_is_logged_and_lost() -> None:
    agent = Agent()
    agent.client.error = ApiError(403, "Forbidden", "may create Events about pods alone")
    with capture_logs() as logs:
        for _ in range(30):
            agent.events.warn(NODE, "WritesRefused", "no", key="spec")
            await agent.write()
    assert len(agent.client.sent) == 1
    assert [(line["event"], line["name"]) for line in logs] == [("Event not written", "n")]


@pytest.mark.parametrize(
    "error", [ApiError(429, "TooManyRequests", "busy"), ApiError(500, "", "no"), Unreachable("no")]
)
async def test_an_event_waits_for_an_api_server_that_is_away(error: CallError) -> None:
    """kubelet does not ask again for a static pod that was refused meanwhile."""
    agent = Agent()
    agent.client.error = error
    agent.events.warn(NODE, "DevicesRefused", "no")
    agent.events.warn(NODE, "WritesRefused", "no")
    writing = asyncio.create_task(agent.events.run())
    await asyncio.sleep(90)
    assert len(agent.client.sent) <= 8
    agent.client.error, agent.client.sent = None, []
    await asyncio.sleep(60)
    writing.cancel()
    assert {body["reason"] for _, body in agent.client.sent} == {"DevicesRefused", "WritesRefused"}
    assert len(agent.client.sent) == 2


async def test_refusals_of_one_kind_hide_no_others() -> None:
    agent = Agent()
    for number in range(10 * MAX_OF_ONE):
        agent.events.warn(NODE, "DevicesRefused", str(number))
    agent.events.warn(NODE, "WritesRefused", "no")
    await agent.write()
    assert agent.client.messages[MAX_OF_ONE:] == ["no"]


async def test_refusals_that_last_are_reported_except_of_events() -> None:
    def refusal(resource: str, seconds: float) -> RefusalGroup:
        write = Write("patch", resource, 403, "")
        return RefusalGroup(write=write, namespaces=(), object="n", message="no", since=100.0, last=100.0 + seconds)

    groups = [refusal("devices.berth.dev", 29), refusal("nodes", 31), refusal("events", 31)]
    assert [group.write.resource for group in lasting(groups, 30.0)] == ["nodes"]
