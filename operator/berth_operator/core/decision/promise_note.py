"""The sentence about promised places in the message of an AdmissionCheck, for people.

    places on node-a (2 pods), node-b
    places for driver on node-a; for worker on node-b (8 pods), node-c

The next leader reads the places from the record of the LeaderLease.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

KEPT: Final = "{} place(s) with such devices are kept for pods that do not exist yet."
"""For the message of a pod that waits."""
MAX_NODES: Final = 256
"""Nodes that are named, of all pod sets: some 16 KiB of the 32 KiB that Kueue accepts."""


def note(places: Mapping[str, Iterable[str]]) -> str:
    """Return the sentence about places: pod set -> the node of each of its pods."""
    texts, left = [], MAX_NODES
    for name, nodes in places.items():
        counts = Counter(sorted(nodes))
        named = [f"{node} ({pods} pods)" if pods > 1 else node for node, pods in islice(counts.items(), left)]
        left -= len(named)
        if counts:
            where = f"on {', '.join(named)}" if named else "elsewhere"
            more = f" and {len(counts) - len(named)} more" if 0 < len(named) < len(counts) else ""
            texts.append(f"{f'for {name} ' if len(places) > 1 else ''}{where}{more}")
    return f"places {'; '.join(texts)}" if texts else ""
