"""The Node's allocatable has enough free of cpu, memory, pods and extended resources, as in NodeResourcesFit.

What a device plugin offers (`nvidia.com/gpu`) counts here as well as on cards: kubelet hands out only what it was
offered, and starts a pod without any device where the Node has no such resource. Sums that Berth writes on the Node
are counted on cards alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Final

import numpy as np

from berth_api.resources import PODS
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "resources"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.NODE_ALLOCATABLE | Change.NODE_ADDED | Change.CAPACITY_FREED | Change.DEVICE_CLASS
TOO_MANY_PODS: Final = "Too many pods"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with enough of everything."""
    return fleet.column_cache.column((NAME, request.resources), lambda rows: _fits(fleet, request, rows))


def _fits(fleet: Fleet, request: PodRequest, rows: Rows) -> Mask:
    return reduce(np.logical_and, (enough for _, enough in _enough(fleet, request, rows)))


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with enough of everything if no pod were there; as in kube-scheduler, whatever their maxPods."""
    mask = np.ones(len(fleet.names), np.bool_)
    for name, amount in request.resources:
        if name != PODS:
            mask &= fleet.total(name) >= amount
    return mask


def explain(fleet: Fleet, request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count the rows by every resource that is short."""
    counts: Counter[str] = Counter()
    for name, enough in _enough(fleet, request, ALL):
        counts[TOO_MANY_PODS if name == PODS else f"Insufficient {name}"] += int((rejected & ~enough).sum())
    return +counts


def _enough(fleet: Fleet, request: PodRequest, rows: Rows) -> Iterator[tuple[str, Mask]]:
    for name, amount in request.resources:
        yield name, fleet.left(name, rows) >= amount
