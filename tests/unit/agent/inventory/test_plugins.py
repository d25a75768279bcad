"""Devices of plug-ins are added to the agent's devices. A failure in one plug-in affects no other device."""

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from berth_agent.health.faults import FaultEvent
from berth_agent.inventory import plugins
from berth_agent.inventory.interface import NothingMeasured
from berth_agent.inventory.plugins import DeviceAgent, InventoryWithPlugins
from berth_agent.readings import Process, Reading
from berth_agent.vendor import FaultListener
from berth_agent.vendors.simulated.inventory import FINDINGS
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec, DeviceStatus
from berth_api.plugins import PluginError


def device(kind: str = "npu", minor: int = 0, **fields: object) -> DeviceInfo:
    return DeviceInfo.model_validate({"type": kind, "minor": minor, "id": f"{kind}-{minor}", "health": True, **fields})


class Own(NothingMeasured):
    """An inventory of one GPU on each node, always the same."""

    def __init__(self, *nodes: str) -> None:
        spec = DeviceSpec(devices=[device("gpu")])
        self.readings = {node: Reading(spec=spec, findings=FINDINGS) for node in nodes}
        self.closed = False

    async def read(self) -> Mapping[str, Reading]:
        return self.readings

    def listen(self, listener: FaultListener) -> None:
        self.listener = listener

    def close(self) -> None:
        self.closed = True


class Npus:
    """A plug-in that returns what the test gives it."""

    def __init__(self, list_devices: Callable[[str], Sequence[DeviceInfo]], name: str = "npu") -> None:
        self.name, self.list_devices, self.starts = name, list_devices, 0
        self.stopped = threading.Event()

    def start(self) -> None:
        self.starts += 1

    def read(self, node: str) -> Sequence[DeviceInfo]:
        return self.list_devices(node)

    def stop(self) -> None:
        self.stopped.set()


def plugged(*agents: DeviceAgent, timeout: float = 20.0, nodes: Sequence[str] = ("n",)) -> InventoryWithPlugins:
    return InventoryWithPlugins(Own(*nodes), {agent.name: agent for agent in agents}, timeout=timeout)


def shown(reading: Reading) -> list[tuple[str, int, bool]]:
    return [(device.type, device.minor, device.health) for device in reading.spec.devices]


def finding_of(reading: Reading, name: str = "npu") -> tuple[bool, str, str]:
    (finding,) = (finding for finding in reading.findings if finding.type == f"InventoryRead.{name}")
    return finding.ok, finding.reason, finding.message


async def test_devices_are_added_with_a_finding_of_their_own() -> None:
    reading = (await plugged(Npus(lambda _node: [device(), device(minor=1)])).read())["n"]
    assert shown(reading) == [("gpu", 0, True), ("npu", 0, True), ("npu", 1, True)]
    assert finding_of(reading) == (True, "Read", "")
    assert reading.findings[:2] == FINDINGS


async def test_only_types_without_minors_of_their_own_are_numbered_by_the_agent() -> None:
    nics = Npus(lambda _node: [device("rdma")], name="rdma")
    inventory = InventoryWithPlugins(Own("n"), {"rdma": nics}, timeout=20.0, unnumbered=frozenset({"rdma"}))
    assert (await inventory.read())["n"].unnumbered == {"rdma"}
    assert (await plugged(nics).read())["n"].unnumbered == frozenset()


async def test_the_same_devices_are_the_very_same_reading() -> None:
    devices = [device()]
    inventory = plugged(Npus(lambda _node: devices))
    first, second = await inventory.read(), await inventory.read()
    assert first["n"] is second["n"]
    devices.append(device(minor=1))
    assert len((await inventory.read())["n"].spec.devices) == 3


async def test_processes_that_start_and_end_are_in_the_next_reading() -> None:
    """They are no part of the comparison of readings; a real card once kept those of the start."""
    own = Own("n")
    inventory = InventoryWithPlugins(own, {}, timeout=20.0)
    for processes in ({}, {0: (Process(pid=7, memory=1),)}, {0: (Process(pid=7, memory=1),)}, {}):
        own.readings = {"n": replace(own.readings["n"], processes=processes)}
        assert (await inventory.read())["n"].processes is processes


async def test_a_failed_plug_in_keeps_its_last_devices_as_unhealthy_and_starts_again() -> None:
    readings: list[list[DeviceInfo]] = [[device()]]
    agent = Npus(lambda _node: readings.pop())
    inventory = plugged(agent)
    await inventory.read()
    reading = (await inventory.read())["n"]
    assert shown(reading) == [("gpu", 0, True), ("npu", 0, False)]
    ok, reason, message = finding_of(reading)
    assert (ok, reason) == (False, "ReadFailed")
    assert "IndexError: pop from empty list" in message
    assert reading.spec.devices[1].conditions[0].reason == "ReadFailed"
    readings.append([device()])
    assert shown((await inventory.read())["n"]) == [("gpu", 0, True), ("npu", 0, True)]
    assert agent.starts == 2


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise KeyError("text")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(StopIteration(7), "StopIteration: 7", id="an iterator at its end"),
        pytest.param(SystemExit(3), "SystemExit: 3", id="the end of the process"),
        pytest.param(ValueError("two\nlines"), "ValueError: two lines", id="lines"),
        pytest.param(OSError("no \udcff"), "OSError: no ?", id="no text"),
        pytest.param(UnreadableError(), "UnreadableError: its text cannot be read: KeyError", id="unreadable"),
    ],
)
async def test_an_exception_becomes_a_condition_and_the_others_are_published(
    error: BaseException, message: str
) -> None:
    def fail(_node: str) -> Sequence[DeviceInfo]:
        raise error

    inventory = plugged(Npus(fail), Npus(lambda _node: [device("tpu")], name="tpu"))
    reading = (await inventory.read())["n"]
    assert shown(reading) == [("gpu", 0, True), ("tpu", 0, True)]
    assert finding_of(reading)[:2] == (False, "ReadFailed")
    assert finding_of(reading)[2].startswith(message)
    assert finding_of(reading, "tpu") == (True, "Read", "")


def futures() -> int:
    gc.collect()
    return sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects())


async def test_one_that_hangs_is_waited_for_once_and_not_called_again() -> None:
    hanging, calls = threading.Event(), []

    def hang(_node: str) -> Sequence[DeviceInfo]:
        calls.append(_node)
        hanging.wait(20)
        return [device()]

    inventory = plugged(Npus(hang), Npus(lambda _node: [device("tpu")], name="tpu"), timeout=0.05)
    for _ in range(3):
        reading = (await inventory.read())["n"]
        assert shown(reading)[0] == ("gpu", 0, True)
        assert finding_of(reading)[:2] == (False, "ReadTimedOut")
    assert calls == ["n"]
    before = futures()
    for _ in range(20):
        await inventory.read()
    # What a reading leaves would grow for as long as the driver hangs.
    assert futures() < before + 10
    hanging.set()
    while not finding_of(reading := (await inventory.read())["n"])[0]:
        pass  # the pytest timeout is the deadline
    assert ("npu", 0, True) in shown(reading)


@pytest.mark.parametrize(
    ("devices", "reason", "message"),
    [
        pytest.param([device("gpu", 5)], "ReadFailed", "minor 5 is of type gpu; allowed is npu", id="another type"),
        pytest.param([device(), device()], "ReadFailed", "minor 0 stands 2 times", id="a minor twice"),
        pytest.param([device(resources={"npu": "much"})], "ReadFailed", '"much"', id="quantity"),
        pytest.param([device(resources={"npu": -1})], "ReadFailed", "npu -1 is negative", id="negative"),
        pytest.param(
            [device().model_copy(update={"minor": -1})],
            "ReadFailed",
            "greater than or equal to 0",
            id="copied",
        ),
        pytest.param([device(minor=n) for n in range(256)], "Misfit", "257 devices in all; allowed are 256", id="many"),
    ],
)
async def test_what_the_api_server_would_refuse_is_left_out(
    devices: list[DeviceInfo], reason: str, message: str
) -> None:
    reading = (await plugged(Npus(lambda _node: devices)).read())["n"]
    assert shown(reading) == [("gpu", 0, True)]
    assert finding_of(reading)[:2] == (False, reason)
    assert message in finding_of(reading)[2]


async def test_a_type_that_the_agent_finds_itself_is_left_to_it() -> None:
    reading = (await plugged(Npus(lambda _node: [device("rdma")], name="rdma")).read())["n"]
    assert shown(reading) == [("gpu", 0, True), ("rdma", 0, True)]
    own = Own("n")
    own.readings = {"n": reading}
    again = await InventoryWithPlugins(
        own, {"rdma": Npus(lambda _node: [device("rdma", 7)], name="rdma")}, timeout=20.0
    ).read()
    assert shown(again["n"]) == shown(reading)
    assert any("already; left out" in finding.message for finding in again["n"].findings)


async def test_the_end_is_sent_to_all() -> None:
    agent, own = Npus(lambda _node: []), Own("n")
    InventoryWithPlugins(own, {"npu": agent}, timeout=20.0).close()
    assert own.closed
    assert agent.stopped.wait(20)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param("no_such_module_at_all:x", "cannot be loaded: ModuleNotFoundError", id="import"),
        pytest.param("json:dumps", "cannot be made: TypeError", id="no class without arguments"),
        pytest.param("builtins:dict", "it has no start, read; needed are name, start and read", id="no members"),
        pytest.param("threading:Thread", "it has no read", id="a member missing"),
    ],
)
def test_a_mistake_names_the_plug_in(value: str, message: str) -> None:
    with pytest.raises(PluginError) as refused:
        plugins.load([EntryPoint(name="npu", value=value, group=plugins.GROUP)])
    assert message in str(refused.value)


def test_alarms_of_the_inventory_pass() -> None:
    own, heard = Own("n"), list[FaultEvent]()
    InventoryWithPlugins(own, {}, timeout=1.0).listen(heard.append)
    own.listener(FaultEvent(node="n"))
    assert heard == [FaultEvent(node="n")]


MAKER = """
class Maker:
    def __init__(self, name):
        self.name = name
    start = read = lambda self, *_: ()

def __getattr__(name):
    return lambda: Maker(name)
"""


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[EntryPoint]]:
    """So many plug-ins, each of another type."""
    (tmp_path / "berth_many.py").write_text(MAKER)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda count: [
        EntryPoint(name=f"npu{n}", value=f"berth_many:npu{n}", group=plugins.GROUP) for n in range(count)
    ]


def test_there_are_no_more_than_a_device_has_conditions_for(entries: Callable[[int], list[EntryPoint]]) -> None:
    assert len(plugins.load(entries(plugins.MAX_PLUGINS))) == plugins.MAX_PLUGINS
    with pytest.raises(PluginError) as refused:
        plugins.load(entries(plugins.MAX_PLUGINS + 1))
    message = (
        "npu6 of an unknown distribution: there are 6 others already (npu0, npu1, npu2, npu3, npu4, npu5), and a Device"
    )
    assert message in str(refused.value)


async def test_their_conditions_leave_space_for_those_of_agent_and_operator() -> None:
    agents = [Npus(lambda _node: [], name=f"npu{number}") for number in range(plugins.MAX_PLUGINS)]
    types = {finding.type for finding in (await plugged(*agents).read())["n"].findings}
    of_operator = {names.READY, names.VALID, names.ACCOUNTED}
    [bound] = DeviceStatus.model_fields["conditions"].metadata
    assert types >= {f"InventoryRead.npu{number}" for number in range(plugins.MAX_PLUGINS)}
    assert len(types | of_operator) <= bound.max_length
