"""Reserve an allocated claim for all pods that wait for it with one write. Pods take turns at the claim.

The pod that has its turn writes for all pods that wait for theirs. These then find that the reservation exists. If a
shared write fails, each of its pods writes alone, so that one pod cannot keep the others waiting.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from berth_client.errors import CallError
from berth_operator.binding.prebind import claim_objects
from berth_operator.binding.prebind.changes import GoneError
from berth_operator.binding.prebind.claim_objects import Object, ResourceClaimError
from berth_operator.binding.prebind.claim_writer import ClaimWriter
from berth_operator.core.values.request import PendingPod


@dataclass(slots=True, kw_only=True, eq=False)
class ClaimTurn:
    """A pod that waits for its turn at a claim."""

    pod: PendingPod
    node: str
    check: Callable[[], None]
    """Raises GoneError or ResourceClaimError if the pod must not be bound any more."""
    written: dict[str, int]
    """Gets the version of the claim (namespace/name), and 0 when it may have been written."""
    done: bool = False
    alone: bool = False
    """Whether a write for several pods has failed."""
    error: ResourceClaimError | None = None
    """Why the claim cannot be reserved for the pod."""

    def waits(self) -> bool:
        """Return whether another pod may write for this one as well."""
        try:
            self.check()
        except (GoneError, ResourceClaimError):
            return False  # it finds out in its own turn
        return not (self.done or self.alone)


class ClaimReservations:
    """Reserves claims."""

    def __init__(self, writer: ClaimWriter, lease: str) -> None:
        self._writer, self._lease = writer, lease
        self._waiting: defaultdict[str, list[ClaimTurn]] = defaultdict(list)
        """Claim -> pods that wait, including the pod whose turn it is."""

    async def reserve(self, key: str, turn: ClaimTurn) -> None:
        """Reserve an allocated claim for a pod, if it is not reserved yet.

        The claim is read at quorum, because the watch may still show reservations that were released since.

        Raises:
            CallError: the claim could not be read or written.
            GoneError: the pod is gone, or our term has ended.
            ResourceClaimError: the claim cannot be reserved for the pod.
        """
        self._waiting[key].append(turn)
        try:
            async with self._writer.alone(key):
                if not turn.done:
                    turn.check()
                    await self._reserve_for_all(key, turn)
        finally:
            self._waiting[key].remove(turn)
            if not self._waiting[key]:
                del self._waiting[key]
        if turn.error is not None:
            raise turn.error

    async def _reserve_for_all(self, key: str, own: ClaimTurn) -> None:
        others = [] if own.alone else [turn for turn in self._waiting[key] if turn is not own and turn.waits()]
        turns = [own, *others]
        if others:
            try:
                await self._write(key, turns)
            except (CallError, ResourceClaimError):
                for turn in turns:
                    turn.alone = True
            else:
                return
        await self._write(key, [own])

    async def _write(self, key: str, turns: Sequence[ClaimTurn]) -> None:
        def reserve(current: Object) -> Object | None:
            return _reserved(current, turns)

        def protect(current: Object) -> Object | None:
            for turn in turns:
                turn.written[key] = 0
            return claim_objects.protected(current, self._lease) if reserve(current) else None

        current = await self._writer.change(key, protect)
        version = claim_objects.version(await self._writer.change(key, reserve, current=current, subresource="/status"))
        for turn in turns:
            turn.done = True
            turn.written[key] = version


def _reserved(current: Object, turns: Sequence[ClaimTurn]) -> Object | None:
    """Return a claim reserved for the pods that may use it; None if it already is. Other pods get an error."""
    state, most = claim_objects.read(current), claim_objects.MAX_CONSUMERS
    wanted: list[PendingPod] = []
    for turn in turns:
        turn.error = None
        try:
            claim_objects.check_usable(state, turn.node)
        except ResourceClaimError as error:
            turn.error = error
            continue
        if turn.pod.uid in state.reserved_for:
            continue
        if len(state.reserved_for) + len(wanted) < most:
            wanted.append(turn.pod)
        else:
            turn.error = ResourceClaimError(f"claim {state.key} is reserved for {most} pods; the API allows no more")
    return claim_objects.reserved(current, wanted) if wanted else None
