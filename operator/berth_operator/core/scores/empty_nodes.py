"""The value of empty nodes to pods with several cards, and the cost of a pod that delays a node's emptying.

Pods with several cards fit only where other pods have left. A node is empty once its last pod has ended, and the
(n+1)th pod delays this by about 1/(n+1) of a mean lifetime. So a pod costs the value of the empty node, divided by 1 +
the number of users of its cards. Full nodes cost little, and nearly empty nodes are left to drain.

An empty node is worth more if it fits more of the demand of large pods, if these pods have more cards, or if few other
nodes can take them. For example, few nodes can take pods that need nearly all cpu of the largest nodes. It is worth
much more if large pods will need nearly all of these nodes before the cluster is full.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU
from berth_api.request.model import ModelConstraint
from berth_api.resources import CPU
from berth_operator.core.fleet.arrays.column_cache import Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.fleet.pods.pod_mix import Typical

PRICE: Final = 5.0
"""Hundredths of a card that an empty node is worth for each card of the pods that it is kept for."""
MAX_SCARCITY: Final = 100.0
"""Upper limit of the scarcity of nodes for one kind of pods."""
PRESSED: Final = 0.7
"""The pressure from which nodes are worth more."""
BOOST: Final = 9.0
"""How many times more a node is worth at a pressure of 1, where large pods will need each of these nodes."""
STEPS: Final = 4
"""Scarcity is rounded to so many steps for each doubling, so that columns stay valid if a few nodes change."""

Amounts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Worth:
    """The value of each node if it is empty."""

    key: tuple[float, ...]
    """All that `values` depends on besides the row's node and inventory, and the typical mix."""
    values: Amounts
    """Row -> hundredths of a card."""

    def delay(self, fleet: Fleet, rows: Rows) -> Amounts:
        """Return for each row what one more pod costs."""
        users = pick(fleet.cards[GPU].users, rows).sum(axis=1)
        cost: Amounts = pick(self.values, rows) / (1.0 + users)
        return cost


def worth(fleet: Fleet) -> Worth:
    """Return the value of each node, if it is empty, to pods of the typical mix."""
    typical = fleet.pod_mix.typical

    def compute() -> Worth:
        if not typical.large:
            return Worth(key=(), values=np.zeros(len(fleet.names)))
        gpus = fleet.cards[GPU]
        # Model constraint -> the number of healthy cards of each row that it accepts.
        accepted: dict[ModelConstraint, npt.NDArray[np.int64]] = {}
        for model in {kind.model for kind in typical.large}:
            accepts = fleet.accepted_models(model)
            accepted[model] = (gpus.healthy & accepts[gpus.model] if len(accepts) else gpus.healthy).sum(axis=1)
        # Whether each node could take a pod of each large kind if it was empty: shape (rows, kinds).
        sizes, cpu = np.array([kind.cards for kind in typical.large]), np.array([kind.cpu for kind in typical.large])
        enough_cards = np.stack([accepted[kind.model] for kind in typical.large], axis=1) >= sizes
        hosts: Mask = enough_cards & (fleet.total(CPU)[:, np.newaxis] >= cpu) & fleet.present[:, np.newaxis]
        cards = (gpus.healthy.sum(axis=1) * fleet.present).astype(np.float64)
        scarcity = np.clip(cards.sum() / np.maximum(cards @ hosts, 1.0), 1.0, MAX_SCARCITY)
        pressed = np.clip((_pressure(typical, hosts, scarcity) - PRESSED) / (1.0 - PRESSED), 0.0, 1.0)
        # The fewer cards other pods find elsewhere, the less these nodes can be kept from them.
        scarcity *= 1.0 + BOOST * pressed * (1.0 - 1.0 / scarcity)
        rounded = 2.0 ** (np.rint(STEPS * np.log2(scarcity)) / STEPS)
        return Worth(key=tuple(rounded.tolist()), values=hosts @ (PRICE * typical.large_demand * sizes * rounded))

    return fleet.column_cache.of_nodes((__name__, typical), compute)


def _pressure(typical: Typical, hosts: Mask, scarcity: Amounts) -> Amounts:
    """Return, for each large kind, the demand of pods that fit only on its nodes, divided by these nodes' cards.

    The demand is that of pods which request all cards of the cluster.
    """
    demand = typical.large_share * typical.large_demand * hosts.any(axis=0)
    # Kind -> kinds: whether all nodes of the one are nodes of the other.
    within = hosts.T.astype(np.float64) @ ~hosts == 0
    pressure: Amounts = demand @ within * scarcity
    return pressure
