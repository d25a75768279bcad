"""Follow objects of the API server: whole lists, and the changes between them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from berth_client.objects import Object
from berth_client.reflector import EventType, ListWatchApi, Reflector, Source

Listed = Callable[[list[Object], str], None]
Changed = Callable[[EventType, Object], None]


async def follow(api: ListWatchApi, path: str, *, selector: str, listed: Listed, changed: Changed) -> None:
    """List and watch objects until cancelled.

    Args:
        api: the API server.
        path: of the collection.
        selector: the field selector.
        listed: gets each list, and its version.
        changed: gets the type and object of each event.
    """
    source = Source(path=path, params={"fieldSelector": selector})
    await Reflector(api=api, source=source, sink=_Sink(listed, changed)).run()


@dataclass(frozen=True, slots=True)
class _Sink:
    listed: Listed
    changed: Changed

    def listing(self, *, requested_at: float) -> "_Listing":  # noqa: ARG002 - part of the interface
        return _Listing(self.listed)

    def apply(self, event_type: EventType, obj: Object) -> None:
        self.changed(event_type, obj)


@dataclass(frozen=True, slots=True)
class _Listing:
    """Collects the pages of one list; a node has a few hundred pods at most."""

    listed: Listed
    objects: list[Object] = field(default_factory=list)

    def put(self, objects: list[Object]) -> None:
        self.objects.extend(objects)

    def end(self, version: str, /) -> None:
        self.listed(self.objects, version)
