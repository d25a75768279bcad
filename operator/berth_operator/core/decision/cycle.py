"""The scheduling cycle of one pod: choose its node and cards, or explain why it fits nowhere.

    decide(fleet, pod, policy)  ->  Placement | Failure

It leaves the Fleet as it was. The caller charges a placement to the Fleet at once, so that the next decision sees it,
and binds concurrently.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_operator.core import scores
from berth_operator.core.decision.messages import cut, fit_error
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import OF_POD, Filter, node_affinity, unresolvable
from berth_operator.core.fleet import volume_choice
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import SCORE_WEIGHT, PluginFailedError, Score
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.mounts import NO_POD_VOLUMES, PodVolumes
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import Change

Floats = npt.NDArray[np.float64]
Passes = Callable[[Fleet, PodRequest], Mask]

ONLY_NOMINATED: Final = "node(s) would fit only together with nominated pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A pod's node and cards."""

    pod: PendingPod
    node: str
    grants: tuple[Grant, ...] = ()
    volumes: PodVolumes = NO_POD_VOLUMES
    """Volumes to bind or provision for its claims before the pod is bound."""

    @property
    def charge(self) -> Charge:
        """Return what the placement charges to its node and cards."""
        return Charge(
            uid=self.pod.uid,
            pod=self.pod.key,
            node=self.node,
            resources=self.pod.request.resources,
            nonzero_requested=self.pod.request.nonzero_requested,
            plugin_requests=self.pod.request.plugin_requests,
            ports=self.pod.request.ports,
            grants=self.grants,
            identity=self.pod.request.identity,
            affinity=self.pod.request.affinity,
            mounts=self.pod.request.mounts,
            volumes=self.volumes,
            gang=self.pod.gang,
            priority=self.pod.priority,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a pod fits nowhere, and which changes may help."""

    reasons: tuple[tuple[str, int], ...] = ()
    """(reason, number of nodes); a node that lacks several resources counts for each of them."""
    message: str
    wakes_on: Change
    unresolvable: int = 0
    """Number of nodes where evictions cannot help (UnschedulableAndUnresolvable)."""
    asked: tuple[Filter, ...] = field(default=(), compare=False, repr=False)
    """The filters that may reject the pod; if empty, every change in `wakes_on` wakes it."""
    rejected_by: tuple[Filter, ...] = field(default=(), compare=False, repr=False)
    """The filters that were the first to reject some node."""


def decide(fleet: Fleet, pod: PendingPod, policy: Policy, pull: Floats | None = None) -> Placement | Failure:
    """Choose the best node that passes every filter, and its cards.

    Capacity that is kept for nominees of the same or a higher priority is not used. `pull` is added to the rows'
    scores; -inf excludes a row.
    """
    if pod.error:
        return Failure(message=cut(f"invalid request: {pod.error}"), wakes_on=Change(0))
    if not fleet.nominees:
        return _decide(fleet, pod, policy, pull)
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        return _decide(fleet, pod, policy, pull)


def _decide(fleet: Fleet, pod: PendingPod, policy: Policy, pull: Floats | None) -> Placement | Failure:
    asked = policy.filters_of(pod.request)
    fits = feasible(fleet, pod.request, asked)
    if fleet.nominees and _leans(pod.request):
        with fleet.without(tuple(fleet.nominees.values())):
            fits = fits & feasible(fleet, pod.request, asked)
    if pull is not None:
        fits = fits & (pull > -np.inf)
    if not fits.any():
        return failure(fleet, pod.request, asked, others=ONLY_NOMINATED if fleet.nominees else "")
    if pod.nominated and (own := fits & fleet.named(pod.nominated)).any():
        fits = own
    row = _best(fleet, pod.request, policy, fits, pull)
    return Placement(
        pod=pod,
        node=fleet.names[row],
        grants=policy.choose(fleet, row, pod.request),
        volumes=volume_choice.choose(fleet, row, pod.request.mounts),
    )


def feasible(fleet: Fleet, request: PodRequest, order: Sequence[Filter] | None = None) -> Mask:
    """Return the rows that pass all filters of `order` (default: of the default policy).

    The result may be the Fleet's own mask: callers must not write to it.
    """
    fits = fleet.present
    for each in Policy().filters_of(request) if order is None else order:
        if (passing := each.passes(fleet, request)) is not fleet.present:
            fits = fits & passing
    return fits


def _leans(request: PodRequest) -> bool:
    """Return whether nominees that are not bound yet could let a row pass that fails without them.

    Such a row must pass with and without them, as in kube-scheduler (RunFilterPluginsWithNominatedPods).
    """
    return bool(request.affinity.near or request.affinity.spread or request.mounts)


def _best(fleet: Fleet, request: PodRequest, policy: Policy, fits: Mask, pull: Floats | None) -> int:
    weights = dict(policy.weights)
    total = np.where(fits, 0.0 if pull is None else pull, -np.inf)
    for each in scores.ALL:
        if (weight := weights.get(each.NAME, 0.0)) and (found := each.score(fleet, request, fits)) is not None:
            total += weight * found
    for own, weight in (*policy.own_scores, *_of_plugins(policy, request)):
        if (found := own.score(fleet, request, fits)) is not None:
            total += weight * found
    # argmax returns the lowest of equal rows, so that the same fleet gives the same decision.
    return int(np.argmax(total))


def _of_plugins(policy: Policy, request: PodRequest) -> Iterator[tuple[Score, float]]:
    """Yield the plug-ins' scores for the device types that the pod requests, with their weight."""
    if policy.plugins:
        for part in request.devices.parts:
            plugin = policy.plugins.get(part.type)
            if plugin is not None and plugin.score is not None:
                yield plugin.score, SCORE_WEIGHT


def rejections(fleet: Fleet, request: PodRequest, asked: Sequence[Filter]) -> Iterator[tuple[Filter, Mask]]:
    """Yield each filter that is the first to reject some rows, with these rows."""
    left = fleet.present.copy()
    for each, passes in _steps(request, asked):
        rejected = left & ~passes(fleet, request)
        if rejected.any():
            yield each, rejected
            left &= ~rejected
            if not left.any():
                return


def _steps(request: PodRequest, asked: Sequence[Filter]) -> list[tuple[Filter, Passes]]:
    """Return the filters in kube-scheduler's order: the names in the node affinity come first (PreFilterResult)."""
    steps: list[tuple[Filter, Passes]] = [(each, each.passes) for each in asked]
    for each in asked if request.node_affinity else ():
        if each.NAME == node_affinity.NAME:
            steps.insert(sum(other.NAME in OF_POD for other in asked), (each, node_affinity.named))
    return steps


def failure(fleet: Fleet, request: PodRequest, asked: Sequence[Filter], others: str = "") -> Failure:
    """Explain why a pod fits nowhere; `others` is the reason for rows that pass every filter."""
    counts: Counter[str] = Counter()
    rejected_by: list[Filter] = []
    # Whatever the filter, a new node may pass.
    wakes_on = Change.NODE_ADDED
    left, hopeless = fleet.present.copy(), 0
    for each, rejected in rejections(fleet, request, asked):
        counts.update(each.explain(fleet, request, rejected))
        wakes_on |= each.WAKES_ON
        rejected_by += [each] if each not in rejected_by else []
        left &= ~rejected
        hopeless += int(unresolvable(each, fleet, request, rejected).sum())
    if others and left.any():
        counts[others] += int(left.sum())
        wakes_on |= Change.POD_ASSIGNED | Change.CAPACITY_FREED
    reasons = tuple(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
    of_pod = reasons[0][0] if any(each.NAME in OF_POD for each in rejected_by) else ""
    return Failure(
        reasons=reasons,
        message=_message(int(fleet.present.sum()), counts, of_pod, request.devices.hint),
        wakes_on=wakes_on,
        unresolvable=hopeless,
        asked=tuple(asked),
        rejected_by=tuple(rejected_by),
    )


def unasked(why: PluginFailedError) -> Failure:
    """Return the failure of a pod that could not be decided because a plug-in failed; no event wakes it."""
    return Failure(message=cut(str(why)), wakes_on=Change(0))


def _message(nodes: int, counts: Mapping[str, int], of_pod: str, hint: str) -> str:
    text = fit_error(nodes, counts, of_pod)
    return cut(f"{text} {hint}" if hint else text)
