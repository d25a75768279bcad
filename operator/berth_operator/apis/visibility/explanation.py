"""The explanation of a pod. Pure functions."""

from collections.abc import Sequence
from typing import Final

from berth_api.objects.visibility import (
    BindPoints,
    PodExplanation,
    RemedyAnswer,
    RequestedDevices,
    WaitingGang,
)
from berth_operator.apis.visibility.sources import backoff_seconds
from berth_operator.binding.reports.recent_binds import MAX_BINDS
from berth_operator.core.advice import outlook, remedies
from berth_operator.core.advice.remedies import Remedy
from berth_operator.core.advice.waits import Wait, Why
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.ranking import Ranking
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.order import Place
from berth_operator.core.values.charge import Charge

WAITING: Final = "Waiting"
BACKING_OFF: Final = "BackingOff"
ACTIVE: Final = "Active"
GATED: Final = "Gated"
BINDING: Final = "Binding"
BOUND: Final = "Bound"
NOT_MANAGED: Final = "NotManaged"
_OF_PLACES: Final = {
    event_labels.ACTIVE: ACTIVE,
    event_labels.BACKOFF: BACKING_OFF,
    event_labels.UNSCHEDULABLE: WAITING,
}
MAX_REQUESTS: Final = 64
"""Requests of claims."""
MAX_CAUSES: Final = 8
"""Reasons why a request does not find devices, the largest numbers first."""
_ANSWERS: Final = {True: "Ends", None: "Needed", False: "DoesNotHelp"}
UNDECIDED: Final = "the pod has not been tried yet"


def bound_message(node: str, devices: str, charge: Charge) -> str:
    """Return where a bound pod runs, and with which devices. It may hold any device of the types that are unknown."""
    if charge.unknown:
        types = ", ".join(charge.unknown)
        return f"bound to {node}; which {types} it holds is not known: its allocation cannot be read"
    if charge.lacks_cards:
        return f"bound to {node}, but not by Berth, so its containers see no GPU: delete the pod"
    return f"bound to {node} with {devices}" if devices else f"bound to {node}"


def held_message(bound: str, charge: Charge) -> str:
    """Return where another scheduler's pod is, and what this costs the pods of Berth."""
    if not charge.unknown:
        return bound
    types = ", ".join(charge.unknown)
    return f"{bound}, so no {types} of {charge.node} is allocated until kubelet reports it or the pod ends"


def of_waiting(
    wait: Wait,
    place: Place | None,
    why: Why,
    found: Sequence[Remedy],
    *,
    nodes: int,
    queued: int,
    now: float,
    gang: WaitingGang | None,
    reservation: str,
    refusal: str,
) -> PodExplanation:
    """Return the explanation of a waiting pod.

    Args:
        wait: the pod.
        place: its place in the queue; None if it is not there.
        why: why it fits nowhere; for a gang, why its first member without a node does not.
        found: the changes that end its wait.
        nodes: number of nodes that the decision considered.
        queued: number of pods in the queue.
        now: monotonic seconds.
        gang: its gang; None for single pods.
        reservation: the sentence about its node reservation; empty if it has none.
        refusal: which writes for it the API server refuses; empty if it refuses none.
    """
    pod, explanation = wait.pod, why.explanation
    decided = explanation.result.message if isinstance(explanation.result, Failure) else UNDECIDED
    body: PodExplanation = {
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "state": ACTIVE if place is None else _OF_PLACES[place.state],
        "message": pod.last_message or decided,
        "nodes": nodes,
        "groups": list(explanation.groups),
        "nearest": list(explanation.nearest),
        "fitsNow": outlook.is_placed(wait, why),
        "remedies": [
            RemedyAnswer(
                kind=remedy.kind,
                answer=_ANSWERS[remedy.ends],
                message=remedy.sentence,
                node=remedy.node,
                newNode=remedy.is_new,
            )
            for remedy in found
        ],
        "inVain": remedies.is_in_vain(found),
        "outlook": list(outlook.answers(wait, why, found, nodes)),
    }
    if changes := outlook.changes(wait, why, found):
        body["changes"] = changes
    if explanation.fits_when_empty is not None:
        body["fitsWhenEmpty"] = explanation.fits_when_empty
        body["newNodeHelps"] = any(remedy.is_another and remedy.ends for remedy in found)
    if why.claims is not None:
        requests: list[RequestedDevices] = [
            {**request, "leftOut": request["leftOut"][:MAX_CAUSES]} for request in why.claims["requests"][:MAX_REQUESTS]
        ]
        body["claims"] = {**why.claims, "requests": requests}
    if (answer := explanation.preemption) is not None:
        body["preemption"] = {"possible": bool(answer.node), "message": outlook.preemption_message(answer)}
    if gang is not None:
        first = None if why.of_gang is None else why.of_gang.first
        body["gang"] = {**gang, "firstWithoutPlace": "" if first is None else first.name}
    if pod.reserved_node:
        body["reservation"] = {"node": pod.reserved_node, "message": reservation}
    if refusal:
        body["refusal"] = refusal
    if place is not None:
        body["queue"] = {
            "position": place.position,
            "of": queued,
            "state": place.state,
            "backoffSeconds": backoff_seconds(place, now),
            "wakesOn": place.events,
        }
    return body


def why_not_kept(epoch: str | None, term: int | None) -> str:
    """Return why the points of a bind are not kept, by the leader's term that the pod's annotation records."""
    if epoch is None:
        return "Berth did not choose the node"
    return "the leader has changed since the bind" if epoch != str(term) else f"the leader keeps its last {MAX_BINDS:,}"


def bind(node: str, ranking: Ranking | None, why_not: str = "") -> BindPoints:
    """Return the points of the node of a bind and of its runners-up; none, and why, if they are not kept."""
    scores = [] if ranking is None else ranking.scores()
    return {"kept": ranking is not None, "message": why_not, "node": node, "scores": scores}
