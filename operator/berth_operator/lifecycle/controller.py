"""Once a second: bring the Fleet up to date with the agents' heartbeats, and report what blocks devices."""

import asyncio
from typing import Final

from berth_operator.state.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds; a Lease lasts tens of them."""


async def run(cluster: Cluster) -> None:
    """Watch over the agents until cancelled."""
    while True:
        cluster.node_cache.check_all_alive()
        cluster.unknown_allocations.report()
        await asyncio.sleep(PERIOD)
