"""The pods of Berth's programs that may still write to the API server."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from berth_client.objects import Object

TOKEN_SECONDS: Final = 60.0
"""The API server refuses the token of a pod this long after the pod should have ended."""
GRACE_SECONDS: Final = 30.0
"""Kubernetes' default, for a pod that does not set it."""


@dataclass(slots=True)
class Ending:
    """Follows the pods until they have ended.

    A pod on a node that does not answer stays terminating until a person deletes it. It counts as ended when its
    token has expired: by our own clock, since the clock of the API server may differ.
    """

    _terminating_since: dict[str, float] = field(default_factory=dict)

    def running(self, pods: Iterable[Object], now: float) -> list[str]:
        """Return the names of the pods that may still write, with their nodes; `now` in monotonic seconds."""
        running = []
        for pod in pods:
            metadata = pod["metadata"]
            if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
                continue
            if "deletionTimestamp" in metadata:
                since = self._terminating_since.setdefault(metadata["uid"], now)
                grace = float(metadata.get("deletionGracePeriodSeconds", GRACE_SECONDS))
                if now - since > grace + TOKEN_SECONDS:
                    continue
            running.append(f"{metadata['name']} (node {pod.get('spec', {}).get('nodeName') or 'none'})")
        return running
