"""Keep devices usable: prefer nodes where the pod's ResourceClaims strand the fewest devices.

    waste = cost of the device that costs least     see dra/stock.py
          + 5 hundredths for each free device       pods gather where few are free, so that whole nodes stay free

The waste is in hundredths of a device, and is summed over the requests of the claims. With `firstAvailable`, the pod's
own preference comes first: Berth takes the earliest subrequests that any node can meet, and gives points only to the
nodes that meet them.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import claim_counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

NAME: Final = "claim-fragmentation"
BEST: Final = 100.0


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for the row with the least waste, and a point less for each further hundredth of a device wasted."""
    if not (claim_counts.needs_devices(fleet, request) and (wasted := claim_counts.waste(fleet, request))):
        return None
    lost: npt.NDArray[np.float64] = np.sum(wasted, axis=0, dtype=np.float64)
    preferred = fits
    # With `firstAvailable` those with the most points for it.
    if lists := claim_counts.preference_points(fleet, request):
        preference = np.sum(lists, axis=0)
        preferred = fits & (preference == preference[fits].max(initial=0))
    lowest, highest = lost[preferred].min(initial=np.inf), lost[preferred].max(initial=-np.inf)
    # Scaled only if 100 points are not enough, so that weights are comparable with other scores.
    points = BEST - (lost - lowest) * min(1.0, BEST / max(highest - lowest, 1.0))
    return np.where(preferred, points, 0.0)
