"""The rows of one kind as the visibility API serves them: a list with a version, and the frames that follow it."""

import gzip
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import orjson

API_VERSION: Final = "visibility.berth.dev/v1alpha1"
KINDS: Final = {"fleet": "FleetNode", "queue": "QueuedPod", "holders": "Holder"}
BATCH: Final = 256
"""Frames in one write of a watch, as the operator sends them."""
HISTORY: Final = 100_000
"""Frames that are kept."""
POLL: Final = 0.5
"""Seconds after which a watch looks whether it shall end."""

Row = Mapping[str, Any]
Frame = tuple[int, str, bytes]
"""Version, namespace, line."""


class Rows:
    """Rows by namespace and name, and the frames of their changes; every method may be called from any thread."""

    def __init__(self, plural: str, rows: Iterable[Row]) -> None:
        self._kind, self._lock = KINDS[plural], threading.Condition()
        self.version = self.oldest = 1000
        self._rows = {_key(row): self._body(row, self.version) for row in rows}
        self._frames: deque[Frame] = deque(maxlen=HISTORY)
        self._lists: dict[str, tuple[bytes, bytes]] = {}

    def change(self, changes: Iterable[tuple[str, Row]]) -> None:
        """Apply changes, (type of event, row), and send their frames."""
        with self._lock:
            for kind, row in changes:
                self.version += 1
                key, body = _key(row), self._body(row, self.version)
                if kind == "DELETED":
                    self._rows.pop(key, None)
                else:
                    self._rows[key] = body
                self._frames.append((self.version, key[0], _frame(kind, body)))
            self._lists.clear()
            self._lock.notify_all()

    def replace(self, rows: Iterable[Row]) -> None:
        """Have other rows in the next list; no watch gets a frame, and no earlier version is known any more."""
        with self._lock:
            self.version += 1
            self.oldest = self.version
            self._rows = {_key(row): self._body(row, self.version) for row in rows}
            self._frames.clear()
            self._lists.clear()

    def listed(self, namespace: str) -> tuple[bytes, bytes]:
        """Return the list, and the list as gzip; of all namespaces if it is empty."""
        with self._lock:
            if namespace not in self._lists:
                text = self._list(body for key, body in self._rows.items() if namespace in ("", key[0]))
                self._lists[namespace] = text, gzip.compress(text, 1)
            return self._lists[namespace]

    def named(self, name: str) -> bytes:
        """Return the list of the rows of a name."""
        with self._lock:
            return self._list(body for key, body in self._rows.items() if key[1] == name)

    def _list(self, bodies: Iterable[bytes]) -> bytes:
        metadata = {"resourceVersion": str(self.version)}
        head = {"kind": f"{self._kind}List", "apiVersion": API_VERSION, "metadata": metadata}
        return orjson.dumps(head)[:-1] + b',"items":[' + b",".join(bodies) + b"]}"

    def initial(self, namespace: str) -> bytes:
        """Return the frames with which a watch without a version begins."""
        with self._lock:
            bodies = [body for key, body in self._rows.items() if namespace in ("", key[0])]
            return b"".join(_frame("ADDED", body) for body in bodies)

    def after(self, version: int, namespace: str) -> tuple[int, bytes]:
        """Return the version that is reached, and the next frames after another one; wait for them a moment."""
        with self._lock:
            if not self._frames or self._frames[-1][0] <= version:
                self._lock.wait(POLL)
            frames = list(self._next(version))
            reached = frames[-1][0] if frames else version
            return reached, b"".join(line for _, of, line in frames if namespace in ("", of))

    def _next(self, version: int) -> Iterator[Frame]:
        """Yield the first frames after a version; each version has one."""
        if self._frames:
            first = max(0, version + 1 - self._frames[0][0])
            yield from islice(self._frames, first, first + BATCH)

    def bookmark(self, *, ends_initial: bool = False) -> bytes:
        """Return a bookmark of the present version; `ends_initial` for the one that ends the initial rows."""
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if ends_initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        body = {"kind": self._kind, "apiVersion": API_VERSION, "metadata": metadata}
        return _frame("BOOKMARK", orjson.dumps(body))

    def _body(self, row: Row, version: int) -> bytes:
        metadata = {**row["metadata"], "resourceVersion": str(version)}
        return orjson.dumps({**row, "kind": self._kind, "apiVersion": API_VERSION, "metadata": metadata})


def error(status: Mapping[str, Any]) -> bytes:
    """Return the frame with which a watch fails."""
    return _frame("ERROR", orjson.dumps(status))


def _frame(kind: str, body: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"


def _key(row: Row) -> tuple[str, str]:
    return str(row["metadata"].get("namespace", "")), str(row["metadata"]["name"])
