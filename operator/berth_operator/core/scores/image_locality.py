"""Nodes that have the pod's images already.

An image counts by its size, and by the part of all nodes that have it, so that not all pods of one image go to the node
that was first to pull it. From 23 MiB in all, up to 1000 MiB for each container, that is worth 0 to 100.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest

NAME: Final = "image-locality"
LEAST: Final = 23 * 2**20
MOST: Final = 1000 * 2**20


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return each row the worth of the images that it has."""
    found = [each for name in request.images.names if (each := fleet.images.found(name)) is not None]
    if not found:
        return None
    total = np.zeros(len(fleet.names))
    nodes = fleet.present.sum()
    for size, rows in found:
        total += np.floor(size * (rows.sum() / nodes)) * rows
    most = MOST * max(request.images.containers, 1)
    worth: npt.NDArray[np.float64] = np.floor(100.0 * (np.clip(total, LEAST, most) - LEAST) / (most - LEAST))
    return worth
