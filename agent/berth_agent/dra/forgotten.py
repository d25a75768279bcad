"""Release the claims that kubelet has forgotten, and so will never release.

kubelet forgets claims if its own state is lost, for example when a Node is made again. A claim is forgotten if, for
some minutes, neither the API server says that a pod needs it on this node, nor kubelet that a container has it. If one
of the two cannot be asked, the time begins again.

Both drop a pod at once that is deleted by force, also if its processes cannot be killed. So nothing is released while
processes of such a pod run: one of them may use the claim's card.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import structlog

from berth_agent.dra import allocation, recovery
from berth_agent.dra.checkpoint import HeldClaim
from berth_agent.dra.preparation import Preparation, finished
from berth_agent.dra.service import ClaimKey
from berth_agent.dra.shares import ObjectReader
from berth_agent.vendor import RefusedError
from berth_api.device import ClaimedDevice
from berth_client.errors import ApiError, CallError

INTERVAL: Final = 60.0
"""Seconds between two looks. Only claims that no container has cost a request."""
FORGOTTEN_SECONDS: Final = 300.0
"""Seconds after which a claim is forgotten. kubelet releases one within 60 s after its containers have ended."""
ANSWER_SECONDS: Final = 5.0
"""Seconds that the API server has: kubelet's calls wait for the last question."""
NAMED: Final = 3
"""Claims and pods that a problem names."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ForgottenClaims:
    """The prepared claims that no pod and no container needs any more."""

    def __init__(
        self,
        claims: Preparation,
        *,
        api: ObjectReader,
        pool: str,
        by_claim: Callable[[], Iterable[ClaimedDevice] | None],
        lingering: Callable[[], Collection[str]],
    ) -> None:
        """Set its parts.

        Args:
            claims: the claims of the node.
            api: the API server.
            pool: the pool of this node.
            by_claim: returns what containers have of claims, None while kubelet does not answer.
            lingering: returns the UIDs of the pods that have gone and still have processes; reads procfs.
        """
        self._claims = claims
        self._api = api
        self._pool = pool
        self._by_claim = by_claim
        self._lingering = lingering
        self._since: dict[str, float] = {}
        self.problem = ""
        """Why forgotten claims are not released; empty if they are, or if there are none."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.look()

    async def look(self) -> None:
        """Release what is forgotten by now."""
        now = asyncio.get_running_loop().time()
        held = self._claims.held
        unneeded = [uid for uid, claim in held.items() if await self._is_unneeded(uid, claim)]
        self._since = {uid: self._since.get(uid, now) for uid in unneeded}
        due = [uid for uid in unneeded if now - self._since[uid] >= FORGOTTEN_SECONDS]
        pods = self._lingering() if due else ()
        self.problem = _problem([held[uid].title for uid in due], pods) if pods else ""
        if not pods:
            for uid in due:
                await self._release(uid, held[uid])

    async def _release(self, uid: str, claim: HeldClaim) -> None:
        key = ClaimKey(uid=uid, namespace=claim.namespace, name=claim.name)
        try:
            # What has begun ends, also if the agent does.
            is_released = await finished(self._claims.release(key, condition=lambda: self._is_unneeded(uid, claim)))
        except RefusedError as error:
            _log.warning("claim that kubelet has forgotten not released, will try again", reason=str(error))
        else:
            if is_released:
                _log.warning(
                    "claim released: kubelet has forgotten it, and no pod needs it on this node",
                    namespace=claim.namespace,
                    claim=claim.name,
                    uid=uid,
                )

    async def _is_unneeded(self, uid: str, claim: HeldClaim) -> bool:
        """Return whether it is known that no container has the claim, and that no pod needs it on this node."""
        reported = self._by_claim()
        # The name or the UID can be unknown after a recovery.
        if reported is None or not claim.name or uid.startswith(recovery.UNKNOWN):
            return False
        # A later claim with the same name has other devices.
        held = {(claim.namespace, claim.name, device.device) for device in claim.devices}
        if not held.isdisjoint(recovery.own(reported, self._pool)):
            return False
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                live = await self._api.get(allocation.path(claim.namespace, claim.name))
            allocation.own_results(live, uid=uid, pool=self._pool)
        except RefusedError:
            # Another claim with this name, or not allocated on this node any more.
            return True
        except ApiError as error:
            # An API server that does not serve claims answers 404, too, in other words.
            return error.reason == "NotFound" and f'resourceclaims.resource.k8s.io "{claim.name}"' in error.message
        except (CallError, TimeoutError):
            return False
        return not live["status"].get("reservedFor")


def _problem(claims: Sequence[str], pods: Collection[str]) -> str:
    """Return why claims keep their cards though no pod that still exists needs them."""
    return (
        f"{_named(claims)} may not be released: processes of pods that have gone still run, and may use the cards. "
        f"End them, or reboot the node; the pods' UIDs: {_named(sorted(pods))}"
    )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
