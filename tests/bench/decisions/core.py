"""How fast the pure core decides: `python -m tests.bench.decisions.core`.

NODES, CLASSES, DECISIONS, SEED, OWNED (1: all pods are replicas) and METRICS are environment variables. With METRICS=1,
all cards are measured and the score `genius` is computed. Its weight changes no node, so that only its cost is
compared. With METRICS=10, the weight is 10. There is no cluster and no I/O. A decision is `decide` plus the charge that
shows it to the next decision. The fleet stays about 70 % full: after placements, older ones are released outside the
measured time. The first decision of each class is measured separately (`cold_p99_ms`), because it fills the caches of
the class.
"""

import itertools
import math
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from berth_api.names import GPU
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pods
from tests.bench import figures
from tests.bench.cluster import mix
from tests.objects import builders

GPUS: Final = 8
FULL: Final = 0.7
NO_EFFECT: Final = 1e-300
"""A weight whose product with any score is lost in the sum."""
HELD: Final = 0.02
"""Share of the cards in use; above it the oldest placement is released, so that the fleet stays equally full."""


@dataclass(slots=True)
class Stopwatch:
    """Durations of decisions, in milliseconds, and their outcomes."""

    took: list[float] = field(default_factory=list)
    failed: int = 0


def main() -> None:
    """Run the benchmark."""
    nodes, seed = figures.number("NODES", 1000), figures.number("SEED", 1)
    classes, decisions = figures.number("CLASSES", 600), figures.number("DECISIONS", 6000)
    templates = [pods.pending(each) for each in mix.pods(classes, seed, owned=bool(figures.number("OWNED", 0)))]
    rng = random.Random(seed)
    fleet, policy = build(nodes, templates, rng), Policy()
    if metrics := figures.number("METRICS", 0):
        policy = Policy(weights=(*policy.weights, ("genius", NO_EFFECT if metrics == 1 else float(metrics))))
        refresh(fleet, rng)
    figures.say(f"{nodes} nodes, {len(fleet.charges)} pods, {_used(fleet, nodes):.0%} of the cards taken")
    held: deque[str] = deque()
    cold = measure(fleet, policy, _named(templates, "cold"), held)
    warm = measure(fleet, policy, _named(rng.choices(templates, k=decisions), "warm"), held)
    figures.say(f"{warm.failed} of {len(warm.took)} fit nowhere, {_used(fleet, nodes):.0%} of the cards taken")
    figures.result(
        {
            "bench": "core",
            "nodes": nodes,
            "decisions_per_s": round(1000 * len(warm.took) / sum(warm.took)),
            "p50_ms": round(figures.quantile(warm.took, 0.5), 3),
            "p99_ms": round(figures.quantile(warm.took, 0.99), 3),
            "cold_p99_ms": round(figures.quantile(cold.took, 0.99), 3),
            "classes": classes,
            "metrics": metrics,
            "decisions": len(warm.took),
            "unschedulable": round(warm.failed / len(warm.took), 3),
        }
    )


def build(nodes: int, templates: Sequence[PendingPod], rng: random.Random) -> Fleet:
    """Return a fleet whose cards are charged up to `FULL`, by pods of the templates' applications."""
    fleet = Fleet()
    for template in templates:
        fleet.pod_mix.see(template.request)
    serial = itertools.count()
    for number in range(nodes):
        name = f"node-{number}"
        labels = {mix.HOST: name, mix.ZONE: mix.ZONES[number % len(mix.ZONES)], "pool": f"pool-{number % 10}"}
        builders.add(fleet, builders.node_info(name, labels=labels), builders.inventory(*builders.cards(GPUS)))
        for minor in range(GPUS):
            if rng.random() < FULL:
                fleet.charge(_holder(next(serial), name, minor, rng.choice(templates)))
    return fleet


def refresh(fleet: Fleet, rng: random.Random) -> None:
    """Measure all cards: those that pods hold are busy."""
    users = fleet.cards[GPU].users
    for row in fleet.rows.values():
        for slot in range(GPUS):
            busy = rng.uniform(0.1, 1.0) if users[row, slot] else 0.0
            free = (1.0 - busy) * builders.A100_BYTES
            fleet.measure(row, slot, (free, busy, busy / 2, busy / 3, 60 + 340 * busy, 400.0, math.nan), at=0.0)
    fleet.measured()


def measure(fleet: Fleet, policy: Policy, waiting: Iterable[PendingPod], held: deque[str]) -> Stopwatch:
    """Decide pods one after the other and charge those that are placed."""
    watch = Stopwatch()
    for pod in waiting:
        began = time.perf_counter()
        outcome = decide(fleet, pod, policy)
        if isinstance(outcome, Placement):
            fleet.charge(outcome.charge)
        watch.took.append(1000 * (time.perf_counter() - began))
        if isinstance(outcome, Placement):
            held.append(pod.uid)
            if len(held) > HELD * GPUS * len(fleet.rows):
                fleet.release(held.popleft())
        else:
            watch.failed += 1
    return watch


def _holder(serial: int, node: str, minor: int, template: PendingPod) -> Charge:
    """Return a running pod of an application that holds one card."""
    name = f"{template.name}-{serial}"
    whole = builders.grant(minor, core=100, ratio=100, memory=builders.A100_BYTES)
    return builders.charge(
        name,
        whole,
        node=node,
        resources=(("cpu", 1000), ("memory", builders.GI), ("pods", 1)),
        identity=template.request.identity,
    )


def _named(templates: Iterable[PendingPod], kind: str) -> Iterable[PendingPod]:
    for serial, template in enumerate(templates):
        yield replace(template, uid=f"{kind}-{serial}", name=f"{template.name}-{kind}-{serial}")


def _used(fleet: Fleet, nodes: int) -> float:
    taken = sum(dict(grant.amounts).get("gpu-core", 0) for each in fleet.charges.values() for grant in each.grants)
    return taken / (100 * GPUS * nodes)


if __name__ == "__main__":
    main()
