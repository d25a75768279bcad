"""Looks at the agents' heartbeats once a second and brings the Fleet up to date."""

import asyncio
from typing import Final

from berth_operator.state.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds; a Lease lasts tens of them."""


async def run(cluster: Cluster) -> None:
    """Watch over the agents until cancelled."""
    while True:
        for name in cluster.heartbeats.nodes():
            cluster.check_alive(name)
        await asyncio.sleep(PERIOD)
