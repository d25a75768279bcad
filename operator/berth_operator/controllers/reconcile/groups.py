"""The status of a PodGroup, with the phases of scheduler-plugins' controller."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from berth_api import names
from berth_api.values import keys
from berth_operator.core.queue.gang_tracker import Counts
from berth_operator.state.cache.views import GroupView

COUNTED: Final = ("phase", "scheduled", "running", "succeeded", "failed")


def path(name: str) -> str:
    """Return the path of a PodGroup's status."""
    namespace, own = keys.split(name)
    return f"{names.POD_GROUP_API}/namespaces/{namespace}/{names.POD_GROUPS}/{own}/status"


def concerns_us(view: GroupView) -> bool:
    """Return whether the group has members of ours; groups of other schedulers are not written."""
    counts = view.counts
    return bool(counts.waiting or counts.bound or counts.succeeded or counts.failed)


def wanted(view: GroupView) -> dict[str, Any]:
    """Return the phase and the counts that the status should show."""
    counts = view.counts
    return {
        "phase": phase(counts, view.group.minimum),
        "scheduled": counts.bound,
        "running": counts.running,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
    }


def phase(counts: Counts, minimum: int) -> str:
    """Return the phase; a gang that has formed keeps a formed phase, so that the next leader need not report it."""
    done = counts.succeeded
    if done and done >= minimum:
        return "Finished"
    if counts.formed:
        if counts.running + done >= minimum:
            return "Running"
        return "Failed" if counts.failed and counts.failed + counts.running + done >= minimum else "Scheduled"
    if counts.bound:
        return "Scheduling"
    return "PreScheduling" if 0 < minimum <= counts.waiting + done else "Pending"


def patch(view: GroupView, status: Mapping[str, Any], now: Callable[[], str]) -> dict[str, Any]:
    """Return the merge patch for a status, with the PodGroup's UID."""
    started = (
        {} if view.status.get("scheduleStartTime") or status["phase"] == "Pending" else {"scheduleStartTime": now()}
    )
    return {"metadata": {"uid": view.group.uid}, "status": {**status, **started}}


def shows(view: GroupView, status: Mapping[str, Any]) -> bool:
    """Return whether the PodGroup already shows a status; a missing count is 0."""
    empty = {"phase": ""}
    return all((view.status.get(name) or empty.get(name, 0)) == status[name] for name in COUNTED)
