"""Prefer nodes that already have the pod's images (ImageLocality).

An image counts by its size times the share of nodes that have it. So not all pods with one image go to the node that
pulled it first. The sum is scaled to 0 at 23 MiB and 100 at 1000 MiB per container. From Kubernetes 1.37 on, image
volumes count like containers.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values import releases
from berth_operator.core.values.request import PodRequest

NAME: Final = "image-locality"
MIN_THRESHOLD: Final = 23 * 2**20
MAX_CONTAINER_THRESHOLD: Final = 1000 * 2**20


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return for each row the score of the images that it has; None if no node has any of them."""
    images = [image for name in request.images.names if (image := fleet.images.found(name)) is not None]
    if not images:
        return None
    total = np.zeros(len(fleet.names))
    nodes = fleet.present.sum()
    for size, rows in images:
        total += np.floor(size * (rows.sum() / nodes)) * rows
    volumes = request.images.volumes if fleet.kubernetes >= releases.IMAGE_VOLUMES else 0
    highest = MAX_CONTAINER_THRESHOLD * max(request.images.containers + volumes, 1)
    return np.floor(100.0 * (np.clip(total, MIN_THRESHOLD, highest) - MIN_THRESHOLD) / (highest - MIN_THRESHOLD))
