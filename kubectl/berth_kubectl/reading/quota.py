"""Why a Workload of Kueue waits: its place in the queue, its quota and its devices, as Kueue's objects show them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from berth_api.objects.visibility import PodExplanation, TitledAnswer
from berth_kubectl.reading.objects import Object, condition, name_of

CONTROLLER: Final = "berth.dev/fits-devices"
"""The `controllerName` of Berth's AdmissionChecks."""
_STATES: Final = ("Finished", "Evicted", "Admitted", "QuotaReserved")
"""Conditions of which the first that is true names the state."""
PENDING: Final = "Pending"
INACTIVE: Final = "Inactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What was read around a Workload; what could not be read is None, and a note says why."""

    queue: Object | None = None
    """Its LocalQueue."""
    cluster_queue: Object | None = None
    pending: Sequence[Object] | None = None
    """The Workloads that wait in its LocalQueue, as Kueue's visibility API lists them."""
    siblings: Sequence[Object] | None = None
    """The Workloads of its namespace."""
    controllers: Mapping[str, str] = field(default_factory=dict)
    """AdmissionCheck -> its controllerName."""


def explanation(workload: Object, around: Around) -> PodExplanation:
    """Return the explanation of a Workload."""
    metadata = workload["metadata"]
    state = state_of(workload)
    cluster_queue = cluster_queue_of(workload, around.queue)
    of_cluster_queue = f" of ClusterQueue {cluster_queue}" if cluster_queue else ""
    if state == "QuotaReserved":
        waiting = [check["name"] for check in _checks(workload) if check.get("state") != "Ready"]
        message = f"waits for the AdmissionChecks {', '.join(waiting)}" if waiting else "quota is reserved"
    else:
        # What the condition says that decides the state.
        kind = {PENDING: "QuotaReserved", INACTIVE: "Evicted"}.get(state, state)
        message = str(condition(workload, kind).get("message") or "Kueue has not decided it yet")
    queue = [
        f"LocalQueue {queue_of(workload) or '-'}{of_cluster_queue}",
        *_inactive(around.queue, "LocalQueue"),
        *_inactive(around.cluster_queue, "ClusterQueue"),
    ]
    answers = [
        _answer("Queue", "; ".join(queue)),
        _answer("Position", _position(workload, around) if state == PENDING else ""),
        _answer("Quota", "; ".join(part for part in _quota(workload, around) if part != message)),
    ]
    for check in _checks(workload):
        title = "Devices" if around.controllers.get(check["name"]) == CONTROLLER else "Check"
        is_paused = check.get("state") == "Retry" and "requeueAfterSeconds" in check
        pause = f" (again after {check['requeueAfterSeconds']} s)" if is_paused else ""
        said = f": {check['message']}" if check.get("message") else ""
        answers.append(_answer(title, f"AdmissionCheck {check['name']} is {check['state']}{pause}{said}"))
    return {
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "state": state,
        "message": message,
        "outlook": [answer for answer in answers if answer["message"]],
    }


def _answer(title: str, message: str) -> TitledAnswer:
    return {"title": title, "message": message, "helps": False}


def state_of(workload: Object) -> str:
    """Return the state of a Workload, in the words of Kueue's conditions."""
    is_active = workload["spec"].get("active", True)
    shown = next((state for state in _STATES if condition(workload, state).get("status") == "True"), PENDING)
    return INACTIVE if shown in (PENDING, "Evicted") and not is_active else shown


def _checks(workload: Object) -> Sequence[Object]:
    return (workload.get("status") or {}).get("admissionChecks") or ()


def queue_of(workload: Object) -> str:
    """Return the name of a Workload's LocalQueue."""
    return str(workload["spec"].get("queueName") or "")


def cluster_queue_of(workload: Object, queue: Object | None) -> str:
    """Return the name of the ClusterQueue: the one that reserved quota, or that of the LocalQueue; empty if unknown."""
    admission = (workload.get("status") or {}).get("admission") or {}
    return str(admission.get("clusterQueue") or ((queue or {}).get("spec") or {}).get("clusterQueue") or "")


def _inactive(queue: Object | None, kind: str) -> Iterator[str]:
    active = condition(queue, "Active") if queue else {}
    if active.get("status") == "False":
        yield f"the {kind} is not active: {active.get('message') or active.get('reason')}"


def _position(workload: Object, around: Around) -> str:
    """Return the place of a Workload that waits; Kueue counts from 0."""
    for pending in around.pending or ():
        if name_of(pending) == name_of(workload):
            local = f"{pending['positionInLocalQueue'] + 1} in the LocalQueue"
            return f"{pending['positionInClusterQueue'] + 1} in the ClusterQueue, {local}"
    queue = queue_of(workload)
    waiting = [other for other in around.siblings or () if queue_of(other) == queue and state_of(other) == PENDING]
    waiting.sort(key=lambda other: (-other["spec"].get("priority", 0), other["metadata"].get("creationTimestamp", "")))
    names = [name_of(other) for other in waiting]
    if name_of(workload) not in names:
        return ""
    return f"{names.index(name_of(workload)) + 1} of {len(names)} in the LocalQueue, by priority and age"


def _quota(workload: Object, around: Around) -> Iterator[str]:
    """Yield what the Workload has reserved, and of its ClusterQueue what is reserved and what there is."""
    reserved = condition(workload, "QuotaReserved")
    if reserved.get("status") == "True":
        for pod_set in ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ():
            usage, flavors = pod_set.get("resourceUsage") or {}, pod_set.get("flavors") or {}
            amounts = ", ".join(f"{amount} {name} of flavor {flavors.get(name, '-')}" for name, amount in usage.items())
            yield f"reserved {amounts or 'nothing'} for pod set {pod_set['name']}"
    elif reserved.get("message"):
        yield str(reserved["message"])
    if around.cluster_queue is not None:
        totals = {
            (flavor["name"], resource["name"]): resource.get("total", "0")
            for flavor in (around.cluster_queue.get("status") or {}).get("flavorsReservation") or ()
            for resource in flavor.get("resources") or ()
        }
        for group in around.cluster_queue["spec"].get("resourceGroups") or ():
            for flavor in group["flavors"]:
                for resource in flavor["resources"]:
                    name, total = resource["name"], totals.get((flavor["name"], resource["name"]), "0")
                    nominal = f"{resource['nominalQuota']} {name} of flavor {flavor['name']}"
                    yield f"{total} of {nominal} are reserved in the queue"
