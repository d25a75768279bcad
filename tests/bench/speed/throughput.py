"""kube-scheduler and Berth on the same cluster: `python -m tests.bench.speed.throughput`.

NODES, PODS, REPEAT and START (seconds from a pod's bind to its start) are environment variables. PROFILE names a file
for a cProfile of Berth's operator. With PROFILE, the operator's figures mean nothing. The rules are in `race`. The
order alternates between repetitions.
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import figures
from tests.bench.cluster import contestants, track
from tests.bench.cluster.race import START_SECONDS, Race, Run
from tests.bench.cluster.track import Opener, Track


def main(opener: Opener = track.opened) -> None:
    """Run the benchmark."""
    nodes, pods = figures.number("NODES", 1000), figures.number("PODS", 4000)
    repeat, start = figures.number("REPEAT", 1), figures.number("START", START_SECONDS)
    profile = Path(os.environ["PROFILE"]).absolute() if os.environ.get("PROFILE") else None
    with opener(nodes) as opened:
        measured = measure(opened, pods=pods, repeat=repeat, start=start, profile=profile)
    run = {"nodes": nodes, "pods": pods, "repeat": repeat, "start_s": start}
    figures.result({"bench": "throughput", **run, **measured})


def measure(
    track: Track, *, pods: int, repeat: int, start: int = START_SECONDS, profile: Path | None = None
) -> dict[str, Any]:
    """Run both schedulers `repeat` times each; return the medians."""
    race, ours = Race(track, pods=pods, start=start), contestants.ours(track.arena, track.folder)
    order = [contestants.kube_scheduler(track.arena, track.folder), ours.profiled(profile) if profile else ours]
    runs: dict[str, list[Run]] = {each.name: [] for each in order}
    for _ in range(repeat):
        for contestant in order:
            track.settle(ours)
            run = race.run(contestant)
            runs[contestant.name].append(run)
            _print_run(contestant.name, run)
        order.reverse()
    medians = {name: _median(each) for name, each in runs.items()}
    rates = {name: each["pods_per_s"] for name, each in medians.items()}
    return {"ratio": round(rates[contestants.OURS] / rates[contestants.KUBE_SCHEDULER], 2), **medians}


def _print_run(name: str, run: Run) -> None:
    line = " ".join(f"{what}={value:.2f}" for what, value in run.figures().items())
    sent = ", ".join(f"{count} {what}" for what, count in run.requests.most_common())
    figures.say(f"{name}: {line}")
    figures.say(f"  {run.bound} binds in {run.bind_seconds:.2f} s, {run.events} Events in {run.event_seconds:.2f} s")
    figures.say(f"  requests: {sent}")


def _median(runs: Sequence[Run]) -> dict[str, float]:
    every = [run.figures() for run in runs]
    return {name: round(statistics.median(each[name] for each in every), 2) for name in every[0]}


if __name__ == "__main__":
    main()
