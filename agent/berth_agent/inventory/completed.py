"""The inventory of a vendor whose discovery is not all that the shared rooms need."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from berth_agent.conditions import Finding
from berth_agent.inventory.plugins import MAX_MESSAGE, checked
from berth_agent.readings import CardSample, Reading
from berth_agent.vendor import Discovery, Events, FaultListener, Measurements, NumberedEvents
from berth_api import names
from berth_api.device import DeviceSpec
from berth_api.plugins import in_one_line

_NOT_READ_YET: Final = (Finding(type=names.DRIVER_LOADED, ok=False, reason="NotReadYet"),)


class CompletedInventory:
    """The inventory of a vendor whose discovery lacks some of the other parts: they report nothing.

    If a reading fails or hangs, the cards of the last one stay, with a finding.
    """

    def __init__(self, discovery: Discovery, *, node: str, timeout: float) -> None:
        self._discovery, self._timeout = discovery, timeout
        self._task: asyncio.Task[Mapping[str, Reading]] | None = None
        self._last: Mapping[str, Reading] = {node: Reading(spec=DeviceSpec(), findings=_NOT_READ_YET, processes=None)}

    async def read(self) -> Mapping[str, Reading]:
        """Read the cards. A reading that hangs was waited for once, and no other begins before it ends."""
        known = self._task
        task = self._task = known or asyncio.create_task(self._checked())
        done, _ = await asyncio.wait([task], timeout=0 if known else self._timeout)
        if not done:
            return self._failed("ReadTimedOut", f"the driver did not answer within {self._timeout:g} s")
        self._task = None
        if (error := task.exception()) is not None:
            return self._failed("ReadFailed", in_one_line(error))
        self._last = task.result()
        return self._last

    async def _checked(self) -> Mapping[str, Reading]:
        readings = await self._discovery.read()
        for reading in readings.values():
            checked(names.GPU, reading.spec.devices)
        return readings

    def _failed(self, reason: str, problem: str) -> Mapping[str, Reading]:
        message = f"{problem}; the devices are those of the last reading"[:MAX_MESSAGE]
        failed = Finding(type=names.INVENTORY_READ, ok=False, reason=reason, message=message)
        return {
            node: replace(
                last,
                findings=(*(finding for finding in last.findings if finding.type != names.INVENTORY_READ), failed),
                reset=frozenset(),
            )
            for node, last in self._last.items()
        }

    def listen(self, listener: FaultListener) -> None:
        """Call the listener with each fault event, if there are any."""
        if isinstance(self._discovery, Events):
            self._discovery.listen(listener)

    async def sample(self) -> Mapping[str, CardSample]:
        """Return what the cards measure, if they measure anything."""
        return await self._discovery.sample() if isinstance(self._discovery, Measurements) else {}

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Return the numbered events, if there are any."""
        return self._discovery.xids() if isinstance(self._discovery, NumberedEvents) else {}

    def close(self) -> None:
        """Close the hardware without waiting for it."""
        self._discovery.close()
