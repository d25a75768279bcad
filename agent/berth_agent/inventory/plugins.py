"""Devices that other distributions find: the entry points `berth.device_agents` (docs/plugins.md).

A failure in a plug-in becomes a condition on the Device, `InventoryRead.<name>`, and affects no other device.
"""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Final, Protocol, TypeVar

from berth_agent.conditions import Finding, unhealthy
from berth_agent.readings import CardSample, Reading
from berth_agent.vendor import FaultListener, Inventory, released
from berth_api import allocation, names
from berth_api.allocation import device_ids
from berth_api.device import MAX_DEVICES, DeviceInfo, is_served_quantity
from berth_api.names import GPU
from berth_api.plugins import in_one_line
from berth_api.plugins import load as load_all
from berth_api.resources import quantity

GROUP: Final = "berth.device_agents"
MAX_MESSAGE: Final = 1024
MAX_PLUGINS: Final = 6
"""Maximum number of plug-ins of one agent. Each has a condition on the Device. The Device has room for 16 conditions,
including the agent's own and the operator's."""

T = TypeVar("T")
Devices = tuple[DeviceInfo, ...]
PluginResult = tuple[Devices, Finding]
"""The devices of one node by one plug-in, and how it went."""


class DeviceAgent(Protocol):
    """The class that an entry point names. It takes no arguments, and the agent creates one instance.

    Calls come from other threads, one at a time, so they may block. The class may have a method `stop`, too, which is
    called once, at the end.
    """

    name: str
    """The type of its devices."""

    def start(self) -> None:
        """Get ready; called before the first reading, and again after each that failed."""

    def read(self, node: str) -> Sequence[DeviceInfo]:
        """Return the devices of a node; only simulations have several."""


def load(entries: Iterable[EntryPoint]) -> dict[str, DeviceAgent]:
    """Create the plug-ins, and return them by their types.

    Raises:
        PluginError: a plug-in cannot be created, its type already exists, or there are too many.
    """
    agents: dict[str, DeviceAgent] = {}
    owners = {GPU: "Berth"}
    for plugin in load_all(entries):
        try:
            agent: DeviceAgent = plugin.value()
        except Exception as error:
            raise plugin.error(f"cannot be made: {in_one_line(error)}") from error
        if missing := [method for method in ("start", "read") if not callable(getattr(agent, method, None))]:
            raise plugin.error(f"it has no {', '.join(missing)}; needed are name, start and read")
        if not isinstance(name := getattr(agent, "name", None), str) or not re.fullmatch(allocation.TYPE, name):
            allowed = 'allowed are small letters, digits and "-", up to 32, such as npu'
            raise plugin.error(f"its name is {name!r}; {allowed}")
        if (owner := owners.setdefault(agent.name, plugin.owner)) != plugin.owner or agent.name in agents:
            raise plugin.error(f"type {agent.name} belongs to {owner} already; use a type that no other plug-in has")
        if len(agents) == MAX_PLUGINS:
            raise plugin.error(
                f"there are {MAX_PLUGINS} others already ({', '.join(agents)}), and a Device has room for no more"
            )
        agents[agent.name] = agent
    return agents


class InventoryWithPlugins:
    """An inventory, with the devices that plug-ins find on its nodes.

    Args:
        inner: the inventory.
        agents: the plug-ins by type.
        unnumbered: the types whose devices have no minors of their own.
        findings: conditions of the node that no reading changes.
        timeout: seconds of one reading of a plug-in.
    """

    def __init__(
        self,
        inner: Inventory,
        agents: Mapping[str, DeviceAgent],
        *,
        timeout: float,
        unnumbered: frozenset[str] = frozenset(),
        findings: tuple[Finding, ...] = (),
    ) -> None:
        self._inner, self._findings = inner, findings
        self._unnumbered = unnumbered
        self._sources = [PluginRunner(agent, timeout=timeout) for agent in agents.values()]
        self._merged: dict[str, tuple[object, Reading]] = {}

    async def read(self) -> Mapping[str, Reading]:
        """Read all nodes. A plug-in's failure becomes a condition."""
        readings = await self._inner.read()
        results = await asyncio.gather(*(source.read(readings) for source in self._sources))
        before, self._merged = self._merged, {}
        for node, reading in readings.items():
            inputs = (reading, [result[node] for result in results])
            known = before.get(node)
            # An equal reading gives the same object as before, which the publisher need not compare.
            merged = known[1] if known is not None and known[0] == inputs else self._with_plugins(*inputs)
            if merged.processes is not reading.processes:
                # Readings that differ in processes alone are equal.
                merged = replace(merged, processes=reading.processes)
            self._merged[node] = (inputs, merged)
        return {node: merged for node, (_, merged) in self._merged.items()}

    async def sample(self) -> Mapping[str, CardSample]:
        """Return the measurements of the GPUs. Plug-ins measure nothing."""
        return await self._inner.sample()

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Return the numbered events of the GPUs."""
        return self._inner.xids()

    def listen(self, listener: FaultListener) -> None:
        """Pass the alarms of the inventory on; plug-ins raise none."""
        self._inner.listen(listener)

    def released(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the inventory has no card open."""
        return released(self._inner)

    def close(self) -> None:
        """Close the hardware without waiting for it."""
        self._inner.close()
        for source in self._sources:
            source.close()

    def _with_plugins(self, reading: Reading, results: Iterable[PluginResult]) -> Reading:
        reading = replace(reading, unnumbered=self._unnumbered, findings=(*reading.findings, *self._findings))
        for devices, finding in results:
            if problem := _misfit(reading, devices):
                misfit = replace(finding, ok=False, reason="Misfit", message=problem)
                reading = replace(reading, findings=(*reading.findings, misfit))
            else:
                spec = reading.spec.model_copy(update={"devices": [*reading.spec.devices, *devices]})
                reading = replace(reading, spec=spec, findings=(*reading.findings, finding))
        return reading


def _misfit(reading: Reading, devices: Sequence[DeviceInfo]) -> str:
    """Return why devices cannot be added to the devices of the reading: the API server would reject all of them."""
    if devices and any(device.type == devices[0].type for device in reading.spec.devices):
        return f"there are devices of type {devices[0].type} already; left out"
    if (count := len(reading.spec.devices) + len(devices)) > MAX_DEVICES:
        return f"{count} devices in all; allowed are {MAX_DEVICES}; left out"
    return ""


class PluginRunner:
    """One plug-in, called in threads that end with the process, one call at a time. It catches the plug-in's errors."""

    def __init__(self, agent: DeviceAgent, *, timeout: float) -> None:
        self._agent, self._timeout = agent, timeout
        self._started = False
        self._call: Future[dict[str, Devices] | BaseException] | None = None
        self._last: dict[str, Devices] = {}

    async def read(self, nodes: Iterable[str]) -> dict[str, PluginResult]:
        """Return the devices of each node. If the plug-in fails, return its last devices as unhealthy."""
        nodes, known = tuple(nodes), self._call
        call = self._call = known or in_thread(lambda: self._read_nodes(nodes))
        if known is None:
            # Once: each wait leaves a callback at the call for as long as it hangs.
            await asyncio.wait([asyncio.wrap_future(call)], timeout=self._timeout)
        if not call.done():
            return self._failed(nodes, "ReadTimedOut", f"no answer within {self._timeout:g} s")
        self._call = None
        answer = call.result()
        if isinstance(answer, BaseException):
            self._started = False
            return self._failed(nodes, "ReadFailed", in_one_line(answer))
        self._last = answer
        return {node: (self._last.get(node, ()), self._finding(ok=True, reason="Read")) for node in nodes}

    def close(self) -> None:
        """Stop the plug-in, without waiting for it."""
        if stop := getattr(self._agent, "stop", None):
            in_thread(stop)

    def _read_nodes(self, nodes: Iterable[str]) -> dict[str, Devices]:
        if not self._started:
            self._agent.start()
            self._started = True
        return {node: checked(self._agent.name, self._agent.read(node)) for node in nodes}

    def _failed(self, nodes: Iterable[str], reason: str, problem: str) -> dict[str, PluginResult]:
        message = f"{problem}; the devices of the last reading, if any, are not handed out"
        finding = self._finding(ok=False, reason=reason, message=message[:MAX_MESSAGE])
        results = {}
        for node in nodes:
            last = self._last.get(node, ())
            devices = tuple(unhealthy(device, reason=reason, message=problem[:MAX_MESSAGE]) for device in last)
            results[node] = (devices, finding)
        return results

    def _finding(self, *, ok: bool, reason: str, message: str = "") -> Finding:
        return Finding(type=f"{names.INVENTORY_READ}.{self._agent.name}", ok=ok, reason=reason, message=message)


def in_thread(work: Callable[[], T]) -> Future[T | BaseException]:
    """Begin work; the result may be its exception.

    Unlike a pool's thread, this thread does not keep the process from ending.
    """
    future: Future[T | BaseException] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, would end only the thread, silently
            # As a value: no asyncio future may fail with StopIteration, and the work would seem to hang.
            future.set_result(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def checked(device_type: str, devices: Sequence[DeviceInfo]) -> Devices:
    """Return a plug-in's devices, checked: with one mistake the API server would reject all devices of the node.

    Raises:
        ValueError: they cannot be published.
    """
    for minor, count in Counter(device.minor for device in devices).items():
        if count > 1:
            raise ValueError(f"minor {minor} stands {count} times")
    for device in devices:
        if device.type != device_type:
            raise ValueError(f"minor {device.minor} is of type {device.type}; allowed is {device_type}")
        if problem := device_ids.problem(device_type, device.id):
            raise ValueError(f"minor {device.minor}: id {problem}")
        for name, amount in device.resources.items():
            if quantity.parse(amount) < 0:
                raise ValueError(f"minor {device.minor}: {name} {amount} is negative")
            if not is_served_quantity(amount):
                raise ValueError(f"minor {device.minor}: {name} {amount} is no amount as the API server takes it")
    # As the API reads them: what was copied together is not checked by the model. Without pydantic's warnings about
    # wrong types: these are errors of the validation.
    return tuple(
        DeviceInfo.model_validate(device.model_dump(by_alias=True, exclude_unset=True, warnings=False))
        for device in devices
    )
