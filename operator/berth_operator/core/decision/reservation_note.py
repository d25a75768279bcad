"""The sentences about a node reservation in the condition of its pod.

    reserved on node-7: 6 of 8 GPUs are free, the rest is held by pod a and 1 pod of another namespace.
    reserved on node-7: 1 of 1 GPUs are free, 1 cpu is missing and held by pod a.

Other sentences show since when nothing has been freed, how many reservations were in vain, and when the next may begin:

    1 node reservation was in vain; nothing has been freed since 2026-01-01T00:05:00Z; reserved on node-7: 6 of 8 ...
    1 node reservation was in vain: nothing was freed for 15 minutes; the next one may begin at 2026-01-01T00:50:00Z.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from berth_api.resources import quantity
from berth_api.values import keys, listing
from berth_operator.core.allocators import shortage
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.messages import with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import NodeReservation
from berth_operator.core.decision.reservation_backoff import PATIENCE, Backoff
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod

_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
NAMED: Final = 3
"""Pods that are named; the others are counted."""


def note(reservation: NodeReservation) -> str:
    """Return the sentence about a node reservation; it names no pod of another namespace."""
    # Of the first part, and of others that are not all free.
    first, *others = reservation.devices
    shown = [first, *(devices for devices in others if devices.free < devices.requested)]
    counts = (f"{devices.free} of {devices.requested} {shortage.plural(devices.type)}" for devices in shown)
    text = f"reserved on {reservation.node}: {' and '.join(counts)} are free"
    if not reservation.awaited:
        return f"{text}."
    own, _ = keys.split(reservation.nominee.pod)
    deadline = "" if reservation.ends >= ending.UNKNOWN else f" until {_text(reservation.ends)} at the latest"
    return f"{text}, {_missing(reservation)} held by {holders(reservation.awaited, own)}{deadline}."


def _missing(reservation: NodeReservation) -> str:
    """Return what else the pod waits for, with the verb."""
    lacks_devices = any(devices.free < devices.requested for devices in reservation.devices)
    amounts = reservation.missing
    if not amounts:
        return "the rest is" if lacks_devices else "other resources are"
    listed = f"{'the rest and ' if lacks_devices else ''}{amounts_text(amounts)}"
    verb = "is" if len(amounts) == 1 and not lacks_devices else "are"
    return f"{listed} {verb}" if lacks_devices else f"{listed} {verb} missing and"


def reserved_nodes(count: int) -> str:
    """Return the sentence for a pod that nodes would take if they were not reserved for others."""
    return f"{count} node(s) would fit, but are reserved for pods that have waited longer."


def explained(
    fleet: Fleet, pod: PendingPod, failure: Failure, policy: Policy, kept: Mapping[str, NodeReservation]
) -> Failure:
    """Return a failure with the number of nodes that would take the pod if they were not reserved for others."""
    others = [fleet.nominees[uid] for uid in kept if uid in fleet.nominees and uid != pod.uid]
    if not others or pod.error:
        return failure
    with fleet.without([*others, *fleet.lower_priority_nominees(pod.uid, pod.priority)]):
        nodes = int(cycle.feasible(fleet, pod.request, policy.filters_of(pod.request)).sum())
    return replace(failure, message=with_note(failure.message, reserved_nodes(nodes))) if nodes else failure


def annotated(
    pod: PendingPod, failure: Failure, kept: Mapping[str, NodeReservation], backoff: Backoff | None = None
) -> Failure:
    """Return a pod's failure with a sentence about its reservation, or about reservations that were in vain, if any."""
    own = kept.get(pod.uid)
    if own is None and backoff is None:
        return failure
    parts = []
    if backoff is not None:
        parts.append(f"{backoff.count} node reservation{'s were' if backoff.count > 1 else ' was'} in vain")
    if own is not None:
        parts += [f"nothing has been freed since {_text(own.since)}"] if own.since else []
        return replace(failure, message=with_note(failure.message, "; ".join([*parts, note(own)])))
    begins = "" if backoff is None else f"; the next one may begin at {_text(backoff.until)}."
    return replace(
        failure,
        message=with_note(failure.message, f"{parts[0]}: nothing was freed for {PATIENCE // 60} minutes{begins}"),
    )


def of_gang(gang: Gang, failure: Failure, policy: Policy, now: float) -> Failure:
    """Return a gang's failure with what helps, once it has waited as long as a pod waits for a reservation.

    No nodes are reserved for gangs. `now` is in seconds since 1970.
    """
    waits = [pod.unschedulable_since for pod in gang.members if pod.unschedulable_since and pod.request.devices]
    if gang.formed or not waits or not policy.reserve_after or min(waits) > _text(int(now - policy.reserve_after)):
        return failure
    note = (
        f"waiting for devices since {min(waits)}: no nodes are reserved for gangs, so smaller pods may take each "
        "device that becomes free; a PriorityClass above theirs lets the gang preempt them."
    )
    return replace(failure, message=with_note(failure.message, note))


def _text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(_FORMAT)


def amounts_text(amounts: Iterable[tuple[str, int]]) -> str:
    """Return amounts in words: `500m cpu and 8Gi memory`."""
    return " and ".join(f"{quantity.of_resource(name, amount)} {name}" for name, amount in amounts)


def holders(charges: Iterable[Charge], own: str) -> str:
    """Return pods in words: pods of the namespace `own` by name, other pods by number."""
    split = [keys.split(charge.pod) for charge in charges]
    named = [name for namespace, name in split if namespace == own]
    others = Counter(namespace for namespace, _ in split if namespace != own)
    texts = []
    if named:
        texts.append(f"pod{'s' if len(named) > 1 else ''} {listing.first_of(named, NAMED)}")
    if count := others.total():
        namespaces = "another namespace" if len(others) == 1 else "other namespaces"
        texts.append(f"{count} pod{'s' if count > 1 else ''} of {namespaces}")
    return " and ".join(texts)
