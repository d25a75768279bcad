"""Scores of nodes, from 0 (worst) to 100 (best). Each is one file and one array expression over all nodes.

A score is a module with the members of `Score`, or an object if a policy configures it.
"""

from collections.abc import Mapping
from typing import cast

from berth_operator.core.plugins import Score
from berth_operator.core.scores import (
    balanced_allocation,
    card_packing,
    card_spreading,
    claim_fragmentation,
    default_spread,
    even_spread,
    fragmentation,
    genius,
    gpu_topology,
    image_locality,
    least_allocated,
    most_allocated,
    node_affinity,
    pod_affinity,
    prioritized_list,
    spare_devices,
    taints,
    volume_capacity,
)
from berth_operator.core.scores.genius import Genius

ALL = cast(
    "tuple[Score, ...]",
    (
        fragmentation,
        card_packing,
        card_spreading,
        claim_fragmentation,
        spare_devices,
        gpu_topology,
        genius.BUILT_IN,
        least_allocated,
        most_allocated,
        balanced_allocation,
        image_locality,
        node_affinity,
        taints,
        pod_affinity,
        even_spread,
        default_spread,
        prioritized_list,
        volume_capacity,
    ),
)


def weighted(weights: Mapping[str, float], own_genius: Genius) -> tuple[tuple[Score, float], ...]:
    """Return the scores with a weight above 0, each with its weight; Genius' score with the weights of a profile."""
    return tuple(
        (own_genius if score.NAME == genius.NAME else score, weight)
        for score in ALL
        if (weight := weights.get(score.NAME, 0.0))
    )
