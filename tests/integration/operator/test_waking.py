"""Events wake only the classes that they may help, counted by a real operator."""

from typing import Final

from tests.integration.operator import world as words
from tests.integration.operator.world import World

CLASSES: Final = 20
EVENTS: Final = 40


def test_a_label_wakes_the_one_class_that_reads_it(world: World) -> None:
    [port] = words.free_ports(1)
    world.operator(metrics_port=port)
    [node] = world.arena.nodes()
    for number in range(CLASSES):
        world.pod(f"p-{number}", {"cpu": "1"}, nodeSelector={f"key-{number}": "1"})
    for number in range(CLASSES):
        world.waits(f"p-{number}", "node affinity/selector")
    before = _woken_by_labels(port)

    for number in range(EVENTS):
        world.arena.merge("nodes", node, {"metadata": {"labels": {"read-by-no-filter": str(number)}}})
    world.arena.merge("nodes", node, {"metadata": {"labels": {"key-7": "1"}}})
    world.bound("p-7")

    assert _woken_by_labels(port) - before <= 1
    assert world.bound_names() == {"p-7"}


def _woken_by_labels(port: int) -> float:
    samples = words.metrics(port, "scheduler_queue_incoming_pods_total")
    return sum(float(line.split()[-1]) for line in samples if 'event="NodeUpdateNodeLabel"' in line)
