"""Prefer nodes where the pod's VolumeClaims leave most of their storage free (VolumeBinding, from Kubernetes 1.37 on).

For each storage class, the requests of the unbound claims are compared with the size of the volumes that they would get
on the node. Without fitting volumes, the requests are compared with the capacity that the driver reports. The score is
the percentage of storage that stays free, averaged over the classes.
"""

from collections import defaultdict
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import volume_choice
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.fleet.volume_choice import Option
from berth_operator.core.values import releases
from berth_operator.core.values.request import PodRequest

Points = npt.NDArray[np.float64]

NAME: Final = "volume-capacity"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> Points | None:
    """Return the score of each row; None if no claim waits for its first consumer, and before Kubernetes 1.37."""
    if fleet.kubernetes < releases.STORAGE_CAPACITY or not request.mounts.claims:
        return None
    by_class: defaultdict[str, list[Option]] = defaultdict(list)
    for option in volume_choice.options(fleet, request.mounts):
        by_class[option.claim.storage_class].append(option)
    if not by_class:
        return None
    binds: Mask = reduce(np.logical_or, (option.has_volume for options in by_class.values() for option in options))
    total, classes = np.zeros(len(fleet.names)), np.zeros(len(fleet.names))
    for options in by_class.values():
        # What is free of this class on each row, and whether the class counts there (0 or 1).
        requested, capacity, counts = (np.zeros(len(fleet.names)) for _ in range(3))
        for option in options:
            provided = volume_choice.provided(fleet, option.claim)
            # Claims of one class share what can be provisioned.
            free = capacity if provided is None else provided
            counted = np.where(binds, option.has_volume, provided is not None)
            requested += option.claim.size * counted
            capacity = np.where(binds, capacity + volume_choice.volume_sizes(fleet, option), free)
            counts = np.maximum(counts, counted)
        enough = (capacity > 0) & (requested <= capacity)
        used = np.floor(100 * requested / np.where(enough, capacity, 1))
        total += np.where(enough, 100 - used, 0) * counts
        classes += counts
    # Halves are rounded up, unlike by `np.round`.
    points: Points = np.floor(total / np.maximum(classes, 1) + 0.5)
    return points
