"""By what the pods of one profile are decided: which filters are asked, how much each preference counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth_operator.core.plugins import Chooser, Score

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
    """Who chooses the cards of a node, if not one of the built-in."""
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

    @property
    def spreads_cards(self) -> bool:
        """Tell whether the emptiest cards are taken first."""
        return self.card_strategy == "LeastAllocated"
