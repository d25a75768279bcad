"""Wires the parts and runs them until a signal comes.

One loop reads the inventory and publishes it; the heartbeat runs beside it, so that a slow reading or a hanging
driver call costs no renewal.
"""

import asyncio
import signal
import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import structlog

from berth_agent import plugins
from berth_agent.cluster import CallError, Cluster, connect
from berth_agent.inventory import Inventory, Reading
from berth_agent.lease import Heartbeat
from berth_agent.nodes import Nodes
from berth_agent.nvml.inventory import NvmlInventory
from berth_agent.plugins import Plugged
from berth_agent.publish import Publisher
from berth_agent.settings import Settings
from berth_agent.simulated import SimulatedInventory

_log: Any = structlog.get_logger()


def inventory_for(settings: Settings) -> Inventory:
    """Return the inventory that the settings ask for, with the devices of plug-ins.

    Raises:
        FleetError: its fleet file is wrong.
        PluginError: a plug-in cannot be used.
    """
    agents = plugins.load(entry_points(group=plugins.GROUP))
    own = _own_inventory(settings)
    return Plugged(own, agents, timeout=settings.read_timeout) if agents else own


def _own_inventory(settings: Settings) -> Inventory:
    if settings.inventory == "simulated" and settings.fleet:
        return SimulatedInventory(path=settings.fleet)
    return NvmlInventory(settings)


async def run(settings: Settings, *, inventory: Inventory) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    work = asyncio.create_task(_work(settings, inventory=inventory))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        _log.info("stopped")
    finally:
        inventory.close()


async def _work(settings: Settings, *, inventory: Inventory) -> None:
    async with connect(settings) as cluster, asyncio.TaskGroup() as tasks:
        await Agent(settings, cluster=cluster, inventory=inventory, tasks=tasks).serve()


class Agent:
    """The loop from the inventory to the API server."""

    def __init__(self, settings: Settings, *, cluster: Cluster, inventory: Inventory, tasks: asyncio.TaskGroup) -> None:
        self._settings = settings
        self._inventory = inventory
        self._nodes = Nodes(cluster=cluster)
        self._publisher = Publisher(cluster=cluster, nodes=self._nodes, concurrency=settings.concurrency)
        self._heartbeat = Heartbeat(cluster=cluster, nodes=self._nodes, settings=settings, tasks=tasks)
        self._resync_at = 0.0

    async def serve(self) -> None:
        """Read and publish for ever."""
        while True:
            await self._round()
            await asyncio.sleep(self._settings.poll_interval)

    async def _round(self) -> None:
        readings = await self._inventory.read()
        if time.monotonic() >= self._resync_at or self._nodes.missing(readings):
            await self._resync(readings)
        self._heartbeat.keep([name for name, reading in readings.items() if reading.heartbeat])
        await self._publisher.publish(readings)

    async def _resync(self, readings: Mapping[str, Reading]) -> None:
        """Look at Nodes and Devices; a failure is tried again in the next round."""
        try:
            await self._nodes.refresh(readings)
            await self._publisher.resync(readings)
        except CallError as error:
            _log.warning("API server not read, will try again", error=str(error))
            return
        self._resync_at = time.monotonic() + self._settings.resync_interval
        for name in self._nodes.missing(readings):
            _log.warning("no such Node yet, will try again", node=name)
