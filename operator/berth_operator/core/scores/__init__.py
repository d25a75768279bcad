"""Preferences: one file each, one array expression over all nodes, from 0 (worst) to 100 (best)."""

from types import ModuleType
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.scores import card_packing, least_allocated, spare_devices


class Score(Protocol):
    """What every score module offers."""

    NAME: str

    def score(self, fleet: Fleet, request: PodRequest) -> npt.NDArray[np.float64]:
        """Give each row's score, 0 to 100; rows that filters rejected may hold anything finite."""


def _scores(*modules: ModuleType) -> tuple[Score, ...]:
    return cast("tuple[Score, ...]", modules)


ALL = _scores(card_packing, spare_devices, least_allocated)
