"""Keep pods that request no device away from nodes that have devices."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

NAME: Final = "spare-devices"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for rows without a Device, and 0 for the others; None if the pod requests devices."""
    if request.devices:
        return None
    return np.where(fleet.has_device, 0.0, 100.0)
