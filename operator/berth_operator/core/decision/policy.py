"""How the pods of one profile are decided: filters, weights of scores, allocators."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from berth_api.allocation import Grant
from berth_operator.core import filters
from berth_operator.core.allocators import BUILT_IN, Allocators
from berth_operator.core.filters import Filter
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import NO_PLUGINS, Chooser, DevicePlugin, Score
from berth_operator.core.values.request import PodRequest

Weights = Mapping[str, float]
"""Name of a score -> how much it counts; a score that is not named is not asked."""

ALWAYS: Final[Weights] = {
    "spare-devices": 10.0,
    # More than all that cards may weigh: a node where the preference is met comes before one where it is not.
    "gpu-topology": 20.0,
    "image-locality": 1.0,
    "node-affinity": 2.0,
    "taints": 3.0,
    "pods-near": 2.0,
    "even-spread": 2.0,
    "default-spread": 2.0,
}
"""What counts whatever the strategies."""

NODE_STRATEGIES: Final[Mapping[str, Weights]] = {
    "None": {},
    "LeastAllocated": {"least-allocated": 1.0, "balanced-allocation": 1.0},
    "MostAllocated": {"most-allocated": 1.0, "balanced-allocation": 1.0},
}
"""How processor time and memory of nodes are used up; the first is the default."""

CARD_STRATEGIES: Final[Mapping[str, Weights]] = {
    "Fragmentation": {"fragmentation": 10.0},
    "MostAllocated": {"card-packing": 10.0},
    "LeastAllocated": {"card-spreading": 10.0},
    "None": {},
}
"""How cards are used up; the first is the default, and minds the processor time that goes with them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the pods of one scheduler name are decided."""

    weights: tuple[tuple[str, float], ...] = tuple(
        {**ALWAYS, **NODE_STRATEGIES["None"], **CARD_STRATEGIES["Fragmentation"]}.items()
    )
    """(name of a score, how much it counts); a score that is not named is not asked."""
    own_scores: tuple[tuple[Score, float], ...] = ()
    """Scores that are not built in, and how much each counts."""
    own_cards: Chooser | None = None
    """What chooses the cards of a node in place of the allocators."""
    plugins: Mapping[str, DevicePlugin] = field(default_factory=lambda: NO_PLUGINS, hash=False)
    """The plug-ins by device type; all policies by which one Fleet is decided have the same."""
    switched_off: frozenset[str] = frozenset()
    """Names of filters that are not asked."""
    card_strategy: str = "Fragmentation"
    """By which of the strategies for cards the cards of a node are chosen."""
    preemption: bool = True
    """Whether pods of lower priority may be evicted for one that fits nowhere."""
    gang_topology_keys: tuple[str, ...] = (
        "kubernetes.io/hostname",
        "nvidia.com/gpu.clique",
        "topology.kubernetes.io/zone",
    )
    """Labels of nodes that a gang's members shall have in common, the closest first."""
    gang_keep_partial: bool = False
    """Whether the bound members of a gang that could not be completed stay."""
    filters: tuple[Filter, ...] = field(init=False, compare=False, repr=False)
    """All that are not switched off."""
    unmounted: tuple[Filter, ...] = field(init=False, compare=False, repr=False)
    """Those of the filters that apply to pods without volumes that matter."""
    local: tuple[Filter, ...] = field(init=False, compare=False, repr=False)
    """Those of the filters that ask how much is free on a node."""
    _allocators: Allocators = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Select the filters and allocators once; every decision reads them."""
        own = {kind: plugin.allocator for kind, plugin in self.plugins.items() if plugin.allocator is not None}
        allocators = Allocators(own) if own else BUILT_IN
        order = filters.order(DeviceFilter(allocators)) if own else filters.ORDER
        selected = tuple(each for each in order if each.NAME not in self.switched_off)
        object.__setattr__(self, "filters", selected)
        object.__setattr__(self, "unmounted", filters.unmounted(selected))
        object.__setattr__(self, "local", filters.local(selected))
        object.__setattr__(self, "_allocators", allocators)

    @property
    def spreads_cards(self) -> bool:
        """Return whether the emptiest cards are taken first."""
        return self.card_strategy == "LeastAllocated"

    def filters_of(self, request: PodRequest) -> tuple[Filter, ...]:
        """Return the filters that may reject a pod."""
        return self.filters if request.mounts else self.unmounted

    def choose(self, fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Return the cards for every part of the request, on a row that passes every filter."""
        if self.own_cards is not None:
            return self.own_cards.choose(fleet, row, request)
        return self._allocators.choose(fleet, row, request, self)
