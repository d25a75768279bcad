"""Scores: one file each, one array expression over all nodes, from 0 (worst) to 100 (best)."""

from types import ModuleType
from typing import cast

from berth_operator.core.plugins import Score
from berth_operator.core.scores import (
    balanced_allocation,
    card_packing,
    card_spreading,
    default_spread,
    even_spread,
    fragmentation,
    gpu_topology,
    image_locality,
    least_allocated,
    most_allocated,
    node_affinity,
    pod_affinity,
    spare_devices,
    taints,
)


def _scores(*modules: ModuleType) -> tuple[Score, ...]:
    return cast("tuple[Score, ...]", modules)


ALL = _scores(
    fragmentation,
    card_packing,
    card_spreading,
    spare_devices,
    gpu_topology,
    least_allocated,
    most_allocated,
    balanced_allocation,
    image_locality,
    node_affinity,
    taints,
    pod_affinity,
    even_spread,
    default_spread,
)
