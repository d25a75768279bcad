"""The devices that a pod holds, as a row of the visibility API."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

import numpy as np

from berth_api.allocation import Grant, held
from berth_api.names import GPU
from berth_api.objects.visibility import Exceeding, HeldPart, HoldingPod, InstancePlacement
from berth_api.values import keys
from berth_operator.core.advice.claimed_parts import claimed_parts
from berth_operator.core.decision.promise import is_promised
from berth_operator.core.fleet.claims.store import claim_uid
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_pod
from berth_operator.core.fleet.nodes.cards import card_id, is_listed, shown_minors
from berth_operator.core.values import ending
from berth_operator.core.values.charge import NOT_STARTED, Charge
from berth_operator.core.values.revisions import application_of

NONE_PLACED: Final[Mapping[str, InstancePlacement]] = MappingProxyType({})


def holds_devices(charge: Charge) -> bool:
    """Return whether a charge is of a pod that holds devices, or may hold some."""
    return bool(charge.grants or charge.unknown) and is_pod(charge)


def held_by_claim(fleet: Fleet, charge: Charge) -> tuple[tuple[Grant, ...], Mapping[str, InstancePlacement]]:
    """Return what the ResourceClaims of a pod hold on its node, and where on their cards the instances among it are.

    What is charged to the pod itself is left out. Placements are by the ids of the grants.
    """
    grants: list[Grant] = []
    placed: dict[str, InstancePlacement] = {}
    for claim in fleet.claims.of_pod(charge.uid) if is_pod(charge) else ():
        if (of_claim := fleet.charges.get(claim_uid(charge.node, claim.uid))) is None:
            continue
        parts = list(claimed_parts(fleet, charge.node, claim))
        divided = {part.grant.minor for part in parts}
        grants += [grant for grant in of_claim.grants if grant.type != GPU or grant.minor not in divided]
        grants += [part.grant for part in parts]
        placed |= {part.grant.id: part.placement for part in parts if part.placement is not None}
    return tuple(grants), placed


def holder_row(
    fleet: Fleet,
    charge: Charge,
    exceeding: Sequence[Exceeding] = (),
    *,
    drifted: bool,
    placed: Mapping[str, InstancePlacement] = NONE_PLACED,
) -> HoldingPod:
    """Return the row of a pod that is charged to a node, or of a promised place.

    `exceeding`: the pod's use above its shares. `drifted`: whether it holds other devices than it was allocated.
    `placed`: the placements of the instances that it has by claim.
    """
    shown, (namespace, name) = shown_minors(charge.grants), keys.split(charge.pod)
    row, devices = fleet.rows[charge.node], []
    kind, application = application_of(charge.owner, charge.identity.labels)
    for grant in charge.grants:
        part: HeldPart = {
            "type": grant.type,
            "minor": shown[grant.type, grant.minor],
            "id": grant.id or card_id(grant),
            "model": "",
            "amounts": dict(grant.amounts),
        }
        if grant.id in placed:
            part["placement"] = placed[grant.id]
        cards = fleet.cards[grant.type]
        slots = np.flatnonzero((cards.minor[row] == grant.minor) & cards.present[row]) if is_listed(grant) else ()
        for slot in slots:
            part["model"] = fleet.intern_table.models[int(cards.model[row, slot])]
            if grant.is_subdevice:
                total = {name: int(cards.total[index, row, slot]) for name, index in cards.index.items()}
                part["card"] = held.subdevices(total)
        devices.append(part)
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": charge.uid},
        "node": charge.node,
        "owner": {"kind": kind or charge.owner.kind, "name": application or charge.owner.name},
        "scheduler": charge.scheduler,
        "since": _time(charge.started, NOT_STARTED),
        "endsBy": _time(charge.ends, ending.UNKNOWN),
        "devices": devices,
        "drifted": drifted,
        "promised": is_promised(charge),
        "isolation": charge.isolation,
        "exceeding": list(exceeding),
    }


def _time(seconds: int, least_unknown: int) -> str:
    """Return seconds since 1970 in RFC 3339; empty if they are at least the first value that is no time."""
    if seconds >= least_unknown:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
