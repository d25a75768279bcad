"""Evict pods from cards that need a reset or a reboot, if `evictions_per_minute` is set.

While a pod holds the card, the card cannot be reset and its node cannot be rebooted. Pods are evicted, not deleted,
because an Eviction respects PodDisruptionBudgets. They are evicted one at a time and at a limited rate. So wrong
reports about many cards do little harm before an administrator notices. If pods return to an emptied card, the card is
emptied less and less often.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from berth_api.values import keys
from berth_api.values.backoff import ExponentialBackoff
from berth_client.errors import CallError
from berth_operator.binding.evictions.deletion import PodReader, unless_gone
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.values.charge import Charge
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 5.0
"""Seconds between two checks."""
PATIENCE: Final = 60.0
"""Seconds since a card's failure after which its pods are evicted, in case the report is corrected."""
AGAIN: Final = 60.0
"""Seconds until the eviction of a pod is retried after a PodDisruptionBudget or an error prevented it."""
ROUNDS: Final = 2
"""How often a card is emptied without a pause in between; pods that come to it again and again are not all evicted."""
LONGEST: Final = 1800.0
"""Seconds of the longest pause after that. The first pause is `AGAIN`."""

Card = tuple[str, str, str]
"""Node, type and id; the minor may change while the card has failed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PodEvictor(PodReader, Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod if it still has this UID."""


class Evictor:
    """Evicts pods for one term. `report` is called with each evicted pod's charge and its card."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        pods: PodEvictor,
        per_minute: float,
        report: Callable[[Charge, str], None],
        leads: Callable[[], bool],
    ) -> None:
        self._cluster, self._pods, self._report, self._leads = cluster, pods, report, leads
        self._per_minute = per_minute
        self._since: Mapping[Card, float] = {}
        """Failed card -> clock reading when the failure was first seen."""
        self._emptied: dict[Card, tuple[int, float]] = {}
        """Failed card -> how often it was emptied, and when its pods may be evicted again."""
        self._occupied: set[Card] = set()
        """Failed cards from which pods were evicted, and that were not emptied at the last check."""
        self._kept: set[str] = set()
        """UIDs of pods whose last eviction was refused, for example by a PodDisruptionBudget."""
        self._retry_at: dict[str, float] = {}
        """UID of a pod that was evicted, or could not be -> when to try again."""

    async def run(self) -> None:
        """Evict pods until cancelled; return at once if the rate is 0."""
        while self._per_minute:
            if (candidate := self._next()) is not None and await self._evict(*candidate):
                await asyncio.sleep(60 / self._per_minute)
            elif candidate is None:
                await asyncio.sleep(PERIOD)

    def _next(self) -> tuple[Charge, Card] | None:
        """Return the next pod to evict, and its card; None if there is none."""
        now, nodes = self._cluster.clock(), self._cluster.node_cache
        # The cards that need a reset or a reboot, as reported by agents that this leader has heard: a Device that it
        # finds at its start may be hours old, as its agent may have ended while none led.
        failed = {
            (name, *card)
            for name, record in nodes.devices.items()
            if record.lost and name in nodes.nodes and nodes.is_confirmed(name)
            for card in record.lost
        }
        self._since = {card: self._since.get(card, now) for card in failed}
        due = {card for card, since in self._since.items() if now - since >= PATIENCE}

        # Count how often failed cards were emptied: each time after `ROUNDS` their next pods stay for longer.
        self._emptied = {card: rounds for card, rounds in self._emptied.items() if card in due}
        for card in tuple(self._occupied):
            # Without the pods that may not be evicted: else the others would be evicted without end.
            if card in due and any(charge.uid not in self._kept for charge in self._holding(card)):
                continue
            self._occupied.discard(card)
            if card in due:
                rounds = self._emptied.get(card, (0, now))[0] + 1
                pauses = ExponentialBackoff(first=AGAIN, longest=LONGEST)
                self._emptied[card] = rounds, now + pauses.after(rounds - ROUNDS + 1)

        due = {card for card in due if self._emptied.get(card, (0, now))[1] <= now}
        holding = [(charge, card) for card in sorted(due) for charge in self._holding(card)]
        self._retry_at = {
            charge.uid: self._retry_at[charge.uid] for charge, _ in holding if charge.uid in self._retry_at
        }
        self._kept.intersection_update(charge.uid for charge, _ in holding)
        ready = [(charge, card) for charge, card in holding if self._retry_at.get(charge.uid, now) <= now]
        # Pods whose eviction always fails must not use the whole rate: those that were tried longest ago come first.
        return min(ready, key=lambda pair: self._retry_at.get(pair[0].uid, -math.inf), default=None)

    def _holding(self, card: Card) -> list[Charge]:
        """Return the charges of the pods that hold a card, by name or by ResourceClaim."""
        node, device_type, _ = card
        minor, fleet = self._minor(card), self._cluster.fleet
        return [
            charge
            for charge in fleet.on_node(node)
            if kubelet_allocation.is_pod(charge)
            if not fleet.is_leaving(charge) and not self._cluster.placements.is_assumed(charge.uid)
            if (device_type, minor) in ((grant.type, grant.minor) for grant in fleet.grants_held(charge))
        ]

    def _minor(self, card: Card) -> int:
        """Return the current minor of a failed card."""
        node, device_type, name = card
        cards = self._cluster.node_cache.devices[node].inventory.cards
        return next(info.minor for info in cards if (info.type, info.id) == (device_type, name))

    async def _evict(self, charge: Charge, card: Card) -> bool:
        """Evict a pod; return whether it was or may have been evicted, or we no longer lead."""
        if not self._leads():
            return True
        namespace, name = keys.split(charge.pod)
        device = f"{card[1]} {self._minor(card)} of node {card[0]}"
        self._retry_at[charge.uid] = self._cluster.clock() + AGAIN
        self._kept.discard(charge.uid)
        eviction = self._pods.evict_pod(namespace, name, charge.uid)
        try:
            if not await unless_gone(eviction, self._pods, namespace, name, charge.uid):
                return False
        except CallError as error:
            log.warning("pod on a failed card not evicted", pod=charge.pod, error=str(error), again_in=AGAIN)
            if error.is_refused:
                self._kept.add(charge.uid)
                return False
            # It may have been done, so it counts.
            self._occupied.add(card)
            return True
        self._occupied.add(card)
        counters.EVICTIONS.inc()
        log.warning("pod on a failed card evicted", pod=charge.pod, device=device)
        self._report(charge, device)
        return True
