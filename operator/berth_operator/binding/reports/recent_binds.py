"""Why recently bound pods are on their nodes: the scores of the chosen node and of the runners-up.

Decisions are recorded nowhere else. So the scores of older binds, and of binds by another leader, are unknown.
"""

from typing import Final

from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.ranking import Ranking

MAX_BINDS: Final = 1000
"""Binds whose rankings are kept. Each takes about 1 KiB."""


class RecentBinds:
    """The rankings of the last binds."""

    def __init__(self) -> None:
        self._rankings: dict[str, Ranking] = {}
        """UID of the pod -> ranking, the oldest first."""

    def keep(self, placement: Placement) -> None:
        """Keep the ranking of a placement, and drop the oldest if there are too many."""
        self._rankings[placement.pod.uid] = placement.ranking
        if len(self._rankings) > MAX_BINDS:
            del self._rankings[next(iter(self._rankings))]

    def of(self, uid: str) -> Ranking | None:
        """Return the ranking of a pod's bind; None if it is not kept."""
        return self._rankings.get(uid)
