"""The partitions of this node's cards that are made on demand: which cards have them, and who is asked to make them.

A process of its own makes partitions, behind `Partitions`. It is asked periodically what there is, and partitions of
no claim are destroyed then. A card on which partitions were made is listed with what can be made on it, or not at all.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from berth_agent.dra import slices
from berth_agent.dra.checkpoint import HeldClaim, HeldDevice
from berth_agent.vendor import PartitionableCard, PartitionCards, Partitions, RefusedError, UnansweredError
from berth_api.device import DeviceSpec, Mig
from berth_api.values.backoff import ExponentialBackoff
from berth_client.client import ApiClient
from berth_client.errors import ApiError, CallError

SLICES: Final = f"/apis/{slices.API_VERSION}/resourceslices"
PERIOD: Final = 30.0
"""Seconds between two questions to the process, which opens the card's library for each."""
SOON: Final = 1.0
"""Seconds until a process that did not answer is asked again: it starts with the agent, and may have been restarted."""
ASK_AGAIN: Final = 600.0
"""Seconds until an API server is asked again whether it keeps counters: it may have been upgraded."""
ASK_SECONDS: Final = 5.0
"""Seconds for this question to the API server, and until it is asked again if it did not answer."""
BACKOFF: Final = ExponentialBackoff(first=10.0, longest=300.0)
"""For which a partition that could not be destroyed is left alone."""

UNDIVIDED: Final = Mig(enabled=False, instances=[])
"""MIG state that a Device shows of a card with partitions on demand. None would say that the card has no MIG."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class OwnHandles(Protocol):
    """The agent's own use of the cards, which would keep a partition or a mode in use."""

    def __call__(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the agent has no card open.

        Raises:
            RefusedError: on entering, if the cards cannot be closed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """A partition that could not be destroyed."""

    reason: str
    pause: float
    """Seconds."""
    until: float
    """When the process is asked again."""


class PartitionsOnDemand:
    """What can be made on the node's cards, and what was made."""

    def __init__(self, partitions: Partitions, *, client: ApiClient, node: str, released: OwnHandles) -> None:
        self._partitions = partitions
        self._client = client
        self._node = node
        self._released = released
        self._cards: PartitionCards | None = None
        self._keeps_counters: bool | None = None
        self._probe_at = float("-inf")
        self._probe_failure = ""
        self._wake = asyncio.Event()
        self._refusals: dict[str, _Refusal] = {}
        """The last refusal to destroy a partition, by its key."""
        self._failures: tuple[str, ...] = ()
        self._silent = ""
        """Why the process did not answer last; empty if it did, or was not asked yet."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when the cards must be read again."""

    @property
    def unknown(self) -> str:
        """Return why it is not known what was made and what can be made, and what follows; empty if it is known."""
        if self._cards is not None and self._keeps_counters is not None:
            return ""
        cause = "; ".join(self._failures) or "the process that makes partitions has not been asked yet"
        remedy = "" if self._cards else ". Check the container of this process"
        effect = "no claim gets a partition or a card in the mode of partitions until it is known which exist"
        return f"{effect}: {cause}{remedy}"

    def opened(self) -> dict[str, PartitionableCard]:
        """Return the cards on which partitions can be made now, by UUID; none if the API server drops counters."""
        cards = self._cards.cards if self._cards and self._keeps_counters else ()
        return {card.card: card for card in cards if not _obstacle(card)}

    def used(self) -> frozenset[str]:
        """Return the UUIDs of the cards on which partitions were made."""
        return frozenset(card.card for card in (self._cards.cards if self._cards else ()) if card.made)

    def problems(self, *, opened: bool) -> list[str]:
        """Return why partitions cannot be made on some cards, if they are opened for it, or be destroyed."""
        if not opened:
            return list(self._failures)
        if self.unknown:
            return [f"ResourceSlices stay as they are, and {self.unknown}"]
        dropped = ["the API server drops counters of devices, as before Kubernetes 1.36"]
        cards, others = (self._cards.cards, self._cards.problems) if self._cards else ((), ())
        return [
            *self._failures,
            *(dropped if self._keeps_counters is False else ()),
            *others,
            *(obstacle for card in cards if (obstacle := _obstacle(card))),
        ]

    async def made(
        self, uid: str, held: HeldClaim, *, instances: Collection[str], divided: frozenset[str], done: set[str]
    ) -> HeldClaim:
        """Make a claim's partitions, end the mode of partitions on its whole cards, and return it with the UUIDs.

        Args:
            uid: its UID.
            held: the claim, which is recorded already.
            instances: UUIDs that the last reading has, those of the partitions among them.
            divided: UUIDs of the cards that are in the mode of partitions by that reading.
            done: names of devices for which this was done already since kubelet's call.

        Raises:
            RefusedError: they are not all ready. The same call goes on.
        """
        devices = []
        for device in held.devices:
            is_done = device.device in done or not is_unready(device, instances=instances, divided=divided)
            if not is_done and device.partition:
                async with self._exclusively():
                    made = await self._partitions.make(
                        key(uid, device.device), card=device.card, placement=device.partition
                    )
                devices.append(replace(device, id=made))
            else:
                if not is_done:
                    async with self._exclusively():
                        await self._partitions.clear(device.card)
                devices.append(device)
            done.add(device.device)
        return replace(held, devices=tuple(devices))

    async def destroy(self, name: str) -> None:
        """Destroy the partition of a key, if there is one.

        While a partition is in use, the process tries for seconds. Meanwhile, all claims of the node wait, the agent
        reads no card, and no fault is reported. kubelet calls again every few seconds. So after a refusal, the next
        calls get the same answer for a while.

        Raises:
            RefusedError: it may still be there.
        """
        clock = asyncio.get_running_loop().time
        before = self._refusals.get(name)
        if before and clock() < before.until:
            raise RefusedError(before.reason)
        try:
            async with self._exclusively():
                await self._partitions.destroy(name)
        except UnansweredError:
            raise
        except RefusedError as error:
            pause = BACKOFF.following(before.pause if before else 0.0)
            self._refusals[name] = _Refusal(reason=str(error), pause=pause, until=clock() + pause)
            raise
        self._refusals.pop(name, None)

    @contextlib.asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[None]:
        """Call the process while the agent has no card open. Have the cards read afterwards, also if it failed.

        Raises:
            RefusedError: it did not answer the last call. One that hangs would hold up each call, and with it all
                claims of the node.
        """
        if self._silent:
            self._wake.set()  # asks it again now
            raise UnansweredError(self._silent)
        try:
            async with self._released():
                yield
        except UnansweredError as error:
            self._silent = str(error)
            raise
        finally:
            self._wake.set()
            self.on_change()

    async def run(self, destroy_left: Callable[[Mapping[str, str]], Awaitable[str]]) -> None:
        """List the partitions periodically until cancelled, and destroy those that no claim has.

        Args:
            destroy_left: gets the UUID of the card of each partition, by its key. It destroys those that neither claims
                nor pods have, and returns why one is still there.
        """
        while True:
            before = self._cards, self._keeps_counters, self._failures
            await self.look(destroy_left)
            if (self._cards, self._keeps_counters, self._failures) != before:
                self.on_change()
            if self._silent:
                # Not earlier, also if claims wait for it.
                await asyncio.sleep(SOON)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS if self._keeps_counters is None else PERIOD):
                    await self._wake.wait()

    async def look(self, destroy_left: Callable[[Mapping[str, str]], Awaitable[str]]) -> None:
        """Ask the process and the API server once."""
        failures = [await self._probe()]
        try:
            self._cards = await self._partitions.list()
        except UnansweredError as error:
            self._silent = str(error)
            failures.append(self._silent)
        except RefusedError as error:
            self._silent = ""
            failures.append(str(error))
        else:
            self._silent = ""
            failures.append(await destroy_left({name: card.card for card in self._cards.cards for name in card.made}))
        found = tuple(filter(None, failures))
        if found and found != self._failures:
            _log.warning("partitions cannot be listed or destroyed, will try again", reasons=found)
        self._failures = found
        # At the end: what could not be destroyed is tried again after the period.
        self._wake.clear()

    async def _probe(self) -> str:
        """Find out whether the API server keeps counters, unless it does; return why that is not known."""
        now = asyncio.get_running_loop().time()
        if self._keeps_counters or now < self._probe_at:
            return self._probe_failure
        self._probe_at, self._probe_failure = now + ASK_AGAIN, ""
        sent = slices.counter_probe(self._node)
        try:
            answer = await self._client.request(
                "POST", SLICES, params={"dryRun": "All"}, body=sent, timeout=ASK_SECONDS
            )
        except ApiError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or error.refuser:
                # A policy may refuse all slices with the same status.
                return self._unprobed(error)
            # Before 1.35, a counter set must be in the slice that uses it.
            self._keeps_counters = False
        except CallError as error:
            return self._unprobed(error)
        else:
            self._keeps_counters = slices.keeps_counters(answer["spec"])
        return ""

    def _unprobed(self, error: CallError) -> str:
        self._probe_at = asyncio.get_running_loop().time() + ASK_SECONDS
        self._probe_failure = f"it is not known whether the API server keeps counters of devices: {error}"
        return self._probe_failure


def key(uid: str, device: str) -> str:
    """Return the key of the partition of a claim's device."""
    return f"{uid}/{device}"


def keys(claims: Mapping[str, HeldClaim]) -> frozenset[str]:
    """Return the keys of the partitions of claims."""
    return frozenset(
        key(uid, device.device) for uid, claim in claims.items() for device in claim.devices if device.partition
    )


def is_unready(device: HeldDevice, *, instances: Collection[str], divided: frozenset[str]) -> bool:
    """Return whether a device must be made first, or its card be one whole again; `made` has the arguments."""
    return device.id not in instances if device.partition else device.id in divided and not device.admin


def unready(held: HeldClaim, *, instances: Collection[str], divided: frozenset[str]) -> list[HeldDevice]:
    """Return a claim's devices that must be made first, or whose card must be one whole again."""
    return [device for device in held.devices if is_unready(device, instances=instances, divided=divided)]


def whole(spec: DeviceSpec, cards: Iterable[str]) -> DeviceSpec:
    """Return a spec in which these cards are whole: what is on them now comes and goes with claims."""
    undivided = set(cards)
    if not undivided:
        return spec
    devices = [
        card.model_copy(update={"mig": UNDIVIDED}) if card.id in undivided and card.mig else card
        for card in spec.devices
    ]
    return spec.model_copy(update={"devices": devices})


def _obstacle(card: PartitionableCard) -> str:
    """Return why no partitions can be made on a card; empty if they can."""
    if card.foreign:
        return f"{card.card} has instances that Berth did not make, and gets no others until they are destroyed"
    if not card.is_partitioned and not card.changes_at_once:
        return f"MIG mode of {card.card} is off: turn it on, and reboot"
    return ""
