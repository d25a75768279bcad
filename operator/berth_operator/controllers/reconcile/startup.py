"""The startup taint of a Node. The operator removes it once the Node shows what its agent reported.

While a node has a startup taint of its pool, autoscalers count it as a coming node. They do not compare pods with what
the Node shows so far.
"""

from typing import Any

from berth_api import names
from berth_operator.controllers.reconcile import status, sums
from berth_operator.state.cache.views import NodeView


def patch(view: NodeView) -> list[dict[str, Any]] | None:
    """Return the JSON patch that removes the taint; None if there is none, or the node has not started yet.

    The list of taints has no merge key, and other programs write it too. So the patch tests what it removes.
    """
    if view.node is None or view.device is None or not status.is_ready(view):
        return None
    listed = enumerate(view.node.info.taints)
    taints = ((index, taint.key) for index, taint in listed if taint.key in names.AGENT_NOT_READY)
    position, key = next(taints, (None, ""))
    # Sums first: with the taint gone, an autoscaler reads what the Node shows.
    if position is None or sums.status_patch(view) is not None or sums.label_patch(view) is not None:
        return None
    # What a policy refuses would keep the taint forever, and with it the pods that do not request it.
    coming = (kind for kind in sums.plugin_kinds(view) if kind.name not in view.device.refused)
    if any(sums.status_patch(view, kind.resources) is not None for kind in coming):
        return None
    path = f"/spec/taints/{position}"
    return [{"op": "test", "path": f"{path}/key", "value": key}, {"op": "remove", "path": path}]
