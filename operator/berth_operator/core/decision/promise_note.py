"""The sentence about promised places in the message of an AdmissionCheck.

    places on node-a (2 pods), node-b
    places for driver on node-a; for worker on node-b (8 pods), node-c

The next leader reads the nodes from this sentence, so that the pods keep them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

MAX_NODES: Final = 256
"""Nodes that are named, of all pod sets: some 16 KiB of the 32 KiB that Kueue accepts. Other places are searched."""
_MOST: Final = 10_000
"""Pods on one node, whatever a message says."""
_NODE: Final = r"[a-z0-9.-]{1,253}(?: \(\d{1,6} pods\))?"
_LIST: Final = re.compile(rf"(?:places|;) (?:for (?P<set>[a-z0-9-]{{1,63}}) )?on (?P<nodes>{_NODE}(?:, {_NODE})*)")
_ITEM: Final = re.compile(r"(?P<node>[a-z0-9.-]+)(?: \((?P<pods>\d+) pods\))?")


def note(places: Mapping[str, Iterable[str]]) -> str:
    """Return the sentence about places: pod set -> the node of each of its pods."""
    texts, left = [], MAX_NODES
    for name, nodes in places.items():
        counts = Counter(sorted(nodes))
        named = [_of_node(node, pods) for node, pods in islice(counts.items(), left)]
        left -= len(named)
        if counts:
            where = f"on {', '.join(named)}" if named else "elsewhere"
            more = f" and {len(counts) - len(named)} more" if 0 < len(named) < len(counts) else ""
            texts.append(f"{f'for {name} ' if len(places) > 1 else ''}{where}{more}")
    return f"places {'; '.join(texts)}" if texts else ""


def _of_node(node: str, pods: int) -> str:
    return f"{node} ({pods} pods)" if pods > 1 else node


def recorded(message: str, pod_sets: Iterable[str]) -> dict[str, list[str]]:
    """Return pod set -> the nodes that a message promises to its pods, one for each pod; for unknown sets nothing."""
    known = list(pod_sets)
    nodes: dict[str, list[str]] = {name: [] for name in known}
    for match in _LIST.finditer(message):
        name = match["set"] or (known[0] if len(known) == 1 else "")
        if name in nodes:
            for item in _ITEM.finditer(match["nodes"]):
                nodes[name] += [item["node"]] * min(int(item["pods"] or 1), _MOST)
    return nodes
