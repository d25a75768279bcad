"""Have pods leave cards that failed for good, where the operator was told to.

Only a reset of such a card or a reboot of its node brings it back, and neither is possible while a pod holds it. The
pods are evicted, not deleted: Kubernetes' Eviction keeps to PodDisruptionBudgets. One is evicted at a time, at a set
rate, so that a mistake about many cards at once does little before somebody sees it.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from berth_api import keys
from berth_client.errors import CallError
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.values.charge import Charge
from berth_operator.metrics import counters
from berth_operator.state.cluster import Cluster

PERIOD: Final = 5.0
"""Seconds between two looks."""
PATIENCE: Final = 60.0
"""Seconds for which a card must have failed: whoever reads the fault may see more than we do."""
AGAIN: Final = 60.0
"""Seconds until a pod is asked to leave once more: a budget was used up, or something went wrong."""
_GONE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
"""There is no such pod, or another one of its name."""

Card = tuple[str, str, str]
"""Node, type and id: the driver may give the card another minor while it has failed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Pods(Protocol):
    """What is needed of a `kube.KubeClient`."""

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        """Have a pod evicted, if it is still the one with this UID."""


class Evictor:
    """Evicts for one term; `told` hears of each pod that was, and of its card."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        pods: Pods,
        per_minute: float,
        told: Callable[[Charge, str], None],
        leads: Callable[[], bool],
    ) -> None:
        self._cluster, self._pods, self._told, self._leads = cluster, pods, told, leads
        self._per_minute = per_minute
        self._since: Mapping[Card, float] = {}
        """Failed card -> since when."""
        self._again: dict[str, float] = {}
        """UID of a pod that was asked to leave -> when it may be asked once more."""

    async def run(self) -> None:
        """Evict until cancelled; without a rate, nobody."""
        while self._per_minute:
            if (found := self._next()) is not None and await self._evict(*found):
                await asyncio.sleep(60 / self._per_minute)
            elif found is None:
                await asyncio.sleep(PERIOD)

    def _next(self) -> tuple[Charge, Card] | None:
        """Return a pod that is to leave, and its card."""
        now = self._cluster.clock()
        self._since = {card: self._since.get(card, now) for card in self._failed()}
        due = {card for card, since in self._since.items() if now - since >= PATIENCE}
        holding = [(charge, card) for card in sorted(due) for charge in self._holding(card)]
        self._again = {charge.uid: self._again[charge.uid] for charge, _ in holding if charge.uid in self._again}
        return next((each for each in holding if self._again.get(each[0].uid, now) <= now), None)

    def _failed(self) -> set[Card]:
        """Return the cards that failed for good, by agents that are heard."""
        nodes = self._cluster.node_cache
        return {
            (name, *card)
            for name, record in nodes.devices.items()
            if record.lost and name in nodes.nodes and nodes.is_alive(name)
            for card in record.lost
        }

    def _holding(self, card: Card) -> list[Charge]:
        node, kind, _ = card
        minor = self._minor(card)
        return [
            charge
            for charge in self._cluster.fleet.on_node(node)
            if (kind, minor) in ((grant.type, grant.minor) for grant in charge.grants)
            if kubelet_allocation.is_pod(charge)
            if not self._cluster.fleet.is_leaving(charge) and not self._cluster.placements.is_assumed(charge.uid)
        ]

    def _minor(self, card: Card) -> int:
        """Return the minor that a failed card has now."""
        node, kind, name = card
        cards = self._cluster.node_cache.devices[node].inventory.cards
        return next(each.minor for each in cards if (each.type, each.id) == (kind, name))

    async def _evict(self, charge: Charge, card: Card) -> bool:
        """Ask a pod to leave; tell whether it will."""
        if not self._leads():
            return True
        namespace, name = keys.split(charge.pod)
        device = f"{card[1]} {self._minor(card)} of node {card[0]}"
        self._again[charge.uid] = self._cluster.clock() + AGAIN
        try:
            await self._pods.evict_pod(namespace, name, charge.uid)
        except CallError as error:
            if error.status not in _GONE:
                log.warning("pod on a failed card not evicted", pod=charge.pod, error=str(error), again_in=AGAIN)
            return False
        counters.EVICTIONS.inc()
        log.warning("pod on a failed card evicted", pod=charge.pod, device=device)
        self._told(charge, device)
        return True
