"""Record every revision of some objects with a watch of etcd.

etcd has each revision of each object once, in one order, and keeps it until it is compacted. So the recorder loses no
revision if a connection breaks or an API server restarts with an empty watch cache. It resumes after the last revision
that it saw. etcd also counts the versions of each key, so that the auditor can check that none is missing. The API
server must store JSON (`STORES_JSON`).
"""

import base64
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import orjson

from devcluster import waiting

STORES_JSON: Final = "--storage-media-type=application/json"
"""The flag with which an API server writes objects that this module can read."""
EVERYTHING: Final = "/registry/"
MARKER: Final = "/registry/berth-chaos/marker"
"""A key that no API server reads; writing it shows how far the recorder is."""
PATIENCE: Final = 60.0
RETRY: Final = 0.1
"""Seconds between two attempts to reach etcd."""

Object = Mapping[str, Any]


class Kind(StrEnum):
    """What is recorded."""

    POD = "pod"
    LEASE = "lease"
    """A LeaderLease."""
    EVENT = "event"
    CLAIM = "claim"
    """A ResourceClaim."""
    SLICE = "slice"
    """A ResourceSlice; it has no namespace."""
    DEVICE = "device"
    """A Device; it has no namespace."""
    WORKLOAD = "workload"
    """A Workload of Kueue."""
    NODE = "node"
    """A Node; it has no namespace."""
    HEARTBEAT = "heartbeat"
    """The Lease of an agent, named like its node."""


class Source(NamedTuple):
    """Objects that a recorder records."""

    kind: Kind
    prefix: str
    """How their keys begin, up to the namespace."""
    namespace: str = ""
    """The one that is recorded; empty for all."""

    @property
    def start(self) -> str:
        """How the recorded keys begin."""
        return f"{self.prefix}{self.namespace}/" if self.namespace else self.prefix


PODS: Final = Source(Kind.POD, "/registry/pods/")
BERTHS: Final = (
    PODS,
    Source(Kind.LEASE, "/registry/berth.dev/leaderleases/"),
    Source(Kind.EVENT, "/registry/events/"),
)
"""What Berth writes in a namespace."""
DEVICES: Final = Source(Kind.DEVICE, "/registry/berth.dev/devices/")
DEVICES_AND_CLAIMS: Final = (
    Source(Kind.CLAIM, "/registry/resourceclaims/"),
    Source(Kind.SLICE, "/registry/resourceslices/"),
    DEVICES,
)
NODES: Final = (
    Source(Kind.NODE, "/registry/minions/"),
    DEVICES,
    Source(Kind.HEARTBEAT, "/registry/leases/", "berth-node-lease"),
)
"""What decides whether a pod fits on a node, its pods apart."""


def within(namespace: str, sources: Iterable[Source] = BERTHS) -> list[Source]:
    """Return the sources, of one namespace only."""
    return [each._replace(namespace=namespace) for each in sources]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One write of one object."""

    number: int
    """etcd's revision, which is the object's resourceVersion."""
    time: float
    """When the recorder read it, by the monotonic clock in seconds."""
    kind: Kind
    name: str
    """`namespace/name`, or the name."""
    version: int
    """Number of writes since the object was created, itself included; 0 if this one deleted it."""
    object: Object | None = None
    """The object as stored; None if it was deleted."""


class Versions:
    """Finds the revisions that are missing from a history."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, str], int] = {}

    def gap(self, revision: Revision) -> str:
        """Return what does not follow the last revision of an object; empty if none is missing."""
        key = (revision.kind, revision.name)
        known, self._known[key] = self._known.get(key, 0), revision.version
        is_next = not revision.version or revision.version == known + 1
        return "" if is_next else f"version {revision.version} follows {known}"


def read(file: Path) -> Iterator[Revision]:
    """Yield the revisions of a recorded history."""
    with file.open("rb") as lines:
        for line in lines:
            raw = orjson.loads(line)
            yield Revision(**{**raw, "kind": Kind(raw["kind"])})


class Recorder:
    """Writes what happens while it is open to a file, in a thread of its own, and passes each revision on."""

    def __init__(self, *, port: int, sources: Iterable[Source], file: Path, take: Callable[[Revision], None]) -> None:
        """Create a recorder of an etcd on loopback; `take` is called in the recorder's thread, in order."""
        self.number = 0
        """The last revision seen, of any key."""
        self._port, self._file, self._take = port, file, take
        self._sources = {each.start: each for each in sources}
        self._error: BaseException | None = None
        self._closed = False
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="recorder")

    def __enter__(self) -> Self:
        self.number = self._mark()
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop recording."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the recording: after it the history is incomplete."""
        if self._error is not None:
            raise RuntimeError("the recording ended") from self._error

    def catch_up(self) -> int:
        """Wait until everything that is written by now is recorded; return the revision reached."""
        reached = self._mark()
        waiting.until(
            lambda: self.number >= reached or self._error is not None,
            deadline=PATIENCE,
            what=f"the recorder to be at revision {reached}",
            details=lambda: f"it is at {self.number}",
        )
        self.check()
        return reached

    def _mark(self) -> int:
        """Write to etcd; return the revision of that."""
        answer = self._ask("/v3/kv/put", {"key": _encoded(MARKER), "value": _encoded(str(time.monotonic()))})
        return int(answer["header"]["revision"])

    def compact(self) -> None:
        """Have etcd forget all revisions that are recorded, so that no watch can continue from them."""
        self._ask("/v3/kv/compaction", {"revision": str(self.catch_up()), "physical": True})

    def _ask(self, path: str, body: Object) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body))
            answer = json.loads(connection.getresponse().read())
        if "error" in answer:
            raise RuntimeError(f"etcd: {path}: {answer['error']}")
        return answer

    def _run(self) -> None:
        try:
            with self._file.open("wb") as file:
                while not self._closed:
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        self._watch(file.write)
                    time.sleep(RETRY)
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the other threads
            self._error = error

    def _watch(self, write: Callable[[bytes], object]) -> None:
        """Record until etcd ends the watch."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        with contextlib.closing(connection):
            connection.connect()
            self._socket = connection.sock
            request = {"key": _encoded(EVERYTHING), "range_end": _encoded("/registry0")}
            body = {"create_request": {**request, "start_revision": str(self.number + 1)}}
            connection.request("POST", "/v3/watch", json.dumps(body))
            response = connection.getresponse()
            while line := response.readline():
                answer = orjson.loads(line)
                if "result" not in answer:
                    return
                self._record(answer["result"], write)

    def _record(self, result: Object, write: Callable[[bytes], object]) -> None:
        if result.get("canceled"):
            raise RuntimeError(f"etcd ended the watch after revision {self.number}: {result}")
        for event in result.get("events", ()):
            pair = event["kv"]
            number, key = int(pair["mod_revision"]), base64.b64decode(pair["key"]).decode()
            if (named := self._named(key)) is not None:
                revision = _revision(number, *named, pair)
                write(orjson.dumps(revision) + b"\n")
                self._take(revision)
            self.number = number

    def _named(self, key: str) -> tuple[Kind, str] | None:
        """Return the kind and the `namespace/name` of a key; None if it is not recorded."""
        for start, source in self._sources.items():
            if key.startswith(start):
                return source.kind, key.removeprefix(source.prefix)
        return None


def _revision(number: int, kind: Kind, name: str, pair: Object) -> Revision:
    content = None
    if "value" in pair:
        content = orjson.loads(base64.b64decode(pair["value"]))
        content["metadata"].pop("managedFields", None)
    version = int(pair.get("version", 0))
    return Revision(number=number, time=time.monotonic(), kind=kind, name=name, version=version, object=content)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
