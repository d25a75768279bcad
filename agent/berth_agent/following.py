"""Follow objects of the API server: whole lists, and the changes between them."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from berth_client.agreement import Restores
from berth_client.objects import Object, without_managed_fields
from berth_client.reflector import EventType, ListWatchApi, Reflector, Source

RELIST_SECONDS: Final = 30.0
"""Seconds over which the agents of a cluster spread their lists after a restore of etcd."""

T = TypeVar("T")
Listed = Callable[[list[T], str], None]
Changed = Callable[[EventType, Object], None]


async def follow(
    api: ListWatchApi,
    path: str,
    *,
    selector: str,
    read: Callable[[Object], T],
    listed: Listed[T],
    changed: Changed,
    restores: Restores,
    transform: Callable[[Object], Object] = without_managed_fields,
) -> None:
    """List and watch objects until cancelled; list them again after each restore.

    Args:
        api: the API server.
        path: of the collection.
        selector: the field selector.
        read: returns what the agent needs of an object. Each object of a list is read as it arrives, and not kept.
        listed: gets what was read of each list, and its version.
        changed: gets the type and object of each event.
        restores: wakes this after a restore. The watch would continue at a version that is to come, and show nothing.
        transform: applied to each object before.
    """
    source = Source(path=path, params={"fieldSelector": selector}, transform=transform)
    while True:
        reflecting = asyncio.create_task(Reflector(api=api, source=source, sink=_Sink(read, listed, changed)).run())
        restored = asyncio.create_task(after_restore(restores))
        try:
            await asyncio.wait((reflecting, restored), return_when=asyncio.FIRST_COMPLETED)
            if reflecting.done():
                await reflecting
        finally:
            for task in (reflecting, restored):
                task.cancel()
            await asyncio.gather(reflecting, restored, return_exceptions=True)


async def after_restore(restores: Restores) -> None:
    """Wait until the next restore, and then for a random time, so that not all agents list at once."""
    await restores.next()
    await asyncio.sleep(random.uniform(0, RELIST_SECONDS))  # noqa: S311 - spreads load, no secret


@dataclass(frozen=True, slots=True)
class _Sink(Generic[T]):
    read: Callable[[Object], T]
    listed: Listed[T]
    changed: Changed

    def listing(self, *, requested_at: float) -> "_Listing[T]":  # noqa: ARG002 - part of the interface
        return _Listing(self.read, self.listed)

    def apply(self, event_type: EventType, obj: Object) -> None:
        self.changed(event_type, obj)


@dataclass(frozen=True, slots=True)
class _Listing(Generic[T]):
    """Collects what was read of one list; a node has a few hundred pods at most."""

    read: Callable[[Object], T]
    listed: Listed[T]
    known: list[T] = field(default_factory=list)

    def put(self, objects: list[Object]) -> None:
        self.known.extend(map(self.read, objects))

    def end(self, version: str, /) -> None:
        self.listed(self.known, version)
