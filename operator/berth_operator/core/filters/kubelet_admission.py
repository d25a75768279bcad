"""The node's kubelet does not keep rejecting the pods of the pod's controller at admission.

`state.cache.rejected_pods` has the pauses, and wakes a pod at their end. `Fleet.rejecting` shows those that last. Pods
of other controllers pass.
"""

from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "kubelet-admission"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change(0)
TRAITS: Final = Traits(
    transient=True,
    ends_by_itself=True,
    needed="a controller would create pods without end, and kubelet would reject each of them",
)


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows without those whose kubelets keep rejecting the pods of this controller."""
    if not request.rejected_controller or not (nodes := fleet.rejecting.get(request.rejected_controller)):
        return fleet.present
    mask = fleet.present.copy()
    mask[[fleet.rows[node] for node in nodes if node in fleet.rows]] = False
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield a reason for each last reason of kubelet. Without a time, the message of a waiting pod does not change."""
    nodes = fleet.rejecting.get(request.rejected_controller, {})
    for reason in sorted(set(nodes.values())):
        mask = np.zeros_like(rejected)
        mask[[fleet.rows[node] for node, last in nodes.items() if last == reason and node in fleet.rows]] = True
        text = f"node(s) rejected pods of this controller ({reason}): the next one is bound there after a pause"
        yield text, mask & rejected
