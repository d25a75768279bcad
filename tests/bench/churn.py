"""What waiting costs while the cluster changes: `python -m tests.bench.churn`.

WAITING, SECONDS and JOINING are read from the environment. kube-scheduler and ours run one after the other on one API
server. All cards are held, and one node is tainted for good, as control planes are. Two stories:

* storm: WAITING pods of 200 classes wait for a card, and one node's taint comes or goes four times a second;
* join: half as many pods wait, and nodes of eight cards join, one every two seconds, each with a taint that its pods
  do not tolerate until it is ready, a second later.

Events and status writes are counted by the audit log until 15 s after the end. Then each condition has to state the
reason of the present, which is that of a pod of the same class that is created at the end; `stale_s` says how long it
took until all did, and is `null` where some did not within a minute.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from devcluster import waiting
from tests.bench import contestants, crowd, figures, track, usage
from tests.bench.contestants import Contestant
from tests.bench.track import Opener, Track
from tests.processes import Process

CHANGES: Final = 4
"""A second."""
CLASSES: Final = 200
TOLD_SECONDS: Final = 300.0
STALE_SECONDS: Final = 60.0
COUNTED_SECONDS: Final = 15.0
MIB: Final = 2**20
TAINT: Final = {"key": "bench.berth.dev/maintenance", "effect": "NoSchedule"}

Raw = dict[str, Any]


def main(opener: Opener = track.opened) -> None:
    """Run the benchmark."""
    waiters, seconds = figures.number("WAITING", 600), figures.number("SECONDS", 40)
    joining = figures.number("JOINING", 15)
    with opener(figures.number("NODES", 10)) as opened:
        found = measure(opened, waiters=waiters, seconds=seconds, joining=joining)
    figures.result({"bench": "churn", "waiting": waiters, **found})


def measure(track: Track, *, waiters: int, seconds: int, joining: int) -> dict[str, Any]:
    """Let both live through the stories; return what it cost them."""
    arena = track.arena
    names = [node["metadata"]["name"] for node in arena.list("nodes")]
    for who in ("ours", "kube"):
        _taint(track, names[0], on=True)
        del who
    crowd.fill(track, crowd.holders(arena, fleet := crowd.cards(track), len(fleet)))
    found = {}
    for who in (contestants.kube_scheduler(arena, track.folder), contestants.ours(arena, track.folder)):
        figures.say(who.name)
        found[who.name] = _run(track, who, names, waiters=waiters, seconds=seconds, joining=joining)
    return found


def _run(
    track: Track, who: Contestant, names: Sequence[str], *, waiters: int, seconds: int, joining: int
) -> dict[str, Any]:
    del joining
    process = who.start()
    try:
        return _storm(track, who, process, names[-1], waiters=waiters, seconds=seconds)
    finally:
        process.stop()
