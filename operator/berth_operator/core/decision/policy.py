"""The policy of one profile: its filters, score weights and allocators."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from berth_api.allocation import Grant
from berth_api.request import LAST, Part, SubdeviceRule
from berth_operator.core import filters, scores
from berth_operator.core.allocators import BUILT_IN, Allocators
from berth_operator.core.filters import Filter
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.plugins import NO_PLUGINS, Chooser, DevicePlugin, Score
from berth_operator.core.scores import genius
from berth_operator.core.scores.genius import Genius, GeniusWeights
from berth_operator.core.values.request import PodRequest

Weights = Mapping[str, float]
"""Name of a score -> its weight; a score that is not listed is not computed."""

ALWAYS: Final[Weights] = {
    "spare-devices": 10.0,
    # Outweighs all card strategies: a node that meets the preference comes before one that does not.
    "gpu-topology": 20.0,
    "image-locality": 1.0,
    "node-affinity": 2.0,
    "taints": 3.0,
    "pods-near": 2.0,
    "even-spread": 2.0,
    "default-spread": 2.0,
    "prioritized-list": 2.0,
    "volume-capacity": 1.0,
}
"""Weights that apply with every strategy."""

NODE_STRATEGIES: Final[Mapping[str, Weights]] = {
    "None": {},
    "LeastAllocated": {"least-allocated": 1.0, "balanced-allocation": 1.0},
    "MostAllocated": {"most-allocated": 1.0, "balanced-allocation": 1.0},
}
"""Strategies for cpu and memory; the first is the default."""

CARD_STRATEGIES: Final[Mapping[str, Weights]] = {
    "Fragmentation": {"fragmentation": 10.0},
    "MostAllocated": {"card-packing": 10.0},
    "LeastAllocated": {"card-spreading": 10.0},
    "None": {},
}
"""Strategies for cards; the first is the default and also considers the cpu that jobs use with their cards."""

CLAIM_STRATEGIES: Final[Mapping[str, Weights]] = {
    "Fragmentation": {"claim-fragmentation": 10.0},
    "FirstFit": {},
}
"""Strategies for devices of ResourceClaims. The first is the default, the other is kube-scheduler's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Filters, scores and allocators for the pods of one scheduler name."""

    weights: tuple[tuple[str, float], ...] = tuple(
        {
            **ALWAYS,
            **NODE_STRATEGIES["None"],
            **CARD_STRATEGIES["Fragmentation"],
            **CLAIM_STRATEGIES["Fragmentation"],
        }.items()
    )
    """(name of a score, weight); a score that is not listed is not computed."""
    genius: GeniusWeights = genius.DEFAULT_WEIGHTS
    """The weights of the terms of the score `genius`."""
    own_scores: tuple[tuple[Score, float], ...] = ()
    """Scores that are not built in, each with its weight."""
    own_cards: Chooser | None = None
    """Chooses the cards of a node instead of the allocators."""
    plugins: Mapping[str, DevicePlugin] = field(default_factory=lambda: NO_PLUGINS, hash=False)
    """The plug-ins by device type. All policies that are used with one Fleet must have the same plug-ins."""
    switched_off: frozenset[str] = frozenset()
    """Names of disabled filters."""
    card_strategy: str = "Fragmentation"
    """The strategy that chooses the cards of a node."""
    claim_strategy: str = "Fragmentation"
    """The strategy that chooses the devices of a node for ResourceClaims."""
    preemption: bool = True
    """Whether pods of lower priority may be evicted for one that fits nowhere."""
    reserve_after: float = 300.0
    """Seconds after which a pod that waits for devices may get a node reservation; 0 for never."""
    subdevices: SubdeviceRule = LAST
    """Whether `nvidia.com/gpu` may be a replica or MIG instance, unless the pod decides it itself."""
    gang_topology_keys: tuple[str, ...] = (
        "kubernetes.io/hostname",
        "nvidia.com/gpu.clique",
        "topology.kubernetes.io/zone",
    )
    """Node labels that a gang's members should have in common, the narrowest domain first."""
    gang_keep_partial: bool = False
    """Whether bound members stay if their gang could not be completed in time."""
    filters: tuple[Filter, ...] = field(init=False, compare=False, repr=False)
    """All filters that are not switched off."""
    unmounted: tuple[Filter, ...] = field(init=False, compare=False, repr=False)
    """The filters for pods whose volumes do not restrict their node."""
    local: tuple[Filter, ...] = field(init=False, compare=False, repr=False)
    """The filters that read only the free capacity of a node."""
    scores: tuple[tuple[Score, float], ...] = field(init=False, compare=False, repr=False)
    """All scores with their weights, except the scores of plug-ins."""
    _allocators: Allocators = field(init=False, compare=False, repr=False)
    _genius: Genius | None = field(init=False, compare=False, repr=False)
    """The score that also decides between equal cards; None if it has no weight."""

    def __post_init__(self) -> None:
        """Select the filters, scores and allocators once, because every decision reads them."""
        own = {
            device_type: plugin.allocator
            for device_type, plugin in self.plugins.items()
            if plugin.allocator is not None
        }
        allocators = BUILT_IN if not own and self.subdevices == LAST else Allocators(own, self.subdevices)
        order = filters.ORDER if allocators is BUILT_IN else filters.order(DeviceFilter(allocators))
        selected = tuple(filter_ for filter_ in order if filter_.NAME not in self.switched_off)
        object.__setattr__(self, "filters", selected)
        object.__setattr__(self, "unmounted", filters.unmounted(selected))
        object.__setattr__(self, "local", filters.local(selected))
        object.__setattr__(self, "_allocators", allocators)
        weights, own_genius = dict(self.weights), Genius(self.genius)
        object.__setattr__(self, "scores", (*scores.weighted(weights, own_genius), *self.own_scores))
        object.__setattr__(self, "_genius", own_genius if weights.get(genius.NAME) else None)

    @property
    def spreads_cards(self) -> bool:
        """Return whether the emptiest cards are taken first."""
        return self.card_strategy == "LeastAllocated"

    @property
    def takes_first_devices(self) -> bool:
        """Return whether ResourceClaims get the first devices of a node that fit, as kube-scheduler gives them."""
        return self.claim_strategy == "FirstFit"

    def loads(self, fleet: Fleet, row: int, part: Part) -> tuple[int, ...]:
        """Return how loaded the card in each slot of a row is for a part; empty if that does not matter."""
        return () if self._genius is None else self._genius.loads(fleet, row, whole=part.whole)

    def rule_of(self, part: Part) -> SubdeviceRule:
        """Return whether a part for `nvidia.com/gpu` may be subdevices."""
        return part.subdevices or self.subdevices

    def filters_of(self, request: PodRequest) -> tuple[Filter, ...]:
        """Return the filters that may reject a pod."""
        return self.filters if request.mounts else self.unmounted

    def preferred(self, fleet: Fleet, request: PodRequest, fits: Mask) -> Mask:
        """Return the fitting rows among which the scores choose."""
        return self._allocators.preferred(fleet, request, fits)

    def choose(self, fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Return the grants for every part of the request on a row that passes every filter.

        There are none where the devices are given without cards of Berth.
        """
        without_grants = extended_resources.rows_without_grants(fleet, request)
        if without_grants is not None and without_grants[row]:
            return ()
        if self.own_cards is not None:
            return self.own_cards.choose(fleet, row, request)
        return self._allocators.choose(fleet, row, request, self)
