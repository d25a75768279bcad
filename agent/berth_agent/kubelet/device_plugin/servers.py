"""One server for each resource, in step with what is offered and with the kubelet that is there."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from berth_agent.kubelet.device_plugin import registration
from berth_agent.kubelet.device_plugin.registration import ServingError, SocketIdentity
from berth_agent.kubelet.device_plugin.resources import Offer
from berth_agent.kubelet.device_plugin.response import AllocationContext
from berth_agent.kubelet.device_plugin.server import PluginServer

SETTLING: Final = 5.0
"""Seconds until a kubelet that starts has seen its pods. Up to then it counts the devices of pods that are gone as in
use, and refuses for good what it cannot give."""

Make = Callable[[Offer, AllocationContext], PluginServer]


class PluginServers:
    """The servers that run."""

    def __init__(self, *, kubelet: Path | None, make: Make) -> None:
        self._kubelet = kubelet
        self._make = make
        self._seen: SocketIdentity | None = None
        self._running: dict[str, PluginServer] = {}
        self._crashes = registration.CrashCounter()

    @property
    def watched(self) -> bool:
        """Whether kubelet listens to all of them; always if there is no kubelet to register with."""
        return self._kubelet is None or all(server.watched for server in self._running.values())

    @property
    def settled(self) -> bool:
        """Whether the kubelet that is registered with runs long enough to know its pods."""
        return self._kubelet is None or (self._seen is not None and self._seen.age >= SETTLING)

    def see_new_kubelet(self) -> bool:
        """Return whether there is a kubelet without any registration; costs one system call."""
        identity = registration.identity(self._kubelet) if self._kubelet else None
        return identity is not None and identity != self._seen

    async def keep(self, offers: Mapping[str, Offer], machine: AllocationContext) -> None:
        """Update the servers to these offers, and register them with the kubelet that runs now.

        Raises:
            ServingError: one cannot be served or registered yet; to be tried again.
            CrashLoopError: they break again and again.
        """
        if self._kubelet:
            self._follow(self._kubelet)
        for resource in self._running.keys() - offers.keys():
            await self._running.pop(resource).withdraw()
        for offer in offers.values():
            await self._serve(offer, machine)

    async def stop(self) -> None:
        """Stop all of them."""
        stopping = [self._running.pop(resource).stop() for resource in list(self._running)]
        await asyncio.gather(*stopping)

    def _follow(self, kubelet: Path) -> None:
        """Register all again with a new kubelet: it knows no plugin."""
        identity = registration.identity(kubelet)
        if identity is None:
            raise ServingError(f"no kubelet at {kubelet} yet")
        if identity != self._seen:
            self._seen = identity
            for server in self._running.values():
                server.registered = False

    async def _serve(self, offer: Offer, machine: AllocationContext) -> None:
        running = self._running.get(offer.resource)
        if running is not None and running.broken:
            await self._running.pop(offer.resource).stop()
            self._crashes.count(asyncio.get_running_loop().time(), what=str(running.path))
            running = None
        if running is None:
            running = await self._started(self._make(offer, machine))
            self._running[offer.resource] = running
        running.update(offer, machine)
        if self._kubelet:
            await running.register(self._kubelet)

    async def _started(self, server: PluginServer) -> PluginServer:
        try:
            await server.start()
        except ServingError:
            await server.stop()
            raise
        return server
