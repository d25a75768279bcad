"""JSON patches for Workloads and AdmissionChecks of Kueue. They name the version that was read."""

from collections.abc import Mapping
from typing import Any, Final

from berth_api import names
from berth_api.values import keys
from berth_operator.core.values.quota_workload import CheckAnswer, CheckState
from berth_operator.state.objects.workloads import WorkloadView
from berth_operator.state.watches import kueue

Object = Mapping[str, Any]
Patch = list[Object]

MAX_MESSAGE: Final = 32768
"""Characters of an entry's message."""
ACTIVE: Final = "Active"
"""The type of the condition that shows Kueue whether an AdmissionCheck is served."""


def path(key: str) -> str:
    """Return where the status of a Workload (namespace/name) is written."""
    namespace, name = keys.split(key)
    return f"{kueue.API}/namespaces/{namespace}/workloads/{name}/status"


def answered(view: WorkloadView, answer: CheckAnswer, now: str) -> Patch:
    """Return the patch that writes an answer into our entries of a Workload; `now` in RFC 3339.

    A Workload that has changed since it was read is not patched: its quota may be gone.
    """
    workload, patch = view.workload, [_version(view.version)]
    for item in view.checks:
        is_same = item.state is answer.state
        entry = {
            "name": item.name,
            "state": answer.state.value,
            "lastTransitionTime": item.raw.get("lastTransitionTime", now) if is_same else now,
            "message": answer.message[:MAX_MESSAGE],
        }
        if answer.state is CheckState.RETRY and answer.requeue_after is not None:
            entry["requeueAfterSeconds"] = answer.requeue_after
        if "retryCount" in item.raw:  # Kueue counts
            entry["retryCount"] = item.raw["retryCount"]
        if answer.state is CheckState.READY:
            # What Kueue writes into the pods for which places were promised; while the state stays Ready, it lets no
            # one change that.
            updates = [
                {
                    "name": of_set.name,
                    "annotations": {names.WORKLOAD: workload.name_in_pods, names.POD_SET: of_set.name},
                }
                for of_set in workload.pod_sets
                if of_set.pods
            ]
            if shown := item.raw.get("podSetUpdates") if is_same else updates:
                entry["podSetUpdates"] = shown
        patch.append({"op": "replace", "path": f"/status/admissionChecks/{item.index}", "value": entry})
    return patch


def _version(version: str) -> Object:
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": version}


def shows(view: WorkloadView, answer: CheckAnswer) -> bool:
    """Return whether all our entries of a Workload show an answer."""
    for item in view.checks:
        if (item.state, item.message) != (answer.state, answer.message[:MAX_MESSAGE]):
            return False
        if answer.state is CheckState.RETRY and item.raw.get("requeueAfterSeconds") != answer.requeue_after:
            return False
    return True


def check_path(name: str) -> str:
    """Return where the status of an AdmissionCheck is written."""
    return f"{kueue.API}/admissionchecks/{name}/status"


def condition(check: Object, problem: str, reason: str, now: str) -> Object:
    """Return the condition `Active` that an AdmissionCheck should have. It is not active if there is a problem."""
    shown = _active(check)
    status = "False" if problem else "True"
    is_same = shown.get("status") == status
    return {
        "type": ACTIVE,
        "status": status,
        "reason": reason if problem else ACTIVE,
        "message": problem or "the leader of Berth's operator decides this check",
        "observedGeneration": check["metadata"].get("generation", 0),
        "lastTransitionTime": shown.get("lastTransitionTime", now) if is_same else now,
    }


def _active(check: Object) -> Object:
    return next((condition for condition in _conditions(check) if condition.get("type") == ACTIVE), {})


def _conditions(check: Object) -> list[Object]:
    return (check.get("status") or {}).get("conditions") or []


def with_condition(check: Object, wanted: Object) -> Patch:
    """Return the patch that sets a condition of an AdmissionCheck; empty if it has it."""
    others = [condition for condition in _conditions(check) if condition.get("type") != wanted["type"]]
    if _active(check) == wanted:
        return []
    status = {"op": "add", "path": "/status", "value": {"conditions": [*others, wanted]}}
    return [_version(check["metadata"]["resourceVersion"]), status]
