"""State in annotations survives any end of the operator: nothing is allocated twice, and nothing leaks."""

import functools
import json
import re
from datetime import datetime, timedelta

from tests.integration.operator import world as words
from tests.integration.operator.world import World

K = "kubernetes.io/"
HALF = {K + "gpu": "50"}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def test_state_is_rebuilt_from_annotations(world: World) -> None:
    world.agent()
    first = world.operator()
    [node] = world.nodes(gpus=4)
    world.pods(["a", "b", "c"], HALF)
    world.pod("whole", {"nvidia.com/gpu": "1"})
    held = {name: _place(world, name) for name in ("a", "b", "c", "whole")}
    world.wait_allocated(node, "2.5")

    first.stop()
    # One pod ends and three arrive while no operator runs: four halves are free then.
    world.remove("b")
    world.pods([f"late-{number}" for number in range(6)], HALF)
    world.operator()

    world.wait(lambda: len(world.bound_names()) == 7, what="the four free halves to be taken")
    world.wait_allocated(node, "4")
    assert {name: _place(world, name) for name in ("a", "c", "whole")} == {
        name: place for name, place in held.items() if name != "b"
    }
    taken = [_place(world, name) for name in world.bound_names()]
    assert {place: taken.count(place) for place in taken} == {
        place: 1 if place == held["whole"] else 2 for place in {(node, (minor,)) for minor in range(4)}
    }
    assert all(world.waits(f"late-{number}") for number in range(6) if f"late-{number}" not in world.bound_names())


def test_new_leader_reads_nothing_before_its_fence_stands(world: World) -> None:
    operator = world.operator(takeover_pause=1.5)

    lines = [json.loads(line) for line in operator.text().splitlines() if line.startswith("{")]
    times = {line["event"]: datetime.fromisoformat(line["timestamp"]) for line in lines}
    assert times["leading"] - times["term changed"] >= timedelta(seconds=1.5)


def test_leader_that_ended_in_order_is_followed_at_once(world: World) -> None:
    world.operator().stop()

    # A pause would take longer than this test waits.
    world.operator(takeover_pause=60)


def _place(world: World, name: str) -> tuple[str, tuple[int, ...]]:
    pod = world.bound(name)
    return pod["spec"]["nodeName"], tuple(words.minors(pod))


def test_bound_pod_without_a_readable_allocation_blocks_the_cards(shared: World) -> None:
    node, other = shared.nodes(2, gpus=2, rdma=2)
    pinned = {"kubernetes.io/hostname": node}

    # As if Berth's Binding had written it: otherwise the operator would ignore it.
    shared.pod("stray", {"nvidia.com/gpu": "1"}, nodeName=node, annotations={words.EPOCH: "1", words.ALLOCATED: "{"})

    message = shared.wait_condition(node, "Accounted", "False")
    assert (
        "the allocation of these pods is missing, cannot be read, names too few devices or was not written" in message
    )
    assert message.endswith(f"a trusted scheduler: {shared.arena.namespace}/stray")
    [event] = shared.wait(lambda: shared.events("stray", "AllocationUnknown"), what="the Event")
    assert event["type"] == "Warning"
    assert f"The pod requests gpu devices on {node}, but its allocation is missing, cannot be read" in event["message"]
    shared.pod("p", HALF, nodeSelector=pinned)
    assert "1 node(s) have pods whose GPU allocation is unknown" in shared.waits("p")
    # Other nodes, and what the pod did not request, are as free as before.
    shared.pod("elsewhere", HALF)
    assert shared.bound("elsewhere")["spec"]["nodeName"] == other
    shared.pod("nic", {K + "rdma": "100"}, nodeSelector=pinned)
    shared.bound("nic")
    assert words.condition(shared.shown(other), "Accounted")["status"] == "True"

    shared.remove("stray")

    shared.bound("p", deadline=words.PROMPT)
    shared.wait_condition(node, "Accounted", "True")


def test_only_pods_that_may_see_cards_block_them_and_the_device_shows_it(shared: World) -> None:
    [node] = shared.nodes(gpus=2)
    options = {"nodeName": node, "scheduler_name": "default-scheduler"}
    reads = {"fieldRef": {"fieldPath": "metadata.annotations['main.devices.berth.dev/visible']"}}
    for name, entry in (("void", {"value": "void"}), ("reads", {"valueFrom": reads})):
        container = {
            "name": "main",
            "image": "none",
            "resources": {"limits": HALF},
            "env": [{"name": VISIBLE, **entry}],
        }
        shared.pod(name, {}, containers=[container], **options)
    shared.pod("cpu", {"cpu": "1"}, **options)
    shared.arena.merge("pods", "cpu", {"metadata": {"labels": {"genius/gpu-number": "8"}}})
    shared.pod("p", HALF)
    shared.bound("p")
    shared.wait_condition(node, "Accounted", "True")
    assert columns(shared, node) == {"HEALTHY": "2", "BLOCKED": "0", "ALLOCATED": "0.5"}

    shared.pod("sees", HALF, **options)

    assert shared.wait_condition(node, "Accounted", "False").endswith(f"{shared.arena.namespace}/sees")
    assert columns(shared, node) == {"HEALTHY": "2", "BLOCKED": "2", "ALLOCATED": "0.5"}
    cards = shared.shown(node)["status"]["devices"]
    assert [each["free"][K + "gpu-core"] for each in cards if each["type"] == "gpu"] == ["0", "0"]
    shared.remove("sees")
    shared.wait_condition(node, "Accounted", "True")
    cards = shared.shown(node)["status"]["devices"]
    assert sorted(each["free"][K + "gpu-core"] for each in cards if each["type"] == "gpu") == ["100", "50"]


def columns(world: World, node: str) -> dict[str, str]:
    """Return what `kubectl get devices` prints of a node's cards."""
    heads, values = (line.split() for line in world.arena.cluster.kubectl("get", "device", node).splitlines())
    shown = dict(zip(heads, values, strict=False))
    return {head: shown[head] for head in ("HEALTHY", "BLOCKED", "ALLOCATED")}


def test_allocation_that_is_mended_frees_the_other_cards(shared: World) -> None:
    [node] = shared.nodes(gpus=2)
    shared.pod("stray", {"nvidia.com/gpu": "1"}, nodeName=node)
    shared.wait_condition(node, "Accounted", "False")
    shared.pod("p", {"nvidia.com/gpu": "1"})
    shared.waits("p", "allocation is unknown")

    text = '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"100","kubernetes.io/gpu-memory-ratio":"100"}}]}'
    shared.arena.merge("pods", "stray", {"metadata": {"annotations": {words.EPOCH: "1", words.ALLOCATED: text}}})

    assert words.minors(shared.bound("p", deadline=words.PROMPT)) == [1]
    shared.wait_condition(node, "Accounted", "True")
    shared.wait_allocated(node, "2")


def test_pod_that_lost_its_allocation_while_running_blocks_its_node(shared: World) -> None:
    [node] = shared.nodes(gpus=1)
    shared.pod("a", HALF)
    shared.bound("a")

    shared.arena.merge("pods", "a", {"metadata": {"annotations": {words.ALLOCATED: None}}})

    shared.wait_condition(node, "Accounted", "False")
    shared.pod("p", HALF)
    shared.waits("p", "allocation is unknown")


def test_two_holders_of_one_card_are_reported_whatever_made_them(shared: World) -> None:
    [node] = shared.nodes(gpus=2)
    shared.pod("first", {K + "gpu": "100"})
    held = shared.bound("first")["metadata"]["annotations"]
    copied = {name: text for name, text in held.items() if name in (words.ALLOCATED, words.EPOCH, words.VISIBLE)}
    shared.pod("second", {K + "gpu": "100"}, nodeName=node, annotations=copied)

    message = shared.wait_condition(node, "HeldOnce", "False")

    namespace = shared.arena.namespace
    assert re.fullmatch(rf"gpu \d: {namespace}/first, {namespace}/second", message)
    for name in ("first", "second"):
        shared.wait(functools.partial(shared.events, name, "CardHeldTwice"), what=f"the Event on {name}")
    shared.remove("second")
    shared.wait(
        lambda: not words.condition(shared.shown(node), "HeldOnce"), what="the condition to go with the second holder"
    )
