"""Preferences: one file each, one array expression over all nodes, from 0 (worst) to 100 (best)."""

from types import ModuleType
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.scores import (
    balanced_allocation,
    card_packing,
    card_spreading,
    even_spread,
    fragmentation,
    image_locality,
    least_allocated,
    most_allocated,
    node_affinity,
    pods_near,
    spare_devices,
    taints,
)


class Score(Protocol):
    """What every score module offers."""

    NAME: str

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        """Give each row's score, 0 to 100, or None where all are equal; rows that do not fit may hold any number."""


def _scores(*modules: ModuleType) -> tuple[Score, ...]:
    return cast("tuple[Score, ...]", modules)


ALL = _scores(
    fragmentation,
    card_packing,
    card_spreading,
    spare_devices,
    least_allocated,
    most_allocated,
    balanced_allocation,
    image_locality,
    node_affinity,
    taints,
    pods_near,
    even_spread,
)
