"""Subdevices of cards, MIG instances and time-sliced replicas, next to whole cards."""

from typing import Any

from tests.integration.operator import world as words
from tests.integration.operator.world import World

NVIDIA, SLICES = "nvidia.com/gpu", "nvidia.com/gpu.shared"
MIG_1G, MIG_3G = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def given(pod: dict[str, Any]) -> list[tuple[int, str, dict[str, str]]]:
    """Return minor, id and resources of each of a pod's GPUs."""
    return [(each["minor"], each["id"], each["resources"]) for each in words.allocation(pod)["gpu"]]


def seen(pod: dict[str, Any]) -> list[str]:
    """Return the devices that the pod's container sees."""
    return str(pod["metadata"]["annotations"][f"main.{words.VISIBLE}"]).split(",")


def test_two_pods_share_a_card_by_instances_and_whole_cards_go_elsewhere(shared: World) -> None:
    [node] = shared.nodes(profile="h100", gpus=2, mig={0: ["1g.10gb", "3g.40gb", "1g.10gb"]})
    gpus = shared.shown(node)["spec"]["devices"]
    names = [each["id"] for each in gpus[0]["mig"]["instances"]]

    shared.pod("first", {MIG_1G: "1"})
    first = shared.bound("first")
    shared.pod("second", {MIG_1G: "1", MIG_3G: "1"})
    second = shared.bound("second")
    shared.pod("whole", {NVIDIA: "1"})
    whole = shared.bound("whole")

    assert given(first) == [(0, names[0], {MIG_1G: "1"})]
    assert given(second) == [(0, names[2], {MIG_1G: "1"}), (0, names[1], {MIG_3G: "1"})]
    assert (seen(first), seen(second)) == ([names[0]], [names[2], names[1]])
    assert [(minor, uuid) for minor, uuid, _ in given(whole)] == [(1, gpus[1]["id"])]
    assert shared.allocatable(node)["kubernetes.io/gpu"] == "100"  # the card in MIG mode is not in these sums
    shared.wait_allocated(node, "2")
    status = shared.shown(node)["status"]
    assert (status["gpus"], status["healthy"]) == (2, 2)
    assert status["devices"][0]["free"] == {MIG_1G: "0", MIG_3G: "0"}
    assert {(each["name"], each["id"]) for each in status["devices"][0]["holders"]} == {
        ("first", names[0]),
        ("second", names[1]),
        ("second", names[2]),
    }

    shared.pod("waits", {MIG_1G: "1"})
    message = shared.waits("waits")
    assert message == f"0/1 nodes are available: 1 node(s) have too few free {MIG_1G} (at most 0 of 1)."
    shared.remove("first")
    assert given(shared.bound("waits", deadline=words.PROMPT)) == [(0, names[0], {MIG_1G: "1"})]
    shared.audit(node)


def test_instances_survive_the_operator(world: World) -> None:
    world.agent()
    first = world.operator()
    [node] = world.nodes(profile="h100", gpus=1, mig={0: ["1g.10gb"] * 3})
    world.pods(["a", "b"], {MIG_1G: "1"})
    held = {given(world.bound(name))[0][1] for name in "ab"}

    first.kill()
    world.free_lease()
    world.operator()

    world.pod("c", {MIG_1G: "1"})
    [third] = given(world.bound("c"))
    names = {each["id"] for each in world.shown(node)["spec"]["devices"][0]["mig"]["instances"]}
    assert {*held, third[1]} == names
