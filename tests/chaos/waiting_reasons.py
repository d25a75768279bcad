"""Check that the message of a waiting pod is true. Each number of nodes is compared with a separate recomputation.

The message has kube-scheduler's form: `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.` If a
node has several reasons, the order of filters decides which is shown. So a number may be less than the number of nodes
for which the reason holds.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tests.chaos.fitting import CARDS, Request, Room

MESSAGE: Final = re.compile(r"0/(?P<nodes>\d+) nodes are available: (?P<reasons>.*?)\.(?: \D.*| \d+ node.*)?$")
REASON: Final = re.compile(r"(?P<count>\d+) (?P<text>(?:[^,(]|\([^)]*\))+)")

Holds = Callable[[Room, Request], bool]
STATIC: Final[Mapping[str, Holds]] = {
    "node(s) were unschedulable": lambda room, request: room.is_cordoned(request),
    "node(s) were not ready": lambda room, _: not room.is_ready,
    "node(s) had untolerated taint": lambda room, request: room.repels(request),
    "node(s) didn't match Pod's node affinity/selector": lambda room, request: not room.matches(request),
    "node(s) have no Device": lambda room, _: not room.has_device,
    "node(s) have a Device that is not ready": lambda room, _: not room.is_heard,
    "node(s) have too few healthy GPUs": lambda room, request: room.of_model(request.model) < max(1, request.cards),
}
AMOUNTS: Final[Mapping[str, Holds]] = {
    "Insufficient cpu": lambda room, request: room.lacks(request, "cpu"),
    "Insufficient memory": lambda room, request: room.lacks(request, "memory"),
    "Insufficient nvidia.com/gpu": lambda room, request: room.lacks(request, CARDS),
    "Too many pods": lambda room, request: room.lacks(request, "pods"),
    "node(s) have too few free GPUs": lambda room, request: room.lacks_cards(request),
}
"""Reasons that may also hold because of what a node keeps for other pods."""


def untrue(message: str, request: Request, rooms: Mapping[str, Room], kept: Collection[str]) -> str:
    """Return what is not true about a message, empty if nothing is; nodes in `kept` keep something for other pods."""
    if not message:
        return "no message is shown"
    match = MESSAGE.search(message)
    if match is None or not request.is_simple:
        return ""
    if int(match["nodes"]) != len(rooms):
        return f"there are {len(rooms)} nodes"
    counts = [(int(each["count"]), each["text"].strip()) for each in REASON.finditer(match["reasons"])]
    for count, text in counts:
        holds = _holding(text, request, list(rooms.values()), kept)
        if holds is not None and holds < count:
            return f"{text!r} holds for {holds} nodes"
    counted = sum(count for count, _ in counts)
    return f"{counted} nodes are counted" if 0 < counted < len(rooms) else ""


def _holding(text: str, request: Request, rooms: Sequence[Room], kept: Collection[str]) -> int | None:
    """Return for how many nodes a reason holds; None for one that is not checked."""
    for start, holds in STATIC.items():
        if text.startswith(start):
            return sum(holds(room, request) for room in rooms)
    for start, holds in AMOUNTS.items():
        if text.startswith(start):
            return sum(holds(room, request) or room.name in kept for room in rooms)
    return None
