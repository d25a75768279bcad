"""Prepare and release ResourceClaims for kubelet.

Each step can be repeated. Prepare records the claim on the disk before it does anything for it, and Unprepare removes
the record last. So after a crash at any moment, the same call ends with the same result, and nothing is left over.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
from pydantic import ValidationError

from berth_agent.dra import allocation, cdi, recovery, shares
from berth_agent.dra.allocation import AllocatedDevice
from berth_agent.dra.cdi import ClaimEdits
from berth_agent.dra.checkpoint import UID, DamagedError, HeldClaim, HeldDevice
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.service import ClaimKey, PreparedDevice
from berth_agent.dra.shares import Container, ObjectReader
from berth_agent.vendor import CardAccess, MisconfiguredError, RefusedError
from berth_api.device import ClaimedDevice
from berth_api.names import RDMA
from berth_client.errors import CallError

WAIT: Final = 20.0
"""Seconds for which a call waits for devices. kubelet gives up after 45 s, and asks again only a minute later."""
POLL: Final = 0.25

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What the node has now."""

    devices: Mapping[str, ListedDevice]
    """All of the driver's devices by name, listed in slices or not."""
    by_name: frozenset[str]
    """Ids of the devices that pods have by name."""
    access: Callable[[], CardAccess]
    """Returns how containers get the cards; reads the disk."""
    nic_edits: Callable[[str], Mapping[str, Any]]
    """Returns the edits of a CDI device for the NIC at a PCI address; reads the disk, and may raise RefusedError."""
    by_claim: Sequence[ClaimedDevice] = ()
    """The devices of claims that containers have, as kubelet reports them."""
    foreign: frozenset[str] = frozenset()
    """UUIDs of the cards that processes outside pods use."""


class _BusyError(RefusedError):
    """A claim cannot have its devices now, but may soon."""


class Store(Protocol):
    """Where the prepared claims are kept."""

    def load(self) -> dict[str, HeldClaim]:
        """Return them by UID.

        Raises:
            OSError: they cannot be read now.
            DamagedError: some cannot be read at all.
        """
        ...

    def set_aside(self) -> None:
        """Keep what cannot be read: the next save replaces it.

        Raises:
            OSError: it cannot be kept.
        """
        ...

    def save(self, claims: Mapping[str, HeldClaim]) -> None:
        """Write them to the disk.

        Raises:
            OSError: they are not on the disk.
        """
        ...


class Preparation:
    """The claims of one node."""

    def __init__(
        self,
        *,
        api: ObjectReader,
        store: Store,
        cdi_folder: Path,
        pool: str,
        boot: str,
        state: Callable[[], NodeState | None],
        wait: float = WAIT,
    ) -> None:
        """Set its parts; `state` returns None until the node's cards and pods are known."""
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
        self._lock = asyncio.Lock()
        self.on_change: Callable[[], object] = lambda: None
        """Called when a claim got or released devices."""

    def cards(self) -> frozenset[str] | None:
        """Return the UUIDs of the cards that claims hold, also in part; None while any card may be a claim's."""
        if self._claims is None or self._unknown():
            return None
        held = (device for claim in self._claims.values() for device in claim.devices)
        return frozenset(device.card for device in held if device.card and not device.admin)

    def __len__(self) -> int:
        """Return how many claims are prepared."""
        return len(self._claims or ())

    async def load(self) -> None:
        """Read the claims if they are not known yet, and complete those that were recovered; a failure is logged."""
        if self._claims is not None and not _is_incomplete(self._claims):
            self.failure = self._unknown()
            return
        async with self._lock:
            try:
                await self._complete(await self._known())
                self.failure = self._unknown()
            except RefusedError as error:
                if str(error) != self.failure:
                    _log.error("free cards are given to no claim and no pod, will try again", reason=str(error))
                self.failure = str(error)

    def _unknown(self) -> str:
        """Return which claim has no known devices, and what to do; empty if there is none."""
        for uid, claim in (self._claims or {}).items():
            if not claim.devices and not self._is_over(claim):
                return (
                    f"it is not known which devices the ResourceClaim with the UID {uid} has. Until it ends, "
                    f"free cards are given to no claim and no pod: drain the node"
                )
        return ""

    def _is_over(self, claim: HeldClaim) -> bool:
        """Return whether a claim is of an earlier boot: no container survives a reboot."""
        return bool(self._boot and claim.boot and claim.boot != self._boot)

    async def close(self) -> None:
        """Finish what is under way, also what kubelet does not wait for any more, and do nothing after it."""
        await self._lock.acquire()

    async def prepare(self, claim: ClaimKey) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices, ready for containers.

        Raises:
            RefusedError: they are not.
        """
        uid = _checked(claim.uid)
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        try:
            obj = await self._api.get(path)
            wanted = allocation.read(obj, uid=uid, pool=self._pool)
            users: Sequence[Container] = ()
            if any(one.share for one in wanted):
                users = await shares.users(self._api, obj, node=self._pool)
        except CallError as error:
            raise RefusedError(f"ResourceClaim {claim.namespace}/{claim.name} not read: {error}") from error
        clock = asyncio.get_running_loop().time
        end = clock() + self._wait
        while True:
            try:
                # kubelet may give up in the middle, and release the claim.
                return await asyncio.shield(self._give(uid, claim, wanted, users))
            except _BusyError as error:
                if clock() >= end:
                    raise RefusedError(f"ResourceClaim {claim.namespace}/{claim.name}: {error}") from error
            await asyncio.sleep(POLL)

    async def unprepare(self, claim: ClaimKey) -> None:
        """Release a claim; a claim that is not known is released.

        Raises:
            RefusedError: it is not released.
        """
        # kubelet may give up in the middle.
        await asyncio.shield(self._release(_checked(claim.uid), claim))

    async def _give(
        self, uid: str, claim: ClaimKey, wanted: tuple[AllocatedDevice, ...], users: Sequence[Container]
    ) -> tuple[PreparedDevice, ...]:
        """Record the claim's devices, and write its CDI file.

        Raises:
            _BusyError: something else has a device now.
            RefusedError: the claim cannot have its devices.
        """
        async with self._lock:
            before = await self._known()
            state = self._state()
            if state is None:
                raise _BusyError("the node's cards and pods are not known yet")
            before = recovery.without_unknown(before, namespace=claim.namespace, name=claim.name)
            others = [other for other_uid, other in before.items() if other_uid != uid]
            held = self._held(claim, wanted, state, others)
            variables = shares.variables(held.devices, users, state.devices)
            if uid not in before:
                # Not while containers of the claim may run: a process that came later would keep them from a restart.
                _check_foreign(held, state)
            try:
                if before.get(uid) != held:
                    # Before the loop goes on, because kubelet's device API may be about to give the same cards.
                    self._claims = {**before, uid: held}
                    try:
                        await asyncio.to_thread(self._store.save, self._claims)
                    except OSError:
                        self._claims = before
                        raise
                    self.on_change()
                return await asyncio.to_thread(self._write, uid, held, variables, state)
            except (OSError, MisconfiguredError) as error:
                raise RefusedError(f"ResourceClaim {claim.namespace}/{claim.name}: {error}") from error

    async def _release(self, uid: str, claim: ClaimKey) -> None:
        async with self._lock:
            claims = await self._known()
            named = recovery.without_unknown(claims, namespace=claim.namespace, name=claim.name)
            left = {other: held for other, held in named.items() if other != uid}
            try:
                await asyncio.to_thread(cdi.path(self._folder, uid).unlink, missing_ok=True)
                if left != claims:
                    await asyncio.to_thread(self._store.save, left)
            except OSError as error:
                raise RefusedError(f"ResourceClaim {claim.namespace}/{claim.name} not released: {error}") from error
            self._claims = left
            if left != claims:
                self.on_change()

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
            raise _BusyError(f"the checkpoint of claims is damaged, and kubelet's answer is not known yet: {damage}")
        try:
            from_files = await asyncio.to_thread(recovery.from_files, self._folder, boot=self._boot)
            found = recovery.with_reported(
                {**from_files, **damage.claims}, state.by_claim, pool=self._pool, boot=self._boot
            )
            claims = recovery.completed(found, state.devices, state.by_claim, pool=self._pool)
            await asyncio.to_thread(self._store.set_aside)
            await asyncio.to_thread(self._store.save, claims)
        except OSError as error:
            raise _BusyError(
                f"the checkpoint of claims is damaged, and the claims are not recovered: {error}"
            ) from error
        _log.warning(
            "the checkpoint of claims was damaged; its claims are known by their CDI files and by kubelet",
            damage=str(damage),
            claims=len(claims),
        )
        return claims

    async def _complete(self, claims: dict[str, HeldClaim]) -> None:
        """Complete what recovered claims lack, by what the node and kubelet report now.

        Raises:
            _BusyError: that cannot be recorded.
        """
        state = self._state()
        if state is None:
            return
        completed = recovery.completed(claims, state.devices, state.by_claim, pool=self._pool)
        if completed != claims:
            try:
                await asyncio.to_thread(self._store.save, completed)
            except OSError as error:
                raise _BusyError(f"the checkpoint of claims cannot be written: {error}") from error
            self._claims = completed
            self.on_change()

    def _held(
        self, claim: ClaimKey, wanted: tuple[AllocatedDevice, ...], state: NodeState, others: Sequence[HeldClaim]
    ) -> HeldClaim:
        """Return the claim with its devices.

        Raises:
            _BusyError: it cannot have one now.
        """
        devices: list[HeldDevice] = []
        for one in wanted:
            listed = state.devices.get(one.device)
            if listed is None:
                raise _BusyError(f"the node has no device {one.device} now")
            device = HeldDevice(
                request=one.request,
                device=one.device,
                id=listed.id,
                card=listed.card,
                admin=one.admin,
                share=one.share,
            )
            if not device.admin:
                self._check(device, state, others)
            devices.append(device)
        of_others = [device for other in others if not self._is_over(other) for device in other.devices]
        if excess := shares.excess(devices, of_others, state.devices):
            raise _BusyError(excess)
        return HeldClaim(namespace=claim.namespace, name=claim.name, boot=self._boot, devices=tuple(devices))

    def _check(self, wanted: HeldDevice, state: NodeState, others: Sequence[HeldClaim]) -> None:
        for other in others:
            # kubelet may have lost the claim, and then never releases it.
            if self._is_over(other):
                continue
            if not other.devices:
                raise _BusyError(f"it is not known which devices {other.title} has")
            if any(not device.admin and _shares(wanted, device) for device in other.devices):
                raise _BusyError(f"{wanted.device} is still prepared for {other.title}")
        cards = {device.id: device.card for device in state.devices.values()}
        for taken in state.by_name:
            if _overlap(wanted, taken, cards.get(taken, taken)):
                raise _BusyError(f"a pod has {wanted.device} by name")
            # kubelet's device API withholds whole cards, which would keep this pod from a restart.
            if cards.get(taken) == wanted.card:
                raise _BusyError(f"a pod has another part of the card of {wanted.device} by name")

    def _write(
        self, uid: str, held: HeldClaim, variables: Sequence[Sequence[str]], state: NodeState
    ) -> tuple[PreparedDevice, ...]:
        nics = {device.id for device in held.devices if state.devices[device.device].type == RDMA}
        access = state.access() if any(device.id not in nics for device in held.devices) else None
        edits: dict[str, Mapping[str, Any]] = {}
        others: dict[str, Sequence[str]] = {}
        names = [cdi.device_name(uid, device.device, device.share) for device in held.devices]
        for name, device, env in zip(names, held.devices, variables, strict=True):
            if access is None or device.id in nics:
                edits[name] = state.nic_edits(device.id)
                continue
            card = ClaimEdits(access, device.id)
            edits[name], others[name] = card.with_variables(env), card.others
        own = {name for name, of_device in edits.items() if of_device}
        cdi.write(self._folder, uid, cdi.specification(uid, edits))
        return tuple(
            PreparedDevice(
                request=device.request,
                pool=self._pool,
                device=device.device,
                cdi_ids=(
                    *([f"{cdi.KIND}={name}"] if name in own else ()),
                    *others.get(name, ()),
                ),
                share_id=device.share.id if device.share else None,
            )
            for name, device in zip(names, held.devices, strict=True)
        )


def _check_foreign(held: HeldClaim, state: NodeState) -> None:
    for device in held.devices:
        if device.card in state.foreign and not device.admin:
            raise _BusyError(f"a process outside pods uses {device.device}")


def _is_incomplete(claims: Mapping[str, HeldClaim]) -> bool:
    return any(
        uid.startswith(recovery.UNKNOWN) or not all(device.id for device in claim.devices)
        for uid, claim in claims.items()
    )


def _shares(wanted: HeldDevice, other: HeldDevice) -> bool:
    if wanted.share and other.share and wanted.device == other.device:
        # `excess` compares their sums.
        return False
    return wanted.device == other.device or _overlap(wanted, other.id, other.card)


def _overlap(wanted: HeldDevice, other: str, card: str) -> bool:
    """Return whether another device, on this card, is the same, or one of the two is a part of the other."""
    return other in {wanted.id, wanted.card} or wanted.id == card


def _checked(uid: str) -> str:
    try:
        return UID.validate_python(uid)
    except ValidationError as error:
        raise RefusedError(f"{uid!r} is no UID of a ResourceClaim") from error
