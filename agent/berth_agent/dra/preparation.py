"""Prepare and release ResourceClaims for kubelet.

Each step can be repeated. Prepare records the claim on the disk before it does anything for it, and Unprepare removes
the record last. So after a crash at any moment, the same call ends with the same result, and nothing is left over.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from pydantic import ValidationError

from berth_agent.dra import allocation, cdi, checkpoint, on_demand, partitions, recovery, renewal, shares
from berth_agent.dra.allocation import AllocatedDevice
from berth_agent.dra.cdi import ClaimEdits
from berth_agent.dra.checkpoint import UID, AbsentError, ClaimCheckpoint, DamagedError, HeldClaim, HeldDevice
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.on_demand import PartitionsOnDemand
from berth_agent.dra.renewal import NodeDevices
from berth_agent.dra.service import ClaimKey, PreparedDevice
from berth_agent.dra.shares import Container, ObjectReader
from berth_agent.vendor import MisconfiguredError, RefusedError, Specification, UnansweredError
from berth_api.allocation import device_ids
from berth_api.device import ClaimedDevice
from berth_api.names import GPU, RDMA
from berth_client.errors import CallError

WAIT: Final = 20.0
"""Seconds for which a call waits for devices. kubelet gives up after 45 s, and asks again only a minute later."""
POLL: Final = 0.25
NO_PROCESS: Final = "the agent runs without the process that makes partitions (--dra-partitions)"
REMEMBERED: Final = 180.0
"""Seconds for which a failed call is a problem. kubelet calls again after 60 to 90 s, if its pod still needs that."""

T = TypeVar("T")

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState(NodeDevices):
    """What the node has now."""

    devices: Mapping[str, ListedDevice]
    """All of the driver's devices by name, listed in slices or not."""
    by_name: frozenset[str]
    """Ids of the devices that pods have by name."""
    unlisted: str = ""
    """Why cards in the mode of partitions, and partitions, are not among the devices; empty if they are."""
    by_claim: Sequence[ClaimedDevice] = ()
    """The devices of claims that containers have, as kubelet reports them."""
    foreign: frozenset[str] = frozenset()
    """UUIDs of the cards that processes outside pods use."""
    divided: frozenset[str] = frozenset()
    """UUIDs of the cards open for partitions that are in the mode of partitions by the last reading."""

    def cards(self) -> frozenset[str]:
        """Return the UUIDs of the node's cards."""
        return frozenset(self.card_of.values())

    def is_given(self, card: str, partition: str = "") -> bool:
        """Return whether a pod may have a partition by name; any of its card may be it if its UUID is unknown."""
        if partition:
            return not self.by_name.isdisjoint((card, partition))
        # A pod may have an instance of a card that the last reading lacks.
        given = (taken for taken in self.by_name if device_ids.is_valid(GPU, taken))
        return any(self.card_of.get(taken, card) == card for taken in given)


class _BusyError(RefusedError):
    """A claim cannot have its devices now, but may soon."""


class Preparation:
    """The claims of one node."""

    def __init__(
        self,
        *,
        api: ObjectReader,
        store: ClaimCheckpoint,
        cdi_folder: Path,
        pool: str,
        boot: str,
        state: Callable[[], NodeState | None],
        wait: float = WAIT,
        partitions: PartitionsOnDemand | None = None,
        lingering: Callable[[], Collection[str]],
    ) -> None:
        """Set its parts.

        `state` returns None until the node's cards and pods are known, and `lingering` the UIDs of the pods that have
        gone and still have processes.
        """
        self._partitions = partitions
        self._api = api
        self._store = store
        self._folder = cdi_folder
        self._pool = pool
        self._boot = boot
        self._state = state
        self._wait = wait
        self._claims: dict[str, HeldClaim] | None = None
        """None until they can be read: then any card may be a claim's."""
        self.failure = ""
        """Why they cannot be read; empty if they can."""
        with contextlib.suppress(OSError, DamagedError):
            self._claims = self._loaded()
        self._is_damaged = False
        """Whether the store has a damaged record, which is set aside before the next write."""
        self._is_saved = True
        """Whether the store has the claims as they are known."""
        self.saving: asyncio.Task[None] | None = None
        """The last write of recovered claims."""
        self._unwritten: dict[str, tuple[str, float]] = {}
        """What could not be written of a claim, and until when that is a problem, by UID."""
        self._undestroyed: dict[str, tuple[str, float]] = {}
        """Why what was made for a claim could not be destroyed, and until when that is a problem, by UID."""
        self._ended = recovery.EndedDevices(lingering=lingering)
        self.renewing: asyncio.Task[None] | None = None
        """The last renewals of CDI files."""
        self._due_renewal: Callable[[], NodeDevices | None] | None = None
        """Returns the devices of a reading after which no renewal has begun; None if there is no such reading."""
        self._files: Mapping[str, Specification] = {}
        """What the CDI files have, by the UID of the claim, in case another program removes them."""
        self._withdrawn: Mapping[str, str] = {}
        """Why the containers of claims cannot start, by UID."""
        self._lock = asyncio.Lock()
        self._preparing: dict[str, set[object]] = {}
        """The calls of Prepare since the last Unprepare that still run, by UID."""
        self._is_leaving = False
        self.on_change: Callable[[], object] = lambda: None
        """Called when a claim got or released devices."""

    def cards(self) -> frozenset[str] | None:
        """Return the UUIDs of the cards that claims hold, also in part; None while any card may be a claim's."""
        if self._claims is None or self._unknown():
            return None
        held = (device for claim in self._claims.values() for device in claim.devices)
        return frozenset(device.card for device in held if device.card and not device.admin)

    @property
    def held(self) -> Mapping[str, HeldClaim]:
        """The claims that are prepared, by UID; none while they are not known."""
        return self._claims or {}

    @property
    def unwritten(self) -> str:
        """What could not be written of a claim lately, and why; empty if each claim's last write succeeded."""
        now = asyncio.get_running_loop().time()
        return next((failure for failure, until in self._unwritten.values() if now < until), "")

    @property
    def undestroyed(self) -> str:
        """Why a claim was not released lately: what was made for it is still there; empty if there is no such claim."""
        now = asyncio.get_running_loop().time()
        failures = [failure for failure, until in self._undestroyed.values() if now < until]
        more = f" ({len(failures) - 1} more claims are not released)" if len(failures) > 1 else ""
        return f"{failures[0]}{more}" if failures else ""

    @property
    def withdrawn(self) -> str:
        """Which claim's containers cannot start, and why; empty if there is none."""
        reasons = [reason for uid, reason in self._withdrawn.items() if uid in self.held]
        others = f"; the same holds for {len(reasons) - 1} other claims" if len(reasons) > 1 else ""
        return f"{reasons[0]}{others}" if reasons else ""

    def leave(self) -> None:
        """Refuse calls that wait for devices: the agent ends. kubelet repeats calls that are refused."""
        self._is_leaving = True

    async def close(self) -> None:
        """Finish the running calls, including those that kubelet gave up, and accept no more."""
        await self._lock.acquire()

    async def prepare(self, claim: ClaimKey) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices, ready for containers.

        Raises:
            RefusedError: they are not.
        """
        _check_uid(claim)
        call = object()
        self._preparing.setdefault(claim.uid, set()).add(call)
        try:
            return await self._prepared(claim, call)
        finally:
            calls = self._preparing.get(claim.uid, set())
            calls.discard(call)
            if not calls:
                self._preparing.pop(claim.uid, None)

    async def _prepared(self, claim: ClaimKey, call: object) -> tuple[PreparedDevice, ...]:
        """Prepare a claim for one of the calls of Prepare.

        Raises:
            RefusedError: it is not prepared.
        """
        try:
            live = await self._api.get(allocation.path(claim.namespace, claim.name))
            wanted = allocation.read(live, uid=claim.uid, pool=self._pool)
            # A claim that an earlier agent prepared keeps its devices.
            if (unserved := allocation.unserved_parameters(live)) and not await self._was_prepared(claim):
                raise RefusedError(f"{claim.title}: {unserved}")
            users: Sequence[Container] = ()
            if any(device.share for device in wanted):
                users = await shares.users(self._api, live, node=self._pool)
        except CallError as error:
            raise RefusedError(f"{claim.title} not read: {error}") from error
        clock = asyncio.get_running_loop().time
        end = clock() + self._wait
        done = set[str]()
        while True:
            try:
                # kubelet may give up in the middle, and release the claim.
                return await finished(self._give(claim, wanted, users, done, call))
            except _BusyError as error:
                if clock() >= end or self._is_leaving:
                    raise RefusedError(f"{claim.title}: {error}") from error
            await asyncio.sleep(POLL)

    async def _was_prepared(self, claim: ClaimKey) -> bool:
        """Return whether the claim has a record, also of an earlier boot.

        Raises:
            RefusedError: it is not known.
        """
        async with self._lock:
            known = await self._known()
            others = recovery.without_unknown(known, namespace=claim.namespace, name=claim.name)
            return claim.uid in known or others != known

    async def _give(
        self,
        claim: ClaimKey,
        wanted: Iterable[AllocatedDevice],
        users: Sequence[Container],
        done: set[str],
        call: object,
    ) -> tuple[PreparedDevice, ...]:
        """Record the claim's devices, make those that are made on demand, and write its CDI file.

        Args:
            claim: the claim.
            wanted: its devices.
            users: the containers that have its shares.
            done: names of devices that were made since kubelet's call. It is added to.
            call: kubelet's call.

        Raises:
            _BusyError: something else has a device now.
            RefusedError: the claim cannot have its devices.
        """
        async with self._lock:
            if call not in self._preparing.get(claim.uid, ()):
                # kubelet would never release what this call records now.
                raise RefusedError(f"{claim.title} was released, or kubelet gave up, before its turn came")
            before = await self._known()
            state = self._state()
            if state is None:
                raise _BusyError("the node's cards and pods are not known yet")
            others = recovery.without_unknown(before, namespace=claim.namespace, name=claim.name)
            known = others.pop(claim.uid, None)
            if known and self._is_over(known):
                known = None
            held = self._held(claim, wanted, state, known, others.values())
            variables = shares.variables(held.devices, users, state.devices)
            if known is None:
                # Not while containers of the claim may run: a process that came later would keep them from a restart.
                _check_foreign(held, state)
            if on_demand.unready(held, instances=state.card_of, divided=state.divided):
                held = await self._make(claim, held, others, state, done)
            # Before the loop goes on, because kubelet's device API may be about to give the same cards.
            self._claims = {**others, claim.uid: held}
            try:
                ids, edits = await asyncio.to_thread(self._composed, claim, held, variables, state)
                if self._claims != before:
                    with self._writing(
                        claim.uid, f"{claim.title} not prepared: the checkpoint of claims is not written"
                    ):
                        await asyncio.to_thread(self._save, self._claims)
                    self.on_change()
            except BaseException:
                self._claims = before
                self.on_change()
                raise
            with self._writing(claim.uid, f"{claim.title} not prepared: its CDI file is not written"):
                content = cdi.specification(claim.uid, record=checkpoint.dumped(held), edits=edits)
                await asyncio.to_thread(cdi.write, self._folder, claim.uid, content)
                self._files = {**self._files, claim.uid: content}
            self._withdrawn = {uid: reason for uid, reason in self._withdrawn.items() if uid != claim.uid}
            return tuple(
                PreparedDevice(
                    request=device.request,
                    pool=self._pool,
                    device=device.device,
                    cdi_ids=cdi_ids,
                    share_id=device.share.id if device.share else None,
                )
                for device, cdi_ids in zip(held.devices, ids, strict=True)
            )

    async def _make(
        self, claim: ClaimKey, held: HeldClaim, others: Mapping[str, HeldClaim], state: NodeState, done: set[str]
    ) -> HeldClaim:
        """Make what a claim has on demand, between two records of it, and return the second, which has the UUIDs.

        Raises:
            _BusyError: the process that makes it does not answer, or the last reading does not show it yet.
            RefusedError: it is not made. The record stays, so that the release of the claim destroys what was made.
        """
        if self._partitions is None:
            raise RefusedError(f"{claim.title}: {NO_PROCESS}")
        await self._record(claim, {**others, claim.uid: held})
        try:
            held = await self._partitions.made(
                claim.uid, held, instances=state.card_of, divided=state.divided, done=done
            )
        except UnansweredError as error:
            # It may be starting, or be restarted. The same call goes on.
            raise _BusyError(str(error)) from error
        except RefusedError as error:
            raise RefusedError(f"{claim.title}: {error}") from error
        await self._record(claim, {**others, claim.uid: held})
        if unready := on_demand.unready(held, instances=state.card_of, divided=state.divided):
            raise _BusyError(f"{unready[0].device} is made, but not read yet")
        return held

    async def _record(self, claim: ClaimKey, claims: dict[str, HeldClaim]) -> None:
        before = self._claims
        if claims == before:
            return
        # Before the loop goes on, because kubelet's device API may be about to give the same cards.
        self._claims = claims
        try:
            with self._writing(claim.uid, f"{claim.title} not prepared: the checkpoint of claims is not written"):
                await asyncio.to_thread(self._save, claims)
        except BaseException:
            self._claims = before
            self.on_change()
            raise
        self.on_change()

    def _held(
        self,
        claim: ClaimKey,
        wanted: Iterable[AllocatedDevice],
        state: NodeState,
        known: HeldClaim | None,
        others: Collection[HeldClaim],
    ) -> HeldClaim:
        """Return the claim with its devices.

        Raises:
            _BusyError: it cannot have one now.
        """
        earlier = {device.device: device for device in (known.devices if known else ())}
        kept = {name: device for name, device in earlier.items() if device.type == RDMA or device.partition}
        devices: list[HeldDevice] = []
        for one in wanted:
            # The pod of a prepared claim may have moved the NIC into its own network namespace, and a card on which
            # its partition is may not be open for partitions any more.
            listed = state.devices.get(one.device) or kept.get(one.device)
            if listed is None:
                raise _BusyError(_missing(one.device, state))
            device = HeldDevice(
                request=one.request,
                device=one.device,
                id=kept[one.device].id if listed.partition and one.device in kept else listed.id,
                card=listed.card,
                type=listed.type,
                admin=one.admin,
                share=one.share,
                partition=listed.partition,
            )
            if device.partition and device.admin:
                raise RefusedError(f"{claim.title}: {device.device} is made for one claim, so admin access is refused")
            if not device.admin:
                self._check(device, state, others)
            devices.append(device)
        of_others = [device for other in others if not self._is_over(other) for device in other.devices]
        if excess := shares.excess(devices, of_others, state.devices):
            raise _BusyError(excess)
        return HeldClaim(namespace=claim.namespace, name=claim.name, boot=self._boot, devices=tuple(devices))

    def _check(self, wanted: HeldDevice, state: NodeState, others: Iterable[HeldClaim]) -> None:
        for other in others:
            # kubelet may have lost the claim, and then never releases it.
            if self._is_over(other):
                continue
            if not other.devices:
                raise _BusyError(f"it is not known which devices {other.title} has")
            if any(not device.admin and _shares(wanted, device) for device in other.devices):
                raise _BusyError(f"{wanted.device} is still prepared for {other.title}")
        cards = {**state.card_of, **{device.id: device.card for device in state.devices.values()}}
        for taken in state.by_name:
            if _overlap(wanted, taken, cards.get(taken, taken)):
                raise _BusyError(f"a pod has {wanted.device} by name")
            # kubelet's device API withholds whole cards, which would keep this pod from a restart.
            if cards.get(taken) == wanted.card:
                raise _BusyError(f"a pod has another part of the card of {wanted.device} by name")

    def _composed(
        self, claim: ClaimKey, held: HeldClaim, variables: Sequence[Sequence[str]], state: NodeState
    ) -> tuple[list[tuple[str, ...]], dict[str, Mapping[str, Any]]]:
        """Return the names of each device's CDI devices, and the edits of those that are in the claim's file, by name.

        Raises:
            RefusedError: a container cannot have a device now.
        """
        try:
            access = state.access() if any(device.type != RDMA for device in held.devices) else None
            all_ids, edits = list[tuple[str, ...]](), dict[str, Mapping[str, Any]]()
            for device, env in zip(held.devices, variables, strict=True):
                if access is None or device.type == RDMA:
                    own, ids = state.nic_edits(device.id), list[str]()
                else:
                    card = ClaimEdits(access, device.id)
                    own, ids = card.with_variables(env), card.others
                if own:
                    name = cdi.device_name(claim.uid, device.device, device.share)
                    edits[name], ids = own, [f"{cdi.KIND}={name}", *ids]
                all_ids.append(tuple(ids))
        except (OSError, MisconfiguredError) as error:
            raise RefusedError(f"{claim.title}: {error}") from error
        return all_ids, edits

    async def unprepare(self, claim: ClaimKey) -> None:
        """Release a claim; a claim that is not known is released.

        Raises:
            RefusedError: it is not released.
        """
        _check_uid(claim)
        # kubelet may give up in the middle.
        await finished(self.release(claim))

    async def release(self, claim: ClaimKey, *, condition: Callable[[], Awaitable[bool]] | None = None) -> bool:
        """Release a claim if the condition holds, and return whether it does; kubelet's calls wait meanwhile.

        Raises:
            RefusedError: it is not released.
        """
        async with self._lock:
            if condition and not await condition():
                return False
            # A call that kubelet gave up may still wait for the API server.
            self._preparing.pop(claim.uid, None)
            before = await self._known()
            left = recovery.without_unknown(before, namespace=claim.namespace, name=claim.name)
            left.pop(claim.uid, None)
            # Those of an unknown UID, too: kubelet has just given it.
            for held in (held for uid, held in before.items() if uid not in left):
                try:
                    await self._destroy(claim, held)
                except RefusedError as error:
                    # kubelet creates no Event for it.
                    self._undestroyed[claim.uid] = str(error), asyncio.get_running_loop().time() + REMEMBERED
                    raise
            self._undestroyed.pop(claim.uid, None)
            with self._writing(claim.uid, f"{claim.title} not released: its record is not removed"):
                await asyncio.to_thread(cdi.remove, self._folder, claim.uid)
                if left != before:
                    await asyncio.to_thread(self._save, left)
            self._claims = left
            if left != before:
                self.on_change()
            return True

    async def _destroy(self, claim: ClaimKey, held: HeldClaim) -> None:
        """Destroy what was made for a claim. Until that succeeds, the claim keeps its place on the card.

        What a pod got by name while the driver was off stays, and `destroy_left` destroys it later.

        Raises:
            RefusedError: some of it may still be there.
        """
        for device in held.devices:
            if device.is_made and not self._is_over(held):
                if self._partitions is None:
                    raise RefusedError(f"{claim.title} not released: {NO_PROCESS}")
                if (state := self._state()) is None:
                    raise RefusedError(f"{claim.title} not released: the node's cards and pods are not known yet")
                if state.is_given(device.card, device.id):
                    _log.warning("partition of a claim that has ended stays: a pod has it by name", id=device.id)
                    continue
                try:
                    await self._partitions.destroy(on_demand.key(claim.uid, device.device))
                except RefusedError as error:
                    raise RefusedError(f"{claim.title} not released: {device.device}: {error}") from error

    async def destroy_left(self, cards: Mapping[str, str]) -> str:
        """Destroy those of these partitions that neither claims nor pods have; return why one may still be there.

        Args:
            cards: the UUID of the card of each partition, by its key.
        """
        failure = ""
        for key, card in cards.items():
            # One at a time, because kubelet's calls wait meanwhile.
            async with self._lock:
                claims = self._claims
                # A claim that is not known yet may have one.
                if claims is None or self._partitions is None or _is_incomplete(claims) or self._unknown():
                    return failure
                if key in on_demand.keys(claims):
                    continue
                if (state := self._state()) is None:
                    return failure
                others = (device for claim in claims.values() if not self._is_over(claim) for device in claim.devices)
                if any(
                    device.card == card != device.id and not device.is_made and not device.admin for device in others
                ):
                    # It may be this one, given as an instance of others while the driver did not know its record.
                    failure = f"partition {key}, which no claim has, stays: a claim has an instance of {card}"
                    continue
                if state.is_given(card):
                    failure = (
                        f"partition {key}, which no claim has, stays: a pod has a part of {card} by name, "
                        "or has a card that is not known now. Delete this pod to have it destroyed"
                    )
                    continue
                try:
                    await self._partitions.destroy(key)
                    _log.warning("partition destroyed: no claim has it", key=key)
                except RefusedError as error:
                    failure = f"partition {key}, which no claim has, is not destroyed: {error}"
        return failure

    @contextlib.contextmanager
    def _writing(self, uid: str, failure: str) -> Iterator[None]:
        """Refuse the call if the disk does, and keep that as a problem of the node under the UID of the claim."""
        clock = asyncio.get_running_loop().time
        self._unwritten = {uid: (text, until) for uid, (text, until) in self._unwritten.items() if clock() < until}
        try:
            yield
        except OSError as error:
            message = f"{failure}: {error}"
            self._unwritten[uid] = message, clock() + REMEMBERED
            raise RefusedError(message) from error
        self._unwritten.pop(uid, None)

    async def load(self) -> None:
        """Read the claims if they are not known yet, and complete those that were recovered; a failure is logged.

        What was recovered is written meanwhile: a disk that is slow or full stops only what needs the record.
        """
        if self._claims is not None and self._is_saved and not _is_incomplete(self._claims):
            self.failure = self._unknown()
            return
        if self._lock.locked():
            # A call writes to the disk, which may be slow. Faults are published meanwhile.
            return
        async with self._lock:
            try:
                self._complete(await self._known())
                self.failure = self._unknown()
            except RefusedError as error:
                if str(error) != self.failure:
                    _log.error("free cards are given to no claim and no pod, will try again", reason=str(error))
                self.failure = str(error)
        if self._claims is not None and not self._is_saved:
            self.saving = asyncio.create_task(self._save_recovered())

    async def _save_recovered(self) -> None:
        async with self._lock:
            if self._claims is not None and not self._is_saved:
                # A problem of the node, as long as this fails. If the agent ends, the claims are recovered again.
                with contextlib.suppress(RefusedError), self._writing("", "the checkpoint of claims is not written"):
                    await asyncio.to_thread(self._save, self._claims)

    def renew(self, node: Callable[[], NodeDevices | None]) -> None:
        """Renew the files of claims, after the running calls of kubelet: other programs may change or remove them.

        Args:
            node: returns the devices of the last reading, None if it failed. Then the files stay as they are.
        """
        self._due_renewal = node if self._claims else None
        if self._due_renewal and (self.renewing is None or self.renewing.done()):
            self.renewing = asyncio.create_task(self._renew_all())

    async def _renew_all(self) -> None:
        # The cards may be read again during a renewal. Then another one follows.
        while node := self._due_renewal:
            self._due_renewal = None
            await self._renew(node)

    async def _renew(self, node: Callable[[], NodeDevices | None]) -> None:
        async with self._lock:
            # What a call has prepared meanwhile is of the last reading, too.
            if (devices := node()) is None:
                return
            # No container survives a reboot: before a new one starts, kubelet prepares its claim again.
            claims = {uid: claim for uid, claim in self.held.items() if not self._is_over(claim)}
            renewed = await asyncio.to_thread(renewal.renew, self._folder, claims, devices, self._files)
            with contextlib.suppress(OSError):
                # The next look writes it again.
                self._is_saved = self._is_saved and not await asyncio.to_thread(self._store.is_changed)
            self._files = renewed.contents
            before = self.withdrawn, self.unwritten
            self._withdrawn = renewed.withdrawn
            until = asyncio.get_running_loop().time() + REMEMBERED
            self._unwritten |= {uid: (failure, until) for uid, failure in renewed.unwritten.items()}
            if (self.withdrawn, self.unwritten) != before:
                self.on_change()

    def _save(self, claims: Mapping[str, HeldClaim]) -> None:
        """Write the claims to the store. The caller has the lock.

        Raises:
            OSError: they are not on the disk.
        """
        if self._is_damaged:
            self._store.set_aside()
            self._is_damaged = False
        # After a failure, it is unknown what the disk has. `load` then writes what is known.
        self._is_saved = False
        self._store.save(claims)
        self._is_saved = True
        self._unwritten.pop("", None)

    async def _known(self) -> dict[str, HeldClaim]:
        """Return the claims, and read them before if that failed at the start.

        Raises:
            _BusyError: they cannot be read.
        """
        if self._claims is None:
            try:
                self._claims = await asyncio.to_thread(self._loaded)
            except OSError as error:
                raise _BusyError(f"the checkpoint of claims cannot be read: {error}") from error
            except DamagedError as damage:
                self._claims = await self._recovered(damage)
        return self._claims

    def _loaded(self) -> dict[str, HeldClaim]:
        """Return the claims in the store, which are all that have a CDI file.

        Raises:
            OSError: they cannot be read now.
            DamagedError: they are not all.
        """
        claims = self._store.load()
        more = [file for file in cdi.claim_files(self._folder) if cdi.uid_of(file) not in claims]
        if more:
            raise DamagedError(f"it does not have the claim of {more[0]}", claims)
        return claims

    async def _recovered(self, damage: DamagedError) -> dict[str, HeldClaim]:
        """Return the claims of a damaged store, once kubelet has said what containers have.

        Raises:
            _BusyError: they are not known yet.
        """
        state = self._state()
        if state is None:
            raise _BusyError(f"kubelet's answer, by which a lost checkpoint is made again, is not known yet: {damage}")
        try:
            from_files = await asyncio.to_thread(recovery.from_files, self._folder, boot=self._boot)
            found = recovery.with_reported(
                {**from_files, **damage.claims}, state.by_claim, pool=self._pool, boot=self._boot
            )
        except OSError as error:
            raise _BusyError(f"the checkpoint of claims is lost, and not made again: {error}; {damage}") from error
        claims = recovery.completed(found, state.devices, cards=state.cards())
        self._is_saved, self._is_damaged = False, not isinstance(damage, AbsentError)
        if claims or self._is_damaged:
            _log.warning(
                "the checkpoint of claims was lost; its claims are known by their CDI files and by kubelet",
                damage=str(damage),
                claims=len(claims),
            )
        return claims

    def _complete(self, claims: dict[str, HeldClaim]) -> None:
        """Complete what recovered claims lack, by what the node and kubelet report now."""
        state = self._state()
        held = {(claim.namespace, claim.name, device.device) for claim in claims.values() for device in claim.devices}
        now = asyncio.get_running_loop().time()
        ended = self._ended.among(held, state.by_claim if state else None, pool=self._pool, now=now)
        if state is None:
            return
        completed = recovery.completed(claims, state.devices, cards=state.cards(), ended=ended)
        if completed != claims:
            self._claims, self._is_saved = completed, False
            self.on_change()

    def _unknown(self) -> str:
        """Return which claim has no known devices, and what to do; empty if there is none."""
        for uid, claim in (self._claims or {}).items():
            if not claim.devices and not self._is_over(claim):
                return (
                    f"it is not known which devices the ResourceClaim with the UID {uid} has. Until it ends, "
                    f"free cards are given to no claim and no pod: drain the node; if that does not help, reboot it"
                )
        return ""

    def _is_over(self, claim: HeldClaim) -> bool:
        return claim.is_over(self._boot)


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return what some work returns. It goes on if the caller gives up. Then no code handles its error."""
    task = asyncio.ensure_future(work)
    # asyncio would log the refusal as an error.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def _check_foreign(held: HeldClaim, state: NodeState) -> None:
    for device in held.devices:
        if device.card in state.foreign and not device.admin:
            raise _BusyError(f"a process outside pods uses {device.device}")


def _missing(name: str, state: NodeState) -> str:
    """Return why the node has no device of a name now."""
    is_there = name in map(device_ids.device_name, state.card_of) or partitions.card_of(name, state.cards())
    return f"{name}: {state.unlisted}" if is_there and state.unlisted else f"the node has no device {name} now"


def _is_incomplete(claims: Mapping[str, HeldClaim]) -> bool:
    return any(
        uid.startswith(recovery.UNKNOWN) or not all(device.id or device.partition for device in claim.devices)
        for uid, claim in claims.items()
    )


def _shares(wanted: HeldDevice, other: HeldDevice) -> bool:
    if wanted.share and other.share and wanted.device == other.device:
        # `excess` compares their sums.
        return False
    if other.is_made and not other.partition:
        # It is not known which part of the card it is.
        return wanted.card == other.card
    if wanted.partition and other.partition:
        return wanted.card == other.card and wanted.partition.overlaps(other.partition)
    return wanted.device == other.device or _overlap(wanted, other.id, other.card)


def _overlap(wanted: HeldDevice, other: str, card: str) -> bool:
    """Return whether another device, on this card, is the same, or one of the two is a part of the other."""
    return (bool(other) and other in {wanted.id, wanted.card}) or wanted.id == card


def _check_uid(claim: ClaimKey) -> None:
    try:
        UID.validate_python(claim.uid)
    except ValidationError as error:
        raise RefusedError(f"{claim.uid!r} is no UID of a ResourceClaim") from error
