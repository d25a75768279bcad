"""The link matrix: how cards are connected with each other. Pure functions.

Cards of one hive are connected by XGMI, directly or through other cards of the hive. All other pairs have a path over
PCIe, which is named as NVML names it.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from berth_agent.vendors.amd.cards import Card
from berth_api.device import Link

XGMI: Final = "XGMI"
SAME_PACKAGE: Final = 2
"""Links between partitions of one card, which are in one package: more than the one link of two cards."""
MAX_LINKS: Final = 64
"""Of a Device; the best ones stay."""
MAX_COUNT: Final = 64


def links(card: Card, cards: Sequence[Card]) -> list[Link]:
    """Return the row of one card."""
    row = [_link(card, other) for other in cards if other is not card]
    if len(row) > MAX_LINKS:
        row = sorted(row, key=lambda link: (-link.count, link.minor))[:MAX_LINKS]
    return row


def _link(card: Card, other: Card) -> Link:
    if other.folder == card.folder:
        return Link(minor=other.minor, type=XGMI, count=SAME_PACKAGE, peer_to_peer=True)
    peer = card.peers.get(other.address)
    if peer is not None and card.hive and card.hive == other.hive:
        # The links of a way through other cards are those of its first part, so it counts as one.
        count = min(max(peer.links, 1), MAX_COUNT) if peer.hops <= 1 else 1
        return Link(minor=other.minor, type=XGMI, count=count, peer_to_peer=True)
    return Link(minor=other.minor, type=_path(card, other))


def _path(card: Card, other: Card) -> str:
    """Return the type of the path over PCIe."""
    if not card.ports or card.ports[:1] != other.ports[:1]:
        node = card.topology.node_id
        return "SameNUMANode" if node >= 0 and node == other.topology.node_id else "System"
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(card.ports, other.ports, strict=False))
    shared = len(list(pairs))
    if shared == 1:
        return "HostBridge"
    if shared == len(card.ports) == len(other.ports):
        return "SameBoard"
    # Only the downstream ports of one switch differ.
    return "SingleSwitch" if shared + 1 == len(card.ports) == len(other.ports) else "MultiSwitch"
