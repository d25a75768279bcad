"""Report cards that two pods hold though only one may, whatever has made them.

Causes are an etcd that was restored from a copy, a pod that somebody bound, another scheduler, or kubelet's choice. As
long as both pods hold the card, no third pod gets it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from berth_operator.core.fleet.kubelet_allocation import is_pod
from berth_operator.core.fleet.two_holders import CardOnNode, two_holders
from berth_operator.core.values.charge import Charge
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 2.0
"""Seconds between two checks."""
PATIENCE: Final = 10.0
"""Seconds for which two pods may hold a card without a report: kubelet may exchange the cards of two pods."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Reporter(Protocol):
    """The subset of `reporter.Reporter` that is used here."""

    def card_doubled(self, holder: Charge, card: str, others: Sequence[str]) -> None:
        """Report on a pod that others (namespace/name) also hold one of its cards."""


async def run(cluster: Cluster, reporter: Reporter) -> None:
    """Report each such card once on each of its pods, and on its Device while it lasts, until cancelled."""
    since: dict[tuple[CardOnNode, frozenset[str]], float] = {}
    reported: frozenset[tuple[CardOnNode, frozenset[str]]] = frozenset()
    while True:
        now = cluster.clock()
        held = {
            (card, frozenset(each.uid for each in holders)): holders
            for card, holders in two_holders(cluster.fleet).items()
        }
        since = {key: since.get(key, now) for key in held}
        lasting = {key: holders for key, holders in held.items() if now - since[key] >= PATIENCE}
        counters.DOUBLED_CARDS.set(len(lasting))
        cluster.node_cache.set_doubled({card: [each.pod for each in holders] for (card, _), holders in lasting.items()})
        for key in sorted(lasting.keys() - reported, key=lambda key: key[0]):
            card, holders = key[0], lasting[key]
            log.error(
                "card has two holders",
                node=card.node,
                card=f"{card.type} {card.minor}",
                holders=[each.pod for each in holders],
            )
            for holder in filter(is_pod, holders):
                others = [other.pod for other in holders if other is not holder]
                reporter.card_doubled(holder, f"{card.type} {card.minor} on {card.node}", others)
        reported = frozenset(lasting)
        await asyncio.sleep(PERIOD)
