"""Describe the devices of a placement for its Event: `GPU 0, MIG 3g.40gb, replica 2 of 4`."""

from collections.abc import Iterable

import numpy as np

from berth_api.allocation import REPLICA_MARK, REPLICAS, Grant, mig
from berth_api.objects import device_text
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Cards


def devices(fleet: Fleet, placement: Placement) -> str:
    """Return the placement's devices, with the share or subdevice of each; empty if it has none."""
    return of_grants(fleet, placement.node, placement.grants)


def of_grants(fleet: Fleet, node: str, grants: Iterable[Grant]) -> str:
    """Return the devices of grants on a node in the same words."""
    row = fleet.rows.get(node)
    return device_text.joined(_device(fleet.cards[grant.type], row, grant) for grant in grants)


def _device(cards: Cards, row: int | None, grant: Grant) -> str:
    resource = next((name for name, _ in grant.amounts if mig.is_resource(name)), "")
    profile = mig.profile(resource) if resource else ""
    # Of a replica, how many its card or instance has; 0 if the Device no longer lists it.
    replicas = 0
    if row is not None and REPLICA_MARK in grant.id:
        instances = cards.instances.get(row, {}).get(grant.minor, ())
        replicas = sum(name.startswith(grant.visible + REPLICA_MARK) for name, _ in instances)
        if not replicas and REPLICAS in cards.index:
            of_card = cards.total[cards.index[REPLICAS], row][cards.minor[row] == grant.minor]
            replicas = int(of_card.sum(dtype=np.int64))
    name = device_text.of_device(grant.type, grant.minor, grant.id, profile=profile, replicas=replicas)
    share = device_text.of_share(grant)
    return f"{name} ({share})" if share else name
