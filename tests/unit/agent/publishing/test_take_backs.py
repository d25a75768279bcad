"""What the agent does when other clients change its Device, in virtual time."""

import asyncio
import copy
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from berth_agent.publishing.node_cache import NodeCache
from berth_agent.publishing.publish import TAKE_BACKS, Publisher
from berth_agent.publishing.take_backs import AT_ONCE, MAX_MANAGERS, OTHERS, WINDOW, TakeBacks
from berth_agent.readings import NodeUse, Reading
from berth_api import names
from berth_api.device import DESCRIBED, REPORTED, DeviceInfo, DeviceSpec, ForeignUse
from berth_api.objects import ownership
from berth_client.client import ApiClient
from berth_client.errors import ApiError
from tests.unit.agent.publishing.device_server import PATH, DeviceServer, foreign

pytestmark = pytest.mark.looptime

ROUND = 5.0
"""Seconds between two readings."""


def card(minor: int, *, health: bool = True) -> DeviceInfo:
    return DeviceInfo(type="gpu", minor=minor, id=f"GPU-{minor}", health=health)


def reading(*, broken: int = -1) -> Mapping[str, Reading]:
    cards = [card(minor, health=minor != broken) for minor in range(3)]
    use = NodeUse(boot_id="b", foreign=(ForeignUse(type="gpu", minor=1, processes=1, memory=0),))
    return {"a": Reading(spec=DeviceSpec(devices=cards), findings=(), use=use)}


class Node:
    """An agent's publisher, and an API server whose changes it sees at once."""

    def __init__(self) -> None:
        self.server = DeviceServer()
        client = cast("ApiClient", self.server)
        self.nodes = NodeCache(client=client)
        self.publisher = Publisher(client=client, client_of=lambda _: client, nodes=self.nodes, concurrency=1)
        self.readings = reading()

    async def start(self) -> None:
        await self.nodes.refresh(["a"])
        await self.publisher.publish(self.readings)

    async def write(self, manager: str, part: str, **fields: Any) -> None:
        """Write as another manager, and let the agent see it."""
        self.server.write(manager, part, foreign(part, **fields))
        await self.changed()

    async def changed(self) -> None:
        if self.publisher.see("a", copy.deepcopy(self.server.device)):
            await self.publisher.publish(self.readings)

    async def live(self, seconds: float) -> None:
        """Publish in rounds."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(ROUND)
            await self.publisher.publish(self.readings)

    @property
    def shown(self) -> Any:
        assert self.server.device is not None
        return self.server.device

    def health(self) -> list[bool]:
        return [device["health"] for device in self.shown["spec"]["devices"]]

    def is_trusted(self) -> bool:
        """Return whether an operator would trust the Device."""
        main, status = ownership.applied(self.shown, names.AGENT)
        in_spec = ownership.unowned(self.shown, "spec", main, only=DESCRIBED)
        return in_spec is None and ownership.unowned(self.shown, "status", status, only=REPORTED) is None


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    TAKE_BACKS.clear()
    yield
    TAKE_BACKS.clear()


def taken(manager: str) -> float:
    return float(TAKE_BACKS.labels(manager)._value.get())


async def test_a_value_of_another_manager_is_replaced_at_once_and_other_fields_stay() -> None:
    node = Node()
    await node.start()
    node.shown["metadata"]["labels"] = {"team": "ml"}
    await node.write("kubectl-patch", "spec", devices=[{"type": "gpu", "minor": 2, "health": False}])
    assert (node.health(), node.is_trusted(), taken("kubectl-patch")) == ([True] * 3, True, 1)
    assert node.shown["metadata"]["labels"] == {"team": "ml"}


async def test_a_device_that_is_refused_for_good_is_tried_once_a_minute() -> None:
    node = Node()
    node.server.errors[PATH] = ApiError(403, "Forbidden", "denied by a policy")
    await node.start()
    await node.live(600)
    assert 10 <= len(node.server.writes) < 18
    node.server.errors.clear()
    await node.live(60)
    assert node.health() == [True] * 3


async def test_a_value_of_another_manager_is_found_by_the_metadata_of_a_list() -> None:
    """For a simulated fleet, the agent lists Devices and follows none."""
    node = Node()
    await node.start()
    node.server.write("velero", "status", foreign("status", unheld=[]))
    node.server.write("velero", "spec", foreign("spec", driverVersion="1"))
    assert not node.is_trusted()
    await node.publisher.resync(node.readings)
    await node.publisher.publish(node.readings)
    assert (node.is_trusted(), taken("velero")) == (True, 1)


async def test_a_manager_that_applied_the_same_values_freezes_nothing() -> None:
    node = Node()
    await node.start()
    await node.write("argocd", "spec", **node.shown["spec"])
    assert taken("argocd") == 0
    node.readings = reading(broken=1)
    await node.publisher.publish(node.readings)
    assert (node.health(), node.is_trusted()) == ([True, False, True], True)


async def test_a_card_and_a_field_that_another_manager_added_go() -> None:
    node = Node()
    await node.start()
    await node.write(
        "velero", "spec", migStrategy="single", devices=[{"type": "gpu", "minor": 9, "id": "GPU-9", "health": True}]
    )
    assert node.health() == [True] * 3
    assert "migStrategy" not in node.shown["spec"]


async def test_a_restored_status_is_replaced() -> None:
    node = Node()
    await node.start()
    claimed = {"namespace": "ns", "claim": "c", "driver": "d", "pool": "a", "device": "gpu-0"}
    await node.write("velero", "status", foreign=[], withheld=[2], claimed=[claimed])
    status = node.shown["status"]
    assert [use["minor"] for use in status["foreign"]] == [1]
    assert (status["withheld"], status["claimed"], node.is_trusted()) == ([], [], True)


async def test_a_writer_that_writes_each_second_is_answered_less_and_less_often() -> None:
    node = Node()
    await node.start()
    node.readings = reading(broken=2)
    await node.publisher.publish(node.readings)
    before = len(node.server.writes)
    rounds = asyncio.create_task(node.live(WINDOW + ROUND))
    for second in range(int(WINDOW)):
        await node.write("writer", "spec", devices=[{"type": "gpu", "minor": 2, "health": True}])
        # The wrong value is never one that an operator trusts.
        assert node.health()[2] is False or not node.is_trusted()
        if second >= AT_ONCE:
            assert node.publisher.see("a", node.shown) is False
        await asyncio.sleep(1)
    await rounds
    assert AT_ONCE < taken("writer") <= 8
    assert len(node.server.writes) - before <= 20
    # Its last value is replaced after the last wait.
    await node.live(WINDOW)
    assert (node.health(), node.is_trusted()) == ([True, True, False], True)


async def test_a_dispute_that_the_other_client_ends_leaves_no_wait() -> None:
    node = Node()
    await node.start()
    for _ in range(AT_ONCE + 1):
        await node.write("writer", "spec", devices=[{"type": "gpu", "minor": 2, "health": False}])
    assert (node.health()[2], taken("writer")) == (False, AT_ONCE)
    node.server.write(
        names.AGENT, "spec", foreign("spec", devices=[card(minor).model_dump(exclude_unset=True) for minor in range(3)])
    )
    await node.changed()
    await node.write("kubectl", "spec", devices=[{"type": "gpu", "minor": 1, "health": False}])
    assert (node.health(), taken("kubectl")) == ([True] * 3, 1)


async def test_a_deleted_device_is_created_again() -> None:
    node = Node()
    await node.start()
    spec = copy.deepcopy(node.shown["spec"])
    node.server.delete()
    await node.changed()
    assert (node.shown["spec"], taken("unknown")) == (spec, 1)


def test_waits_grow_end_after_a_quiet_window_and_are_of_one_manager() -> None:
    take_backs, now, waits = TakeBacks(), 0.0, []
    for _ in range(14):
        waits.append(take_backs.wait("argocd", now))
        now += waits[-1]
        take_backs.record("argocd", now)
        now += 1
    assert waits == [0] * 3 + [60 * step for step in range(1, 11)] + [600]
    assert take_backs.wait("kubectl", now) == 0
    assert take_backs.wait("argocd", now + WINDOW) == 0


def test_slow_changes_are_always_taken_back_at_once() -> None:
    take_backs = TakeBacks()
    for number in range(10):
        assert take_backs.wait("argocd", number * WINDOW / 2) == 0
        take_backs.record("argocd", number * WINDOW / 2)


def test_only_some_managers_have_a_name_of_their_own() -> None:
    take_backs = TakeBacks()
    for number in range(2 * MAX_MANAGERS):
        take_backs.record(f"m{number}", 0.0)
    assert take_backs.counted_as("m1") == "m1"
    assert take_backs.counted_as(f"m{2 * MAX_MANAGERS - 1}") == OTHERS
