"""The sentence about a node reservation in the condition of its pod.

    reserved on node-7: 6 of 8 GPUs are free, the rest is held by pod a and 1 pod of another namespace.

The next leader reads the node from this sentence, so that the pod keeps it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from berth_api.values import keys, listing
from berth_operator.core.allocators import shortage
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.messages import UNSCHEDULABLE, with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import NodeReservation, entitled, may_have, most_nodes
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod

NAMED: Final = 3
"""Pods that are named; the others are counted."""
_NODE: Final = re.compile(r" reserved on ([a-z0-9.-]{1,253}): \d+ of \d+ ")


def note(reservation: NodeReservation) -> str:
    """Return the sentence about a node reservation; it names no pod of another namespace."""
    device_type = reservation.request.devices.parts[0].type
    free, total = _free_devices(reservation, device_type)
    label = shortage.plural(device_type)
    text = f"reserved on {reservation.node}: {free} of {total} {label} are free"
    if not reservation.awaited:
        return f"{text}."
    rest = "the rest is" if free < total else "other resources are"
    return f"{text}, {rest} held by {_holders(reservation)}{_deadline(reservation)}."


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


def annotated(pod: PendingPod, failure: Failure, kept: Mapping[str, NodeReservation]) -> Failure:
    """Return a pod's failure with a sentence about its reservation, if it has one."""
    own = kept.get(pod.uid)
    return failure if own is None else replace(failure, message=with_note(failure.message, note(own)))


def recorded_node(message: str) -> str:
    """Return the node that a condition's message says is reserved; empty if it says nothing of that."""
    match = _NODE.search(message)
    return match[1] if match is not None else ""


def _free_devices(reservation: NodeReservation, device_type: str) -> tuple[int, int]:
    """Return how many of the reserved devices no pod holds, and how many are reserved."""
    grants = [each for each in reservation.nominee.grants if each.type == device_type]
    if any(device_type in each.unknown for each in reservation.awaited):
        return 0, len(grants)
    held = {each.minor for charge in reservation.awaited for each in charge.grants if each.type == device_type}
    return sum(each.minor not in held for each in grants), len(grants)


def _holders(reservation: NodeReservation) -> str:
    """Return the pods that have to end, by name if they are of the pod's own namespace."""
    own, _ = keys.split(reservation.nominee.pod)
    named = [name for namespace, name in map(_key, reservation.awaited) if namespace == own]
    others = Counter(namespace for namespace, _ in map(_key, reservation.awaited) if namespace != own)
    return " and ".join(_parts(named, others))


def _parts(named: list[str], others: Counter[str]) -> Iterator[str]:
    if named:
        yield f"pod{'s' if len(named) > 1 else ''} {listing.first_of(named, NAMED)}"
    if count := others.total():
        namespaces = "another namespace" if len(others) == 1 else "other namespaces"
        yield f"{count} pod{'s' if count > 1 else ''} of {namespaces}"


def _key(charge: Charge) -> tuple[str, str]:
    return keys.split(charge.pod)


def _deadline(reservation: NodeReservation) -> str:
    if reservation.ends >= ending.UNKNOWN:
        return ""
    return datetime.fromtimestamp(reservation.ends, UTC).strftime(" until %Y-%m-%dT%H:%M:%SZ at the latest")
