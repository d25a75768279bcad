"""How soon freed capacity is used: `python -m tests.bench.speed.wake`.

NODES, WAITING and SAMPLES are environment variables. Pods hold all cards, and `WAITING` pods of several hundred classes
fit nowhere. For each sample, a pod is created that requests what one bound pod holds, and that reports that it has to
wait. The bound pod is deleted. A separate watch sees first its end, and then the bind of the new pod. All other waiting
pods are older, so every pod that wakes with the new pod is decided before it.

Then eight kinds of events follow (`wake_events`). CLASSES pods wait for each kind, EVENTS of them are measured, and
kube-scheduler runs on the same cluster for comparison. EVENTS=0 leaves them out. KINDS names some kinds, separated by
spaces.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from devcluster import Arena, waiting
from tests.bench import figures
from tests.bench.cluster import contestants, crowd, track
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.track import Track
from tests.bench.cluster.watcher import Watcher
from tests.bench.speed import wake_events

REPORTED_SECONDS: Final = 60.0
BOUND_SECONDS: Final = 30.0
POLL: Final = 0.01


def main() -> None:
    """Run the benchmark."""
    nodes, waiters = figures.number("NODES", 1000), figures.number("WAITING", 1000)
    samples, kinds = figures.number("SAMPLES", 100), figures.chosen("KINDS", wake_events.SCENES)
    classes, count = figures.number("CLASSES", 200), figures.number("EVENTS", 50)
    with track.opened(nodes) as opened:
        ours = contestants.ours(opened.arena, opened.folder, timing={})
        measured = measure(opened, ours, waiters=waiters, samples=samples) if samples else {}
        events = compare(opened, ours, kinds, classes=classes, count=count)
    sizes = {"samples": samples, "nodes": nodes, "waiting": waiters}
    figures.result({"bench": "wake", **measured, **sizes, "events": events})


def compare(track: Track, ours: Contestant, kinds: Sequence[str], *, classes: int, count: int) -> dict[str, Any]:
    """Return the quantiles of both schedulers for each kind of event."""
    if not count:
        return {}
    asyncio.run(track.clear())
    both = [contestants.kube_scheduler(track.arena, track.folder), ours]
    track.settle(ours)
    return wake_events.measure(track, both, kinds, classes=classes, count=count)


def measure(track: Track, ours: Contestant, *, waiters: int, samples: int) -> dict[str, float]:
    """Take samples on a full fleet and return their quantiles."""
    arena = track.arena
    fleet = crowd.cards(track)
    holders = crowd.holders(arena, fleet, len(fleet))
    crowd.fill(track, holders)
    track.settle(ours)
    process = ours.start()
    crowd.wait_for_reasons(track, crowd.hopeless(arena, waiters))
    victims = [each["metadata"]["name"] for each in holders]
    with Watcher(arena.cluster, arena.namespace) as watcher:
        took = [_sample(arena, watcher, victims[number], f"next-{number}") for number in range(samples)]
    process.stop()
    return {f"p{percent}_ms": round(1000 * figures.quantile(took, percent / 100), 1) for percent in (50, 99)}


def _sample(arena: Arena, watcher: Watcher, victim: str, name: str) -> float:
    """Return the seconds from the end of a pod to the bind of the pod that waits for its card."""
    arena.create([arena.pod(name, requests={"cpu": "1", crowd.GPU: "1"}, limits={crowd.GPU: "1"})])
    waiting.until(
        lambda: any(crowd.reasons([arena.get("pods", name)])),
        deadline=REPORTED_SECONDS,
        what=f"{name} to report that it waits",
        poll=POLL,
    )
    arena.delete("pods", victim, grace_seconds=0)
    waiting.until(lambda: name in watcher.bound, deadline=BOUND_SECONDS, what=f"{name} to be bound", poll=POLL)
    watcher.check()
    return watcher.bound[name] - watcher.gone[victim]


if __name__ == "__main__":
    main()
