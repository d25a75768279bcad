"""Sets of PCIe switches that can serve several parts together, with cards for every part under each switch.

A row may or may not have such a set. The answer depends only on the number of cards for each part under each switch of
the row. A fleet has few different combinations of these numbers, so the answer is computed once for each combination.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.values.caching import sized_cache
from berth_operator.core.fleet.nodes.cards import Column, Mask

Switch = tuple[int, ...]
"""For each part, the number of cards under the switch that can serve it, up to the number that the part requests."""
Numbers = npt.NDArray[np.int32]

UNKNOWN_SWITCH: Final = 0
"""The switch of a card whose switch is not known."""
MAX_INT64: Final = 2**63 - 1
MAX_STEPS: Final = 2**14
"""Maximum number of sets of switches that are extended to find the smallest set; this takes about 40 ms. A machine with
four switches and 8 cards of each of two types takes some hundred."""


def exist(counts: Switch, switches: Sequence[Numbers], max_switches: int) -> Mask:
    """Return for each row whether at most `max_switches` switches have `counts` cards in all, and some under each.

    `switches` has for each part the switch of each card that can serve it, and UNKNOWN_SWITCH for all other cards:
    shape (rows, slots).
    """
    combined = np.sort(_combined_counts(counts, switches), axis=1)
    _, first, which = np.unique(_line_numbers(combined), return_index=True, return_inverse=True)
    answers = [_suffice(tuple(line[line > 0].tolist()), counts, max_switches) for line in combined[first]]
    return np.array(answers, np.bool_)[which]


def _combined_counts(counts: Switch, switches: Sequence[Numbers]) -> Column:
    """Return each row's switches, in any order, each as one number that combines its cards for each part.

    A switch without cards for some part is 0.
    """
    rows, slots = switches[0].shape
    span = 1 + max(int(numbers.max(initial=0)) for numbers in switches)
    own = np.arange(rows)[:, np.newaxis] * span
    keys = [(own + numbers)[numbers != UNKNOWN_SWITCH] for numbers in switches]
    own_keys, numbers = np.unique(keys[0], return_counts=True)
    combined = np.minimum(numbers, counts[0])
    for others, count in zip(keys[1:], counts[1:], strict=True):
        others.sort()
        numbers = np.searchsorted(others, own_keys, "right") - np.searchsorted(others, own_keys)
        combined = np.where(numbers, combined * (count + 1) + np.minimum(numbers, count), 0)
    row = own_keys // span
    table = np.zeros((rows, slots), np.int64)
    table[row, np.arange(len(row)) - np.searchsorted(row, row)] = combined
    return table


def _line_numbers(lines: Column) -> Column:
    """Return a number for each line; equal lines have equal numbers."""
    base = 1 + int(lines.max(initial=0))
    numbers, reached = np.zeros(len(lines), np.int64), 1
    for column in lines.T:
        if reached * base > MAX_INT64:
            numbers = np.unique(numbers, return_inverse=True)[1]
            reached = len(lines)
        numbers, reached = numbers * base + column, reached * base
    return numbers


@sized_cache(2**23)
def _suffice(combined: tuple[int, ...], counts: Switch, max_switches: int) -> bool:
    """Return whether at most `max_switches` of these switches suffice; each is one number from `_combined_counts`."""
    sizes = tuple(count + 1 for count in counts)
    chosen = fewest([tuple(map(int, np.unravel_index(number, sizes))) for number in combined], counts)
    return chosen is not None and len(chosen) <= max_switches


def fewest(switches: Sequence[Switch], counts: Switch) -> tuple[int, ...] | None:
    """Return the indices of the smallest set of switches with `counts` cards in all; None if all switches have fewer.

    Among sets of equal size, the set with the first switches is taken. With very many switches, only the sets with the
    most cards are extended, so the result may be larger than necessary, or None.
    """
    best: dict[Switch, tuple[int, ...]] = {(0,) * len(counts): ()}
    width = MAX_STEPS // max(1, len(switches))
    for place, switch in enumerate(switches):
        if len(best) > width:
            best = dict(sorted(best.items(), key=lambda item: (-sum(item[0]), len(item[1]), item[1]))[:width])
        for had, chosen in tuple(best.items()):
            have = tuple(min(a + b, enough) for a, b, enough in zip(had, switch, counts, strict=True))
            known = best.get(have)
            if known is None or len(known) > len(chosen) + 1:
                best[have] = (*chosen, place)
    return best.get(counts)
