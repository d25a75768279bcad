"""The reason of PodScheduled=False for a pod that fits nowhere: autoscalers add nodes only for `Unschedulable`.

An autoscaler knows the resources, labels and taints of the nodes that it could add, but neither Berth's annotations nor
Devices. So the reason must not be `Unschedulable` if the autoscaler would add a node in vain.
"""

from collections.abc import Sequence

from berth_api.names import GPU
from berth_operator.core.decision import messages, starting
from berth_operator.core.filters import Filter, namespace_limits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest


def condition(fleet: Fleet, request: PodRequest, filters: Sequence[Filter], pods: int) -> tuple[str, str]:
    """Return the reason, and a sentence for the end of the message. `pods` is how many such pods need a node."""
    if namespace_limits.is_exhausted(fleet, request):
        return messages.NAMESPACE_LIMIT, ""
    rows = starting.may_fit(fleet, request, filters)
    if rows.any() and starting.most_pods(fleet, request, rows) >= pods:
        return messages.NODE_STARTING, messages.starting(int(rows.sum()))
    if _is_unknown_model(fleet, request):
        return messages.UNKNOWN_MODEL, ""
    return messages.UNSCHEDULABLE, ""


def _is_unknown_model(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether no GPU is of the pod's model, and the pod does not select the nodes that have it either.

    An autoscaler would add the cheapest node with GPUs, of any model.
    """
    if not request.model or request.node_selector or request.node_affinity is not None:
        return False
    cards = fleet.cards[GPU]
    accepted = fleet.accepted_models(request.model)
    return not accepted[cards.model[cards.present]].any()
