"""How much memory the operator uses: `python -m tests.bench.resources.memory`.

NODES and PODS are environment variables. Pods hold all cards but one. The operator starts, brings all Nodes and Devices
up to date, and is then measured. `peak_mb` is its highest resident memory.
"""

from typing import Final

from tests.bench import figures
from tests.bench.cluster import contestants, crowd, track, usage
from tests.bench.cluster.track import Track

MIB: Final = 2**20


def main() -> None:
    """Run the benchmark."""
    nodes, pods = figures.number("NODES", 5000), figures.number("PODS", 40000)
    with track.opened(nodes) as opened:
        measured = measure(opened, pods=pods)
    figures.result({"bench": "memory", **measured, "nodes": nodes, "pods": pods})


def measure(track: Track, *, pods: int) -> dict[str, int]:
    """Return the memory of an operator that has nothing left to write."""
    crowd.fill(track, crowd.holders(track.arena, crowd.cards(track)[:-1], pods))
    with track.settled(contestants.ours(track.arena, track.folder)) as operator:
        resident, peak = usage.resident_bytes(operator.pid), usage.peak_bytes(operator.pid)
    return {"rss_mb": round(resident / MIB), "peak_mb": round(peak / MIB)}


if __name__ == "__main__":
    main()
