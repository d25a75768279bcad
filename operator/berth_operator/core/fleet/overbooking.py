"""What of a claim's devices others hold as well, so that claims and pods hold more than exists.

A decision never overbooks. Another scheduler may, and so may a write of an earlier decision whose answer was lost.
"""

from collections.abc import Iterator

from berth_operator.core.claims.objects.slices import CounterID, DeviceID, PoolID
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.claims.pools.counters import Counters
from berth_operator.core.fleet import claim_charges
from berth_operator.core.fleet.claims.matching import NO_MATCH, CardKey
from berth_operator.core.fleet.claims.node_devices import NodeDevices
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_pod


def overbooked(fleet: Fleet, node: str, claim: ClaimState) -> Iterator[str]:
    """Yield each device of an allocated claim that is overbooked on a node, with what has happened to it."""
    claims, allocated = fleet.claims, fleet.claims.supply.holdings.allocated
    devices = claims.supply.on(node, fleet.labels[fleet.rows[node]])
    left: dict[PoolID, dict[CounterID, int]] = {}
    for name in sorted(claim.held.devices | claim.held.shared):
        device = claims.device(name)
        others = claims.holders(name) - {claim.key}
        if others or (name in claim.held.devices and allocated.is_shared(name)):
            yield f"device {name} got allocated to another claim"
        elif pod := _pod_with_card(fleet, node, claim, name, devices):
            yield f"device {name} is a card that pod {pod} got by name"
        if device is None:
            continue
        if name in claim.held.shared:
            for capacity, amount in allocated.capacity.get(name, {}).items():
                if capacity in device.capacity and amount > device.capacity[capacity].value.amount:
                    yield f'capacity "{capacity}" of device {name} got allocated to other claims'
        if device.consumes and device.pool not in left:
            pool = devices.pools.by_id.get(device.pool)
            left[device.pool] = {} if pool is None else Counters.of(pool, allocated).left
        if any(left[device.pool].get(counter, 0) < 0 for counter, _ in device.consumes):
            yield f"devices that exclude device {name} got allocated to other claims"


def _pod_with_card(fleet: Fleet, node: str, claim: ClaimState, name: DeviceID, devices: NodeDevices) -> str:
    """Return a pod (namespace/name) that holds a claim's device by name and may not use the claim; empty if none."""
    match = devices.cards.get(name, NO_MATCH)
    if not match.cards:
        return ""
    for charge in fleet.on_node(node):
        if charge.uid in claim.reserved_for or claim_charges.is_of_claim(charge) or not is_pod(charge):
            continue
        by_claims = {(grant.type, grant.id) for grant in charge.claims.grants}
        for grant in charge.grants:
            is_card = CardKey(grant.type, grant.minor) in match.cards and (grant.type, grant.id) not in by_claims
            # Two instances of one card exclude each other only if they are the same one.
            if is_card and not (match.instance and grant.is_subdevice and grant.visible != match.instance):
                return charge.pod
    return ""
