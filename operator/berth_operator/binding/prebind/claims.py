"""Allocate and reserve a pod's ResourceClaims before the pod is bound.

The decision has chosen the devices. For each unallocated claim, this module writes the finalizer, then the status with
the allocation and the reservation for the pod. For each other claim, it writes the reservation. Before the Binding, it
waits until the watch has shown these writes. By then, the watch has also shown every earlier write. If a device is now
overbooked, this module withdraws its own writes. If devices have binding conditions, it then waits until their drivers
report that the devices can be used.

Each write names the resourceVersion that was read, and has the leader's term as its field manager. The API server uses
the term to refuse writes of a former leader (`manifests/components/claims/fence.yaml`). If a later step fails, the
pod's reservations are removed, and so are allocations that no other pod uses. If a pod is gone, Kubernetes' resource
claim controller removes its reservations and allocations. After this term, the next leader continues with the
reservations of a waiting pod. The next leader also checks that no other claim holds the devices, because the previous
leader may have ended before this check. The claim for extended resources (`extended_claims`) is deleted instead, and
created again.
"""

import asyncio
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import structlog

from berth_client import times
from berth_client.errors import CallError
from berth_operator.binding.prebind import claim_objects, parameters
from berth_operator.binding.prebind.changes import Changes, GoneError
from berth_operator.binding.prebind.claim_objects import Object, ResourceClaimError
from berth_operator.binding.prebind.claim_writer import ClaimWriter, ResourceClaimApi
from berth_operator.binding.prebind.extended_claims import ExtendedClaims
from berth_operator.binding.prebind.reservations import ClaimReservations, ClaimTurn
from berth_operator.core.claims.allocation.results import Allocation
from berth_operator.core.claims.bounds.errors import NodeError
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.overbooking import overbooked
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster

TIMEOUT: Final = 30.0
"""Seconds for all writes of a pod and until the watch has shown them."""
CONDITIONS_TIMEOUT: Final = 600.0
"""Seconds from the allocation until the binding conditions of devices are true, as kube-scheduler's bindingTimeout."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Leads = Callable[[], bool]


class ClaimBinder:
    """Writes the ResourceClaims of many pods concurrently."""

    def __init__(
        self, *, api: ResourceClaimApi, cluster: Cluster, lease: str, term: Callable[[], int | None], fenced: bool
    ) -> None:
        """Create a binder; `fenced`: nothing is written unless the API server refuses the writes of other terms."""
        self._cluster, self._lease = cluster, lease
        self._writer = ClaimWriter(api=api, lease=lease, term=term, fenced=fenced)
        self._reservations = ClaimReservations(self._writer, lease)
        self._extended = ExtendedClaims(self._writer, cluster.fleet.claims, lease)
        self._claims = cluster.fleet.claims
        self._claims.writer = f"{lease}/"
        self._changes = Changes()
        self._deallocating: set[str] = set()
        """UIDs of pods whose claims are being deallocated. None of these pods is bound meanwhile."""

    @property
    def unanswered(self) -> bool:
        """Return whether a write without an answer may still be executed."""
        return self._writer.unanswered

    def changed(self, claim: str) -> None:
        """Wake the binds that wait for a claim (namespace/name), because it changed."""
        self._changes.changed(claim)

    def end(self) -> None:
        """End all binds in progress, because the process ends."""
        self._changes.end()

    async def bind(self, placement: Placement, leads: Leads) -> None:
        """Write a placement's claims, and wait until the watch has shown them; release them if that fails.

        Args:
            placement: an assumed placement.
            leads: returns whether we still lead.

        Raises:
            ResourceClaimError: a claim could not be written, or another claim holds one of its devices.
            GoneError: the pod is gone, or our term has ended.
        """
        written: dict[str, int] = {}
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._bind(placement, leads, written)
            try:
                async with asyncio.timeout(CONDITIONS_TIMEOUT):
                    await self._changes.wait_until(lambda: self._is_ready(placement, written, leads), written)
            except TimeoutError as error:
                late = f"device binding timeout: not ready after {CONDITIONS_TIMEOUT:g} s"
                raise ResourceClaimError(late) from error
        except (TimeoutError, CallError, NodeError, ResourceClaimError) as error:
            # Only what was written: a call for each of hundreds of pods that wait for their turn at a claim, or that
            # have just read it, would keep it from those that try again, until these are late as well.
            await self._release(placement.pod, (key for key in _keys(placement) if key in written), leads)
            await self._delete_extended(placement.pod, leads)
            why = f"not done within {TIMEOUT:g} s" if isinstance(error, TimeoutError) else str(error)
            raise ResourceClaimError(f"binding claims: {why}") from error
        finally:
            self._extended.forget(placement.pod)

    async def release(self, placement: Placement, leads: Leads) -> None:
        """Remove the reservations of a pod that was not bound, and allocations that no other pod uses."""
        await self._release(placement.pod, _keys(placement), leads)
        await self._delete_extended(placement.pod, leads)

    async def deallocate(self, pods: Sequence[PendingPod], leads: Leads) -> None:
        """Deallocate the claims that hold a waiting pod or gang to nodes where it does not fit, as kube-scheduler does.

        What other pods use as well stays.
        """
        uids = {pod.uid for pod in pods} - self._deallocating
        self._deallocating |= uids
        try:
            for pod in pods:
                used = filter(None, (self._claims.claims.get(claim.claim) for claim in pod.request.claims))
                own = [state.key for state in used if state.allocation and state.reserved_for <= uids]
                await self._release(pod, own, leads)
                await self._delete_extended(pod, leads)
        finally:
            self._deallocating -= uids

    async def _release(self, pod: PendingPod, claims: Iterable[str], leads: Leads) -> None:
        for key in claims:
            if not leads() or pod.uid not in self._cluster.pending:
                return
            try:
                await self._release_one(key, pod)
            except (CallError, ResourceClaimError) as error:
                # The pod is decided again, with what it still has reserved.
                log.warning("claim not released", claim=key, pod=pod.key, error=str(error))

    async def _delete_extended(self, pod: PendingPod, leads: Leads) -> None:
        """Delete the claims for a pod's extended resources, which is decided again and then gets another one."""
        if not leads() or pod.uid not in self._cluster.pending:
            return
        try:
            await self._extended.delete(pod)
        except (CallError, ResourceClaimError) as error:
            log.warning("claim for extended resources not deleted", pod=pod.key, error=str(error))

    async def _release_one(self, key: str, pod: PendingPod) -> None:
        def release(current: Object) -> Object | None:
            return claim_objects.released(current, pod)

        def protect(current: Object) -> Object | None:
            # Who may write the claim may have removed the label, without which we may not write the status.
            return claim_objects.protected(current, self._lease) if release(current) else None

        async with self._writer.alone(key):
            current = await self._writer.change(key, protect)
            await self._writer.change(key, release, current=current, subresource="/status")

    # --- writing ----------------------------------------------------------------------------------------------

    async def _bind(self, placement: Placement, leads: Leads, written: dict[str, int]) -> None:
        """Write the claims and wait until they are shown.

        `written` gets the version of each (namespace/name), and 0 from its first write on.
        """
        if placement.pod.uid in self._deallocating:
            raise ResourceClaimError("the pod's claims are being deallocated")
        for allocation in placement.claims.of_claims:
            self._check(placement, leads)
            await self._allocate(claim_objects.key_of(allocation.claim), placement, allocation, written)
        for key in placement.claims.reserved:
            await self._wait_until_allocated(key, placement, leads)
            check = functools.partial(self._check, placement, leads)
            turn = ClaimTurn(pod=placement.pod, node=placement.node, check=check, written=written)
            await self._reservations.reserve(key, turn)
        if placement.claims.mappings:
            self._check(placement, leads)
            # After all others: what the pod's status shows of this claim cannot be removed again.
            allocation = placement.claims.allocations[-1]
            key, made = await self._extended.make(placement.pod, allocation.claim)
            await self._allocate(key, placement, allocation, written, made)
            self._check(placement, leads)
            await self._extended.record(placement.pod, key, placement.claims.mappings)

        def is_shown() -> bool:
            self._check(placement, leads)
            return all(self._is_held(placement, key, version) for key, version in written.items())

        await self._changes.wait_until(is_shown, written)

    async def _allocate(
        self,
        key: str,
        placement: Placement,
        allocation: Allocation,
        written: dict[str, int],
        current: Object | None = None,
    ) -> None:
        """Allocate a claim, which may have been read."""
        pod, body = placement.pod, await parameters.written(allocation, self._writer.read_protobuf)
        if current is None and (known := self._claims.claims.get(key)) is not None and known.raw is not None:
            current = dict(known.raw)

        def is_done(current: Object) -> bool:
            """Return whether the status was written already, because an answer was lost."""
            if not claim_objects.is_reserved(current, pod):
                return False
            claim_objects.check_same(current, body, placement.node)
            return True

        def protect(current: Object) -> Object | None:
            written[key] = 0
            if is_done(current):
                return None
            claim_objects.check_unallocated(current, allocation)
            return claim_objects.protected(current, self._lease)

        def allocate(current: Object) -> Object | None:
            if is_done(current):
                return None
            claim_objects.check_unallocated(current, allocation)
            return claim_objects.allocated(current, body, pod, times.time(times.now()))

        async with self._writer.alone(key):
            current = await self._writer.change(key, protect, current=current)
            changed = await self._writer.change(key, allocate, current=current, subresource="/status")
        claim_objects.check_conditions(changed, allocation)
        written[key] = claim_objects.version(changed)

    # --- waiting ----------------------------------------------------------------------------------------------

    async def _wait_until_allocated(self, key: str, placement: Placement, leads: Leads) -> None:
        """Wait until a claim is allocated that another pod's bind, which is in progress, allocates."""

        def is_allocated() -> bool:
            self._check(placement, leads)
            return bool(self._claims.claims[key].allocation) if key in self._claims.claims else True

        await self._changes.wait_until(is_allocated, (key,))

    def _is_ready(self, placement: Placement, claims: Collection[str], leads: Leads) -> bool:
        """Return whether the devices may be used on the node, as their drivers report by the binding conditions.

        Raises:
            ResourceClaimError: a condition failed, or is late.
        """
        self._check(placement, leads)
        states = [self._claims.claims[key] for key in claims if self._is_held(placement, key, 0)]
        if failure := next((state.failure for state in states if state.failure), ""):
            raise ResourceClaimError(f"device binding failed: {failure}")
        waiting = [state for state in states if state.pending]
        now = times.now().timestamp()
        # Without a known time, the allocation is never late.
        ages = ((now - times.seconds(state.allocated_at, now), state) for state in waiting)
        if late := next((state for age, state in ages if age > CONDITIONS_TIMEOUT), None):
            awaited = ", ".join(late.pending)
            raise ResourceClaimError(f"device binding timeout: not true after {CONDITIONS_TIMEOUT:g} s: {awaited}")
        return not waiting

    def _is_held(self, placement: Placement, key: str, version: int) -> bool:
        """Return whether the watch has shown our write; raise ResourceClaimError if it does not hold any more."""
        claim = self._claims.claims.get(key)
        if claim is None:
            if self._extended.is_new(placement.pod, key):
                return False
            raise ResourceClaimError(f"claim {key} got deleted in the meantime")
        if int(claim.version or 0) < version:
            return False
        if placement.pod.uid not in claim.reserved_for:
            raise ResourceClaimError(f"claim {key} lost its reservation in the meantime")
        fleet, placements = self._cluster.fleet, self._cluster.placements
        others = claim.reserved_for - {placement.pod.uid}
        # If a pod runs with the claim, the claim stays allocated, whether this pod uses it or not.
        is_in_use = any(uid in fleet.charges and not placements.is_assumed(uid) for uid in others)
        if not is_in_use and (excess := next(overbooked(fleet, placement.node, claim), "")):
            raise ResourceClaimError(f"{excess} in the meantime")
        return True

    def _check(self, placement: Placement, leads: Leads) -> None:
        if self._changes.ended or not leads() or placement.pod.uid not in self._cluster.pending:
            raise GoneError
        if placement.node not in self._cluster.node_cache.nodes:
            raise ResourceClaimError(f'node "{placement.node}" is gone')


def _keys(placement: Placement) -> list[str]:
    return [
        *(claim_objects.key_of(of_claim.claim) for of_claim in placement.claims.of_claims),
        *placement.claims.reserved,
    ]
