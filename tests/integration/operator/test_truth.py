"""kubelet's allocations, as a node's agent reports them: charges, reports and swaps that follow."""

import json
import time
from typing import Any

import pytest

from berth_api.objects import gpupod
from devcluster.control_plane.api import Manifest
from tests.integration.operator import world as words
from tests.integration.operator.world import World

NVIDIA, HALF = {"nvidia.com/gpu": "1"}, {"kubernetes.io/gpu": "50"}
SWAP_SECONDS = 2.0
"""Seconds within which a swap that both GpuPods report must be recorded."""


def held(*minors: int) -> list[Manifest]:
    return [{"type": "gpu", "minor": minor, "id": words.gpu(minor)["id"]} for minor in minors]


def node_of(world: World, count: int) -> str:
    """Create a node with this many cards; the test acts as its agent."""
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(minor) for minor in range(count)])
    world.wait_ready(node, "True")
    return node


def report(world: World, node: str, **status: Any) -> None:
    """Report kubelet's state in a Device's status, as an agent does."""
    body = {"apiVersion": "berth.dev/v1alpha1", "kind": "Device", "metadata": {"name": node}, "status": status}
    world.api.request(
        "PATCH",
        f"/apis/berth.dev/v1alpha1/devices/{node}/status",
        body=body,
        query={"fieldManager": "berth-agent"},
        content_type="application/apply-patch+yaml",
    )


def give(world: World, name: str, *minors: int) -> None:
    """Write a GpuPod, owned by its pod, as an agent does."""
    pod = world.arena.get("pods", name)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
    container = pod["spec"]["containers"][0]["name"]
    own = gpupod.name_of(name, pod["spec"]["nodeName"])
    world.api.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "GpuPod",
            "metadata": {"name": own, "namespace": world.arena.namespace, "ownerReferences": [owner]},
            "spec": {
                "nodeName": pod["spec"]["nodeName"],
                "podUID": pod["metadata"]["uid"],
                "containers": [{"name": container, "devices": held(*minors)}],
            },
        }
    )


def gpu_pods(world: World) -> dict[str, Manifest]:
    """Return all GpuPods by name; those of the pods of a test before may still be there."""
    return {each["metadata"]["name"]: each for each in world.arena.list("gpupods")}


def consistent(world: World, name: str) -> dict[str, Any]:
    """Return the condition of a pod's GpuPod; empty if there is none."""
    own = gpu_pods(world).get(gpupod.name_of(name, world.arena.get("pods", name)["spec"]["nodeName"]))
    return {} if own is None else words.condition(own, "Consistent")


def wait_consistent(world: World, name: str, status: str) -> dict[str, Any]:
    world.wait(lambda: consistent(world, name).get("status") == status, what=f"Consistent={status} of {name}")
    return consistent(world, name)


def forge(world: World, name: str, node: str, requests: dict[str, str], *minors: int, **options: Any) -> None:
    """Create a bound pod whose author claims a hundredth of these cards."""
    little = {"kubernetes.io/gpu-core": "1"}
    entries = [{"minor": minor, "id": words.gpu(minor)["id"], "resources": little} for minor in minors]
    world.pod(
        name,
        requests,
        annotations={words.ALLOCATED: json.dumps({"gpu": entries})},
        nodeName=node,
        **{"scheduler_name": "default-scheduler", **options},
    )


def free_cards(world: World, node: str) -> list[int]:
    """Return the minors of cards that the Device shows as free."""
    uses = world.shown(node).get("status", {}).get("devices", [])
    return [each["minor"] for each in uses if each["free"]["kubernetes.io/gpu-core"] == "100"]


def forged(pod: Manifest, name: str, node: str) -> Manifest:
    """Return a GpuPod without an owner, which the garbage collector leaves alone."""
    devices = [{"name": "main", "devices": held(1)}]
    return {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "GpuPod",
        "metadata": {"name": name},
        "spec": {"nodeName": node, "podUID": pod["metadata"]["uid"], "containers": devices},
    }


@pytest.mark.parametrize("name", ["robbed", "robbed.another"], ids=["as older agents", "today"])
def test_a_gpu_pod_of_another_node_counts_for_nothing_and_goes(shared: World, name: str) -> None:
    node = node_of(shared, 2)
    shared.pod("robbed", NVIDIA)
    pod = shared.bound("robbed")
    shared.arena.create([forged(pod, name, "another")])
    give(shared, "robbed", *words.minors(pod))
    shared.wait(lambda: name not in gpu_pods(shared), what="the forged GpuPod to be deleted")
    assert wait_consistent(shared, "robbed", "True")["reason"] == "AsAllocated"
    # The status of the Device and of the GpuPod are written independently.
    shared.wait(lambda: free_cards(shared, node) == [1], what="the Device to show the card as used")


def test_gpu_pods_of_pods_that_do_not_exist_go(shared: World) -> None:
    node = node_of(shared, 1)
    absent = {"metadata": {"uid": "absent"}}
    names = {"absent", f"absent.{node}", "absent.another"}
    shared.arena.create([forged(absent, name, node) for name in sorted(names)])
    shared.wait(lambda: not names & gpu_pods(shared).keys(), what="the GpuPods of no pod to be deleted")


def test_a_gpu_pod_says_whether_its_pod_holds_what_it_was_allocated(shared: World) -> None:
    node = node_of(shared, 3)
    shared.pod("p", NVIDIA)
    assert words.minors(shared.bound("p")) == [0]

    give(shared, "p", 0)
    assert wait_consistent(shared, "p", "True")["reason"] == "AsAllocated"

    give(shared, "p", 2)
    message = wait_consistent(shared, "p", "False")
    assert message["reason"] == "Drifted"
    assert message["message"].startswith("kubelet gave it gpu 2 (GPU-")
    [event] = shared.wait(lambda: shared.events("p", "DevicesDrifted"), what="the Event")
    assert event["type"] == "Warning"
    # What it holds is charged, and its allocation is not changed.
    shared.wait(lambda: free_cards(shared, node) == [0, 1], what="the card that the pod holds to be charged")
    assert words.minors(shared.bound("p")) == [0]
    shared.pods(["q", "r"], NVIDIA)
    assert {*words.minors(shared.bound("q")), *words.minors(shared.bound("r"))} == {0, 1}

    shared.remove("q")
    give(shared, "p", 0)
    wait_consistent(shared, "p", "True")
    assert len(shared.events("p", "DevicesDrifted")) == 1


def test_two_pods_that_hold_each_others_cards_have_their_allocations_exchanged(shared: World) -> None:
    node_of(shared, 3)
    for name in ("a", "b", "c"):
        shared.pod(name, NVIDIA)
        shared.bound(name)
    before = {name: words.minors(shared.bound(name)) for name in ("a", "b", "c")}
    untouched = shared.bound("c")["metadata"]["annotations"]

    give(shared, "c", *before["c"])
    give(shared, "a", *before["b"])
    give(shared, "b", *before["a"])
    at = time.monotonic()
    expected = {"a": before["b"], "b": before["a"], "c": before["c"]}
    shared.wait(
        lambda: {name: words.minors(shared.bound(name)) for name in expected} == expected,
        deadline=SWAP_SECONDS,
        what="the allocations to be swapped",
    )
    assert time.monotonic() - at < SWAP_SECONDS

    for name in expected:
        assert wait_consistent(shared, name, "True")["reason"] == "AsAllocated"
        pod = shared.bound(name)
        [entry] = words.allocation(pod)["gpu"]
        assert pod["metadata"]["annotations"][f"{pod['spec']['containers'][0]['name']}.{words.VISIBLE}"] == entry["id"]
        assert shared.events(name, "DevicesDrifted") == []
    assert shared.bound("c")["metadata"]["annotations"] == untouched
    shared.pod("d", NVIDIA)
    assert "node(s) have too few free GPUs" in shared.waits("d")


@pytest.mark.parametrize("trusted", ["", "koord-scheduler"], ids=["none", "koordinator"])
def test_another_schedulers_allocations_count_if_it_is_trusted(world: World, trusted: str) -> None:
    world.operator(trusted_schedulers=trusted)
    node = node_of(world, 1)
    forge(world, "theirs", node, HALF, 0, scheduler_name="koord-scheduler")
    if trusted:
        world.wait_allocated(node, "0.5")
    else:
        world.wait(lambda: accounted(world, node) == "False", what="the card that the pod may hold to be unaccounted")
    world.pod("ours", HALF)
    if trusted:
        # The share in its claim is ignored: it requested half of the card.
        assert words.minors(world.bound("ours")) == [0]
        assert accounted(world, node) == "True"
        world.pod("more", HALF)
        world.waits("more")
    else:
        world.waits("ours")
        message = words.condition(world.shown(node), "Accounted")["message"]
        assert "was not written by a trusted scheduler" in message
        assert message.endswith("/theirs")


def accounted(world: World, node: str) -> str:
    return str(words.condition(world.shown(node), "Accounted").get("status"))


def test_cards_that_foreign_processes_use_are_allocated_to_no_pod(shared: World) -> None:
    node = node_of(shared, 2)
    report(shared, node, foreign=[{"type": "gpu", "minor": 0, "processes": 1, "memory": "3Gi"}])
    shared.wait(lambda: free_cards(shared, node) == [1], what="the card to be charged")
    shared.pod("p", NVIDIA)
    assert words.minors(shared.bound("p")) == [1]
    shared.pod("q", HALF)
    shared.waits("q")
    report(shared, node, foreign=[])
    assert words.minors(shared.bound("q", deadline=words.PROMPT)) == [0]


def test_drift_is_counted_and_outlives_the_operator(world: World) -> None:
    [port] = words.free_ports(1)
    first = world.operator(metrics_port=port)
    node_of(world, 3)
    world.pod("p", NVIDIA)
    world.bound("p")
    give(world, "p", 1)
    world.wait(lambda: words.metrics(port, "berth_drifted_pods") == ["1.0"], what="the metric")
    wait_consistent(world, "p", "False")
    first.kill()
    world.free_lease()
    # While no operator leads, the pod comes to hold what it was allocated after all.
    give(world, "p", 0)
    world.operator(metrics_port=port)
    wait_consistent(world, "p", "True")
    world.wait(lambda: words.metrics(port, "berth_drifted_pods") == ["0.0"], what="the metric")
    # A crash has left half of a swap: the second half is repaired.
    world.pod("q", NVIDIA)
    [other] = words.minors(world.bound("q"))
    text = world.bound("p")["metadata"]["annotations"][words.ALLOCATED]
    world.arena.merge("pods", "q", {"metadata": {"annotations": {words.ALLOCATED: text}}})
    give(world, "q", other)
    world.wait(lambda: words.minors(world.bound("q")) == [other], what="the second half")
    assert words.minors(world.bound("p")) == [0]


def test_a_gpu_pod_goes_with_its_pod(shared: World) -> None:
    node = node_of(shared, 1)
    shared.pod("p", NVIDIA)
    shared.bound("p")
    give(shared, "p", 0)
    wait_consistent(shared, "p", "True")
    shared.remove("p")
    shared.wait(lambda: f"p.{node}" not in gpu_pods(shared), what="the garbage collector or the operator")
