"""Small pods keep every node busy forever: a pod with eight cards is bound if nodes are reserved, and only then."""

from pathlib import Path

from tests.integration.operator.test_profiles import Profiles
from tests.integration.operator.world import World, condition

CARD = {"nvidia.com/gpu": "1"}
CARDS = 16
"""Cards of both nodes."""
WAITING = 4
"""Small pods that wait at any time."""
AT_ONCE = 2
"""Small pods that end at once, on both nodes in turn."""
TURNS = 10
"""So many times some end: each card changes its pod more than once."""


class Stream:
    """Pods with one card: whenever some end, as many others are created, and more of them wait."""

    def __init__(self, world: World) -> None:
        self._world, self._created = world, 0
        self._create(CARDS + WAITING)

    def _create(self, count: int) -> None:
        self._world.pods([f"small-{self._created + number:04}" for number in range(count)], CARD)
        self._created += count

    def running(self) -> list[str]:
        """Return the small pods that are bound, the oldest first."""
        return sorted(name for name in self._world.bound_names() if name.startswith("small-"))

    def turn(self) -> None:
        """Delete the oldest pods, and create others."""
        for name in self.running()[:AT_ONCE]:
            self._world.remove(name)
        self._create(AT_ONCE)

    def fill(self) -> None:
        """Wait until all cards are in use."""
        self._world.wait(lambda: len(self.running()) == CARDS, what="all cards to be in use")


def test_a_large_pod_is_bound_in_a_stream_of_small_ones(world: World, tmp_path: Path) -> None:
    world.agent()
    profiles = Profiles(world, tmp_path, {"reserveAfterSeconds": 0})
    nodes = world.nodes(2)
    stream = Stream(world)
    stream.fill()
    world.pod("large", {"nvidia.com/gpu": "8"})
    world.waits("large", "too few free GPUs")

    for _ in range(TURNS):
        stream.turn()
        stream.fill()
    assert "large" not in world.bound_names()

    profiles.change({"reserveAfterSeconds": 1})
    served = set[str]()

    def recorded() -> str:
        """Return the node that is reserved for the large pod, by the record for the next leader."""
        status = world.arena.get("leaderleases", world.arena.lease_name).get("status", {})
        reserved: dict[str, str] = {each["pod"]: each["node"] for each in status.get("nodeReservations", ())}
        # A small pod may be first, and then needs a card.
        if first := reserved.keys() - served - {"large"}:
            served.update(first)
            stream.turn()
        return reserved.get("large", "")

    reserved = world.wait(recorded, what="a reservation for the large pod")
    world.waits("large", rf" reserved on {reserved}: \d of 8 GPUs are free, the rest is held by pods? small-")
    for _ in range(TURNS // 4):
        stream.turn()

    # The next leader gathers on the same node, and does not begin again, whatever the message says.
    profiles.operator.kill()
    scheduled = condition(world.arena.get("pods", "large"), "PodScheduled")
    world.arena.merge(
        "pods", "large", {"status": {"conditions": [{**scheduled, "message": "x"}]}}, subresource="status"
    )
    world.free_lease()
    world.operator(config=profiles.path, scheduler_names=None)
    for _ in range(TURNS):
        stream.turn()
        if "large" in world.bound_names():
            break
    assert world.bound("large")["spec"]["nodeName"] == reserved
    world.audit(*nodes)
