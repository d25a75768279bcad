"""Allocate and reserve a pod's ResourceClaims before the pod is bound.

The decision has chosen the devices. For each claim that is not allocated, this module writes the finalizer, then the
status with the allocation and the reservation for the pod; for each other claim, the reservation. Before the Binding
it waits until the watch has shown these writes, and gives them up if another claim holds one of the devices by then:
all that was written before ours has been seen by then.

Each write names the resourceVersion that was read, and our term as its field manager, by which the API server refuses
what a leader of the past sends (`manifests/components/claims/fence.yaml`). If a later step fails, the pod's
reservations are removed, and allocations that no other pod uses. Of pods that are gone, Kubernetes' resource claim
controller removes them; after our term, the next leader goes on with what is reserved for a pod that waits. It checks
that no other claim holds the devices too, as the leader before may have ended before it did.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_client import times
from berth_client.errors import CallError
from berth_operator.binding.prebind import claim_objects
from berth_operator.binding.prebind.changes import Changes, GoneError
from berth_operator.binding.prebind.claim_objects import Object, ResourceClaimError
from berth_operator.binding.write_fence import NotFencedError, WriteFence
from berth_operator.core.claims.errors import NodeError
from berth_operator.core.claims.results import Allocation
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster

TIMEOUT: Final = 30.0
"""Seconds for all writes of a pod and until the watch has shown them."""
TRIES: Final = 5
"""Attempts at a write that conflicts with another, or is not answered."""
FIRST_PAUSE: Final = 0.05
"""Seconds before the second attempt; each next pause is twice as long."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Leads = Callable[[], bool]
Change = Callable[[Object], Object | None]
"""Returns a claim as it shall be; None if it is right. Raises ResourceClaimError."""


class Api(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Object:
        """Read an object at quorum."""

    async def request(self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any) -> Any:
        """Send one request and return the decoded answer."""


class ClaimBinder:
    """Writes the ResourceClaims of many pods concurrently."""

    def __init__(self, *, api: Api, cluster: Cluster, lease: str, term: Callable[[], int | None], fenced: bool) -> None:
        """Create a binder; `fenced`: nothing is written unless the API server refuses the writes of other terms."""
        self._api, self._cluster, self._lease, self._term = api, cluster, lease, term
        self._claims = cluster.fleet.claims
        self._claims.writer = f"{lease}/"
        self._changes = Changes()
        self._fence = WriteFence(lease=lease, what="claims", required=fenced)
        self._deallocating: set[str] = set()
        """UIDs of pods whose claims are being deallocated: none of these pods is bound meanwhile."""
        self.unanswered = False
        """Whether a write without an answer may still be executed."""

    def changed(self, claim: str) -> None:
        """Wake the binds that wait for a claim (namespace/name), because it changed."""
        self._changes.changed(claim)

    def end(self) -> None:
        """End all binds in progress, because the process ends."""
        self._changes.end()

    async def bind(self, placement: Placement, leads: Leads) -> None:
        """Write a placement's claims, and wait until the watch has shown them; release them if that fails.

        Args:
            placement: a placement that is assumed.
            leads: returns whether we still lead.

        Raises:
            ResourceClaimError: a claim could not be written, or another claim holds one of its devices.
            GoneError: the pod is gone, or our term has ended.
        """
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._bind(placement, leads)
        except (TimeoutError, CallError, NodeError, ResourceClaimError) as error:
            await self.release(placement, leads)
            why = f"not done within {TIMEOUT:g} s" if isinstance(error, TimeoutError) else str(error)
            raise ResourceClaimError(f"binding claims: {why}") from error

    async def release(self, placement: Placement, leads: Leads) -> None:
        """Remove what is reserved for a pod that was not bound, and allocations that no other pod uses."""
        await self._release(placement.pod, _keys(placement), leads)

    async def deallocate(self, pods: Sequence[PendingPod], leads: Leads) -> None:
        """Deallocate the claims that hold a waiting pod or gang to nodes where it does not fit, as kube-scheduler does.

        What other pods use as well stays.
        """
        uids = {each.uid for each in pods} - self._deallocating
        self._deallocating |= uids
        try:
            for pod in pods:
                used = filter(None, (self._claims.claims.get(each.claim) for each in pod.request.claims))
                own = [each.key for each in used if each.allocation and each.reserved_for <= uids]
                await self._release(pod, own, leads)
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

    async def _release_one(self, key: str, pod: PendingPod) -> None:
        def release(current: Object) -> Object | None:
            return claim_objects.released(current, pod)

        def protect(current: Object) -> Object | None:
            # Who may write the claim may have removed the label, without which we may not write the status.
            return claim_objects.protected(current, self._lease) if release(current) else None

        current = await self._change(key, protect)
        await self._change(key, release, current=current, subresource="/status")

    # --- writing ----------------------------------------------------------------------------------------------

    async def _bind(self, placement: Placement, leads: Leads) -> None:
        if placement.pod.uid in self._deallocating:
            raise ResourceClaimError("the pod's claims are being deallocated")
        written: dict[str, int] = {}
        for allocation in placement.claims.allocations:
            self._check(placement, leads)
            key = claim_objects.key_of(allocation.claim)
            written[key] = await self._allocate(key, placement, allocation)
        for key in placement.claims.reserved:
            await self._wait_until_allocated(key, placement, leads)
            written[key] = await self._reserve(key, placement)
        await self._changes.wait_until(lambda: self._is_shown(placement, written, leads), written)

    async def _allocate(self, key: str, placement: Placement, allocation: Allocation) -> int:
        """Allocate a claim; return its version."""
        pod, body = placement.pod, allocation.written()

        def protect(current: Object) -> Object | None:
            if claim_objects.is_reserved(current, pod):
                return None
            claim_objects.check_unallocated(current, allocation)
            return claim_objects.protected(current, self._lease)

        def allocate(current: Object) -> Object | None:
            if claim_objects.is_reserved(current, pod):
                return None  # an answer was lost
            claim_objects.check_unallocated(current, allocation)
            return claim_objects.allocated(current, body, pod, times.time(times.now()))

        current = await self._change(key, protect)
        return _version(await self._change(key, allocate, current=current, subresource="/status"))

    async def _reserve(self, key: str, placement: Placement) -> int:
        """Reserve an allocated claim, unless it is; return its version.

        It is read at quorum: the watch may still show what was released since.
        """

        def reserve(current: Object) -> Object | None:
            return claim_objects.reserved(current, placement.pod, placement.node)

        def protect(current: Object) -> Object | None:
            return claim_objects.protected(current, self._lease) if reserve(current) else None

        current = await self._change(key, protect)
        return _version(await self._change(key, reserve, current=current, subresource="/status"))

    async def _change(
        self, key: str, change: Change, *, current: Object | None = None, subresource: str = ""
    ) -> Object:
        """Write a change of a claim; read it again if it changed meanwhile, or if an answer was lost.

        Raises:
            CallError: the last of `TRIES` attempts failed, or the API server refused one.
            ResourceClaimError: the claim, as it is now, cannot be changed.
        """
        pause, path = FIRST_PAUSE, claim_objects.path(key)
        for attempt in range(1, TRIES + 1):
            try:
                current = current or await self._api.get(path)
                changed = change(current)
                return current if changed is None else await self._put(path + subresource, changed)
            except CallError as error:
                if attempt == TRIES or (error.is_refused and error.status != HTTPStatus.CONFLICT):
                    raise
            current = None
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _put(self, path: str, body: Object) -> Object:
        term = self._term()
        if term is None:
            raise GoneError
        if path.endswith("/status"):
            await self._check_fence(term, path, body)
        params = {"fieldManager": self._fence.manager(term)}
        try:
            answer: Object = await self._api.request("PUT", path, params=params, body=body)
        except CallError as error:
            self.unanswered = self.unanswered or not error.is_refused
            raise
        except asyncio.CancelledError:
            # `bind` gives up after a time, and the process may end.
            self.unanswered = True
            raise
        return answer

    async def _check_fence(self, term: int, path: str, body: Object) -> None:
        try:
            await self._fence.check(term, lambda params: self._api.request("PUT", path, params=params, body=body))
        except NotFencedError as error:
            raise ResourceClaimError(str(error)) from error

    # --- waiting ----------------------------------------------------------------------------------------------

    async def _wait_until_allocated(self, key: str, placement: Placement, leads: Leads) -> None:
        """Wait until a claim is allocated that another pod's bind, which is in progress, allocates."""

        def is_allocated() -> bool:
            self._check(placement, leads)
            return bool(self._claims.claims[key].allocation) if key in self._claims.claims else True

        await self._changes.wait_until(is_allocated, (key,))

    def _is_shown(self, placement: Placement, written: Mapping[str, int], leads: Leads) -> bool:
        self._check(placement, leads)
        return all(self._is_held(placement, key, version) for key, version in written.items())

    def _is_held(self, placement: Placement, key: str, version: int) -> bool:
        """Return whether the watch has shown our write; raise ResourceClaimError if it does not hold any more."""
        claim = self._claims.claims.get(key)
        if claim is None:
            raise ResourceClaimError(f"claim {key} got deleted in the meantime")
        if int(claim.version or 0) < version:
            return False
        if placement.pod.uid not in claim.reserved_for:
            raise ResourceClaimError(f"claim {key} lost its reservation in the meantime")
        for device in claim.held.devices:
            if self._claims.holders(device) != {key}:
                raise ResourceClaimError(f"device {device} got allocated to another claim in the meantime")
        return True

    def _check(self, placement: Placement, leads: Leads) -> None:
        if self._changes.ended or not leads() or placement.pod.uid not in self._cluster.pending:
            raise GoneError
        if placement.node not in self._cluster.node_cache.nodes:
            raise ResourceClaimError(f'node "{placement.node}" is gone')


def _keys(placement: Placement) -> list[str]:
    return [*(claim_objects.key_of(each.claim) for each in placement.claims.allocations), *placement.claims.reserved]


def _version(claim: Object) -> int:
    return int(claim["metadata"]["resourceVersion"])
