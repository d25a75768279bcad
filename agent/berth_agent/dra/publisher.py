"""Keep the node's ResourceSlices on the API server what they should be.

kubelet deletes all slices of its node when it starts, and when it was without a driver for a while. They are created
again at once. They stay when the agent ends: the next agent, or kubelet, decides about them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

import structlog

from berth_agent.dra import slices
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.partitions import PartitionedCard
from berth_agent.dra.slices import Delete, Known, Update
from berth_agent.following import follow
from berth_api.names import DRA_DRIVER
from berth_api.values.backoff import ExponentialBackoff
from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_client.objects import Object
from berth_client.reflector import EventType

SLICES: Final = f"/apis/{slices.API_VERSION}/resourceslices"
BACKOFF: Final = ExponentialBackoff(first=0.5, longest=30.0)
"""After a failed write, or after slices that were lost at once."""
SETTLED: Final = 5.0
"""Seconds after which a slice that was written is expected to stay."""

ASK_AGAIN: Final = 600.0
"""Seconds until an API server that drops taints or shares is asked again: it may have been upgraded."""
ASK_SECONDS: Final = 5.0
"""Seconds for the answer: the agent publishes nothing meanwhile."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class SlicePublisher:
    """The slices of one node."""

    def __init__(self, *, client: ApiClient, node: str, owner: Callable[[], Mapping[str, Any] | None]) -> None:
        """Set the API client, the node, and what returns its owner reference, or None while the Node is unknown."""
        self._client = client
        self._node = node
        self._owner = owner
        self._devices: Sequence[ListedDevice] | None = None
        self._partitioned: Mapping[str, PartitionedCard] = {}
        self._existing: dict[str, Known] | None = None
        self._gone: set[str] = set()
        """Slices that were deleted during the current writes: the answer to their creation may come later."""
        self.keeps_taints: bool | None = None
        """Whether the API server keeps taints of devices; None while it is not known."""
        self.keeps_shares: bool | None = None
        """Whether the API server keeps shares of devices; None while it is not known."""
        self._asked_at = float("-inf")
        self._answers: dict[str, tuple[slices.Spec, slices.Spec]] = {}
        """Name of a slice -> what was sent last, and what the API server made of it."""
        self._wake = asyncio.Event()
        self._published_for: Mapping[str, Any] | None = None
        """The owner when devices were published last."""
        self._written_at = float("-inf")
        self._setback = ""
        """Why to pause before the next write; empty if there is no reason."""
        self.failure = "the node's cards and pods, or its ResourceSlices, are not known yet"
        """Why the slices are not what they should be; empty if they are."""

    def publish(
        self, devices: Sequence[ListedDevice], partitioned: Mapping[str, PartitionedCard] = MappingProxyType({})
    ) -> None:
        """List these devices from now on, and for these cards what can be made on them."""
        owner = self._owner()
        if (devices, partitioned, owner) != (self._devices, self._partitioned, self._published_for):
            self._devices, self._partitioned, self._published_for = devices, partitioned, owner
            self._wake.set()

    async def probe(self, *, shares: bool = False) -> None:
        """Find out whether the API server keeps taints, or shares, of devices, unless it does, or was asked recently.

        Raises:
            CallError: it has never been known.
        """
        now = asyncio.get_running_loop().time()
        known = self.keeps_shares if shares else self.keeps_taints
        if known or (known is False and now < self._asked_at + ASK_AGAIN):
            return
        self._asked_at = now
        sent = slices.probe(self._node)
        try:
            answer = await self._client.request(
                "POST", SLICES, params={"dryRun": "All"}, body=sent, timeout=ASK_SECONDS
            )
        except CallError:
            if known is None:
                raise
            return
        keeps_taints = slices.keeps_taints(sent["spec"], answer["spec"])
        if keeps_taints and self.keeps_taints is False:
            _log.info("the API server keeps taints of devices now")
            self._wake.set()
        self.keeps_taints, self.keeps_shares = keeps_taints, slices.keeps_shares(sent["spec"], answer["spec"])

    async def run(self) -> None:
        """Follow and write the slices until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            selector = f"spec.nodeName={self._node},spec.driver={DRA_DRIVER}"
            following = follow(
                self._client,
                SLICES,
                selector=selector,
                read=slices.known,
                listed=self._listed,
                changed=self._changed,
                restores=self._client.restores,
            )
            tasks.create_task(following)
            pause = BACKOFF.first
            while True:
                await self._wake.wait()
                if self._setback:
                    if self._setback != self.failure:
                        _log.warning("ResourceSlices not written, will try again", error=self._setback)
                    self.failure = self._setback
                    await asyncio.sleep(pause)
                    pause = BACKOFF.following(pause)
                elif not self._is_fresh:
                    pause = BACKOFF.first
                self._wake.clear()
                self._setback = ""
                if self._devices is None or self._existing is None:
                    continue
                if self._owner() is None:
                    self.failure = f"the Node {self._node} is not known"
                    continue
                try:
                    await self._write(self._devices, self._existing)
                except CallError as error:
                    self._setback = str(error)
                    self._wake.set()
                else:
                    self.failure = ""

    @property
    def _is_fresh(self) -> bool:
        return asyncio.get_running_loop().time() - self._written_at < SETTLED

    def _listed(self, existing: list[Known], _version: str) -> None:
        self._existing = {one.name: one for one in existing}
        self._wake.set()

    def _changed(self, event_type: EventType, obj: Object) -> None:
        one = slices.known(obj)
        known = (self._existing or {}).get(one.name)
        if self._existing is None or (known is not None and int(known.version) >= int(one.version)):
            return
        if event_type == "DELETED":
            self._gone.add(one.name)
            if self._existing.pop(one.name, None):
                _log.info("ResourceSlice deleted by another client, writing it again", slice=one.name)
                if self._is_fresh:
                    # The Node may have been replaced: the garbage collector then deletes what has the earlier owner.
                    self._setback = "ResourceSlices are deleted as soon as they are written"
        else:
            self._existing[one.name] = one
        self._wake.set()

    async def _write(self, devices: Sequence[ListedDevice], existing: dict[str, Known]) -> None:
        owner = self._owner()
        self._gone.clear()
        partitioned = self._partitioned
        wanted = slices.by_card(devices, with_taints=self.keeps_taints is not False, partitioned=partitioned)
        known, counters = list(map(self._as_sent, existing.values())), slices.counters_of(partitioned)
        for change in slices.plan(wanted, known, node=self._node, counters=counters):
            if isinstance(change, Delete):
                await self._delete(change.known, existing)
            elif isinstance(change, Update):
                body = slices.replacement(change, owner)
                answer = await self._client.request("PUT", f"{SLICES}/{change.known.name}", body=body)
                self._put(change.spec, answer)
            else:
                self._put(
                    change.spec, await self._client.create(SLICES, slices.manifest(change.card, change.spec, owner))
                )

    async def _delete(self, one: Known, existing: dict[str, Known]) -> None:
        # Before the call, because the event may come before the answer.
        existing.pop(one.name, None)
        try:
            await self._client.delete(f"{SLICES}/{one.name}", uid=one.uid)
        except CallError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                # Its event may have come although the answer was lost.
                if one.name not in self._gone:
                    existing[one.name] = one
                raise

    def _put(self, sent: slices.Spec, answer: Object) -> None:
        one = slices.known(answer)
        self._written_at = asyncio.get_running_loop().time()
        if self._existing is not None and one.name not in self._gone:
            self._existing[one.name] = one
        self._answers = {name: answer for name, answer in self._answers.items() if name in (self._existing or ())}
        self._answers[one.name] = (sent, one.spec)
        if self.keeps_taints is not False and not slices.keeps_taints(sent, one.spec):
            _log.warning("the API server drops taints of devices: cards with a fault are left out of ResourceSlices")
            self.keeps_taints, self._asked_at = False, self._written_at
            self._wake.set()
        if self.keeps_shares and not slices.keeps_shares(sent, one.spec):
            _log.warning("the API server drops shares of devices: pods get cards by name")
            self.keeps_shares, self._asked_at = False, self._written_at

    def _as_sent(self, one: Known) -> Known:
        """Return a slice as it was sent: the API server drops fields that it does not have, and adds others."""
        sent, answer = self._answers.get(one.name, (None, None))
        return replace(one, spec=sent) if sent is not None and one.spec == answer else one
