"""The rows of the three kinds, from the leader's state."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant, long, short
from berth_api.device import ExceedingUse
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, PREFIX
from berth_api.objects.visibility import Exceeding, FleetNode, HoldingPod, InstancePlacement, QueuedPod, WaitingGang
from berth_api.request import AMOUNTS
from berth_api.resources import PODS, quantity
from berth_api.values import keys
from berth_client import times
from berth_operator.apis.visibility.kinds import FLEET, HOLDERS, QUEUE
from berth_operator.apis.visibility.row_cache import Row
from berth_operator.core.advice import fleet_rows
from berth_operator.core.advice.holders import NONE_PLACED, held_by_claim, holder_row, holds_devices
from berth_operator.core.decision.gang import Gang
from berth_operator.core.fleet.arrays.column_cache import ColumnCache
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.order import CHUNK, Place, places, sorted_in_steps
from berth_operator.core.queue.queue import order_of
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects.kubelet import NO_REPORT

WORKLOAD: Final = "workload"
"""Prefix of the names of rows that are of no pod."""


class FleetRows:
    """A row for each node with a Device; only nodes that have changed are rendered."""

    kind = FLEET
    is_volatile = False

    def __init__(self, cluster: Cluster, rack_key: Callable[[], str]) -> None:
        """Create the source; `rack_key` returns the label that names a node's rack, empty for none."""
        self._cluster, self._rack_key = cluster, rack_key
        self._changes: dict[str, int] = {}
        """Node -> number of its changes that were seen."""
        self._all = 0
        """Changes that may concern every node."""
        self._seen: tuple[ColumnCache, int] | None = None
        self._measured_at: npt.NDArray[np.float64] | None = None

    def rows(self) -> Iterator[Row | None]:
        """Yield the rows, by name."""
        self._find_changes()
        rack_key, claims = self._rack_key(), self._cluster.fleet.claims
        for name in sorted(fleet_rows.nodes(self._cluster.fleet)):
            # Which MIG instances can be made depends on slices, whose changes need not move the node.
            slices = claims.own, tuple(claims.supply.index.by_node.get(name, ()))
            stamp = self._all, self._changes.get(name, 0), rack_key, self._unheld(name), slices
            yield Row(("", name), None, stamp, functools.partial(self._render, name, rack_key))

    def _render(self, name: str, rack_key: str) -> FleetNode | None:
        cluster = self._cluster
        device, node = cluster.node_cache.devices.get(name), cluster.node_cache.nodes.get(name)
        if name not in cluster.fleet.rows or device is None:
            return None
        labels = {} if node is None else node.info.labels
        unheld = Counter(self._unheld(name))
        return fleet_rows.fleet_row(cluster.fleet, name, device.fault_texts, unheld, labels=labels, rack_key=rack_key)

    def _unheld(self, name: str) -> tuple[str, ...]:
        """Return the ids of the cards of a node that pods use and do not hold, one for each pod."""
        device = self._cluster.node_cache.devices.get(name)
        return () if device is None else tuple(use.id for use in device.agent_report.unheld)

    def _find_changes(self) -> None:
        """Count the changes since the last time, by node."""
        fleet = self._cluster.fleet
        cache, seen = fleet.column_cache, self._seen
        moved = cache.moved_since(seen[1]) if seen is not None and seen[0] is cache else None
        self._seen = cache, cache.changes
        measured_at, before = fleet.cards[GPU].measured_at.copy(), self._measured_at
        self._measured_at = measured_at
        if moved is None or before is None or before.shape != measured_at.shape:
            self._all += 1
            self._changes.clear()
            return
        measured = np.flatnonzero((before != measured_at).any(axis=1)).tolist()
        for row in {*moved, *measured}:
            name = fleet.names[row]
            self._changes[name] = self._changes.get(name, 0) + 1
        self._changes = {name: number for name, number in self._changes.items() if name in fleet.rows}


class HolderRows:
    """A row for each pod that holds devices, and for each place with devices that is promised to one."""

    kind = HOLDERS
    is_volatile = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def rows(self) -> Iterator[Row | None]:
        """Yield the rows, by namespace and name."""
        drifted = self._cluster.allocations.drifted
        fleet = self._cluster.fleet
        # The charge of a pod or place, and what its claims hold besides.
        charges: list[tuple[Charge, tuple[Grant, ...], Mapping[str, InstancePlacement]]] = [
            (place, (), NONE_PLACED) for _, _, place in self._cluster.promises.all() if place.grants
        ]
        devices = self._cluster.node_cache.devices
        for number, charge in enumerate(list(fleet.charges.values())):
            by_claim, placed = held_by_claim(fleet, charge)
            if by_claim or holds_devices(charge):
                charges.append((charge, by_claim, placed))
            if number % CHUNK == 0:
                yield None
        for item in sorted_in_steps(charges, lambda item: item[0].pod):
            if item is not None:
                holder, by_claim, placed = item
                report = devices[holder.node].agent_report if holder.node in devices else NO_REPORT
                is_drifted, uses = holder.uid in drifted, report.exceeded_by(holder.uid, holder.pod)
                with_claims = replace(holder, grants=(*holder.grants, *by_claim)) if by_claim else holder
                render = functools.partial(self._render, with_claims, drifted=is_drifted, exceeding=uses, placed=placed)
                yield Row(keys.split(holder.pod), holder, (is_drifted, uses, by_claim, placed), render)
            else:
                yield None

    def _render(
        self,
        charge: Charge,
        *,
        drifted: bool,
        exceeding: Iterable[ExceedingUse],
        placed: Mapping[str, InstancePlacement],
    ) -> HoldingPod | None:
        if charge.node not in self._cluster.fleet.rows:
            return None
        uses: list[Exceeding] = [
            {
                "type": use.type,
                "minor": use.minor,
                "memory": quantity.parse(use.memory),
                "limit": quantity.parse(use.limit),
            }
            for use in exceeding
        ]
        return holder_row(self._cluster.fleet, charge, uses, drifted=drifted, placed=placed)


class QueueRows:
    """A row for each waiting pod, each with scheduling gates, and each workload that waits for places."""

    kind = QUEUE
    is_volatile = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def rows(self) -> Iterator[Row | None]:
        """Yield the rows, in the order of the queue. Pods without a place in the queue come last."""
        cluster = self._cluster
        waiting = places(cluster.queue, cluster.pending, cluster.fleet.charges)
        for place in itertools.chain(waiting, self._gated()):
            if place is None:
                yield None
                continue
            pod, stamp = place.pod, (place.position, place.state, place.until, place.message, tuple(place.events))
            yield Row((pod.namespace, pod.name), pod, stamp, functools.partial(self._render, place))
        # Workloads that keep their quota while they wait for places.
        # A list, because they are decided again between two steps.
        waiting_units = [(unit, parked) for parked in cluster.workload_queue.parked() for unit in parked.units.values()]
        for unit, parked in waiting_units:
            if not isinstance(unit, Gang):
                continue
            namespace, name = keys.split(unit.membership.group)
            shown = f"{WORKLOAD}:{name}"
            pod = replace(unit.members[0], name=shown)
            state, message = event_labels.UNSCHEDULABLE, parked.failure.message
            place = Place(pod=pod, position=0, state=state, message=message, wakes_on=Change(parked.bits))
            members = len(cluster.promises.of(unit.membership.group))
            waiting_gang = WaitingGang(name=name, members=members, required=unit.size)
            render = functools.partial(self._render, place, waiting_gang)
            yield Row((namespace, shown), unit, (state, message, members), render)

    def _gated(self) -> Iterator[Place | None]:
        for pod in sorted_in_steps(list(self._cluster.pending_pods.gated), order_of):
            yield None if pod is None else Place(pod=pod, position=0, state=event_labels.GATED)

    def _render(self, place: Place, of_gang: WaitingGang | None = None) -> QueuedPod:
        pod, cluster = place.pod, self._cluster
        row: QueuedPod = {
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "creationTimestamp": pod.created or None,
            },
            "position": place.position,
            "state": place.state,
            "priority": pod.priority,
            "waitingSeconds": max(0, int(cluster.wall() - times.parse(pod.created).timestamp())) if pod.created else 0,
            "scheduler": pod.scheduler,
            "requests": requests(pod),
            "backoffSeconds": backoff_seconds(place, cluster.clock()),
            "wakesOn": place.events,
            "message": place.message or pod.last_message,
            "reservedNode": pod.reserved_node,
        }
        if of_gang := of_gang or gang(cluster, pod):
            row["gang"] = of_gang
        return row


_SHARES: Final = frozenset({GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO})
"""What Berth's own requests for parts of GPUs have one of."""


def requests(pod: PendingPod) -> dict[str, int]:
    """Return what a pod requests. Shares requested by other systems' words or labels are in Berth's resources."""
    counted = {name: amount for name, amount in pod.request.resources if name != PODS}
    requested = {**counted, **dict(pod.request.plugin_requests)}
    if not (pod.request.read or pod.request.devices.labelled) or not _SHARES.isdisjoint(map(short, requested)):
        return requested
    of_words: Counter[str] = Counter()
    for part in pod.request.devices.parts:
        if part.type == GPU and part.unit == AMOUNTS:
            of_words.update({long(name, PREFIX): amount * part.count for name, amount in part.amounts})
    return {**requested, **of_words}


def backoff_seconds(place: Place, now: float) -> float:
    """Return the seconds until a pod's back-off ends; 0 if it does not back off."""
    return round(max(0.0, place.until - now), 1) if place.until else 0.0


def gang(cluster: Cluster, pod: PendingPod) -> WaitingGang | None:
    """Return a pod's gang; None for single pods."""
    if pod.gang is None:
        return None
    name, (members, required) = keys.split(pod.gang.group)[1], cluster.gang_tracker.size(pod.gang)
    # All its members may have scheduling gates, or its PodGroup may not be there.
    return WaitingGang(name=name, members=members, required=required) if required else WaitingGang(name=name)
