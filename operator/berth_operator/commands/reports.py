"""Reports as JSON. `-o json` prints them, and the tables show them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from berth_api import allocation, names
from berth_api.allocation import Grant
from berth_operator.commands.planning import Answer
from berth_operator.core.advice.defragmentation import Advice, Move
from berth_operator.core.advice.free_report import NOTHING_LEFT, Left, by_model
from berth_operator.core.advice.simulate import Outcome
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.fleet.nodes.cards import shown_minors
from berth_operator.core.values.request import PendingPod

Report = dict[str, Any]
K = TypeVar("K", bound=tuple[str, ...])
"""Key of a row of free capacity. Device type and model come last."""


def of_simulation(answer: Answer) -> Report:
    """Return the report of a simulation."""
    simulation = answer.simulation
    before, after = by_model(simulation.before), by_model(simulation.after)
    return {
        "fits": answer.fits,
        "pods": [_outcome(outcome) for outcome in answer.pods],
        "waiting": [_outcome(outcome) for outcome in answer.waiting],
        "devices": [
            {"node": place[0], **_left_at(place, simulation.before, simulation.after)}
            for place in sorted(simulation.after)
        ],
        "totals": [_left_at(place, before, after) for place in sorted(after)],
        "unusedNodes": sorted(simulation.unused),
        "emptiedNodes": sorted(simulation.emptied),
        "notes": list(answer.notes),
    }


def of_advice(pod: PendingPod, advice: Advice, claims: Sequence[str] = ()) -> Report:
    """Return the report of which pods to move for a pod. `claims` is the search result for its ResourceClaims."""
    return {
        **_outcome(Outcome(pod=pod, result=advice.result)),
        "moves": [
            {
                "pod": move.charge.pod,
                "from": _place(move.charge.node, move.charge.grants),
                "to": _place(move.placement.node, move.placement.grants),
            }
            for move in advice.moves
        ],
        "fixed": [{"pod": charge.pod, "node": charge.node, "why": why} for charge, why in advice.fixed],
        "tried": advice.tried,
        "limits": list(advice.limits),
        "requests": list(claims),
    }


def of_defragmentation(pod: PendingPod, advice: Advice, first: Sequence[Move]) -> Report:
    """Return the report of which pods are moved for a pod, and which of them first."""
    return {**of_advice(pod, advice), "first": [move.charge.pod for move in first]}


def _outcome(outcome: Outcome) -> Report:
    report, result = {"pod": outcome.pod.key, "fits": outcome.fits}, outcome.result
    if isinstance(result, Failure):
        report["reason"] = result.message
    if isinstance(result, Placement):
        report |= _place(result.node, result.charge.grants)
        named = [str(claimed.claim) for claimed in result.claims.of_claims]
        if result.claims.mappings:  # the last claim is for extended resources, and has no name yet
            named.append(", ".join(sorted(result.claims.by_class)))
        devices = ([str(device.device.id) for device in claimed.results] for claimed in result.claims.allocations)
        if claims := dict(zip(named, devices, strict=True)):
            report["claims"] = claims
    return report


def _place(node: str, grants: Sequence[Grant]) -> Report:
    devices: dict[str, dict[int, None]] = {}
    shown = shown_minors(grants)
    for grant in grants:
        # Several instances of one card count as one card.
        devices.setdefault(grant.type, {})[shown[grant.type, grant.minor]] = None
    return {"node": node, "devices": {device_type: list(minors) for device_type, minors in devices.items()}}


def _left_at(place: K, before: Mapping[K, Left], after: Mapping[K, Left]) -> Report:
    was, will_be = before.get(place, NOTHING_LEFT), after[place]
    return {
        "type": place[-2],
        "model": place[-1],
        "cards": will_be.cards,
        "idle": {"before": was.idle, "after": will_be.idle},
        "free": {"before": _amounts(was), "after": _amounts(will_be)},
    }


def _amounts(left: Left) -> dict[str, str]:
    return {allocation.long(name, names.PREFIX): allocation.text(name, amount) for name, amount in left.free}
