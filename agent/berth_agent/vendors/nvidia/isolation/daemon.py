"""The MPS daemon of the node, and whether it has Berth's limits.

A daemon that has just started has NVIDIA's defaults. Another program may configure a daemon, too. So before each start
of a container, the agent compares the daemon's limits with what the daemon reported when the limits were set.
"""

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Final

import structlog

from berth_agent import files
from berth_agent.files import FileIdentity
from berth_agent.vendors.nvidia.isolation.control import ControlError, MpsControl
from berth_agent.vendors.nvidia.isolation.limits import DefaultLimits

CONTROL: Final = "control"
"""The daemon's socket in its folder; each daemon makes its own."""
MAX_SERVERS: Final = 16
"""Servers that are configured. With one server for all users, there is one, and rarely a second that ends."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """Limits that were set, and the daemon's answer to them."""

    daemon: FileIdentity
    limits: DefaultLimits
    answer: str


class MpsDaemon:
    """Sets limits and remembers since when clients can have been there."""

    def __init__(self, control: MpsControl) -> None:
        self._control = control
        self._lock = asyncio.Lock()
        self._set: _Set | None = None
        self._servers: frozenset[int] = frozenset()
        self.since = 0.0
        """Seconds since the epoch at which the daemon started or, if later, lost a server: earlier clients ended."""

    async def ensure(self, limits: DefaultLimits) -> None:
        """Set the limits, unless the daemon has them.

        Raises:
            ControlError: there is no daemon, or it does not take them.
        """
        async with self._lock:
            daemon = files.identity(self._control.folder / CONTROL)
            if daemon is None:
                raise ControlError(f"no daemon at {self._control.folder / CONTROL}")
            answer = await self._control.send(*limits.queries())
            _percentage(answer)
            self.since = max(self.since, daemon.changed / 1e9)
            if self._set != _Set(daemon=daemon, limits=limits, answer=answer):
                await self._apply(daemon, limits)

    async def look_for_lost_servers(self) -> None:
        """Find servers that ended: their clients ended with them.

        Raises:
            ControlError: the daemon does not answer.
        """
        async with self._lock:
            servers = await self._list()
            if self._servers - servers:
                self.since = time.time()
            self._servers = servers

    async def _apply(self, daemon: FileIdentity, limits: DefaultLimits) -> None:
        # Defaults first: a server that starts in between has them.
        self._set = None
        commands = [*limits.defaults()]
        if commands:
            await self._control.send(*commands)
        for pid in sorted(await self._list())[:MAX_SERVERS]:
            if commands:
                await self._control.send(*limits.of_server(pid))
        answer = await self._control.send(*limits.queries())
        if limits.threads and not math.isclose(_percentage(answer), limits.threads, abs_tol=0.5):
            raise ControlError(f"the daemon did not take {limits.threads} % of the threads: {answer}")
        self._set = _Set(daemon=daemon, limits=limits, answer=answer)
        _log.info("MPS limits set", memory=dict(limits.memory), threads=limits.threads)

    async def _list(self) -> frozenset[int]:
        lines = (await self._control.send("get_server_list")).split()
        return frozenset(int(line) for line in lines if line.isdecimal())


def _percentage(answer: str) -> float:
    """Return the percentage of threads at the beginning of the answer to the queries.

    Raises:
        ControlError: there is none, so this is no daemon's answer.
    """
    try:
        return float(answer.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        raise ControlError(f"an unknown answer: {answer[:200]!r}") from None
