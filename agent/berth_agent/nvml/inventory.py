"""The inventory of one node with NVIDIA's cards: what NVML and sysfs show, and what is wrong when they do not."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from berth_agent.conditions import Finding
from berth_agent.inventory import Reading
from berth_agent.nvml import sysfs
from berth_agent.nvml.library import NvmlError
from berth_agent.nvml.reader import Reader
from berth_agent.nvml.session import Session
from berth_agent.settings import Settings
from berth_api import names
from berth_api.device import DeviceSpec


class NvmlInventory:
    """Readings of this node."""

    def __init__(self, settings: Settings) -> None:
        self._node = settings.node_name
        self._timeout = settings.read_timeout
        self._sysfs: Path = settings.sysfs_root
        self._bound: frozenset[str] = frozenset()
        self._session = Session(path=settings.nvml_library)
        self._reader = Reader(sysfs_root=settings.sysfs_root, mig_strategy=settings.mig_strategy)
        self._last = without_driver(reason="NotReadYet", message="")

    async def read(self) -> Mapping[str, Reading]:
        """Look at all cards; a driver that is missing or does not answer is a finding."""
        try:
            async with asyncio.timeout(self._timeout):
                self._last = await self._session.run(self._look)
        except NvmlError as error:
            self._last = without_driver(reason=error.reason, message=str(error))
        except TimeoutError:
            self._last = timed_out(self._last, seconds=self._timeout)
        return {self._node: self._last}

    def close(self) -> None:
        """Let go of the library."""
        self._session.close()

    def _look(self) -> Reading:
        """Open the session where needed, and anew when the driver got or lost a card."""
        bound = sysfs.bound_cards(self._sysfs)
        if bound != self._bound:
            self._session.reset()
        self._session.ensure_open()
        self._bound = bound
        return self._reader.read()


def without_driver(*, reason: str, message: str) -> Reading:
    """Return the reading of a node whose driver does not answer: no cards, and why."""
    findings = (
        Finding(type=names.DRIVER_LOADED, ok=False, reason=reason, message=message),
        Finding(type=names.INVENTORY_READ, ok=False, reason="NoDriver"),
    )
    return Reading(spec=DeviceSpec(driver_version="", cuda_version="", devices=[]), findings=findings)


def timed_out(last: Reading, *, seconds: float) -> Reading:
    """Return the last reading as one that could not be renewed."""
    finding = Finding(
        type=names.INVENTORY_READ,
        ok=False,
        reason="ReadTimedOut",
        message=f"the driver did not answer within {seconds:g} s; the devices are those of the last reading",
    )
    return replace(last, findings=(last.findings[0], finding))
