"""The explanation of a pod as an object; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from berth_client.objects import Object
from berth_operator.apis.visibility.kinds import API_VERSION, EXPLANATION
from berth_operator.apis.visibility.sources import backoff_seconds
from berth_operator.binding.reports.recent_binds import MAX_BINDS
from berth_operator.core.advice import outlook, remedies
from berth_operator.core.advice.claim_devices import ClaimDevices, RequestedDevices
from berth_operator.core.advice.explanation import Explanation, NearNode, NodeGroup, PreemptionAnswer
from berth_operator.core.advice.gang_explanation import GangExplanation
from berth_operator.core.advice.lacking import CardLack
from berth_operator.core.advice.outlook import Outlook, WaitAnswer
from berth_operator.core.advice.remedies import Remedy
from berth_operator.core.advice.waits import Wait, Why
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.ranking import Ranking
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.order import Place
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod

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
MAX_NODES: Final = 100
"""Names of nodes of a group."""
MAX_REQUESTS: Final = 64
"""Requests of claims."""
MAX_CAUSES: Final = 8
"""Reasons for which a request does not find devices, the largest numbers first."""
_ANSWERS: Final = {True: "Ends", None: "Needed", False: "DoesNotHelp"}
UNDECIDED: Final = "the pod has not been tried yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodId:
    """The pod that is explained."""

    namespace: str
    name: str
    uid: str


def bare_object(pod: PodId, state: str, message: str) -> Object:
    """Return the explanation of a pod that needs none."""
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    return {
        "kind": EXPLANATION,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "state": state,
        "message": message,
    }


def bound_message(node: str, devices: str, unknown: Sequence[str]) -> str:
    """Return where a bound pod is, and with which devices; of the `unknown` types it may hold any."""
    if unknown:
        return f"bound to {node}; which {', '.join(unknown)} it holds is not known: its allocation cannot be read"
    return f"bound to {node} with {devices}" if devices else f"bound to {node}"


def held_message(bound: str, charge: Charge) -> str:
    """Return where another scheduler's pod is, and what this costs the pods of Berth."""
    if not charge.unknown:
        return bound
    types = ", ".join(charge.unknown)
    return f"{bound}, so no {types} of {charge.node} is allocated until kubelet reports it or the pod ends"


def explanation_object(
    wait: Wait,
    place: Place | None,
    why: Why,
    found: Sequence[Remedy],
    *,
    nodes: int,
    queued: int,
    now: float,
    gang: Object | None,
    reservation: str,
) -> Object:
    """Return the explanation of a waiting pod.

    Args:
        wait: the pod.
        place: its place in the queue; None if it is not there.
        why: why it fits nowhere; of a gang, why its first member without a node does not.
        found: what ends its wait.
        nodes: number of nodes that the decision considered.
        queued: number of pods in the queue.
        now: monotonic seconds.
        gang: its gang; None for single pods.
        reservation: the sentence about its node reservation; empty if it has none.
    """
    pod, explanation = wait.pod, why.explanation
    state = ACTIVE if place is None else _OF_PLACES[place.state]
    body = bare_object(PodId(namespace=pod.namespace, name=pod.name, uid=pod.uid), state, _message(pod, explanation))
    body |= {
        "nodes": nodes,
        "groups": [_group(group) for group in explanation.groups],
        "nearest": [_near(near) for near in explanation.nearest],
        "fitsNow": outlook.is_placed(wait, why),
        "remedies": [_remedy(each) for each in found],
        "inVain": remedies.is_in_vain(found),
        **_outlook(outlook.outlook(wait, why, found, nodes)),
    }
    if explanation.fits_when_empty is not None:
        body["fitsWhenEmpty"] = explanation.fits_when_empty
        body["newNodeHelps"] = any(each.is_another and each.ends for each in found)
    if why.claims is not None:
        body["claims"] = _claims(why.claims)
    if explanation.preemption is not None:
        body["preemption"] = _preemption(explanation.preemption)
    if gang is not None:
        body["gang"] = gang
    if pod.reserved_node:
        body["reservation"] = {"node": pod.reserved_node, "message": reservation}
    if place is not None:
        body["queue"] = {
            "position": place.position,
            "of": queued,
            "state": place.state,
            "backoffSeconds": backoff_seconds(place, now),
            "wakesOn": place.events,
        }
    return body


def gang(known: Object | None, explanation: GangExplanation | None) -> Object | None:
    """Return a gang, with its first member without a node; None for single pods."""
    if known is None:
        return None
    first = None if explanation is None else explanation.first
    return {**known, "firstWithoutPlace": "" if first is None else first.name}


def why_not_kept(epoch: str | None, term: int | None) -> str:
    """Return why the points of a bind are not kept, by the leader's term that the pod's annotation records."""
    if epoch is None:
        return "Berth did not choose the node"
    return "the leader has changed since the bind" if epoch != str(term) else f"the leader keeps its last {MAX_BINDS:,}"


def bind(node: str, ranking: Ranking | None, why_not: str = "") -> Object:
    """Return the points of the node of a bind and of its runners-up; none, and why, if they are not kept."""
    scores = [] if ranking is None else ranking.scores()
    return {
        "kept": ranking is not None,
        "message": why_not,
        "node": node,
        "scores": [
            {
                "node": score.node,
                "total": round(score.total, 2),
                "terms": {name: round(points, 2) for name, points in score.terms},
            }
            for score in scores
        ],
    }


def _remedy(remedy: Remedy) -> Object:
    return {
        "kind": remedy.kind,
        "answer": _ANSWERS[remedy.ends],
        "message": remedy.sentence,
        "node": remedy.node,
        "newNode": remedy.is_new,
    }


def _outlook(of: Outlook) -> Object:
    answers: Object = {"outlook": [{"title": each.title, **_answer(each)} for each in of.answers]}
    if of.changes:
        answers["changes"] = {"title": outlook.CHANGES, "answers": [_answer(each) for each in of.changes]}
    return answers


def _answer(answer: WaitAnswer) -> Object:
    return {"message": answer.message, "helps": answer.helps}


def _preemption(answer: PreemptionAnswer) -> Object:
    return {"possible": bool(answer.node), "message": outlook.preemption_message(answer)}


def _message(pod: PendingPod, explanation: Explanation) -> str:
    if pod.last_message:
        return pod.last_message
    return explanation.result.message if isinstance(explanation.result, Failure) else UNDECIDED


def _group(group: NodeGroup) -> Object:
    return {
        "reasons": list(group.reasons),
        "counted": list(group.counted),
        "filters": list(group.filters),
        "count": len(group.nodes),
        "nodes": list(group.nodes[:MAX_NODES]),
    }


def _near(near: NearNode) -> Object:
    return {
        "node": near.node,
        "resources": dict(near.lack.resources),
        "cards": [_card(card) for card in near.lack.cards],
    }


def _claims(of: ClaimDevices) -> Object:
    return {
        "nodes": of.nodes,
        "complete": of.complete,
        "together": of.together,
        "requests": [_requested(each) for each in of.requests[:MAX_REQUESTS]],
    }


def _requested(of: RequestedDevices) -> Object:
    return {
        "claim": of.claim,
        "request": of.request,
        "needed": of.needed,
        "devices": of.devices,
        "found": of.found,
        "most": of.most,
        "nodes": list(of.nodes),
        "enough": of.enough,
        "matching": of.matching,
        "leftOut": [
            {"devices": each.devices, "why": each.why, "selector": each.is_selector}
            for each in of.left_out[:MAX_CAUSES]
        ],
    }


def _card(card: CardLack) -> Mapping[str, Any]:
    return {"type": card.type, "minor": card.minor, "amounts": dict(card.amounts)}
