"""The sentence about a node reservation in the condition of its pod.

    reserved on node-7: 6 of 8 GPUs are free, the rest is held by pod a and 1 pod of another namespace.
    reserved on node-7: 1 of 1 GPUs are free, 1 cpu is missing and held by pod a.

The next leader reads the node from this sentence, so that the pod keeps it. Other sentences record since when nothing
has been freed, how many reservations were in vain, and when the next one may begin:

    1 node reservation was in vain; nothing has been freed since 2026-01-01T00:05:00Z; reserved on node-7: 6 of 8 ...
    1 node reservation was in vain: nothing was freed for 15 minutes; the next one may begin at 2026-01-01T00:50:00Z.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from berth_api.resources import quantity
from berth_api.values import keys, listing
from berth_operator.core.allocators import shortage
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.messages import UNSCHEDULABLE, with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import NodeReservation, entitled, may_have, most_nodes
from berth_operator.core.decision.reservation_backoff import PATIENCE, Backoff
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod

_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
NAMED: Final = 3
"""Pods that are named; the others are counted."""
_NODE: Final = re.compile(r" reserved on ([a-z0-9.-]{1,253}): \d+ of \d+ ")
_TIME: Final = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
_SINCE: Final = re.compile(
    rf" nothing has been freed since {_TIME}; reserved on ([a-z0-9.-]{{1,253}}): (\d{{1,4}}) of "
)
_IN_VAIN: Final = re.compile(r" (\d{1,4}) node reservations? (?:was|were) in vain[;:]")
_NEXT: Final = re.compile(rf"; the next one may begin at {_TIME}\.")


def note(reservation: NodeReservation) -> str:
    """Return the sentence about a node reservation; it names no pod of another namespace."""
    text = f"reserved on {reservation.node}: {_free(reservation)}"
    if not reservation.awaited:
        return f"{text}."
    own, _ = keys.split(reservation.nominee.pod)
    return f"{text}, {_missing(reservation)} held by {holders(reservation.awaited, own)}{_deadline(reservation)}."


def _free(reservation: NodeReservation) -> str:
    """Return how many of the devices are free: of the first part, and of others that are not all free."""
    first, *others = reservation.devices
    shown = [first, *(each for each in others if each.free < each.requested)]
    counts = (f"{each.free} of {each.requested} {shortage.plural(each.type)}" for each in shown)
    return f"{' and '.join(counts)} are free"


def _missing(reservation: NodeReservation) -> str:
    """Return what else the pod waits for, with the verb."""
    lacks_devices = any(each.free < each.requested for each in reservation.devices)
    amounts = reservation.missing
    if not amounts:
        return "the rest is" if lacks_devices else "other resources are"
    listed = f"{'the rest and ' if lacks_devices else ''}{amounts_text(amounts)}"
    verb = "is" if len(amounts) == 1 and not lacks_devices else "are"
    return f"{listed} {verb}" if lacks_devices else f"{listed} {verb} missing and"


def reserved_nodes(count: int) -> str:
    """Return the sentence for a pod that nodes would take if they were not reserved for others."""
    return f"{count} node(s) would fit, but are reserved for pods that have waited longer."


def recorded(fleet: Fleet, pods: Iterable[PendingPod], policy: Callable[[str], Policy], now: float) -> list[PendingPod]:
    """Return the pods whose conditions say that they have a reservation, and that may keep it, in order.

    `policy` returns that of a scheduler name, `now` is in seconds since 1970.
    """
    waiting = (each for each in pods if each.last_reason == UNSCHEDULABLE and recorded_node(each.last_message))
    keeping = (each for each in waiting if may_have(fleet, each, policy(each.scheduler), now))
    return entitled(keeping, most_nodes(fleet))


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
    """Return a pod's failure with a sentence about its reservation, or about those that were in vain, if any."""
    own = kept.get(pod.uid)
    if own is None and backoff is None:
        return failure
    parts = [] if backoff is None else [_in_vain(backoff.count)]
    if own is not None:
        parts += [f"nothing has been freed since {_text(own.since)}"] if own.since else []
        return replace(failure, message=with_note(failure.message, "; ".join([*parts, note(own)])))
    begins = "" if backoff is None else f"; the next one may begin at {_text(backoff.until)}."
    return replace(
        failure,
        message=with_note(failure.message, f"{parts[0]}: nothing was freed for {PATIENCE // 60} minutes{begins}"),
    )


def _in_vain(count: int) -> str:
    return f"{count} node reservation{'s were' if count > 1 else ' was'} in vain"


def recorded_backoff(message: str) -> Backoff | None:
    """Return the back-off that a condition's message records; None if no reservation was in vain."""
    if (match := _IN_VAIN.search(message)) is None:
        return None
    begins = _NEXT.search(message)
    return Backoff(count=int(match[1]), until=0 if begins is None else _seconds(begins[1]))


def recorded_since(message: str, kept: NodeReservation, now: float) -> int:
    """Return since when nothing has been freed for a restored reservation; now if its node or what is free differs."""
    match = _SINCE.search(message)
    if match is None or match[2] != kept.node or kept.devices[0].free > int(match[3]):
        return int(now)
    return min(_seconds(match[1]), int(now))


def _text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(_FORMAT)


def _seconds(text: str) -> int:
    """Return a time in seconds since 1970; 0 if there is none such."""
    try:
        return int(datetime.strptime(text, _FORMAT).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return 0


def recorded_node(message: str) -> str:
    """Return the node that a condition's message says is reserved; empty if it says nothing of that."""
    match = _NODE.search(message)
    return match[1] if match is not None else ""


def amounts_text(amounts: Iterable[tuple[str, int]]) -> str:
    """Return amounts in words: `500m cpu and 8Gi memory`."""
    return " and ".join(f"{quantity.of_resource(name, amount)} {name}" for name, amount in amounts)


def holders(charges: Iterable[Charge], own: str) -> str:
    """Return pods in words: those of the namespace `own` by name, the others by number."""
    split = [keys.split(each.pod) for each in charges]
    named = [name for namespace, name in split if namespace == own]
    others = Counter(namespace for namespace, _ in split if namespace != own)
    return " and ".join(_parts(named, others))


def _parts(named: list[str], others: Counter[str]) -> Iterator[str]:
    if named:
        yield f"pod{'s' if len(named) > 1 else ''} {listing.first_of(named, NAMED)}"
    if count := others.total():
        namespaces = "another namespace" if len(others) == 1 else "other namespaces"
        yield f"{count} pod{'s' if count > 1 else ''} of {namespaces}"


def _deadline(reservation: NodeReservation) -> str:
    if reservation.ends >= ending.UNKNOWN:
        return ""
    return f" until {_text(reservation.ends)} at the latest"
