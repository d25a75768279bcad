"""The kinds of the visibility API, and their rows in tables. Pure functions."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from berth_api.names import GPU
from berth_api.objects.visibility import GROUP, VERSION, FleetNode, HoldingPod, QueuedPod
from berth_operator.apis.aggregated import kinds
from berth_operator.apis.aggregated.kinds import NAME_FIELD, NAMESPACE_FIELD, Cells, column

API_SERVICE: Final = f"{VERSION}.{GROUP}"
EXPLANATION: Final = "PodExplanation"
PODS: Final = "pods"
EXPLANATIONS: Final = "explanation"
"""The subresource of `PODS`."""
SETTINGS: Final = "OperatorSettings"
SETTINGS_PARAMETER: Final = "settings"
"""Parameter of a request for an explanation or the fleet. The request is answered with the settings instead."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowKind(kinds.Kind):
    """One kind of row. `KINDS` has all of them."""

    group: str = GROUP
    version: str = VERSION
    fields: frozenset[str] = frozenset({NAME_FIELD, NAMESPACE_FIELD})
    verbs: tuple[str, ...] = ("list", "watch")
    cells: Callable[[Any], Cells]
    """Returns the cells of a row in its columns."""
    rank: Callable[[Any], int] = lambda _: 0
    """Returns where lists have a row, before its namespace and name decide."""


def _fleet_cells(row: FleetNode) -> Cells:
    gpus = [device for device in row["devices"] if device["type"] == GPU]
    is_blocked = any(device["blocked"] for device in gpus or row["devices"])
    state = "Ready" if row["ready"] and row["schedulable"] and row["reporting"] and not is_blocked else "Blocked"
    unused = sum(device["healthy"] and not device["users"] and not device["blocked"] for device in gpus)
    models = ", ".join(sorted({device["model"] for device in gpus if device["model"]}))
    return [state, len(gpus), unused, sum(not device["healthy"] for device in gpus), models, row["blocked"]]


def _queue_cells(row: QueuedPod) -> Cells:
    requests = ", ".join(f"{name}={amount}" for name, amount in row["requests"].items())
    return [row["position"], row["state"], row["priority"], row["waitingSeconds"], requests, row["message"]]


def _holder_cells(row: HoldingPod) -> Cells:
    owner = row["owner"]
    devices = ", ".join(f"{device['type']} {device['minor']}" for device in row["devices"])
    owned_by = f"{owner['kind']}/{owner['name']}" if owner["kind"] else ""
    return [row["node"], devices, owned_by, row["since"], row["endsBy"], row["scheduler"]]


FLEET: Final = RowKind(
    name="FleetNode",
    plural="fleet",
    namespaced=False,
    columns=(
        column("State"),
        column("GPUs", "integer"),
        column("Unused", "integer"),
        column("Unhealthy", "integer"),
        column("Models"),
        column("Blocked by", wide=True),
    ),
    cells=_fleet_cells,
)
QUEUE: Final = RowKind(
    name="QueuedPod",
    plural="queue",
    namespaced=True,
    columns=(
        column("Position", "integer"),
        column("State"),
        column("Priority", "integer"),
        column("Waiting", "integer"),
        column("Requests"),
        column("Message", wide=True),
    ),
    cells=_queue_cells,
    rank=lambda row: row["position"] or sys.maxsize,
)
HOLDERS: Final = RowKind(
    name="Holder",
    plural="holders",
    namespaced=True,
    columns=(
        column("Node"),
        column("Devices"),
        column("Owner"),
        column("Since", "date"),
        column("Ends by", wide=True),
        column("Scheduler", wide=True),
    ),
    cells=_holder_cells,
)
KINDS: Final = (FLEET, QUEUE, HOLDERS)
