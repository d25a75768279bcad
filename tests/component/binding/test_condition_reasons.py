"""Reasons of PodScheduled=False: `Unschedulable`, for which autoscalers add nodes, only if a node could help."""

import asyncio
from datetime import timedelta

import pytest

from berth_client import times
from tests.component.binding.test_plugin_failures import Faulty
from tests.component.gangs.test_gangs import REFUSAL, member
from tests.component.world import Raw, World, now
from tests.objects.builders import GPU, NVIDIA, condition, container, device, entry, node, pod, pod_group
from tests.stand_ins.third_party import NPU

pytestmark = pytest.mark.looptime

INVALID = "invalid request: kubernetes.io/gpu: 150"


def claiming_devices() -> Raw:
    return pod("a", {"cpu": "1"}, resourceClaims=[{"name": "gpu"}])


def not_injected() -> Raw:
    bare = pod("a")
    bare["spec"]["containers"] = [container(requests={GPU: "50"})]
    return bare


async def reported(world: World, *pods: Raw, seconds: float = 20) -> Raw:
    """Return the condition of pod `a` after some seconds."""
    world.submit(*pods)
    async with world.running() as api:
        await asyncio.sleep(seconds)
    return [each for _, name, each in api.patches if name == "a"][-1]


@pytest.mark.parametrize("nodes", [0, 1])
@pytest.mark.parametrize(
    ("waiting", "reason", "message"),
    [
        pytest.param(pod("a", {GPU: "150"}), "InvalidRequest", INVALID, id="invalid request"),
        pytest.param(
            claiming_devices(),
            "NotSupported",
            "nodes are available: pod uses spec.resourceClaims, which Berth allocates only from pools in "
            "claims.drivers or claims.pools of its configuration.",
            id="unsupported field",
        ),
        pytest.param(
            not_injected(),
            "NotInjected",
            "nodes are available: NotInjected: NVIDIA_VISIBLE_DEVICES of container main",
            id="variable not injected",
        ),
        pytest.param(member("a"), "PodGroupNotReady", "PodGroup ns/g does not exist", id="no such group"),
        pytest.param(pod("a", {NVIDIA: "9"}), "Unschedulable", "", id="too few cards"),
        pytest.param(pod("a", {"cpu": "1000"}), "Unschedulable", "", id="too little cpu"),
        pytest.param(
            pod("a", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]),
            "Unschedulable",
            "",
            id="claim missing, as in kube-scheduler",
        ),
    ],
)
async def test_a_pod_that_no_node_could_take_is_not_unschedulable(
    waiting: Raw, reason: str, message: str, nodes: int
) -> None:
    world = World()
    for number in range(nodes):
        world.add_node(f"node{number}")
    condition = await reported(world, waiting)
    assert (condition["reason"], condition["status"]) == (reason, "False")
    assert message in condition["message"]


async def test_a_gang_short_of_members_is_not_ready() -> None:
    world = World()
    world.add_node()
    world.groups.apply("ADDED", pod_group(minimum=2))
    condition = await reported(world, member("a"))
    assert condition["reason"] == "PodGroupNotReady"
    assert condition["message"] == "PodGroup ns/g: waiting for members: 1 of 2"


async def test_a_gang_that_needs_nodes_is_unschedulable() -> None:
    world = World()
    world.groups.apply("ADDED", pod_group(minimum=2))
    assert (await reported(world, member("a"), member("b")))["reason"] == "Unschedulable"


async def test_a_gang_with_an_unsupported_member_needs_no_nodes() -> None:
    world = World()
    world.add_node(cards=1)
    world.groups.apply("ADDED", pod_group(minimum=3))
    odd = member("c", requests={"cpu": "1"}, resourceClaims=[{"name": "gpu"}])
    condition = await reported(world, member("a"), member("b"), odd)
    assert condition["reason"] == "NotSupported"
    assert "pod uses spec.resourceClaims" in condition["message"]


@pytest.mark.parametrize("fault", ["plug-in", "Binding refused"])
async def test_errors_have_kube_schedulers_reason(fault: str) -> None:
    world = Faulty("passes") if fault == "plug-in" else World()
    world.add_node()
    world.api.always["bind a"] = REFUSAL
    assert (await reported(world, pod("a", {NPU if fault == "plug-in" else NVIDIA: "1"})))["reason"] == "SchedulerError"


@pytest.mark.parametrize(("known", "patches"), [("Unschedulable", 1), ("InvalidRequest", 0)])
async def test_a_condition_of_another_reason_is_replaced_though_its_message_stands(known: str, patches: int) -> None:
    world = World()
    text = f"{INVALID}; allowed are 1 to 100 (part of a card) or multiples of 100 (container main)"
    shown = condition("PodScheduled", "False", reason=known, message=text)
    world.submit(pod("a", {GPU: "150"}, status={"conditions": [shown]}))
    async with world.running() as api:
        await asyncio.sleep(30)
    assert len(api.patches) == patches
    assert api.events == []


# --- nodes that are starting --------------------------------------------------------------------------------------


def new_node(seconds_ago: float = 0) -> Raw:
    """Return a node that an autoscaler has just added: its labels name its GPUs, and nothing has reported them yet."""
    raw = node("new", labels={"karpenter.k8s.aws/instance-gpu-count": "8"}, offered={})
    raw["metadata"]["creationTimestamp"] = times.time(times.now() - timedelta(seconds=seconds_ago))
    return raw


async def test_a_pod_is_not_unschedulable_while_a_node_for_it_starts() -> None:
    world = World()
    world.submit(pod("a", {GPU: "50"}))
    async with world.running() as api:
        await asyncio.sleep(2)
        appeared = now()
        world.cluster.node_cache.put_node(new_node(seconds_ago=540))
        world.submit(pod("late", {GPU: "50"}))
        await asyncio.sleep(30)
        world.cluster.node_cache.end_startups()
        await asyncio.sleep(60)
        world.cluster.node_cache.end_startups()
        await asyncio.sleep(20)
    written = [(name, patch["reason"]) for _, name, patch in api.patches]
    assert [reason for name, reason in written if name == "a"] == ["Unschedulable", "NodeStarting", "Unschedulable"]
    assert [reason for name, reason in written if name == "late"] == ["NodeStarting", "Unschedulable"]
    [changed] = [at for at, name, patch in api.patches if (name, patch["reason"]) == ("a", "NodeStarting")]
    # Sooner than any other change of the message, because autoscalers act on the reason.
    assert changed - appeared < 1


async def test_a_gang_does_not_wait_for_new_nodes_that_its_own_members_would_take() -> None:
    world = World()
    for name in ("x", "y"):
        world.add_node(name, cards=1)
        world.cluster.node_cache.put_node(node(name) | {"metadata": new_node()["metadata"] | {"name": name}})
    world.submit(pod("before", {NVIDIA: "1"}))
    world.groups.apply("ADDED", pod_group(minimum=3))
    async with world.running() as api:
        await asyncio.sleep(2)
        world.cluster.node_cache.end_startups()
        world.delete("before")
        await asyncio.sleep(1)
        world.submit(*(member(name, requests={NVIDIA: "1"}) for name in "abc"))
        await asyncio.sleep(20)
    assert {patch["reason"] for _, name, patch in api.patches if name != "before"} == {"Unschedulable"}


async def test_the_device_of_the_node_ends_the_wait() -> None:
    world = World()
    world.cluster.node_cache.put_node(new_node())
    world.submit(pod("a", {GPU: "50"}))
    async with world.running() as api:
        await asyncio.sleep(2)
        world.cluster.node_cache.put_device(device("new", entry(0)))
        await asyncio.sleep(2)
    assert [name for _, name, _ in api.binds] == ["a"]
    assert [patch["reason"] for _, _, patch in api.patches] == ["NodeStarting"]
