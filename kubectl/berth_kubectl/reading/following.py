"""Keep lists up to date with watches, for `--watch`."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

from berth_kubectl.errors import ReadError
from berth_kubectl.reading.objects import Object
from berth_kubectl.reading.session import Lists, Source
from berth_kubectl.transport.request import Request

INTERVAL: Final = 1.0
"""Shortest time in seconds between two states that are shown."""
PAUSE: Final = 2.0
"""Seconds before another attempt after an error."""
ATTEMPTS: Final = 30
"""Failures in a row, without an event in between, after which the command ends."""

Key = tuple[str, str]


class ListWatcher(Protocol):
    """The subset of `Proxy` that is used."""

    def get(self, request: Request) -> Any:
        """Return the decoded answer."""

    def watch(self, request: Request, version: str) -> Iterator[Object]:
        """Yield the events of one watch."""


class Collection:
    """The objects of one source; a thread keeps them up to date."""

    def __init__(self, source: Source, changed: threading.Event, sleep: Callable[[float], None] = time.sleep) -> None:
        self.source, self.error = source, ""
        self._failures, self._sleep = 0, sleep
        self.objects: dict[Key, Object] = {}
        self._changed, self._lock = changed, threading.Lock()

    def copy(self) -> list[Object]:
        """Return the objects as they are now."""
        with self._lock:
            return list(self.objects.values())

    def replace(self, objects: Sequence[Object]) -> None:
        """Take a whole list."""
        with self._lock:
            self.objects = {_key(obj): obj for obj in objects}
        self._changed.set()

    def apply(self, event: Object) -> str:
        """Take one event; return the version that it reaches.

        Raises:
            ReadError: the event is an error.
        """
        obj = event["object"]
        if event["type"] == "ERROR":
            raise ReadError(str(obj.get("message", "")), status=int(obj.get("code", 0)))
        if event["type"] != "BOOKMARK":
            with self._lock:
                if event["type"] == "DELETED":
                    self.objects.pop(_key(obj), None)
                else:
                    self.objects[_key(obj)] = obj
            self._changed.set()
        return str(obj["metadata"]["resourceVersion"])

    def follow(self, api: ListWatcher) -> None:
        """List and watch until the attempts are used up, one after the other failing."""
        while self._failures < ATTEMPTS:
            try:
                self._list_and_watch(api)
                self._failures = 0
            except ReadError as error:
                self.error = str(error)
                self._failures += 1
                self._sleep(PAUSE)
        self._changed.set()

    def _list_and_watch(self, api: ListWatcher) -> None:
        answer = api.get(self.source.request)
        self.replace(answer["items"])
        version, self.error = str(answer["metadata"]["resourceVersion"]), ""
        while True:
            try:
                for event in api.watch(self.source.request, version):
                    version = self.apply(event)
                    self._failures = 0
            except ReadError as error:
                if error.status != HTTPStatus.GONE:
                    raise
                self._sleep(INTERVAL)
                return
            self._sleep(INTERVAL)  # a server that ends watches at once must not be asked without a pause


def followed(api: Any, sources: Sequence[Source], first: Lists) -> Iterator[Lists]:
    """Yield the objects of all sources whenever something changed, at most once in INTERVAL.

    Sources that could not be read at `first` stay None.

    Raises:
        ReadError: a source cannot be read any more.
    """
    changed = threading.Event()
    known = [
        None if objects is None else Collection(source, changed) for source, objects in zip(sources, first, strict=True)
    ]
    threads = [
        threading.Thread(target=collection.follow, args=(api,), daemon=True)
        for collection in known
        if collection is not None
    ]
    for thread in threads:
        thread.start()
    while True:
        changed.wait()
        time.sleep(INTERVAL)
        changed.clear()
        if not all(thread.is_alive() for thread in threads):
            errors = [collection.error for collection in known if collection is not None and collection.error]
            raise ReadError(errors[0] if errors else "the watch ended")
        yield [None if collection is None else collection.copy() for collection in known]


def _key(obj: Object) -> Key:
    return str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])
