"""Report devices that two ResourceClaims hold though only one may: another scheduler allocates in a pool of Berth.

As long as both claims hold the device, it is given to no third claim, and not by name.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 0.5
"""Seconds between two checks."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Reporter(Protocol):
    """The subset of `reporter.Reporter` that is used here."""

    def doubled(self, claim: ClaimState, device: str, others: Sequence[str]) -> None:
        """Report on a claim that others (namespace/name) also hold one of its devices."""


async def run(cluster: Cluster, reporter: Reporter) -> None:
    """Report each such device once on each of its claims, until cancelled."""
    reported: frozenset[tuple[DeviceID, str]] = frozenset()
    claims = cluster.fleet.claims
    while True:
        shown = {
            (device, claims.claims[key].uid): claims.claims[key]
            for device, keys in claims.doubled.items()
            if claims.own.include(device.in_pool)
            for key in keys
        }
        for device, uid in sorted(shown.keys() - reported):
            claim = shown[device, uid]
            others = sorted(claims.holders(device) - {claim.key})
            log.error("device is allocated to two claims", device=str(device), claim=claim.key, others=others)
            reporter.doubled(claim, str(device), others)
        reported = frozenset(shown)
        await asyncio.sleep(PERIOD)
