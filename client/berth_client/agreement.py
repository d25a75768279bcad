"""Whether the API server agrees with what it showed before.

It does not after its etcd was restored from a copy, and while a load balancer alternates between API servers with
different states. Watches and cached reads never count, because they may lag behind. See decision 0042.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from berth_client.objects import Object

STEADY_SECONDS: Final = 600.0
"""Seconds of agreement after which a doubt counts as the first one again."""


class Agreement:
    """Doubts the API server once it has shown an earlier state, until its answers agree for a while."""

    def __init__(self, *, clock: Callable[[], float], pauses: Sequence[float]) -> None:
        """Create it without a doubt.

        Args:
            clock: returns monotonic seconds.
            pauses: seconds of agreement that end the first doubt, the next ones, and all others.
        """
        self._clock, self._pauses = clock, pauses
        self._doubted_at: float | None = None
        """When an earlier state was seen last; None if the answers agree."""
        self._settled_at = -math.inf
        self._doubts = 0

    @property
    def is_settled(self) -> bool:
        """Return whether there is no doubt."""
        return self._doubted_at is None

    @property
    def doubts(self) -> int:
        """Return the number of recent doubts, each after the one before was settled."""
        is_steady = self.is_settled and self._clock() - self._settled_at >= STEADY_SECONDS
        return 0 if is_steady else self._doubts

    def doubt(self) -> None:
        """Begin a doubt, or begin the pause of the current one again."""
        if self.is_settled:
            self._doubts = self.doubts + 1
        self._doubted_at = self._clock()

    def settle(self, since: float) -> bool:
        """End the doubt if its pause had passed when a request was sent that agrees; return whether it ended.

        Args:
            since: when the request was sent.
        """
        pause = self._pauses[min(self._doubts, len(self._pauses)) - 1]
        if self._doubted_at is None or since - self._doubted_at < pause:
            return False
        self._doubted_at, self._settled_at = None, self._clock()
        return True


def why_earlier(lease: Object, before: Object, *, holder: str, sent: str) -> str:
    """Return why a Lease or LeaderLease is of an earlier state than another answer before; empty if it is not.

    Args:
        lease: as just read at quorum, or as the answer to a write.
        before: as answered last.
        holder: `holderIdentity` of this process.
        sent: `renewTime` of the last write of this process, whose answer may have been lost.
    """
    (spec, metadata), (old, known) = ((each["spec"], each["metadata"]) for each in (lease, before))
    name, version, least = known.get("name"), metadata.get("resourceVersion") or "", known.get("resourceVersion") or ""
    if metadata.get("uid") != known.get("uid"):
        return f"{name} has the UID {metadata.get('uid')}, it had {known.get('uid')}"
    if spec.get("term", 0) < old.get("term", 0):
        return f"{name} has the term {spec.get('term')}, it had {old.get('term')}"
    if version.isdecimal() and least.isdecimal() and int(version) < int(least):
        return f"{name} has the version {version}, it had {least}"
    # Of our own writes alone, as clocks differ. Our clock may have been set back before the write that was lost.
    is_ours = holder == spec.get("holderIdentity") == old.get("holderIdentity")
    renewed, written = spec.get("renewTime") or "", old.get("renewTime") or ""
    if is_ours and renewed < written and renewed != sent:
        return f"{name} was last renewed at {renewed}, it was at {written}"
    return ""


class Restores:
    """Wakes those who list again after a restore of the API server's state."""

    def __init__(self) -> None:
        self._noted = asyncio.Event()

    def note(self) -> None:
        """Record that the API server has shown an earlier state."""
        self._noted.set()
        self._noted = asyncio.Event()

    async def next(self) -> None:
        """Wait until the API server shows an earlier state."""
        await self._noted.wait()
