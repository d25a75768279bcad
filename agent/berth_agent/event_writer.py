"""The Events of the agent, about its Node and the pods on it.

An Event is created and never changed. By default, the API server deletes it after an hour. What lasts longer is
reported again then, and no sooner. An Event that the API server refuses is logged and lost. If the server does not
answer or is busy, the Event waits.
"""

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import structlog

from berth_api import names
from berth_client import times
from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_client.refusals import RefusalGroup

LIFETIME: Final = 3600.0
"""Seconds until the same Event is created again."""
MAX_OF_ONE: Final = 25
"""Events about one object with one reason within this time; kubelet also sends at most 25 at once."""
MAX_OBJECTS: Final = 1024
"""Objects whose Events are remembered. The oldest makes way."""
MAX_WAITING: Final = 256
"""Events that wait to be created."""
MAX_MESSAGE: Final = 1000
"""Characters of an Event's message; the server takes 1024."""

DEVICES_REFUSED: Final = "DevicesRefused"
"""The reason if kubelet was refused devices."""
WRITES_REFUSED: Final = "WritesRefused"
"""The reason if the API server refuses what the agent writes."""

LONGEST_PAUSE: Final = 60.0
"""Seconds after a failure; the first pause is a second, and each further failure doubles it."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class InvolvedObject(NamedTuple):
    """The Node or pod that an Event is about."""

    kind: str
    namespace: str
    """Empty for a Node."""
    name: str
    uid: str

    @classmethod
    def node(cls, name: str) -> "InvolvedObject":
        """Return a Node as kubelet refers to it: `kubectl describe node` also shows Events with the name as UID."""
        return cls("Node", "", name, name)

    @property
    def of_event(self) -> str:
        """Return the namespace of the Event: `default` for an object without a namespace."""
        return self.namespace or "default"


class _Waiting(NamedTuple):
    """An Event that is to be created."""

    involved: InvolvedObject
    body: dict[str, Any]
    since: float


class EventWriter:
    """The Events of one agent."""

    def __init__(self, *, client: ApiClient, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Report as the agent of a node. `clock` returns seconds."""
        self._client = client
        self._node = node
        self._clock = clock
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue(MAX_WAITING)
        self._reported: dict[InvolvedObject, dict[tuple[str, Hashable], float]] = {}
        """Object -> (reason, key) -> when its Event was put into the queue. The latest object comes last."""

    def warn(self, involved: InvolvedObject, reason: str, message: str, *, key: Hashable = None) -> None:
        """Have `run` create an Event, unless there is one with this reason and key; the message is the default key."""
        now, message = self._clock(), message[:MAX_MESSAGE]
        what = reason, key or message
        reported = {each: at for each, at in self._reported.pop(involved, {}).items() if now < at + LIFETIME}
        alike = sum(each[0] == reason for each in reported)
        # If the queue is full, what is reported goes on, and is reported again.
        if what not in reported and alike < MAX_OF_ONE and not self._waiting.full():
            reported[what] = now
            body = event(involved, reason, message, node=self._node)
            self._waiting.put_nowait(_Waiting(involved, body, since=now))
        if reported:
            self._reported[involved] = reported
        if len(self._reported) > MAX_OBJECTS:
            del self._reported[next(iter(self._reported))]

    async def run(self) -> None:
        """Create the Events one by one until cancelled.

        One that the API server does not answer, or has no time for, waits behind the others.
        """
        failures = 0
        while True:
            waiting = await self._waiting.get()
            try:
                await self._client.create(f"/api/v1/namespaces/{waiting.involved.of_event}/events", waiting.body)
            except CallError as error:
                _log.warning(
                    "Event not written",
                    kind=waiting.involved.kind,
                    namespace=waiting.involved.namespace,
                    name=waiting.involved.name,
                    reason=waiting.body["reason"],
                    error=str(error),
                )
                failures += 1
                is_lost = error.is_refused and error.status != HTTPStatus.TOO_MANY_REQUESTS
                # What still goes on after its lifetime is reported again.
                if not is_lost and self._clock() < waiting.since + LIFETIME and not self._waiting.full():
                    self._waiting.put_nowait(waiting)
                    await asyncio.sleep(min(LONGEST_PAUSE, 2.0 ** min(failures - 1, 10)))
            else:
                failures = 0


def event(involved: InvolvedObject, reason: str, message: str, *, node: str) -> dict[str, Any]:
    """Return the Event of a node's agent."""
    now = times.time(times.now())
    namespace = {"namespace": involved.namespace} if involved.namespace else {}
    return {
        "metadata": {"generateName": f"{involved.name[:200]}.", "namespace": involved.of_event},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": involved.kind,
            **namespace,
            "name": involved.name,
            "uid": involved.uid,
        },
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": names.AGENT, "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def lasting(refusals: Iterable[RefusalGroup], seconds: float) -> list[RefusalGroup]:
    """Return the refusals that have lasted for some seconds. If Events are refused, one about that would be, too."""
    return [one for one in refusals if one.write.resource != "events" and one.last - one.since >= seconds]
