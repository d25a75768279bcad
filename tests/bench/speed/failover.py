"""How soon a standby binds a pod after its leader has ended or was killed: `python -m tests.bench.speed.failover`.

NODES, PODS and REPEAT are environment variables. Two operators run, and pods hold all cards but one. The leader ends by
SIGTERM or SIGKILL. A pod for the last card is created as soon as the leader has let go. The clock runs from the signal
until a separate watch sees that the pod is bound. So the time includes the election, the pause after a takeover, and
the lists. It is measured with the default durations of the election and with the faster ones in docs/operations.md.
"""

import os
import signal
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from devcluster import waiting
from tests.bench import figures
from tests.bench.cluster import contestants, crowd, track
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.track import Track
from tests.bench.cluster.watcher import Watcher
from tests.programs.processes import Process

TIMINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "default": {},
    "fast": {"lease_duration": 7, "renew_deadline": 5, "retry_period": 1},
}
SIGNALS: Final = {"handover": signal.SIGTERM, "failover": signal.SIGKILL}
BOUND_SECONDS: Final = 120.0
POLL: Final = 0.01
STANDING_BY: Final = 6.0
"""Seconds after which a standby has loaded its program and read its lists."""


def main() -> None:
    """Run the benchmark."""
    nodes, pods = figures.number("NODES", 100), figures.number("PODS", 1000)
    repeat = figures.number("REPEAT", 5)
    with track.opened(nodes) as opened:
        measured = measure(opened, pods=pods, repeat=repeat)
    figures.result({"bench": "failover", **measured, "nodes": nodes, "pods": pods, "repeat": repeat})


def measure(track: Track, *, pods: int, repeat: int) -> dict[str, dict[str, float]]:
    """End leaders several times in each way; return the median and the maximum of the seconds."""
    *held, _ = crowd.cards(track)
    crowd.fill(track, crowd.holders(track.arena, held, pods))
    track.settle(contestants.ours(track.arena, track.folder, timing={}))
    measured = {}
    for timing, flags in TIMINGS.items():
        took = _rounds(
            track, contestants.ours(track.arena, track.folder, timing=flags, account=f"bench-{timing}"), timing, repeat
        )
        for what, seconds in took.items():
            figures.say(f"{timing} {what}: {' '.join(f'{each:.2f}' for each in seconds)} s")
            measured[f"{timing}_{what}"] = {
                "seconds": round(statistics.median(seconds), 2),
                "slowest": round(max(seconds), 2),
            }
    return measured


def _rounds(track: Track, ours: Contestant, timing: str, repeat: int) -> dict[str, list[float]]:
    names = iter(range(1 + 2 * repeat))
    leader = _started(ours, next(names))
    leader.logged('"event": "leading"', deadline=BOUND_SECONDS)
    took: dict[str, list[float]] = {what: [] for what in SIGNALS}
    for number in range(repeat):
        for what, ending in SIGNALS.items():
            standby = _started(ours, next(names))
            time.sleep(STANDING_BY)
            took[what].append(_succeeded(track, leader, ending, f"{timing}-{what}-{number}"))
            leader.stop() if ending == signal.SIGTERM else leader.kill()
            leader = standby
    leader.stop()
    return took


def _started(ours: Contestant, number: int) -> Process:
    return replace(ours, name=f"{ours.name}-{number}").start()


def _succeeded(track: Track, leader: Process, ending: signal.Signals, name: str) -> float:
    """End a leader; return the seconds until the standby has bound a pod."""
    arena = track.arena
    with Watcher(arena.cluster, arena.namespace) as watcher:
        holder = _holder(track)
        began = time.monotonic()
        os.kill(leader.pid, ending)
        if ending == signal.SIGTERM:
            # Until then the leader may still bind it.
            waiting.until(lambda: _holder(track) != holder, deadline=BOUND_SECONDS, what="a release", poll=POLL)
        arena.create([arena.pod(name, requests={"cpu": "1", crowd.GPU: "1"}, limits={crowd.GPU: "1"})])
        waiting.until(lambda: name in watcher.bound, deadline=BOUND_SECONDS, what=f"{name} to be bound", poll=POLL)
        watcher.check()
    arena.delete("pods", name, grace_seconds=0)
    return watcher.bound[name] - began


def _holder(track: Track) -> str:
    lease = track.arena.get("leaderleases", track.arena.lease_name)
    return str(lease["spec"].get("holderIdentity") or "")


if __name__ == "__main__":
    main()
