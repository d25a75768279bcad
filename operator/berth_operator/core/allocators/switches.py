"""Sets of PCIe switches that can serve several parts together, cards of every part under each switch.

Whether a row has such a set depends on nothing but how many cards for each part are under its switches. So it is found
out once for each combination of such numbers, of which a fleet has few, however many rows it has.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.cards import Column, Mask

Switch = tuple[int, ...]
"""For each part how many cards under the switch can serve it; no more than the part wants."""
Numbers = npt.NDArray[np.int32]

UNKNOWN_SWITCH: Final = 0
"""The switch of a card of which nobody tells its own."""
MAX_INT64: Final = 2**63 - 1


def exist(counts: Switch, switches: Sequence[Numbers], most: int) -> Mask:
    """Tell for each row whether so many of its switches at most have as many cards as wanted, at least one under each.

    `switches` gives for each part the switch of each card that can serve it, and UNTOLD for all others: shape (rows,
    slots).
    """
    kinds = np.sort(_combined_counts(counts, switches), axis=1)
    _, first, which = np.unique(_line_numbers(kinds), return_index=True, return_inverse=True)
    answers = [_suffice(tuple(each[each > 0].tolist()), counts, most) for each in kinds[first]]
    return np.array(answers, np.bool_)[which]


def _combined_counts(counts: Switch, switches: Sequence[Numbers]) -> Column:
    """Return the kinds of each row's switches, in any order: the numbers in one, and 0 of those that lack some part."""
    rows, slots = switches[0].shape
    span = 1 + max(int(each.max(initial=0)) for each in switches)
    own = np.arange(rows)[:, np.newaxis] * span
    keys = [(own + each)[each != UNKNOWN_SWITCH] for each in switches]
    known, numbers = np.unique(keys[0], return_counts=True)
    kinds = np.minimum(numbers, counts[0])
    for others, count in zip(keys[1:], counts[1:], strict=True):
        others.sort()
        numbers = np.searchsorted(others, known, "right") - np.searchsorted(others, known)
        kinds = np.where(numbers, kinds * (count + 1) + np.minimum(numbers, count), 0)
    row = known // span
    table = np.zeros((rows, slots), np.int64)
    table[row, np.arange(len(row)) - np.searchsorted(row, row)] = kinds
    return table


def _line_numbers(lines: Column) -> Column:
    """Return a number for each line, the same for equal ones."""
    most = 1 + int(lines.max(initial=0))
    numbers, reached = np.zeros(len(lines), np.int64), 1
    for column in lines.T:
        if reached * most > MAX_INT64:
            numbers = np.unique(numbers, return_inverse=True)[1]
            reached = len(lines)
        numbers, reached = numbers * most + column, reached * most
    return numbers


@lru_cache(maxsize=8192)
def _suffice(kinds: tuple[int, ...], counts: Switch, most: int) -> bool:
    """Return whether so many of these switches at most will do; a kind is the numbers of a switch in one."""
    sizes = tuple(count + 1 for count in counts)
    chosen = fewest([tuple(map(int, np.unravel_index(kind, sizes))) for kind in kinds], counts)
    return chosen is not None and len(chosen) <= most


def fewest(switches: Sequence[Switch], counts: Switch) -> tuple[int, ...] | None:
    """Return the places of the fewest switches that have as many as wanted; None if even all of them have not.

    Among as many those that come first are taken.
    """
    best: dict[Switch, tuple[int, ...]] = {(0,) * len(counts): ()}
    for place, switch in enumerate(switches):
        for had, chosen in tuple(best.items()):
            have = tuple(min(a + b, enough) for a, b, enough in zip(had, switch, counts, strict=True))
            known = best.get(have)
            if known is None or len(known) > len(chosen) + 1:
                best[have] = (*chosen, place)
    return best.get(counts)
