"""What the pods of one profile are decided by: which filters are asked, how much each preference counts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the pods of one scheduler name are decided."""

    weights: tuple[tuple[str, float], ...] = (
        ("card-packing", 10.0),
        ("spare-devices", 10.0),
        ("least-allocated", 1.0),
        ("balanced-allocation", 1.0),
        ("image-locality", 1.0),
        ("node-affinity", 2.0),
        ("taints", 3.0),
        ("pods-near", 2.0),
        ("even-spread", 2.0),
    )
    """(name of a score, how much it counts); a score that is not named is not asked."""
    switched_off: frozenset[str] = frozenset()
    """Names of the filters that are not asked."""
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
