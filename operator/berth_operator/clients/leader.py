"""One leader at a time, by a LeaderLease, and a term that grows with every leader.

* `term` is None before anybody else can lead: it ends `renew_deadline` after the *start* of the last renewal
  that succeeded, others wait `lease_duration` after they last *saw* the lease change. Both count on their own
  monotonic clock; no time written by another process is compared with one of ours.
* Whoever ends with every bind answered says so in the LeaderLease that it releases: the next leader need not wait for
  requests that may still be on their way.
* A term is higher than any before it, also after the LeaderLease or its definition was deleted. It is
  the fence's: the API server refuses Bindings of any other term. See decision 0002.

Below, "lease" is short for LeaderLease.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_client import times
from berth_client.errors import ApiError, CallError, Unreachable
from berth_client.objects import Object

EPOCH: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""Second 0 of the terms that a new LeaderLease starts from."""

COPIES: Final = 5
"""How often a request is sent while no answer to it comes, spread evenly over the renew deadline."""

_CHANGED: Final = {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}
"""Answers to a write of a lease that was deleted or written since it was read."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TermLostError(Exception):
    """Another replica leads now, or may."""


class Api(Protocol):
    """What an election needs of a `kube.KubeClient`."""

    def request(self, method: str, path: str, *, body: Any = None, timeout: float = ...) -> Coroutine[Any, Any, Any]:
        """Return the decoded answer."""


@dataclass(eq=False)
class LeaderElection:
    """One candidate; all durations are in seconds."""

    api: Api
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    """Unique among running processes: a candidate that finds its own name in the lease takes it at once."""
    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    clock: Callable[[], float] = time.monotonic
    """Not the loop's: uvloop's stands still during a callback, however long it takes."""

    won_at: float = field(default=0.0, init=False)
    """By `clock`: when we knew that our last term had begun."""
    drained: bool = field(default=False, init=False)
    """To be set before the end, if nothing that we sent can still be executed."""
    follows_drained: bool = field(default=False, init=False)
    """Whether the leader before our last term said that of itself."""

    _lease: Object | None = field(default=None, init=False)  # as last answered
    _seen: Object = field(default_factory=dict, init=False)  # the spec last read, and since when it stands
    _seen_at: float = field(default=0.0, init=False)
    _number: int = field(default=0, init=False)  # of our last term, and the moment of its end
    _ends_at: float = field(default=0.0, init=False)
    _highest: int = field(default=0, init=False)  # number known to be taken
    _told: int | None = field(default=None, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _expiry: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > 2 * self.retry_period > 0:
            raise ValueError("wanted: lease_duration > renew_deadline > 2 * retry_period > 0")

    @property
    def term(self) -> int | None:
        """Our term's number, or None while we do not lead."""
        return self._number if self.clock() < self._ends_at else None

    async def acquired(self) -> int:
        """Wait until we lead; return the term."""
        while (term := self.term) is None:
            await self._changed.wait()
        return term

    async def lost(self, term: int) -> None:
        """Wait until that term is over."""
        while self.term == term:
            await self._changed.wait()

    async def run(self) -> None:
        """Stand for election until cancelled, then release the lease. Stop using the term first."""
        try:
            while True:
                started = self.clock()
                await self._turn()
                self._tell()
                # From the start of the last turn: a slow answer must not delay the next renewal.
                await asyncio.sleep(started + self.retry_period - self.clock())
        finally:
            self._ends_at = 0.0
            self._tell()
            await self._release()

    async def _turn(self) -> None:
        try:
            if not await self._renewed():
                await self._compete()
        except CallError as error:
            # A write may have happened all the same: then the next one is a conflict, and the lease is read.
            log.warning("election turn failed", lease=self.name, term=self.term, error=_explained(error))

    async def _renewed(self) -> bool:
        if self.term is None or self._lease is None:
            return False
        try:
            await self._hold(self._number)
        except ApiError as error:
            if error.status not in _CHANGED:
                raise
            return False
        return True

    async def _compete(self) -> None:
        self._lease = await self._read()
        spec = self._lease["spec"]
        last = int(spec["term"])
        self._highest = max(self._highest, last)
        if self.term == last and spec.get("holderIdentity") == self.identity:
            await self._hold(last)
            return
        self._ends_at = 0.0
        if self._is_free(spec):
            self.follows_drained = not spec.get("holderIdentity") and _drained(self._lease) == str(last)
            await self._hold(1 + max(self._highest, _created(self._lease)))

    async def _read(self) -> Object:
        """Return the lease, made without a holder if there is none; note when it changed."""
        try:
            lease = await self._call("GET", f"/{self.name}")
        except ApiError as error:
            # Deleted under a leader that may not know yet: its time must run out first.
            if error.status != HTTPStatus.NOT_FOUND or not self._is_free(self._seen):
                raise
            lease = await self._call("POST", "", _new(self.name))
        if lease["spec"] != self._seen:
            self._seen, self._seen_at = lease["spec"], self.clock()
        return lease

    def _is_free(self, spec: Object) -> bool:
        # Our own name: a term that lapsed, or a write whose answer was lost.
        if spec.get("holderIdentity") in {None, "", self.identity}:
            return True
        return self.clock() >= self._seen_at + float(spec.get("leaseDurationSeconds") or 0)

    async def _hold(self, number: int) -> None:
        started = self.clock()
        self._highest = max(self._highest, number)
        await self._write(number, self.identity, self.lease_duration)
        self._number, self._ends_at = number, started + self.renew_deadline
        self._announce_end()

    def _announce_end(self) -> None:
        """Announce the end of the term when it comes, also while a call waits for its answer."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(self._ends_at - self.clock(), self._tell)

    async def _write(self, number: int, holder: str, seconds: int) -> None:
        # Carries resourceVersion and uid: a lease that was changed, deleted or created again since then is in _CHANGED.
        lease = copy.deepcopy(self._lease or {})
        now = times.micro_time(times.now())  # for people; no program compares it
        if lease["spec"]["term"] != number:
            lease["spec"]["acquireTime"] = now
        lease["spec"] |= {"renewTime": now, "term": number}
        lease["spec"] |= {"holderIdentity": holder, "leaseDurationSeconds": seconds}
        if self.drained and not holder:
            lease["metadata"].setdefault("annotations", {})[names.DRAINED] = str(number)
        self._lease = await self._call("PUT", f"/{self.name}", lease)

    async def _release(self) -> None:
        if self._lease is None or self._lease["spec"].get("holderIdentity") != self.identity:
            return
        try:
            await self._write(self._lease["spec"]["term"], "", 1)
        except CallError as error:
            log.warning("lease not released, it will run out", lease=self.name, error=str(error))

    async def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Return the first answer to a request, which is sent `COPIES` times while none comes.

        A slow API server is waited for as long as a term lasts, and a request that hangs in a broken connection delays
        the election by one copy's time only. Of the copies of a write one is executed: it carries the resourceVersion.

        Raises:
            ApiError: the first answer is an error; a 409 may be the answer to a copy.
            Unreachable: there is no answer within the renew deadline.
        """
        url = f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{names.LEADER_LEASES}{path}"
        requests: list[asyncio.Task[Object]] = []
        try:
            for _ in range(COPIES):
                request = self.api.request(method, url, body=body, timeout=self.renew_deadline)
                requests.append(asyncio.create_task(request))
                answered, _ = await asyncio.wait(
                    requests, timeout=self.renew_deadline / COPIES, return_when=asyncio.FIRST_COMPLETED
                )
                if answered:
                    return answered.pop().result()
            raise Unreachable(f"{method} {url}: no answer within {self.renew_deadline:g} s")
        finally:
            for task in requests:
                task.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    def _tell(self) -> None:
        if self.term != self._told:
            self._told, self.won_at = self.term, self.clock()
            log.info("term changed", lease=self.name, identity=self.identity, term=self._told)
            self._changed.set()
            self._changed = asyncio.Event()


def _new(name: str) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.LEADER_LEASE,
        "metadata": {"name": name},
        "spec": {"term": 0},
    }


def _explained(error: Exception) -> str:
    """Return an error's text, with what to do where the API server does not serve the kind."""
    # That answer comes without a Status object; of a missing lease or namespace there is one.
    if isinstance(error, ApiError) and error.status == HTTPStatus.NOT_FOUND and error.reason == "Unknown":
        return f"the API server serves no {names.LEADER_LEASES}.{names.GROUP}: apply crds/"
    return str(error)


def _drained(lease: Object) -> str | None:
    """Return the number of the last term that ended with nothing on its way, if any."""
    annotations: dict[str, str] = lease["metadata"].get("annotations") or {}
    return annotations.get(names.DRAINED)


def _created(lease: Object) -> int:
    """Return the seconds from EPOCH to the lease's creation, by the API server's clock."""
    return int((times.parse(lease["metadata"]["creationTimestamp"]) - EPOCH).total_seconds())
