"""Alike GPUs for a gang: the models and kinds that its members may get, the best first.

Members with equal requests for devices get GPUs of one model and kind, unless they accept mixed ones. A choice names
model and kind for the whole gang. So the first member cannot take a model that is too scarce for the others. If some
members already have a node, the others get GPUs of the same model and kind.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_api.request import LAST, NEVER, ONLY, PLUGIN_UNIT, REPLICA, Part
from berth_operator.core.allocators import candidates
from berth_operator.core.decision import capacity
from berth_operator.core.decision.cycle import feasible, totals
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.ranking import Floats
from berth_operator.core.filters import node_affinity, node_selector
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import AlikeKey, PendingPod, PodRequest

TRIES: Final = 16
"""Choices for one gang."""
MAX_COMBINED: Final = 256
"""Combinations for members with unequal requests among which these are taken."""
_MAX_OPTIONS: Final = 8
"""Models and kinds that are considered for members with equal requests."""

Variant = tuple[int, int | None]
"""Numbers of a model and a kind; the kind is None if the request already determines it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The GPUs that the members of a gang may get."""

    variants: Mapping[AlikeKey, tuple[str | None, str | None]] = field(default_factory=dict)
    """`PodRequest.alike_key` -> (model, kind); None for any."""
    label: str = ""
    """The models and kinds in words; empty if there is nothing to choose."""
    is_last: bool = False
    """Whether it has subdevices although whole cards come first."""

    def applied(self, pods: Sequence[PendingPod]) -> tuple[PendingPod, ...]:
        """Return the members with requests for these GPUs only."""
        return tuple(replace(pod, request=self._narrowed(pod.request)) for pod in pods)

    def _narrowed(self, request: PodRequest) -> PodRequest:
        variant = None if request.alike_key is None else self.variants.get(request.alike_key)
        return request if variant is None else _narrowed(request, *variant)


ANY: Final = Choice()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One model and kind for members with equal requests."""

    variant: tuple[str | None, str | None]
    label: str
    rank: tuple[bool, bool, float, str]
    """The lowest is best: subdevices that come last, whether too few are free for all, the score, the label."""


def choices(fleet: Fleet, held: Sequence[str], pods: Sequence[PendingPod], policy: Policy) -> list[Choice]:
    """Return the choices for a gang, the best first.

    `held` are the UIDs of its members that have a node, `pods` the others, the largest first.
    """
    counts = Counter(pod.request.alike_key for pod in pods)
    if len(fleet.intern_table.models) * len(fleet.intern_table.kinds) <= 1 or set(counts) == {None}:
        return [ANY]
    samples = {pod.request.alike_key: pod.request for pod in reversed(pods)}
    charges = [fleet.charges[uid] for uid in held if uid in fleet.charges]
    by_key: dict[AlikeKey, list[_Option]] = {}
    for key, count in counts.items():
        if key is None:
            continue
        # The models and kinds that members with a node hold, the most frequent first.
        variants = Counter(
            fleet.cards[GPU].variant(fleet.rows[charge.node], grant)
            for charge in charges
            if charge.alike_key == key and charge.node in fleet.rows
            for grant in charge.grants
            if grant.type == GPU
        )
        members = _Members(fleet=fleet, policy=policy, request=samples[key], count=count)
        if options := members.options([variant for variant, _ in variants.most_common() if variant is not None]):
            by_key[key] = options
    combined = [
        Choice(
            variants={key: option.variant for key, option in zip(by_key, options, strict=True)},
            label=" and ".join(dict.fromkeys(option.label for option in options)),
            is_last=any(option.rank[0] for option in options),
        )
        for options in islice(product(*by_key.values()), MAX_COMBINED)
    ]
    return sorted(combined, key=lambda choice: choice.is_last)[:TRIES]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Members:
    """Members with equal requests for devices."""

    fleet: Fleet
    policy: Policy
    request: PodRequest
    """The request of the largest."""
    count: int

    def options(self, held: Sequence[Variant]) -> list[_Option]:
        """Return the models and kinds that they may get, the best first.

        If other members hold some, only these are returned.
        """
        part = next(part for part in self.request.devices.parts if part.type == GPU)
        by_kind = part.unit in (PLUGIN_UNIT, REPLICA)
        fixed = dict.fromkeys((model, kind if by_kind else None) for model, kind in held)
        fits = feasible(self.fleet, self.request, self.policy.filters_of(self.request))
        score = totals(self.fleet, self.request, self.policy, fits) if fits.any() else np.full(len(fits), -np.inf)
        options = [self._option(part, variant, score) for variant in fixed or self._listed(part)]
        return (options if fixed else sorted(options, key=lambda option: option.rank))[:_MAX_OPTIONS]

    def _option(self, part: Part, variant: Variant, score: Floats) -> _Option:
        models, kinds = self.fleet.intern_table.models, self.fleet.intern_table.kinds
        model, kind = models[variant[0]], None if variant[1] is None else kinds[variant[1]]
        names = (model if len(models) > 1 else None, kind if len(kinds) > 1 else None)
        narrowed = _narrowed(self.request, *names)
        fits = feasible(self.fleet, narrowed, self.policy.filters_of(narrowed))
        too_few = int(capacity.of_class(self.fleet, narrowed, fits).sum()) < self.count
        comes_last = bool(kind) and part.unit == PLUGIN_UNIT and self.policy.rule_of(part) == LAST
        shown = model or "unknown model"
        label = f"{kind} of {shown}" if kind else shown
        rank = (comes_last, too_few, -float(score[fits].max(initial=-np.inf)), label)
        return _Option(variant=names, label=label, rank=rank)

    def _listed(self, part: Part) -> Iterator[Variant]:
        """Yield the models and kinds of the cards that the pods accept, free or not.

        Those of vendors that do not suit are left out, and those on other nodes than the pods select, unless the pods
        select none that exists.
        """
        cards, kinds = self.fleet.cards[GPU], self.fleet.intern_table.kinds
        mask: Mask = cards.present & candidates.accepted(self.fleet, self.request, part)
        mask &= self.fleet.suits_vendor(self.request.devices)[:, np.newaxis]
        selected = node_selector.passes(self.fleet, self.request) & node_affinity.passes(self.fleet, self.request)
        if selected.any():
            mask &= selected[:, np.newaxis]
        if part.unit not in (PLUGIN_UNIT, REPLICA):
            yield from ((int(model), None) for model in np.unique(cards.model[mask]))
            return
        rule = self.policy.rule_of(part)
        if part.kind is not None:
            mask &= cards.kind == kinds.find(part.kind)
        elif part.unit == REPLICA or rule == ONLY:
            mask &= cards.kind > 0
        elif rule == NEVER:
            mask &= cards.kind == 0
        for number in np.unique(cards.model[mask].astype(np.int64) * len(kinds) + cards.kind[mask]).tolist():
            yield divmod(number, len(kinds))


def _narrowed(request: PodRequest, model: str | None, kind: str | None) -> PodRequest:
    """Return a request for GPUs of one model and kind only."""
    constraint = request.model
    if model is not None:
        # As the device reports it: advice names it.
        name = model.strip()
        # An empty name is no constraint.
        constraint = replace(constraint, exact=name) if name else replace(constraint, regex="^$")
    parts = tuple(
        replace(part, kind=kind) if kind is not None and part.unit in (PLUGIN_UNIT, REPLICA) else part
        for part in request.devices.parts
    )
    return replace(request, model=constraint, devices=replace(request.devices, parts=parts))
