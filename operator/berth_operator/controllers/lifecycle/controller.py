"""Once a second, update the Fleet by the clock, and report pods with unknown allocations."""

import asyncio
from typing import Final

from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two checks; a Lease lasts tens of seconds."""


async def run(cluster: Cluster) -> None:
    """Check agents, new nodes, drivers that are gone, unknown allocations and rejected pods until cancelled."""
    while True:
        cluster.node_cache.check_all_alive()
        cluster.node_cache.end_startups()
        cluster.expire_slices()
        cluster.refresh_devices()
        cluster.unknown_allocations.report()
        cluster.rejected_pods.expire()
        await asyncio.sleep(PERIOD)
