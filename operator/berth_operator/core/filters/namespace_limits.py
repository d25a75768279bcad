"""With the pod, its namespace holds no more GPUs than the configuration allows (`namespaceLimits`).

What a pod takes may differ by node: memory by the size of the cards, units of `nvidia.com/gpu` by how the cards are
partitioned. For each node, the filter counts the most that the pod may be charged there. So a choice of cards never
exceeds the limit. Before ResourceClaims are allocated, their devices are unknown. So pods with claims do not pass in a
namespace with a limit.

Evictions are not considered. Victims on a node may belong to other namespaces, and victims of this namespace count
until they are gone.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from berth_api.allocation import REPLICAS, message_text
from berth_api.names import GPU, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import AMOUNTS, CARD, INSTANCE, PLUGIN_UNIT, Part
from berth_operator.core.allocators import candidates, subdevices
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import namespaces
from berth_operator.core.fleet.arrays.column_cache import Rows, pick
from berth_operator.core.fleet.claim_counts import needs_devices
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.extended_resources import rows_by_class, rows_by_count
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.namespaces import UNKNOWN
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "namespace-limits"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.POD_DELETED | Change.CAPACITY_FREED | Change.DEVICE | Change.NODE_ALLOCATABLE
TRAITS: Final = Traits(
    one_node=False, transient=True, needed="a namespace would hold more than its administrator allows"
)


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where the pod does not take its namespace over a limit."""
    return _within(fleet, request, is_alone=False)


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where the pod would be within the limits if its namespace held nothing else."""
    return _within(fleet, request, is_alone=True)


def _within(fleet: Fleet, request: PodRequest, *, is_alone: bool) -> Mask:
    limits = _limits(fleet, request)
    if not limits:
        return fleet.present
    if not needs_devices(fleet, request) and all(part.type != GPU for part in request.devices.parts):
        return fleet.present
    held = fleet.namespaces.held(request.identity.namespace)
    if request.claims or (held[UNKNOWN] and not is_alone):
        return np.zeros_like(fleet.present)
    mask = fleet.present
    for rows in rows_by_class(fleet, request).values():
        mask = mask & ~rows
    if (counted := rows_by_count(fleet, request)) is not None:
        mask = mask & ~counted
    for name, limit in limits.items():
        mask = mask & (_most(fleet, request, name) <= limit - (0 if is_alone else held[name]))
    return mask


def is_exhausted(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether no node with GPUs that the pod accepts passes, so that a new one would not either."""
    passed = passes(fleet, request)
    if passed is fleet.present or passed[fleet.present].all():
        return False
    return not (passed & (_most(fleet, request, GPU) > 0)).any()


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield the first limit that each row would pass, with what is used and what the pod would take there."""
    namespace = request.identity.namespace
    held = fleet.namespaces.held(namespace)
    if request.claims:
        yield f"namespace {namespace} has limits, and what resourceClaims get is not counted before", rejected
        return
    if held[UNKNOWN]:
        yield f"namespace {namespace} has limits, and {held[UNKNOWN]} pod(s) hold unknown GPUs", rejected
        return
    left = rejected.copy()
    for resource, by_class in rows_by_class(fleet, request).items():
        yield (
            f"namespace {namespace} has limits, and what DeviceClasses provide of {resource} is not counted before",
            left & by_class,
        )
        left &= ~by_class
    if (counted := rows_by_count(fleet, request)) is not None:
        counted_resources = ", ".join(name for name, _ in request.plugin_requests)
        yield (
            f"namespace {namespace} has limits, and what a device plugin gives of {counted_resources} is not counted",
            left & counted,
        )
        left &= ~counted
    for name, limit in _limits(fleet, request).items():
        most = _most(fleet, request, name)
        for amount in np.unique(most[left & (most > limit - held[name])]).tolist():
            rows = left & (most == amount)
            used, allowed, more = (message_text(name, value) for value in (held[name], limit, amount))
            yield f"namespace {namespace} is at its limit of {name}: {used} of {allowed} used, {more} requested", rows
            left &= ~rows


def may_help(fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a pod of the namespace has left or holds less, or cards have changed.

    The allocatable of a node matters only for resources that DeviceClasses provide elsewhere.
    """
    if event.change & Change.NODE_ALLOCATABLE and not event.change & Change.DEVICE:
        return bool(rows_by_class(fleet, request))
    return event.before is None or event.before.pod.partition("/")[0] == request.identity.namespace


def _limits(fleet: Fleet, request: PodRequest) -> Mapping[str, int]:
    return fleet.namespaces.limits.get(request.identity.namespace, {}) if fleet.namespaces.limits else {}


def _most(fleet: Fleet, request: PodRequest, name: str) -> Column:
    """Return the most that the pod may be charged of a resource on each row; 0 where no card is acceptable."""

    def of_rows(rows: Rows) -> Column:
        most: Column = np.zeros_like(fleet.vendor[rows], np.int64)
        for part in request.devices.parts:
            if part.type == GPU:
                of_cards = _of_cards(fleet, part, rows)
                column = of_cards[0] if name == GPU else of_cards[1]
                accepted = candidates.accepted(fleet, request, part, rows)
                most += part.count * np.where(accepted, column, 0).max(axis=1, initial=0)
        return most

    key = (NAME, name, request.devices, request.model)
    return fleet.column_cache.column(key, of_rows, alike=not request.devices.names_cards)


def _of_cards(fleet: Fleet, part: Part, rows: Rows) -> tuple[Column | int, Column | int]:
    """Return the hundredths and bytes that one of the part counts on each card, as `namespaces.of_grant`."""
    if part.unit == INSTANCE:
        [(name, _)] = part.amounts
        return namespaces.of_instance(name)
    cards = fleet.cards[GPU]
    memory = pick(cards.total[cards.index[GPU_MEMORY]], rows)
    if part.unit == AMOUNTS:
        amounts = dict(part.amounts)
        wanted = amounts.get(GPU_MEMORY, amounts.get(GPU_MEMORY_RATIO, CARD) * memory // CARD)
        return namespaces.of_share(amounts, memory), np.broadcast_to(wanted, memory.shape)
    return _of_units(fleet, part, memory, rows)


def _of_units(fleet: Fleet, part: Part, memory: Column, rows: Rows) -> tuple[Column, Column]:
    """Return what a card, replica or instance counts that kubelet allocates as one unit."""
    cards = fleet.cards[GPU]
    replicas = np.maximum(subdevices.offered(cards, [REPLICAS], rows), 1)
    share = memory // replicas
    hundredths = namespaces.of_share({GPU_MEMORY: share, GPU_MEMORY_RATIO: CARD // replicas}, memory)
    if part.unit != PLUGIN_UNIT or not fleet.mig_single[rows].any():
        return hundredths, share
    of_instances, memory_of_instances = np.zeros_like(memory), np.zeros_like(memory)
    for name in subdevices.instances(cards):
        there = fleet.mig_single[rows][:, np.newaxis] & (subdevices.offered(cards, [name], rows) > 0)
        held = namespaces.of_instance(name)
        of_instances = np.maximum(of_instances, there * held.hundredths)
        memory_of_instances = np.maximum(memory_of_instances, there * held.memory)
    cut = of_instances > 0
    return np.where(cut, of_instances, hundredths), np.where(cut, memory_of_instances, share)
