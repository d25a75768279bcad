"""How soon a new operator binds its first pod: `python -m tests.bench.speed.restart`.

NODES, PODS and REPEAT are environment variables. Pods hold all cards but one, and one more pod waits. The clock runs
from the start of the process until a separate watch sees the bind. It includes the interpreter, imports, the election
for a Lease that the previous process released, the pause after a takeover, and the first lists. All durations are the
operator's defaults. The bind must be correct: the pod gets the one free card, and no card is held twice.
"""

import asyncio
import statistics
import time
from typing import Final

from devcluster import waiting
from tests.bench import figures
from tests.bench.cluster import contestants, crowd, track
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.track import Track
from tests.bench.cluster.watcher import Watcher

BOUND_SECONDS: Final = 60.0
POLL: Final = 0.01


def main() -> None:
    """Run the benchmark."""
    nodes, pods = figures.number("NODES", 1000), figures.number("PODS", 8000)
    repeat = figures.number("REPEAT", 5)
    with track.opened(nodes) as opened:
        measured = measure(opened, pods=pods, repeat=repeat)
    figures.result({"bench": "restart", **measured, "nodes": nodes, "pods": pods, "repeat": repeat})


def measure(track: Track, *, pods: int, repeat: int) -> dict[str, float]:
    """Start an operator several times; return the median and the maximum of the seconds."""
    *held, free = crowd.cards(track)
    crowd.fill(track, crowd.holders(track.arena, held, pods))
    ours = contestants.ours(track.arena, track.folder, timing={})
    track.settle(ours)
    took = [_start(track, ours, f"first-{number}", free=free) for number in range(repeat)]
    return {"seconds": round(statistics.median(took), 2), "slowest": round(max(took), 2)}


def _start(track: Track, ours: Contestant, name: str, *, free: crowd.Card) -> float:
    """Return the seconds from the start of an operator to its first bind."""
    arena = track.arena
    arena.create([arena.pod(name, requests={"cpu": "1", crowd.GPU: "1"}, limits={crowd.GPU: "1"})])
    # The check of the previous start read all pods; that load must not overlap this start.
    time.sleep(track.calm)
    with Watcher(arena.cluster, arena.namespace) as watcher:
        began = time.monotonic()
        process = ours.start()
        waiting.until(lambda: name in watcher.bound, deadline=BOUND_SECONDS, what=f"{name} to be bound", poll=POLL)
        watcher.check()
        took = watcher.bound[name] - began
    process.stop()
    _check(track, name, free)
    arena.delete("pods", name, grace_seconds=0)
    figures.say(f"bound after {took:.2f} s")
    return took


def _check(track: Track, name: str, free: crowd.Card) -> None:
    pod = track.arena.get("pods", name)
    if set(crowd.taken([pod])) != {(free.node, free.minor)}:
        raise AssertionError(f"{name} was bound to {pod['spec']['nodeName']}, {pod['metadata']['annotations']}")
    held = crowd.taken(asyncio.run(track.read_all(track.pods)))
    over = {place: percent for place, percent in held.items() if percent > crowd.WHOLE}
    if over:
        raise AssertionError(f"cards held twice: {over}")


if __name__ == "__main__":
    main()
