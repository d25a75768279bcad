"""When pods end, read from the API: by their deletion, their deadline, or another estimate."""

from collections.abc import Mapping
from typing import Any, Final

from berth_client import times
from berth_operator.core.values import ending

Object = Mapping[str, Any]

DEFAULT_GRACE: Final = 30
"""Seconds, as the API server defaults `terminationGracePeriodSeconds`."""
LATEST: Final = 253_402_300_799
"""9999-12-31T23:59:59Z, which is the last time that messages can show: a grace period may be any number of seconds."""
MAX_LIFETIME: Final = LATEST // 2
"""Seconds; from now on they end before `LATEST`."""
START_SECONDS: Final = 10
"""Seconds within which kubelet is expected to have started a pod that was bound."""
_OF_NODES: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of the owners of pods that belong to a node; a static pod's owner is its Node."""


def lifetime(pod: Object) -> int:
    """Return the seconds after its start within which kubelet ends a pod; 0 if unlimited."""
    spec = pod["spec"]
    deadline = spec.get("activeDeadlineSeconds")
    if not deadline:
        return 0
    grace = spec.get("terminationGracePeriodSeconds")
    return min(MAX_LIFETIME, int(deadline) + (DEFAULT_GRACE if grace is None else int(grace)))


def expected(pod: Object) -> int:
    """Return what can be expected of the end of a pod without a deadline, as in `core.values.ending`."""
    owners = pod["metadata"].get("ownerReferences") or ()
    if any(owner.get("controller") and owner.get("kind") in _OF_NODES for owner in owners):
        return ending.NEVER
    return ending.UNKNOWN if pod["spec"].get("restartPolicy") in ("Never", "OnFailure") else ending.UNTIL_DELETED


def of_placed(pod: Object) -> int:
    """Return when a bound pod has ended at the latest, in seconds since 1970, or what else can be expected."""
    if deleted := pod["metadata"].get("deletionTimestamp"):
        # It includes the grace period, which may end after all times that can be read.
        return times.seconds(deleted, LATEST)
    seconds = lifetime(pod)
    if not seconds:
        return expected(pod)
    status = pod.get("status") or {}
    started = times.seconds(status.get("startTime") or "", None)
    if started is not None:
        return min(LATEST, started + seconds)
    scheduled = (
        condition.get("lastTransitionTime")
        for condition in status.get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] == "True"
    )
    bound = times.seconds(next(scheduled, None) or "", None)
    return expected(pod) if bound is None else min(LATEST, bound + START_SECONDS + seconds)
