"""The pod tolerates every NoSchedule and NoExecute taint of the node."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from berth_operator.core.filters import cordon
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest, Taint
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "taints"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_TAINTS | Change.NODE_ADDED


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass rows without a taint that the pod does not tolerate."""
    mask = fleet.present
    for _, rows in _untolerated(fleet, request):
        mask = mask & ~rows
    return mask


def explain(fleet: Fleet, request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count the rows by the first such taint."""
    counts: Counter[str] = Counter()
    left = rejected.copy()
    for taint, rows in _untolerated(fleet, request):
        counts[f"untolerated taint {taint}"] += int((left & rows).sum())
        left &= ~rows
    return +counts


def _untolerated(fleet: Fleet, request: PodRequest) -> Iterator[tuple[Taint, Mask]]:
    for taint, rows in fleet.taints().items():
        # The cordon's own taint is judged and told by its filter.
        if taint.effect != "PreferNoSchedule" and taint != cordon.TAINT and not request.tolerates(taint):
            yield taint, rows
