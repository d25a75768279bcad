"""A store of LeaderLeases in memory that behaves like the API server's, with configurable faults.

`LeaseStore.client(...)` returns one candidate's connection. Each connection can refuse, lose answers or stall, while
the store stays consistent.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from berth_client.errors import ApiError, Unreachable
from berth_client.objects import Object

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def conflict() -> ApiError:
    return ApiError(409, "Conflict", "the object has been modified")


def not_found(name: str) -> ApiError:
    return ApiError(404, "NotFound", f'leaderleases.berth.dev "{name}" not found')


@dataclass
class LeaseStore:
    """LeaderLeases by name; creation times follow the loop's time."""

    leases: dict[str, Object] = field(default_factory=dict)
    version: int = 0
    numbers: list[int] = field(default_factory=list)
    """Every term that was ever written, without consecutive repetitions."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    served: bool = True
    """Whether the API server has the CRD."""
    keeps_status: bool = True
    """Whether the CRD has the status; that of the version before has not."""

    def client(self) -> "LeaseClient":
        return LeaseClient(store=self)

    def add(self, spec: Object) -> None:
        """Add the LeaderLease that existed before the test."""
        self._create({"metadata": {"name": "berth"}, "spec": spec})

    def delete(self, name: str) -> None:
        del self.leases[name]

    def touch(self, name: str) -> None:
        self.version += 1
        self.leases[name]["metadata"]["resourceVersion"] = str(self.version)
        self.changed.set()
        self.changed = asyncio.Event()

    def handle(self, method: str, path: str, body: Any) -> Object:
        prefix, _, name = path.rpartition("/leaderleases")
        assert prefix == "/apis/berth.dev/v1alpha1/namespaces/ns"
        name = name.lstrip("/")
        if not self.served:
            raise ApiError(404, "Unknown", "404 page not found")
        if method == "POST":
            return self._create(body)
        lease = self.leases.get(name)
        if method == "GET":
            if lease is None:
                raise not_found(name)
            return copy.deepcopy(lease)
        assert method == "PUT"
        return self._replace(name, lease, body)

    def _create(self, body: Any) -> Object:
        name = body["metadata"]["name"]
        if name in self.leases:
            raise ApiError(409, "AlreadyExists", f'leaderleases.berth.dev "{name}" already exists')
        created = STARTED + timedelta(seconds=asyncio.get_running_loop().time())
        metadata = {"uid": f"uid-{self.version}", "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return self._store(name, {**body, "metadata": {**body["metadata"], **metadata}})

    def _replace(self, name: str, lease: Object | None, body: Any) -> Object:
        if lease is None:
            raise not_found(name)
        for key in ("uid", "resourceVersion"):
            if lease["metadata"][key] != body["metadata"][key]:
                raise conflict()
        return self._store(name, body if self.keeps_status else {**body, "status": {}})

    def _store(self, name: str, lease: Object) -> Object:
        self.leases[name] = copy.deepcopy(lease)
        self.touch(name)
        number = lease["spec"]["term"]
        if number and self.numbers[-1:] != [number]:
            self.numbers.append(number)
        return copy.deepcopy(self.leases[name])


@dataclass
class LeaseClient:
    """One candidate's connection."""

    store: LeaseStore
    down: bool = False
    """If true, no request arrives and none is answered."""
    deaf: bool = False
    """If true, requests arrive and their answers are lost."""
    latency: Callable[[], float] = lambda: 0.0
    """Seconds until a request arrives."""
    answer_latency: Callable[[], float] = lambda: 0.0
    """Seconds until its answer arrives."""
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    """If cleared, the whole process is paused, with its timeouts."""
    watches: bool = True
    """Whether watches are accepted."""
    instead: list[Any] = field(default_factory=list)
    """What the next requests get, which then do not arrive."""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.resumed.set()

    async def request(self, method: str, path: str, *, body: Any = None, timeout: float = 30.0) -> Any:  # noqa: ASYNC109
        self.calls.append(method)
        latency = self.latency()
        await asyncio.sleep(min(latency, timeout))
        await self.resumed.wait()
        if self.down:
            await asyncio.sleep(max(0.0, timeout - latency))
            raise Unreachable("down")
        if self.instead:
            return self.instead.pop()
        late = self.answer_latency()
        try:
            return self.store.handle(method, path, body)
        finally:
            await asyncio.sleep(max(0.0, min(late, timeout - latency)))
            if self.deaf or latency + late >= timeout:
                raise Unreachable("the answer was lost")

    async def stream(
        self, path: str, params: Mapping[str, str], *, idle_timeout: float = 30.0
    ) -> AsyncGenerator[bytes, None]:
        assert path.endswith("/leaderleases")
        assert params["fieldSelector"] == "metadata.name=berth"
        if not self.watches or self.down or not self.store.served:
            raise Unreachable("down")
        yield b""
        while True:
            await asyncio.wait_for(self.store.changed.wait(), idle_timeout)
            await self.resumed.wait()
            if self.down or self.deaf:
                raise Unreachable("down")
            yield b"{}"
