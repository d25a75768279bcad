"""Leader election by a LeaderLease, with a term that grows with every leader.

* `term` becomes None before any other replica can lead. It ends `renew_deadline` after the *start* of the last
  successful renewal. Other replicas wait for `lease_duration` after they last *observed* a change of the lease. Each
  replica uses its own monotonic clock and never compares it with a time written by another process.
* A candidate watches the lease, so that it observes a renewal or release at once. Without a watch it reads the lease
  once in each `retry_period`.
* If all binds were answered when a leader stops, the leader records this in the LeaderLease that it releases. The next
  leader then does not wait for requests that may still be in flight.
* With each renewal and with the release, the leader writes its record for the next leader.
* A term is higher than any earlier term, even after the LeaderLease or its CRD was deleted. The fence uses the term:
  the API server refuses Bindings of any other term. See decision 0002.
* If the API server shows an earlier state than before, its etcd was restored, or API servers disagree. The term ends at
  once, and a new one is written. It begins once the API server agrees with itself (`agreement`). See decision 0042.

Below, "lease" is short for LeaderLease.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_client import times
from berth_client.agreement import Agreement, why_earlier
from berth_client.errors import ApiError, CallError, Unreachable
from berth_client.objects import Object

TERM_ORIGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""The terms of a new LeaderLease start from the seconds since this moment."""

COPIES: Final = 5
"""How often a request is sent until it is answered, spread evenly over the renew deadline."""

LAG: Final = 10.0
"""Seconds after which each API server must have seen a renewal. A busy one may take a few."""

WATCH_SECONDS: Final = 300
"""Seconds after which a watch of the lease is opened again."""
SOON: Final = 0.01
"""The least wait for the expiry of a lease, in seconds: the loop's clock may be behind ours by less than that."""

PAUSES: Final = (5.0, 10.0, 20.0, 60.0, 300.0)
"""Seconds of agreement before a term begins, after the API server has shown an earlier state once, twice and so on.
So all is listed at most five times in ten minutes, whenever API servers take turns."""

MAX_HINDRANCE: Final = 1024
"""Characters of a hindrance in the lease."""

_CHANGED: Final = {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}
"""Answers to a write if the lease was deleted or changed since it was read."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TermLostError(Exception):
    """The term has ended: another replica leads now, or may."""


class RestoredError(Exception):
    """The API server has shown an earlier state: what was read before may not be so."""


class LeaseApi(Protocol):
    """The subset of `kube.KubeClient` that the election uses."""

    def request(self, method: str, path: str, *, body: Any = None, timeout: float = ...) -> Coroutine[Any, Any, Any]:
        """Return the decoded answer."""

    def stream(self, path: str, params: dict[str, str], *, idle_timeout: float = ...) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch."""


@dataclass(eq=False)
class LeaderElection:
    """One candidate; all durations are in seconds."""

    api: LeaseApi
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    """Unique among running processes: a candidate that finds its own identity in the lease takes it at once."""
    address: str = ""
    """The host:port at which other replicas reach this replica's visibility API; empty if it serves none."""
    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    clock: Callable[[], float] = time.monotonic
    """Not the event loop's clock: uvloop's stands still during a callback, however long it takes."""

    won_at: float = field(default=0.0, init=False)
    """Reading of `clock` when we learned that our last term had begun."""
    drained: bool = field(default=False, init=False)
    """Set before `run` ends, if nothing that we sent can still be executed."""
    follows_drained: bool = field(default=False, init=False)
    """Whether the leader before our last term recorded that it was drained."""
    inherited: Object = field(default_factory=dict, init=False)
    """The lease as we found it before our last term, with the record that the leader before us left in its status."""
    record: Callable[[int], Object | None] | None = field(default=None, init=False)
    """Returns what the leader of a term leaves to the next; None until it has restored the last leader's record."""

    hindrance: Callable[[], str] = field(default_factory=lambda: str, init=False)
    """Returns what keeps us from binding pods although we hold the lease; empty if nothing does."""

    _lease: Object | None = field(default=None, init=False)  # as last answered
    _seen: Object = field(default_factory=dict, init=False)  # the spec last read, and when it last changed
    _seen_at: float = field(default=0.0, init=False)
    _number: int = field(default=0, init=False)  # of our last term, and the moment of its end
    _ends_at: float = field(default=0.0, init=False)
    _highest: int = field(default=0, init=False)  # number known to be taken
    _announced: int | None = field(default=None, init=False)
    _sent: str = field(default="", init=False)  # renewTime of our last write
    _renewals: deque[tuple[float, str]] = field(default_factory=deque, init=False)  # of our term: when, renewTime
    _agreement: Agreement = field(init=False)
    _unwatched_at: float = field(default=-math.inf, init=False)  # when the watch broke last, and a renewal since
    _confirmed_at: float = field(default=-math.inf, init=False)
    _unwatched: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)  # the watch has shown a change
    _expiry: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._agreement = Agreement(clock=self.clock, pauses=PAUSES)
        if not self.lease_duration > self.renew_deadline > 2 * self.retry_period > 0:
            raise ValueError(
                f"lease_duration: {self.lease_duration}, renew_deadline: {self.renew_deadline:g}, retry_period: "
                f"{self.retry_period:g}; allowed is lease_duration > renew_deadline > 2 * retry_period > 0"
            )

    @property
    def term(self) -> int | None:
        """Return our term, or None while we do not lead."""
        return self._held if self.is_settled else None

    @property
    def is_settled(self) -> bool:
        """Return whether the API server agrees with what it showed before."""
        return self._agreement.is_settled

    @property
    def _held(self) -> int | None:
        """Return the number that we hold in the lease; the term begins only once the API server is settled."""
        return self._number if self.clock() < self._ends_at else None

    @property
    def leader(self) -> str | None:
        """Return where the leader serves the visibility API, as last read; None if there is no leader."""
        if self._lease is None or self._is_free(self._lease["spec"]):
            return None
        return _annotation(self._lease, names.VISIBILITY_ADDRESS) or ""

    @property
    def renewed(self) -> str:
        """Return when a leader last renewed or released the lease, as last read; empty if unknown."""
        return str((self._lease or {}).get("spec", {}).get("renewTime") or "")

    @property
    def known_renewal(self) -> str:
        """Return the lease's name and `renewTime` of a renewal that each API server must know; empty if there is none.

        It is `LAG` old, because API servers learn of renewals by watches, or the first one of the term.
        """
        # The earliest, because our clock may have been set back.
        return f"{self.name}/{min(time for _, time in self._renewals)}" if self._renewals else ""

    async def acquired(self) -> int:
        """Wait until we lead, and return the term."""
        while (term := self.term) is None:
            await self._changed.wait()
        return term

    async def lost(self, term: int) -> None:
        """Wait until a term has ended."""
        while self.term == term:
            await self._changed.wait()

    async def doubted(self) -> None:
        """Wait until the API server shows an earlier state than before."""
        while self.is_settled:
            await self._changed.wait()

    async def settled(self) -> None:
        """Wait until the API server agrees with what it showed before."""
        while not self.is_settled:
            await self._changed.wait()

    async def confirmed(self, term: int) -> None:
        """Wait until a term was renewed since the watch of the lease broke, or has ended.

        A restore breaks all connections. Nothing may be bound between the first connection to the restored API server
        and the renewal that notices it.
        """
        while self.term == term and self._confirmed_at < self._unwatched_at:
            await self._changed.wait()

    async def exceed(self, number: int) -> int:
        """Lead in a term that is higher than a number, a new one if need be; return the term."""
        if number >= self._number:
            self._highest = max(self._highest, number)
            self._end_term()
            self._unwatched.set()
        return await self.acquired()

    def doubt(self, why: str) -> None:
        """End the term, because the API server has shown an earlier state than before."""
        if self.is_settled:
            log.warning("the API server shows an earlier state", lease=self.name, why=why)
        self._agreement.doubt()
        self._end_term()
        self._notify()

    def _end_term(self) -> None:
        self._ends_at = 0.0
        self._announce()

    async def run(self) -> None:
        """Take part in the election until cancelled, then release the lease. Stop using the term before that."""
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                started = self.clock()
                self._news.clear()
                self._unwatched.clear()
                try:
                    if not await self._renewed():
                        await self._compete()
                    if self._agreement.settle(started):
                        log.info("the API server agrees with itself again", lease=self.name)
                        self._notify()
                except CallError as error:
                    # The write may have been executed; then the next one conflicts, and the lease is read again.
                    log.warning("election turn failed", lease=self.name, term=self.term, error=_explained(error))
                self._announce()
                # Measured from the start of the turn, so that a slow answer does not delay the next renewal.
                await self._rest(started + self.retry_period - self.clock())
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._ends_at = 0.0
            self._announce()
            try:
                if not await self._released():
                    # A renewal was executed and its answer lost: release what it wrote.
                    self._lease = await self._call("GET", f"/{self.name}")
                    await self._released()
            except CallError as error:
                log.warning("lease not released, it will run out", lease=self.name, error=str(error))

    async def _rest(self, seconds: float) -> None:
        """Wait until the next turn, which a change of the lease or its expiry makes due earlier unless we lead.

        While we lead, the end of the watch makes it due.
        """
        if self._held is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0)):
                    await self._unwatched.wait()
            return
        left = self._expires_at(self._seen) - self.clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, max(left, SOON)) if left > 0 else seconds):
                await self._news.wait()

    async def _watch(self) -> None:
        """Set `_news` when the lease changes, until cancelled."""
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self.name}",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        while True:
            try:
                stream = self.api.stream(self._url(), params, idle_timeout=2.0 * WATCH_SECONDS)
                async with contextlib.aclosing(stream) as lines:
                    async for line in lines:
                        if line:
                            self._news.set()
            except CallError as error:
                log.debug("lease not watched, it is read instead", lease=self.name, error=str(error))
            self._unwatched_at = self.clock()
            self._unwatched.set()
            await asyncio.sleep(self.retry_period)

    async def _renewed(self) -> bool:
        """Renew our term; return False if there is none, or if the lease has changed since."""
        if self._held is None or self._lease is None:
            return False
        try:
            await self._hold(self._number)
        except ApiError as error:
            if error.status not in _CHANGED:
                raise
            return False
        return True

    async def _compete(self) -> None:
        """Read the lease, which is created without a holder if need be, and take it if it is free."""
        try:
            self._lease = await self._call("GET", f"/{self.name}")
        except ApiError as error:
            # Deleted under a leader that may not know it yet: wait until its lease has expired.
            if error.status != HTTPStatus.NOT_FOUND or not self._is_free(self._seen):
                raise
            lease = {
                "apiVersion": names.API_VERSION,
                "kind": names.LEADER_LEASE,
                "metadata": {"name": self.name},
                "spec": {"term": 0},
            }
            self._lease = await self._call("POST", "", lease)
        spec = self._lease["spec"]
        if spec != self._seen:
            self._seen, self._seen_at = spec, self.clock()
        last = int(spec["term"])
        self._highest = max(self._highest, last)
        if self._held == last and spec.get("holderIdentity") == self.identity:
            await self._hold(last)
            return
        self._ends_at = 0.0
        if self._is_free(spec):
            # The term of the leader that stopped with no request in flight.
            drained = _annotation(self._lease, names.DRAINED)
            self.follows_drained = self.is_settled and not spec.get("holderIdentity") and drained == str(last)
            self.inherited = self._lease
            # By the API server's clock: higher than any term before the lease was deleted and created again.
            created = times.parse(self._lease["metadata"]["creationTimestamp"]) - TERM_ORIGIN
            await self._hold(1 + max(self._highest, int(created.total_seconds())))

    def _is_free(self, spec: Object) -> bool:
        # Our own identity: our term expired, or the answer to our write was lost.
        if spec.get("holderIdentity") in {None, "", self.identity}:
            return True
        return self.clock() >= self._expires_at(spec)

    def _expires_at(self, spec: Object) -> float:
        return self._seen_at + float(spec.get("leaseDurationSeconds") or 0)

    async def _hold(self, number: int) -> None:
        started = self.clock()
        self._highest = max(self._highest, number)
        await self._write(number, self.identity, self.lease_duration)
        if number == self._number and self._held is None:
            # It has ended while the renewal was under way. Some of those who use it have seen that and stopped.
            return
        if number != self._number:
            self._renewals.clear()
        self._renewals.append((started, self._sent))
        while len(self._renewals) > 1 and self._renewals[1][0] <= started - LAG:
            self._renewals.popleft()
        self._number, self._ends_at = number, started + self.renew_deadline
        if self._confirmed_at < self._unwatched_at <= started:
            self._confirmed_at = started
            self._notify()
        # The end of the term is announced even while a call waits for its answer.
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(self._ends_at - self.clock(), self._announce)

    async def _write(self, number: int, holder: str, seconds: int) -> None:
        # With resourceVersion and uid: if the lease was changed, deleted or created again, the answer is in _CHANGED.
        before = self._lease or {}
        now = times.micro_time(times.now())  # for people; no program compares it
        spec = {**before["spec"], "renewTime": now, "term": number}
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": seconds}
        if before["spec"]["term"] != number:
            spec["acquireTime"] = now
        annotations = dict(before["metadata"].get("annotations") or {})
        lease = {**before, "metadata": {**before["metadata"], "annotations": annotations}, "spec": spec}
        try:
            record = None if self.record is None else self.record(number)
        except ValueError as error:
            # The API server would refuse it, and the term is worth more: what was written last stays.
            record = None
            log.warning("record for the next leader not written", lease=self.name, why=str(error))
        if record is not None:
            lease["status"] = record
            if before.get("status"):
                # The API server keeps the status: its definition is not that of the version before.
                annotations.pop(names.LOST_PLACES, None)
        annotations.pop(names.HINDRANCE, None)
        if holder and (hindrance := self.hindrance()):
            annotations[names.HINDRANCE] = hindrance[:MAX_HINDRANCE]
        annotations.pop(names.EARLIER_STATES, None)
        if self._agreement.doubts:
            annotations[names.EARLIER_STATES] = str(self._agreement.doubts)
        if self.drained and not holder:
            annotations[names.DRAINED] = str(number)
        annotations.pop(names.VISIBILITY_ADDRESS, None)
        if self.address and holder:
            annotations[names.VISIBILITY_ADDRESS] = self.address
        self._sent = now
        self._lease = await self._call("PUT", f"/{self.name}", lease)

    async def _released(self) -> bool:
        """Release the lease if we hold it, as last answered; return False if it has changed since."""
        if self._lease is None or self._lease["spec"].get("holderIdentity") != self.identity:
            return True
        try:
            await self._write(self._lease["spec"]["term"], "", 1)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return False
        return True

    async def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Send a request up to `COPIES` times, and return the first answer.

        A slow API server has the time of a whole term to answer. A request that hangs in a broken connection delays the
        election only until the next copy. Only one copy of a write is executed, because all copies have the same
        resourceVersion.

        Raises:
            ApiError: the first answer is an error; a 409 may be the answer to a copy.
            Unreachable: there is no answer within the renew deadline, or it is no LeaderLease.
        """
        url = self._url() + path
        requests: list[asyncio.Task[Object]] = []
        try:
            for _ in range(COPIES):
                request = self.api.request(method, url, body=body, timeout=self.renew_deadline)
                requests.append(asyncio.create_task(request))
                answered, _ = await asyncio.wait(
                    requests, timeout=self.renew_deadline / COPIES, return_when=asyncio.FIRST_COMPLETED
                )
                if answered:
                    lease, before = _lease_of(answered.pop().result(), f"{method} {url}"), self._lease
                    if before and (why := why_earlier(lease, before, holder=self.identity, sent=self._sent)):
                        self.doubt(why)
                    return lease
            raise Unreachable(f"{method} {url}: no answer within {self.renew_deadline:g} s")
        finally:
            for task in requests:
                task.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    def _url(self) -> str:
        return f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{names.LEADER_LEASES}"

    def _announce(self) -> None:
        if self.term != self._announced:
            self._announced, self.won_at = self.term, self.clock()
            log.info("term changed", lease=self.name, identity=self.identity, term=self._announced)
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _lease_of(answer: Any, name: str) -> Object:
    """Return an answer as a LeaderLease. A proxy may answer in place of the API server, with no body or another one."""
    match answer:
        case {"metadata": {"creationTimestamp": str()}, "spec": {"term": int()}}:
            lease: Object = answer
            return lease
    raise Unreachable(f"{name}: the answer is no LeaderLease")


def _explained(error: Exception) -> str:
    """Return an error's text, with what to do if the API server does not serve LeaderLeases."""
    # That answer has no Status object, unlike the one for a missing lease or namespace.
    if isinstance(error, ApiError) and error.status == HTTPStatus.NOT_FOUND and error.reason == "Unknown":
        return f"the API server serves no {names.LEADER_LEASES}.{names.GROUP}: apply crds/"
    return str(error)


def _annotation(lease: Object, name: str) -> str | None:
    annotations: dict[str, str] = lease["metadata"].get("annotations") or {}
    return annotations.get(name)
