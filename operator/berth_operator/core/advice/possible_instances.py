"""MIG instances that can still be made for ResourceClaims on the GPUs of a node."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from berth_api.allocation import mig
from berth_api.names import GPU
from berth_operator.core.claims.objects.slices import PREVENTING, Device, PoolID
from berth_operator.core.claims.pools.counters import Counters
from berth_operator.core.fleet.claims.matching import NO_MATCH
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.held_devices import held_devices


def possible_instances(fleet: Fleet, node: str) -> Mapping[int, Mapping[str, int]]:
    """Return GPU -> profile -> number of instances that can be made if no instance of another profile is made."""
    supply = fleet.claims.supply
    if node not in supply.index.by_node:
        return {}
    devices = supply.on(node, fleet.labels[fleet.rows[node]])
    listed: dict[PoolID, dict[tuple[int, str], list[Device]]] = defaultdict(lambda: defaultdict(list))
    for device in devices.own:
        attribute, match = device.attributes.get(f"{device.id.driver}/profile"), devices.cards.get(device.id, NO_MATCH)
        minors = [card.minor for card in match.cards if card.type == GPU]
        if device.consumes and attribute is not None and mig.is_profile(str(attribute.value)) and len(minors) == 1:
            listed[device.pool][minors[0], str(attribute.value)].append(device)
    if not listed:
        return {}
    held = held_devices(fleet, node, devices)
    allocated = replace(supply.holdings.allocated, withheld=held.withheld)
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    for pool, groups in listed.items():
        counters = Counters.of(devices.pools.by_id[pool], allocated)
        for (minor, profile), instances in groups.items():
            # The places of one profile do not overlap, so their order does not matter.
            reserved = [
                device
                for device in instances
                if device.id not in held
                and not any(taint.effect in PREVENTING for taint in device.taints)
                and counters.reserve(device)
            ]
            for device in reserved:
                counters.release(device)
            if reserved:
                counts[minor][profile] = len(reserved)
    return counts
