"""The scheduling cycle of one pod: choose its node and cards, or explain why it fits nowhere.

    decide(fleet, pod, policy)  ->  Placement | Failure

`decide` leaves the Fleet unchanged. The caller charges a placement to the Fleet at once, so that the next decision sees
it, and binds concurrently.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from berth_api.allocation import Grant
from berth_api.names import MODEL_GLOBS, MODEL_LABEL
from berth_api.request import is_device, nearest
from berth_api.values.selectors import IN
from berth_operator.core.claims.objects import near_names
from berth_operator.core.decision import autoscaling
from berth_operator.core.decision.messages import (
    INVALID_REQUEST,
    SCHEDULER_ERROR,
    UNSCHEDULABLE,
    cut,
    fit_error,
    invalid_request,
)
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.ranking import Floats, Ranking, Term, rank
from berth_operator.core.filters import Filter, Passes, dynamic_resources, node_affinity, unresolvable
from berth_operator.core.filters.reasons import count_reasons
from berth_operator.core.fleet import claim_choice, claim_counts, volume_choice
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.plugins import SCORE_WEIGHT, PluginFailedError
from berth_operator.core.scores import prioritized_list
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.mounts import NO_POD_VOLUMES, PodVolumes
from berth_operator.core.values.pod_claims import NO_POD_CLAIMS, PodClaims
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import Change

BIAS: Final = "bias"
"""The name of the score term that the caller adds, such as the bias that places a gang's members close together."""
MODEL_LABELS: Final = ("nvidia.com/gpu.product", "gpu.nvidia.com/model", MODEL_LABEL)
"""Labels of nodes with the model of their GPUs."""
MAX_COMPARED: Final = 8
"""Rows that are searched for one pod because its claims got less on those before than they may get."""
ONLY_NOMINATED: Final = "node(s) would fit only together with nominated pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A pod's node and cards."""

    pod: PendingPod
    node: str
    grants: tuple[Grant, ...] = ()
    volumes: PodVolumes = NO_POD_VOLUMES
    """Volumes to bind or provision for its claims before the pod is bound."""
    claims: PodClaims = NO_POD_CLAIMS
    """What its ResourceClaims get before the pod is bound."""
    ranking: Ranking = field(default=Ranking(), compare=False, repr=False)
    """The points of the node and its runners-up."""

    @property
    def charge(self) -> Charge:
        """Return what the placement charges to its node and cards."""
        return Charge(
            uid=self.pod.uid,
            pod=self.pod.key,
            node=self.node,
            resources=self.pod.request.resources,
            nonzero_requested=self.pod.request.nonzero_requested,
            plugin_requests=_without(self.pod.request.plugin_requests, self.claims.by_class),
            ports=self.pod.request.ports,
            grants=(*self.grants, *self.claims.grants) if self.claims.grants else self.grants,
            unknown=self.claims.unknown,
            isolation=self.pod.request.isolation,
            claims=self.claims,
            identity=self.pod.request.identity,
            affinity=self.pod.request.affinity,
            mounts=self.pod.request.mounts,
            volumes=self.volumes,
            gang=self.pod.gang,
            alike_key=self.pod.request.alike_key if self.pod.gang else None,
            priority=self.pod.priority,
            ends=self.pod.ends,
            owner=self.pod.owner,
            scheduler=self.pod.scheduler,
            workload=self.pod.workload,
        )


def _without(amounts: tuple[tuple[str, int], ...], names: Collection[str]) -> tuple[tuple[str, int], ...]:
    return tuple(amount for amount in amounts if amount[0] not in names) if names else amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a pod fits nowhere, and which changes may help."""

    reasons: tuple[tuple[str, int], ...] = ()
    """(reason, number of nodes). A node that lacks several resources counts for each of them."""
    message: str
    condition: str = UNSCHEDULABLE
    """The reason of the condition PodScheduled=False; `Unschedulable` only if another node could help."""
    wakes_on: Change
    is_unfinished: bool = False
    """Whether a bound ended the search, so that the pods may fit nevertheless."""
    unresolvable: int = 0
    """Number of nodes where evictions cannot help (UnschedulableAndUnresolvable)."""
    filters: tuple[Filter, ...] = field(default=(), compare=False, repr=False)
    """The filters that may reject the pod; if empty, every change in `wakes_on` wakes it."""
    rejected_by: tuple[Filter, ...] = field(default=(), compare=False, repr=False)
    """The filters that were the first to reject some node."""


def decide(fleet: Fleet, pod: PendingPod, policy: Policy, bias: Floats | None = None) -> Placement | Failure:
    """Choose the best node that passes every filter, and its cards.

    Capacity that is kept for nominees of the same or a higher priority is not used. `bias` is added to the rows'
    scores; -inf excludes a row.
    """
    if pod.error:
        return Failure(message=invalid_request(pod.error), condition=INVALID_REQUEST, wakes_on=Change(0))
    with above_nominees(fleet, pod):
        others = ONLY_NOMINATED if fleet.nominees else ""
        placement = _place(fleet, pod, policy, bias)
        return placement or failure(fleet, pod.request, policy.filters_of(pod.request), others=others)


def place(fleet: Fleet, pod: PendingPod, policy: Policy, bias: Floats | None = None) -> Placement | None:
    """Decide like `decide`, without the cost of reasons: return None if no row fits or the request is invalid."""
    if pod.error:
        return None
    with above_nominees(fleet, pod):
        return _place(fleet, pod, policy, bias)


@contextmanager
def above_nominees(fleet: Fleet, pod: PendingPod) -> Iterator[None]:
    """Return a context without the nominees that the pod may ignore."""
    if not fleet.nominees:
        yield
        return
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        yield


def place_on(fleet: Fleet, pod: PendingPod, policy: Policy, row: int, claims: PodClaims) -> Placement | None:
    """Return the placement on a row with the devices chosen for the claims; None if the pod does not fit."""
    filters = [filter_ for filter_ in policy.filters_of(pod.request) if filter_.NAME != dynamic_resources.NAME]
    with above_nominees(fleet, pod):
        fits = _fits(fleet, pod.request, filters) & dynamic_resources.usable(fleet, pod.request)
        fits = fits & fleet.named(fleet.names[row])
        if not fits.any():
            return None
        terms = list(_terms(fleet, pod.request, policy, fits))
        return Placement(
            pod=pod,
            node=fleet.names[row],
            grants=policy.choose(fleet, row, pod.request),
            volumes=volume_choice.choose(fleet, row, pod.request.mounts),
            claims=claims,
            ranking=rank(fleet.names, _sum(fits, terms), terms),
        )


def _fits(fleet: Fleet, request: PodRequest, filters: Sequence[Filter]) -> Mask:
    """Return the rows that pass all filters, with the nominees and without them if that matters."""
    fits = feasible(fleet, request, filters)
    # Nominees may let a row pass that fails without them, and they may never be bound (kube-scheduler's
    # RunFilterPluginsWithNominatedPods).
    affinity = request.affinity
    if fleet.nominees and (affinity.required_affinity or affinity.topology_spread or request.mounts):
        with fleet.without(tuple(fleet.nominees.values())):
            fits = fits & feasible(fleet, request, filters)
    return fits


def _place(fleet: Fleet, pod: PendingPod, policy: Policy, bias: Floats | None) -> Placement | None:
    """Return the placement on the row with the highest total, or on the next row if the pod's claims get nothing there.

    If the claims get less on the row than `prioritized-list` gave points for, the row is compared again with its actual
    points.
    """
    request = pod.request
    fits = _fits(fleet, request, policy.filters_of(request))
    if bias is not None:
        fits = fits & (bias > -np.inf)
    if not fits.any():
        return None
    if pod.nominated_node and (on_nominated_node := fits & fleet.named(pod.nominated_node)).any():
        fits = on_nominated_node
    elif request.devices:
        fits = policy.preferred(fleet, request, fits)
    terms = list(_terms(fleet, request, policy, fits, bias))
    total = _sum(fits, terms)
    # kube-scheduler takes one of several best nodes at random. Without that, a full first node would get all pods that
    # request nothing. The pod's name does the same, and `simulate` knows it too. All other pods fill the first node
    # before the next, because cards stay usable where CPU is left next to them.
    is_empty = len(request.resources) == 1 and not request.devices and not request.claims
    tie = zlib.crc32(f"{pod.namespace}/{pod.name}".encode()) if is_empty else 0
    compared: dict[int, Placement] = {}
    while len(compared) < MAX_COMPARED and (ranking := rank(fleet.names, total, terms, tie=tie)).rows:
        row = ranking.rows[0]
        if row in compared:
            break
        grants = policy.choose(fleet, row, request)
        claims = claim_choice.choose(fleet, row, pod, grants, first_fit=policy.takes_first_devices)
        if claims is None:
            total[row] = -np.inf
        else:
            placement = Placement(
                pod=pod,
                node=fleet.names[row],
                grants=grants,
                volumes=volume_choice.choose(fleet, row, request.mounts),
                claims=claims,
                ranking=ranking,
            )
            excess = 0.0
            for name, points in terms if claims.allocations else ():
                if name == prioritized_list.NAME:
                    excess = float(points[row]) * prioritized_list.missed(fleet, row, request, claims)
            if not excess:
                return placement
            compared[row] = placement
            total[row] -= excess
        if not claim_choice.may_continue(fleet, request):
            break
    if compared:
        return compared[max(compared, key=lambda row: float(total[row]))]
    if pod.nominated_node and claim_choice.may_continue(fleet, request):
        # The search for its claims found nothing on the nominated node, which is left out now.
        return _place(fleet, pod, policy, bias)
    return None


def feasible(fleet: Fleet, request: PodRequest, order: Sequence[Filter] | None = None) -> Mask:
    """Return the rows that pass all filters of `order` (default: of the default policy).

    The result may be the Fleet's own mask: callers must not write to it.
    """
    fits = fleet.present
    for filter_ in Policy().filters_of(request) if order is None else order:
        if (passed := filter_.passes(fleet, request)) is not fleet.present:
            if filter_.TRAITS.of_pod:
                return passed  # it rejects all rows
            fits = fits & passed
    return fits


def totals(fleet: Fleet, request: PodRequest, policy: Policy, fits: Mask) -> Floats:
    """Return the weighted sum of all scores for each row that fits, and -inf for the others."""
    return _sum(fits, _terms(fleet, request, policy, fits))


def _sum(fits: Mask, terms: Iterable[Term]) -> Floats:
    total = np.where(fits, 0.0, -np.inf)
    for _, points in terms:
        total += points
    return total


def _terms(fleet: Fleet, request: PodRequest, policy: Policy, fits: Mask, bias: Floats | None = None) -> Iterator[Term]:
    """Yield the bias, and the weighted points of each score that differs between rows.

    The scores of plug-ins count for pods that request their device types.
    """
    if bias is not None:
        yield BIAS, bias
    scores = list(policy.scores)
    for part in request.devices.parts if policy.plugins else ():
        plugin = policy.plugins.get(part.type)
        if plugin is not None and plugin.score is not None:
            scores.append((plugin.score, SCORE_WEIGHT))
    for score, weight in scores:
        if (points := score.score(fleet, request, fits)) is not None:
            yield score.NAME, weight * points


def rejections(fleet: Fleet, request: PodRequest, filters: Sequence[Filter]) -> Iterator[tuple[Filter, Mask]]:
    """Yield each filter that is the first to reject some rows, with these rows."""
    left = fleet.present.copy()
    for filter_, passes in in_order(request, filters):
        rejected = left & ~passes(fleet, request)
        if rejected.any():
            yield filter_, rejected
            left &= ~rejected
            if not left.any():
                return


def in_order(request: PodRequest, filters: Sequence[Filter]) -> list[tuple[Filter, Passes]]:
    """Return the filters in kube-scheduler's order: the names in the node affinity come first (PreFilterResult)."""
    steps: list[tuple[Filter, Passes]] = [(filter_, filter_.passes) for filter_ in filters]
    for filter_ in filters if request.node_affinity else ():
        if filter_.NAME == node_affinity.NAME:
            steps.insert(sum(other.TRAITS.of_pod for other in filters), (filter_, node_affinity.named))
    return steps


def failure(fleet: Fleet, request: PodRequest, filters: Sequence[Filter], others: str = "", pods: int = 1) -> Failure:
    """Explain why a pod fits nowhere. `others` is the reason for rows that pass every filter.

    `pods` is how many such pods of a gang need a node.
    """
    counts: Counter[str] = Counter()
    rejected_by: list[Filter] = []
    # Whatever the filter, a new node may pass.
    wakes_on = Change.NODE_ADDED
    left, unresolvable_nodes = fleet.present.copy(), 0
    for filter_, rejected in rejections(fleet, request, filters):
        counts += count_reasons(filter_.reasons(fleet, request, rejected))
        wakes_on |= filter_.WAKES_ON
        rejected_by += [filter_] if filter_ not in rejected_by else []
        left &= ~rejected
        unresolvable_nodes += int(unresolvable(filter_, fleet, request, rejected).sum())
    if others and left.any():
        counts[others] += int(left.sum())
        wakes_on |= Change.POD_ASSIGNED | Change.CAPACITY_FREED
    reasons = tuple(sorted(counts.items(), key=lambda counted: (-counted[1], counted[0])))
    of_pod = reasons[0][0] if any(filter_.TRAITS.of_pod for filter_ in rejected_by) else ""
    if (refusing_filter := refusing(fleet, request, filters)) is not None:
        [(of_pod, _)] = refusing_filter.reasons(fleet, request, fleet.present)
        condition, note = refusing_filter.TRAITS.refusal, ""
    else:
        condition, note = autoscaling.condition(fleet, request, filters, pods)
    texts = (fit_error(int(fleet.present.sum()), counts, of_pod), _hint(fleet, request), note)
    return Failure(
        reasons=reasons,
        condition=condition,
        message=cut(" ".join(filter(None, texts))),
        wakes_on=wakes_on,
        unresolvable=unresolvable_nodes,
        filters=tuple(filters),
        rejected_by=tuple(rejected_by),
    )


def refusing(fleet: Fleet, request: PodRequest, filters: Sequence[Filter]) -> Filter | None:
    """Return the first filter that a new node could not pass either, even if there is no node yet."""
    of_request = (filter_ for filter_ in filters if filter_.TRAITS.refusal)
    return next((filter_ for filter_ in of_request if filter_.passes(fleet, request) is not fleet.present), None)


def plugin_failure(error: PluginFailedError) -> Failure:
    """Return the failure of a pod that could not be decided because a plug-in failed; no event wakes it."""
    return Failure(message=cut(str(error)), condition=SCHEDULER_ERROR, wakes_on=Change(0))


def _hint(fleet: Fleet, request: PodRequest) -> str:
    """Return what the user may have meant: another resource, or a model of GPUs; empty for most pods."""
    # Resources such as cpu have no slash, and those of devices are known even if no node has any.
    extended = {name: amount for name, amount in request.resources if "/" in name and not is_device(name, fleet.kinds)}
    offered = [name for name in fleet.resources if fleet.total(name)[fleet.present].any()] if extended else []
    unknown = {name: extended[name] for name in extended if name not in offered and name not in fleet.device_classes}
    near = nearest.hint(unknown, offered, fleet.kinds) if unknown and offered else ""
    model = ""
    of_terms = (label for term in request.node_affinity or () for label in term.labels if label.operator == IN)
    for requirement in (*request.node_selector, *of_terms):
        if requirement.key in MODEL_LABELS and not fleet.labels.meeting(requirement)[fleet.present].any():
            # A label has no spaces, and names of models do.
            glob = requirement.values[0].replace("-", "?")
            model = f'no node has such a label {requirement.key}: write the annotation {MODEL_GLOBS}: "{glob}".'
            break
    of_claims = near_names.of_memory(state.claim for state in claim_counts.unallocated(fleet, request))
    return " ".join(filter(None, (request.devices.hint, request.questions, near, model, of_claims)))
