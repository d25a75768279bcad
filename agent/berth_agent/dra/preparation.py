"""Prepare and release ResourceClaims for kubelet.

Each step can be repeated. Prepare records the claim on the disk before it does anything for it, and Unprepare removes
the record last. So after a crash at any moment, the same call ends with the same result, and nothing is left over.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog
from pydantic import ValidationError

from berth_agent.dra import allocation, cdi
from berth_agent.dra.allocation import AllocatedDevice
from berth_agent.dra.cdi import ClaimEdits
from berth_agent.dra.checkpoint import UID, HeldClaim, HeldDevice
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.service import ClaimKey, PreparedDevice
from berth_agent.vendor import CardAccess, MisconfiguredError, RefusedError
from berth_client.errors import CallError
from berth_client.objects import Object

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
    """UUIDs of the cards and instances that pods have by name."""
    access: Callable[[], CardAccess]
    """Returns how containers get the cards; reads the disk."""


class _BusyError(RefusedError):
    """A claim cannot have its devices now, but may soon."""


class ClaimApi(Protocol):
    """The API server."""

    async def get(self, path: str) -> Object:
        """Read an object.

        Raises:
            CallError: it cannot be read.
        """
        ...


class Store(Protocol):
    """Where the prepared claims are kept."""

    def load(self) -> dict[str, HeldClaim]:
        """Return them by UID.

        Raises:
            OSError: they cannot be read now.
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
        api: ClaimApi,
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
        with contextlib.suppress(OSError):
            self._claims = store.load()
        self._lock = asyncio.Lock()
        self.on_change: Callable[[], object] = lambda: None
        """Called when a claim got or released devices."""

    def cards(self) -> frozenset[str] | None:
        """Return the UUIDs of the cards that claims hold, also in part; None while they cannot be read."""
        if self._claims is None:
            return None
        held = (device for claim in self._claims.values() for device in claim.devices)
        return frozenset(device.card for device in held if not device.admin)

    def __len__(self) -> int:
        """Return how many claims are prepared."""
        return len(self._claims or ())

    async def load(self) -> None:
        """Read the claims if they are not known yet; a failure is logged."""
        if self._claims is not None:
            self.failure = ""
            return
        async with self._lock:
            try:
                await self._known()
                self.failure = ""
            except RefusedError as error:
                if str(error) != self.failure:
                    _log.error("free cards are given to no claim and no pod, will try again", reason=str(error))
                self.failure = str(error)

    async def prepare(self, claim: ClaimKey) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices, ready for containers.

        Raises:
            RefusedError: they are not.
        """
        uid = _checked(claim.uid)
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        try:
            wanted = allocation.read(await self._api.get(path), uid=uid, pool=self._pool)
        except CallError as error:
            raise RefusedError(f"ResourceClaim {claim.namespace}/{claim.name} not read: {error}") from error
        clock = asyncio.get_running_loop().time
        end = clock() + self._wait
        while True:
            try:
                # kubelet may give up in the middle, and release the claim.
                return await asyncio.shield(self._give(uid, claim, wanted))
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

    async def _give(self, uid: str, claim: ClaimKey, wanted: tuple[AllocatedDevice, ...]) -> tuple[PreparedDevice, ...]:
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
            others = [other for other_uid, other in before.items() if other_uid != uid]
            held = self._held(claim, wanted, state, others)
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
                return await asyncio.to_thread(self._write, uid, held, state)
            except (OSError, MisconfiguredError) as error:
                raise RefusedError(f"ResourceClaim {claim.namespace}/{claim.name}: {error}") from error

    async def _release(self, uid: str, claim: ClaimKey) -> None:
        async with self._lock:
            claims = await self._known()
            left = {other: held for other, held in claims.items() if other != uid}
            try:
                await asyncio.to_thread(cdi.path(self._folder, uid).unlink, missing_ok=True)
                if uid in claims:
                    await asyncio.to_thread(self._store.save, left)
            except OSError as error:
                raise RefusedError(f"ResourceClaim {claim.namespace}/{claim.name} not released: {error}") from error
            self._claims = left
            if uid in claims:
                self.on_change()

    async def _known(self) -> dict[str, HeldClaim]:
        """Return the claims, and read them before if that failed at the start.

        Raises:
            _BusyError: they cannot be read.
        """
        if self._claims is None:
            try:
                self._claims = await asyncio.to_thread(self._store.load)
            except OSError as error:
                raise _BusyError(f"the checkpoint of claims cannot be read: {error}") from error
        return self._claims

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
            device = HeldDevice(request=one.request, device=one.device, id=listed.id, card=listed.card, admin=one.admin)
            if not device.admin:
                self._check(device, state, others)
            devices.append(device)
        return HeldClaim(namespace=claim.namespace, name=claim.name, boot=self._boot, devices=tuple(devices))

    def _check(self, wanted: HeldDevice, state: NodeState, others: Sequence[HeldClaim]) -> None:
        for other in others:
            # No container survives a reboot. kubelet may have lost the claim, and then never releases it.
            is_over = self._boot and other.boot and other.boot != self._boot
            if not is_over and any(
                not device.admin and _overlap(wanted, device.id, device.card) for device in other.devices
            ):
                raise _BusyError(f"{wanted.device} is still prepared for ResourceClaim {other.namespace}/{other.name}")
        cards = {device.id: device.card for device in state.devices.values()}
        if any(_overlap(wanted, taken, cards.get(taken, taken)) for taken in state.by_name):
            raise _BusyError(f"a pod has {wanted.device} by name")

    def _write(self, uid: str, held: HeldClaim, state: NodeState) -> tuple[PreparedDevice, ...]:
        access = state.access()
        edits = {device.device: ClaimEdits(access, device.id) for device in held.devices}
        own = {name: one.edits for name, one in edits.items() if one.edits}
        if own:
            cdi.write(self._folder, uid, cdi.specification(uid, own))
        return tuple(
            PreparedDevice(
                request=device.request,
                pool=self._pool,
                device=device.device,
                cdi_ids=(
                    *([f"{cdi.KIND}={cdi.device_name(uid, device.device)}"] if device.device in own else ()),
                    *edits[device.device].others,
                ),
            )
            for device in held.devices
        )


def _overlap(wanted: HeldDevice, other: str, card: str) -> bool:
    """Return whether another device, on this card, is the same, or one of the two is a part of the other."""
    return other in {wanted.id, wanted.card} or wanted.id == card


def _checked(uid: str) -> str:
    try:
        return UID.validate_python(uid)
    except ValidationError as error:
        raise RefusedError(f"{uid!r} is no UID of a ResourceClaim") from error
