"""The reasons why a filter rejects rows, each with its rows.

For a message, the rows of each reason are counted. For single nodes, the reasons of each row are joined.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from berth_operator.core.fleet.nodes.cards import Mask

Reasons = Iterator[tuple[str, Mask]]


def count_reasons(reasons: Reasons) -> Counter[str]:
    """Return the number of rows of each reason that has any."""
    counts: Counter[str] = Counter()
    for reason, rows in reasons:
        counts[reason] += int(rows.sum())
    return +counts


def join_reasons(reasons: Reasons) -> Reasons:
    """Yield each combination of reasons that some row has, joined by commas, with its rows; no row is yielded twice."""
    separate = list(reasons)
    if len(separate) == 1:
        yield from separate
        return
    masks = np.stack([rows for _, rows in separate])
    for combination in np.unique(masks[:, masks.any(axis=0)], axis=1).T:
        text = ", ".join(reason for (reason, _), is_part in zip(separate, combination, strict=True) if is_part)
        yield text, (masks == combination[:, np.newaxis]).all(axis=0)
