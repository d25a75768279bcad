"""Events wake only the classes that they may help: counted in decisions of a real operator."""

import time
from typing import Final

from tests.integration.operator import world as words
from tests.integration.operator.world import World

CLASSES: Final = 20
EVENTS: Final = 40
REVIEW_SECONDS: Final = 4.0
"""Most decisions of a class whose reason alone may have changed."""


def test_a_label_wakes_the_one_class_that_reads_it(world: World) -> None:
    [port] = words.free_ports(1)
    world.operator(metrics_port=port)
    [node] = world.arena.nodes()
    for number in range(CLASSES):
        world.pod(f"p-{number}", {"cpu": "1"}, nodeSelector={f"key-{number}": "1"})
    for number in range(CLASSES):
        world.waits(f"p-{number}", "node affinity/selector")
    before, began = _failed(port), time.monotonic()

    for number in range(EVENTS):
        world.arena.merge("nodes", node, {"metadata": {"labels": {"read-by-no-filter": str(number)}}})
    world.arena.merge("nodes", node, {"metadata": {"labels": {"key-7": "1"}}})
    world.bound("p-7")

    reviews = 1 + (time.monotonic() - began) / REVIEW_SECONDS
    assert _failed(port) - before <= CLASSES * reviews
    assert world.bound_names() == {"p-7"}


def _failed(port: int) -> float:
    samples = words.metrics(port, "scheduler_schedule_attempts_total")
    return float(next(line.split()[-1] for line in samples if 'result="unschedulable"' in line))
