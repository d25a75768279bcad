"""Decisions for pods of kube-scheduler, restricted to the nodes that passed its own filters.

kube-scheduler knows its assumed pods, and what it binds of their volumes, better than Berth. So most of the filters
that kube-scheduler runs are left out here. The remaining filters check devices and what only Berth knows. This includes
the resources and host ports of pods that berth-scheduler has assumed, which kube-scheduler sees only once they are
bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_api.request import Part
from berth_operator.core import filters
from berth_operator.core.allocators import candidates
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.ranking import Floats
from berth_operator.core.filters import host_ports, injected, isolation, node_ready, resources, supported
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.filters.reasons import join_reasons
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Indices
from berth_operator.core.values.mounts import NO_MOUNTS
from berth_operator.core.values.request import PendingPod

OWN: Final = frozenset(
    {
        *(supported.NAME, injected.NAME, node_ready.NAME, host_ports.NAME, isolation.NAME),
        *(DeviceFilter.NAME, resources.NAME),
    }
)
"""Names of the filters that run."""
OF_OTHERS: Final = frozenset(filter_.NAME for filter_ in filters.ORDER) - OWN
MAX_SCORE: Final = 10
"""The best score of an extender; the lowest is 0."""

UNKNOWN: Final = "node(s) unknown to Berth"
NOT_BEST: Final = "node(s) fit, but Berth chose another node"
REJECTED_BEFORE: Final = -1e9
"""Added to the score of nodes that come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedNodes:
    """Why nodes were not chosen, by their names."""

    failed: Mapping[str, str]
    """Nodes where evictions may help."""
    unresolvable: Mapping[str, str]
    """Nodes where they cannot help."""


@lru_cache(maxsize=64)
def policy_of(policy: Policy) -> Policy:
    """Return a policy with the filters of `OWN` alone."""
    return replace(policy, switched_off=policy.switched_off | OF_OTHERS)


def pod_of(pod: PendingPod) -> PendingPod:
    """Return a pod without its volumes, which kube-scheduler chooses and binds; claims are not supported.

    Kube-scheduler places pods one by one, so the gang that a controller defines has no effect.
    """
    pod = pod.without_controllers_gang
    request = replace(pod.request, extended=()) if pod.request.extended else pod.request
    if request.claims:
        request = replace(request, claims=(), unsupported=("spec.resourceClaims", *request.unsupported))
    request = replace(request, mounts=NO_MOUNTS) if request.mounts else request
    return pod if request is pod.request else replace(pod, request=request)


def rows_of(fleet: Fleet, names: Sequence[str]) -> Indices:
    """Return the row of each node; -1 if there is no such Node."""
    rows = np.fromiter(map(fleet.rows.get, names, repeat(-1)), np.intp, len(names))
    return np.where((rows >= 0) & fleet.present[rows], rows, -1)


def bias_of(fleet: Fleet, rows: Indices, rejected: Mapping[str, int] = MappingProxyType({})) -> Floats:
    """Return the bias that restricts a decision to some rows.

    `rejected` has how often a node was rejected after it had been chosen. Rejected nodes come last.
    """
    bias = np.full(len(fleet.names), -np.inf)
    bias[rows[rows >= 0]] = 0.0
    for name, times in rejected.items():
        if (row := fleet.rows.get(name)) is not None:
            bias[row] += times * REJECTED_BEFORE
    return bias


def further(fleet: Fleet, chosen: Placement, policy: Policy, bias: Floats, *, count: int) -> list[Placement]:
    """Return placements of a pod on the best nodes except the chosen one, the best first: `count` at most."""
    placements: list[Placement] = []
    left, placement, pod = bias.copy(), chosen, chosen.pod
    while len(placements) < count:
        left[fleet.rows[placement.node]] = -np.inf
        following = cycle.place(fleet, pod, policy, left)
        if following is None:
            break
        placements.append(placement := following)
    return placements


# --- reasons --------------------------------------------------------------------------------------------------------


def reasons(
    fleet: Fleet, pod: PendingPod, policy: Policy, names: Sequence[str], rows: Indices, *, others: str
) -> RejectedNodes:
    """Return the first reason against each node; `others` is the reason for nodes that pass every filter."""
    # All reasons, the number of each row's reason, and the rows where evictions cannot help.
    texts, request = [others], pod.request
    number, never = np.zeros(len(fleet.names), np.intp), np.zeros(len(fleet.names), np.bool_)
    concerned = np.zeros(len(fleet.names), np.bool_)
    concerned[rows[rows >= 0]] = True
    for filter_, rejected in cycle.rejections(fleet, request, policy.filters_of(request)):
        for text, of_reason in join_reasons(filter_.reasons(fleet, request, rejected & concerned)):
            number[of_reason] = len(texts)
            texts.append(text)
        resolvable = filters.could_pass(filter_, fleet, request)
        if filter_.NAME == DeviceFilter.NAME:
            resolvable = resolvable & extended_resources.reporting(fleet, request)
        never |= rejected & ~resolvable
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, row in zip(names, rows.tolist(), strict=True):
        if row < 0:
            unresolvable[name] = UNKNOWN
        else:
            (unresolvable if never[row] else failed)[name] = texts[number[row]]
    return RejectedNodes(failed=failed, unresolvable=unresolvable)


# --- scores ---------------------------------------------------------------------------------------------------------


def scores(fleet: Fleet, pod: PendingPod, policy: Policy, rows: Indices) -> list[int]:
    """Return a score for point row by the policy: 10 for the best, at least 1 for all that fit, 0 for others."""
    bias = bias_of(fleet, rows)
    fits = cycle.feasible(fleet, pod.request, policy.filters_of(pod.request)) & (bias > -np.inf)
    if not fits.any():
        return [0] * len(rows)
    totals = cycle.totals(fleet, pod.request, policy, fits)
    lowest, highest = totals[fits].min(), totals[fits].max()
    span = max(highest - lowest, 1e-9)
    points = np.where(fits, 1 + np.rint((MAX_SCORE - 1) * (1 - (highest - totals) / span)), 0)
    return _of_rows(points if highest > lowest else np.where(fits, MAX_SCORE, 0), rows)


def free_cards(fleet: Fleet, pod: PendingPod, rows: Indices) -> list[int]:
    """Return for point row the number of unused healthy GPUs of the model that the pod names, 10 at most.

    This is the score of nvidia-gpu-scheduler, whose scores were not limited. Without a model all nodes are equal.
    """
    if not pod.request.model:
        return [0] * len(rows)
    cards, accepted = fleet.cards[GPU], candidates.of_model(fleet, pod.request, Part(type=GPU, count=1, amounts=()))
    free = (cards.healthy & (cards.users == 0) & accepted).sum(axis=1)
    return _of_rows(np.minimum(free, MAX_SCORE), rows)


def _of_rows(points: Floats | Indices, rows: Indices) -> list[int]:
    known = np.where(rows >= 0, points[rows], 0)
    return [int(point) for point in known.tolist()]
