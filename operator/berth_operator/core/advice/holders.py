"""Which devices a pod holds, as a JSON object."""

from datetime import UTC, datetime
from typing import Any

from berth_operator.core.decision.promise import is_promised
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_pod
from berth_operator.core.fleet.nodes.cards import card_id, is_listed, shown_minors
from berth_operator.core.values import ending
from berth_operator.core.values.charge import NOT_STARTED, Charge

Row = dict[str, Any]


def holds_devices(charge: Charge) -> bool:
    """Return whether a charge is of a pod that holds devices, or may hold some."""
    return bool(charge.grants or charge.unknown) and is_pod(charge)


def holder_row(fleet: Fleet, charge: Charge, *, drifted: bool) -> Row:
    """Return the row of a pod that is charged to a node, or of a promised place.

    `drifted`: whether it holds other devices than it was allocated.
    """
    shown = shown_minors(charge.grants)
    return {
        "node": charge.node,
        "owner": {"kind": charge.owner.kind, "name": charge.owner.name},
        "scheduler": charge.scheduler,
        "since": _time(charge.started, NOT_STARTED),
        "endsBy": _time(charge.ends, ending.UNKNOWN),
        "devices": [
            {
                "type": grant.type,
                "minor": shown[grant.type, grant.minor],
                "id": grant.id or card_id(grant),
                "model": _model(fleet, charge.node, grant.type, grant.minor) if is_listed(grant) else "",
                "amounts": dict(grant.amounts),
            }
            for grant in charge.grants
        ],
        "drifted": drifted,
        "promised": is_promised(charge),
        "isolation": charge.isolation,
    }


def _model(fleet: Fleet, node: str, device_type: str, minor: int) -> str:
    row, cards = fleet.rows[node], fleet.cards[device_type]
    minors = cards.minor[row].tolist()
    slot = minors.index(minor) if minor in minors else None
    known = slot is not None and bool(cards.present[row, slot])
    return fleet.intern_table.models[int(cards.model[row, slot])] if known else ""


def _time(seconds: int, least_unknown: int) -> str:
    """Return seconds since 1970 in RFC 3339; empty if they are at least the first value that is no time."""
    if seconds >= least_unknown:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
