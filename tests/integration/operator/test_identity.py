"""On the real API server, the devices that pods hold are found by id, whatever minors the driver gives the cards."""

from typing import Any

import pytest

from devcluster.control_plane.api import Manifest
from tests.integration.operator import world as words
from tests.integration.operator.world import World

WHOLE, HALF = {"nvidia.com/gpu": "1"}, {"kubernetes.io/gpu": "50"}
CARDS = [words.gpu(number)["id"] for number in range(4)]


def publish(world: World, node: str, *cards: str) -> None:
    """Write a Device with these cards, which the driver numbers in this order."""
    world.device(node, [{**words.gpu(minor), "id": name} for minor, name in enumerate(cards)])


def ids(pod: Manifest) -> list[str]:
    return [each["id"] for each in words.allocation(pod)["gpu"]]


def uses(world: World, node: str) -> list[tuple[int, str, list[str]]]:
    """Return what the Device shows: minor, id of a card that is gone, and the pods that hold it."""
    shown = world.shown(node).get("status", {}).get("devices", [])
    return [(each["minor"], each.get("id", ""), [one["name"] for one in each.get("holders", [])]) for each in shown]


@pytest.fixture
def node(shared: World) -> str:
    """Create a node of two cards, of which a pod holds the second."""
    [name] = shared.arena.nodes()
    publish(shared, name, *CARDS[:2])
    shared.wait_ready(name, "True")
    shared.pod("first", WHOLE)
    shared.bound("first")
    shared.pod("second", WHOLE)
    assert ids(shared.bound("second")) == [CARDS[1]]
    return name


@pytest.mark.parametrize(("requests", "restarts"), [(WHOLE, True), (HALF, False)], ids=["whole", "share"])
def test_reboot_without_the_first_card(shared: World, node: str, requests: dict[str, str], *, restarts: bool) -> None:
    shared.remove("first")
    publish(shared, node, CARDS[1])
    if restarts:
        _restart(shared)
    # The pod comes by another watch, so it must not be created before the operator has seen the Device.
    shared.wait(lambda: uses(shared, node) == [(0, "", ["second"])], what="the holder to be shown at the card's minor")
    shared.pod("third", requests)
    shared.waits("third", "too few free GPUs")
    publish(shared, node, CARDS[1], CARDS[2])
    assert ids(shared.bound("third")) == [CARDS[2]]


def test_a_card_that_is_gone_is_shown_with_its_holder_and_is_not_given_out_when_it_returns(
    shared: World, node: str
) -> None:
    publish(shared, node, CARDS[1], CARDS[2])
    # With `nvidia.com/gpu` it would wait: kube-scheduler counts both cards of the Node as held by the pods there.
    shared.pod("third", {"kubernetes.io/gpu": "100"})
    assert ids(shared.bound("third")) == [CARDS[2]]
    expected: list[Any] = [(0, "", ["second"]), (1, "", ["third"]), (-1, CARDS[0], ["first"])]
    shared.wait(lambda: sorted(uses(shared, node)) == sorted(expected), what="the card that is gone to be shown")
    # Never less than the live pods request.
    shared.wait_sum(node, "kubernetes.io/gpu", "300")
    publish(shared, node, CARDS[2], CARDS[1], CARDS[0])
    shared.pod("fourth", HALF)
    shared.waits("fourth", "too few free GPUs")
    shared.remove("first")
    assert ids(shared.bound("fourth")) == [CARDS[0]]


def _restart(world: World) -> None:
    for process in world.processes.started:
        if process.name.startswith("operator") and process.exit_code is None:
            process.kill()
    world.free_lease()
    world.operator()
