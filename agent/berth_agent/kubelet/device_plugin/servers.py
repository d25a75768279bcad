"""One server for each resource, in step with the offers and with the running kubelet."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from berth_agent import files
from berth_agent.files import FileIdentity
from berth_agent.kubelet import allocations
from berth_agent.kubelet.allocations import CHECKPOINT
from berth_agent.kubelet.device_plugin.handler import Service
from berth_agent.kubelet.device_plugin.plugin_server import PluginServer
from berth_agent.kubelet.device_plugin.registration import CrashCounter, ServingError
from berth_agent.kubelet.device_plugin.takeover import ResourceState

SETTLING: Final = 5.0
"""Seconds until a starting kubelet has seen its pods. Until then, it counts the devices of removed pods as in use, and
permanently refuses pods whose devices it cannot allocate."""

FAST_CHECK_INTERVAL: Final = 0.005
"""Seconds between two looks for a new kubelet while none listens."""

Make = Callable[[Service], PluginServer]

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PluginServers:
    """The servers that run."""

    def __init__(self, *, kubelet: Path | None, make: Make) -> None:
        self._kubelet = kubelet
        self._make = make
        self._seen: FileIdentity | None = None
        self._seen_at = 0.0
        """When this kubelet was first seen, by the clock of the event loop."""
        self._running: dict[str, PluginServer] = {}
        self._crashes = CrashCounter()
        self._states: dict[str, tuple[FileIdentity, ResourceState | None]] = {}
        """Resource -> which file kubelet's checkpoint was when it was read last, and what it had of the resource."""
        self._unread = ""
        """Why the checkpoint was not read, as logged last."""

    @property
    def taken(self) -> list[str]:
        """Return the resources for which kubelet calls another device plugin, sorted."""
        return sorted(resource for resource, server in self._running.items() if server.is_taken)

    @property
    def minors_given_by_others(self) -> frozenset[int]:
        """Return the minors of the cards of which another device plugin gave units."""
        return frozenset[int]().union(*(server.minors_given_by_other for server in self._running.values()))

    @property
    def watched(self) -> bool:
        """Whether kubelet listens to all servers; always true if there is no kubelet to register with."""
        return self._kubelet is None or all(server.watched for server in self._running.values())

    @property
    def settled(self) -> bool:
        """Whether the kubelet that is registered with runs long enough to know its pods."""
        if self._kubelet is None:
            return True
        # The age alone would not do: if the wall clock is set back, the socket seems to be made in the future. But it
        # shows at once that a kubelet ran before this agent.
        seen_for = asyncio.get_running_loop().time() - self._seen_at
        return self._seen is not None and (self._seen.age >= SETTLING or seen_for >= SETTLING)

    def see_new_kubelet(self) -> bool:
        """Return whether there is a kubelet without any registration; costs one system call."""
        identity = files.identity(self._kubelet) if self._kubelet else None
        return identity is not None and identity != self._seen

    async def pause(self, wake: asyncio.Event, seconds: float) -> None:
        """Wait until something changes, or there is a new kubelet, or for so many seconds."""
        end = time.monotonic() + seconds
        while not wake.is_set() and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if self.watched else FAST_CHECK_INTERVAL):
                    await wake.wait()
            if self.see_new_kubelet():
                break
        wake.clear()

    async def keep(self, services: Iterable[Service]) -> None:
        """Update the servers to these services, and register them with the kubelet that runs now.

        Raises:
            ServingError: one cannot be served or registered yet; to be tried again.
            CrashLoopError: they break again and again.
        """
        if self._kubelet:
            identity = files.identity(self._kubelet)
            if identity is None:
                raise ServingError(f"no kubelet at {self._kubelet} yet")
            if identity != self._seen:
                # A new kubelet knows no plugin: all register again.
                self._seen, self._seen_at = identity, asyncio.get_running_loop().time()
                for server in self._running.values():
                    server.registered = False
        by_resource = {service.offer.resource: service for service in services}
        for resource in self._running.keys() - by_resource.keys():
            await self._running.pop(resource).withdraw()
        for resource, service in by_resource.items():
            running = self._running.get(resource)
            if running is not None and running.broken:
                await self._running.pop(resource).stop()
                self._crashes.count(asyncio.get_running_loop().time(), what=str(running.path))
                running = None
            if running is None:
                running = self._make(service)
                try:
                    await running.start()
                except ServingError:
                    await running.stop()
                    raise
                self._running[resource] = running
            running.update(service)
            if self._kubelet:
                checkpoint = self._kubelet.with_name(CHECKPOINT)
                await running.register(self._kubelet, self._state_of(resource, checkpoint))

    def _state_of(self, resource: str, path: Path) -> ResourceState | None:
        """Return what kubelet's checkpoint has of a resource.

        It is that of the last reading if the checkpoint is gone or damaged. Before the first reading, kubelet has given
        nothing if it has no checkpoint, and None is returned if the checkpoint is damaged.
        """
        read_of, state = self._states.get(resource, (None, None))
        checkpoint = files.identity(path)
        if checkpoint is None and state is None:
            return ResourceState((), frozenset())
        if checkpoint is not None and checkpoint != read_of:
            try:
                content = files.read(path)
                listed, _ = allocations.read(content, resource)
                state = ResourceState(listed, allocations.healthy(content, resource))
            except (OSError, ValueError) as error:
                if str(error) != self._unread:
                    _log.warning("kubelet's checkpoint not read: another plugin is not noticed", reason=str(error))
                self._unread = str(error)
            else:
                self._unread = ""
            self._states[resource] = checkpoint, state
        return state

    async def stop(self) -> None:
        """Stop all of them."""
        stopping = [self._running.pop(resource).stop() for resource in list(self._running)]
        await asyncio.gather(*stopping)
