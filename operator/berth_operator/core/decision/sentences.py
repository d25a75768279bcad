"""The record that an operator of the previous version left in messages and in an annotation.

Only upgrades from the previous version need this module. The next release removes it. Nothing else parses a message.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from berth_api.objects.leader_lease import (
    MAX_BACKOFFS,
    MAX_LOST_PLACES,
    MAX_PLACES,
    MAX_RESERVED_NODES,
    VERSION,
    LeaderLeaseStatus,
    LostPlace,
    PromisedNode,
    PromisedPodSet,
    PromisedWorkload,
    ReservationBackoff,
    ReservedNode,
)
from berth_operator.core.decision.messages import UNSCHEDULABLE
from berth_operator.core.decision.reservation_backoff import key_of
from berth_operator.core.values.quota_workload import CheckState, QuotaWorkload
from berth_operator.core.values.request import PendingPod

_TIME: Final = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
_RESERVED: Final = re.compile(
    rf"(?: nothing has been freed since {_TIME};)? reserved on ([a-z0-9.-]{{1,253}}): (\d{{1,4}}) of \d+ "
)
_IN_VAIN: Final = re.compile(r" (\d{1,4}) node reservations? (?:was|were) in vain[;:]")
_NEXT: Final = re.compile(rf"; the next one may begin at {_TIME}\.")
_PLACES: Final = r"[a-z0-9.-]{1,253}(?: \(\d{1,6} pods\))?"
_LIST: Final = re.compile(rf"(?:places|;) (?:for (?P<set>[a-z0-9-]{{1,63}}) )?on (?P<nodes>{_PLACES}(?:, {_PLACES})*)")
_ITEM: Final = re.compile(r"(?P<node>[a-z0-9.-]+)(?: \((?P<pods>\d+) pods\))?")


def read(
    pods: Iterable[PendingPod], workloads: Iterable[QuotaWorkload], lost_places: str | None, now: float
) -> LeaderLeaseStatus:
    """Return the content of pods' conditions, workloads' checks and the annotation.

    `now` is in seconds since 1970.
    """
    waiting = [pod for pod in pods if pod.last_message]
    return LeaderLeaseStatus(
        version=VERSION,
        node_reservations=list(_reservations(waiting, int(now)))[:MAX_RESERVED_NODES],
        reservation_backoffs=list(_backoffs(waiting))[:MAX_BACKOFFS],
        promised_places=list(_promised(workloads))[:MAX_PLACES],
        lost_places=None if lost_places is None else _lost_places(lost_places),
    )


def _reservations(pods: Iterable[PendingPod], now: int) -> Iterator[ReservedNode]:
    for pod in pods:
        if pod.last_reason == UNSCHEDULABLE and (match := _RESERVED.search(pod.last_message)) is not None:
            since, node, free = match.groups()
            yield ReservedNode(
                namespace=pod.namespace,
                pod=pod.name,
                uid=pod.uid,
                node=node,
                free=int(free),
                since=now if since is None else _seconds(since),
            )


def _backoffs(pods: Iterable[PendingPod]) -> Iterator[ReservationBackoff]:
    for pod in pods:
        if (match := _IN_VAIN.search(pod.last_message)) is not None:
            begins, (namespace, owner) = _NEXT.search(pod.last_message), key_of(pod)
            until = 0 if begins is None else _seconds(begins[1])
            yield ReservationBackoff(namespace=namespace, owner=owner, count=int(match[1]), until=until)


def _seconds(text: str) -> int:
    """Return a time in seconds since 1970; 0 if the text is no time."""
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return 0


def _promised(workloads: Iterable[QuotaWorkload]) -> Iterator[PromisedWorkload]:
    for workload in workloads:
        nodes: dict[str, Counter[str]] = {pod_set.name: Counter() for pod_set in workload.pod_sets}
        for match in _LIST.finditer(workload.message) if workload.state is CheckState.READY else ():
            name = match["set"] or (workload.pod_sets[0].name if len(nodes) == 1 else "")
            for item in _ITEM.finditer(match["nodes"]) if name in nodes else ():
                nodes[name][item["node"]] = min(int(item["pods"] or 1), MAX_PLACES)
        pod_sets = [
            PromisedPodSet(name=name, nodes=[PromisedNode(node=node, pods=count) for node, count in counts.items()])
            for name, counts in nodes.items()
            if counts
        ]
        if pod_sets:
            yield PromisedWorkload(uid=workload.uid, pod_sets=pod_sets)


def _lost_places(annotation: str) -> list[LostPlace] | None:
    """Return the lost places that the annotation records; None if it has another form."""
    try:
        preemptors: Any = json.loads(annotation)
        return [
            LostPlace(preemptor=preemptor, node=node, count=count, until=until, last=last, takers=tuple(takers))
            for preemptor, by_node in preemptors.items()
            for node, (count, until, last, *takers) in by_node.items()
        ][:MAX_LOST_PLACES]
    except (AttributeError, TypeError, ValueError):
        return None
