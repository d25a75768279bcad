"""An agent next to a kubelet reports on the real API server what pods hold."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from berth_api import names
from berth_api.objects import gpupod
from devcluster import Arena, waiting
from tests.integration.agent.conftest import node_events
from tests.nvml.fixture import NvmlFixture, Process, a100
from tests.stand_ins.kubelet import Kubelet
from tests.stand_ins.pod_resources import PodResourcesServer

GPU = "nvidia.com/gpu"
IDS = [f"GPU-a1000000-0000-4000-8000-{minor:012d}" for minor in range(4)]
RBAC = Path(__file__).parents[3] / "manifests/base/agent-rbac.yaml"
NOT_STARTED = {"pod-ready.stage.kwok.x-k8s.io/delay": "1h"}
"""Keeps kwok from starting a pod: the next pod that kubelet admits is one that has not started."""
START = 30.0
"""Longest time in seconds for an agent to start on a busy machine."""
SOON = 20.0
"""Longest time in seconds until a change is reported: it takes one or two where the machine is not busy."""

Start = Callable[..., Any]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a procfs of this boot without processes."""
    kernel = tmp_path / "proc/sys/kernel/random"
    kernel.mkdir(parents=True)
    (kernel / "boot_id").write_text("boot-1\n")
    return tmp_path / "proc"


def process(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.fixture
def begin(start_nvml: Start, resources: PodResourcesServer, proc: Path, tmp_path: Path) -> Start:
    """Start the agent of a node with four cards next to the kubelet."""

    def agent(node: str, *options: str, processes: tuple[Process, ...] = ()) -> Any:
        cards = [a100(minor) for minor in range(4)]
        cards[3].processes = list(processes)
        own = ["--pod-resources-socket", str(resources.socket), "--proc-root", str(proc)]
        own += ["--checkpoint", str(tmp_path / "checkpoint.json"), "--pod-resources-interval", "0.5"]
        return start_nvml(node, NvmlFixture(tmp_path, gpus=cards), *own, *options)

    return agent


def bound(arena: Arena, node: str, name: str, count: int = 1, **fields: Any) -> dict[str, Any]:
    """Create a pod that is bound to a node already."""
    limits = {GPU: str(count)}
    return arena.create([arena.pod(name, limits=limits, requests=limits, nodeName=node, **fields)])[0]


def status(arena: Arena, node: str) -> dict[str, Any]:
    path = f"/apis/{names.API_VERSION}/devices/{node}"
    current = arena.cluster.api.get(path) if arena.cluster.api.exists(path) else {}
    reported: dict[str, Any] = current.get("status", {})
    return reported


def held(arena: Arena, node: str) -> list[tuple[str, str, list[int]]]:
    held = status(arena, node).get("held", [])
    return [(each["pod"], each["podUID"], [device["minor"] for device in each["devices"]]) for each in held]


def gpu_pods(arena: Arena) -> dict[str, list[str]]:
    """Return what each pod holds; each GpuPod has the name of its pod and node."""
    gpu_pods = arena.list("gpupods")
    pods = [gpupod.pod_of(each["metadata"]["name"], each["spec"]["nodeName"]) for each in gpu_pods]
    assert not {each["metadata"]["name"] for each in gpu_pods} & {*pods}
    return {
        pod: [unit["id"] for at in each["spec"]["containers"] for unit in at["devices"]]
        for pod, each in zip(pods, gpu_pods, strict=True)
    }


def test_pods_of_any_scheduler_get_a_gpu_pod_and_stand_in_the_device(
    arena: Arena, begin: Start, resources: PodResourcesServer
) -> None:
    (node,) = arena.nodes(1)
    begin(node)
    arena.wait(
        lambda: status(arena, node).get("bootID") == "boot-1", deadline=START, what="the first report of the boot"
    )
    pod = bound(arena, node, "a", 2)
    uid = pod["metadata"]["uid"]
    resources.given = {(arena.namespace, "a", "main"): {GPU: [IDS[2], IDS[0]]}}
    arena.wait(lambda: gpu_pods(arena) == {"a": [IDS[0], IDS[2]]}, deadline=SOON, what="the GpuPod")
    arena.wait(lambda: held(arena, node) == [("a", uid, [0, 2])], deadline=SOON, what="what the pod holds")
    gpu_pod = arena.get("gpupods", f"a.{node}")
    assert gpu_pod["spec"]["nodeName"] == node
    assert gpu_pod["spec"]["podUID"] == uid
    assert [(each["kind"], each["uid"]) for each in gpu_pod["metadata"]["ownerReferences"]] == [("Pod", uid)]

    resources.given = {(arena.namespace, "a", "main"): {GPU: [IDS[1]]}}
    arena.wait(lambda: gpu_pods(arena) == {"a": [IDS[1]]}, deadline=SOON, what="the changed GpuPod")
    arena.cluster.api.delete(f"/apis/{names.API_VERSION}/namespaces/{arena.namespace}/gpupods")
    arena.wait(lambda: gpu_pods(arena) == {"a": [IDS[1]]}, deadline=SOON, what="the GpuPod that was deleted")
    resources.given = {}
    arena.wait(lambda: gpu_pods(arena) == {}, deadline=SOON, what="the end of the GpuPod")
    arena.wait(lambda: held(arena, node) == [], deadline=SOON, what="the end of what was held")


def test_slices_of_another_device_plugin_stand_in_the_device(
    arena: Arena, begin: Start, resources: PodResourcesServer
) -> None:
    (node,) = arena.nodes(1)
    agent = begin(node)

    def shown() -> tuple[str, list[int]]:
        path = f"/apis/{names.API_VERSION}/devices/{node}"
        spec = arena.cluster.api.get(path)["spec"] if arena.cluster.api.exists(path) else {}
        return spec.get("replicaChoice", ""), [card.get("replicas", 1) for card in spec.get("devices", ())]

    arena.wait(lambda: shown() == ("", [1] * 4), deadline=START, what="the Device")
    resources.offered = {GPU: [f"{card}::{number}" for card in IDS for number in range(4)]}
    arena.wait(lambda: shown() == ("kubelet", [4] * 4), deadline=SOON, what="the slices")
    assert agent.stop() == 0
    resources.offered = {}
    agent = begin(node)
    arena.wait(lambda: "inventory read" in agent.log, deadline=START, what="the next agent")
    assert shown() == ("kubelet", [4] * 4)
    resources.offered = {GPU: list(IDS)}
    arena.wait(lambda: shown() == ("", [1] * 4), deadline=SOON, what="the end of the slices")


def test_a_pod_that_was_removed_by_force_is_held_while_it_runs_over_a_restart_too(
    arena: Arena, begin: Start, resources: PodResourcesServer, proc: Path
) -> None:
    (node,) = arena.nodes(1)
    agent = begin(node)
    uid = bound(arena, node, "a")["metadata"]["uid"]
    resources.given = {(arena.namespace, "a", "main"): {GPU: [IDS[1]]}}
    arena.wait(lambda: held(arena, node) == [("a", uid, [1])], deadline=START, what="what the pod holds")
    process(proc, 77, f"/kubepods/besteffort/pod{uid}/c")
    arena.delete("pods", "a", grace_seconds=0)
    resources.given = {}
    arena.wait(lambda: status(arena, node).get("withheld") == [1], deadline=SOON, what="the withheld card")
    assert held(arena, node) == [("a", uid, [1])]
    assert agent.stop() == 0
    begin(node)
    time.sleep(1)
    assert held(arena, node) == [("a", uid, [1])]
    (proc / "77" / "cgroup").unlink()
    arena.wait(lambda: held(arena, node) == [], deadline=START, what="the end of what was held")
    assert status(arena, node).get("withheld", []) == []


def test_kubectl_shows_who_holds_which_card_shares_included(
    arena: Arena, begin: Start, resources: PodResourcesServer
) -> None:
    (node,) = arena.nodes(1)
    begin(node)
    half = f'{{"gpu": [{{"minor": 1, "id": "{IDS[1]}", "resources": {{"kubernetes.io/gpu-core": "50"'
    half += ', "kubernetes.io/gpu-memory": "20Gi", "kubernetes.io/gpu-memory-ratio": "25"}}]}'
    for name in ("half", "other"):
        arena.create([arena.pod(name, annotations={names.ALLOCATED: half}, nodeName=node)])
    bound(arena, node, "whole")
    resources.given = {(arena.namespace, "whole", "main"): {GPU: [IDS[2]]}}

    def rows() -> list[list[str]]:
        table = arena.cluster.kubectl("get", "gpupods", "-n", arena.namespace, "-o", "wide")
        return [line.split() for line in table.splitlines()]

    arena.wait(lambda: len(rows()) == 4, deadline=START, what="three GpuPods")
    assert rows()[0] == ["NAME", "NODE", "DEVICES", "MEMORY", "CORE", "CONSISTENT", "IDS", "AGE"]
    assert [row[:-1] for row in rows()[1:]] == [
        [f"half.{node}", node, "GPU", "1", "20Gi", "50", IDS[1]],
        [f"other.{node}", node, "GPU", "1", "20Gi", "50", IDS[1]],
        [f"whole.{node}", node, "GPU", "2", "80Gi", "100", IDS[2]],
    ]
    assert arena.get("gpupods", f"half.{node}")["spec"]["containers"] == []

    # A share ends with its pod, even if the Pod stays.
    arena.merge("pods", "half", {"status": {"phase": "Succeeded"}}, subresource="status")
    arena.delete("pods", "other", grace_seconds=0)
    left = [f"whole.{node}"]
    arena.wait(lambda: [row[0] for row in rows()[1:]] == left, deadline=SOON, what="the end of both shares")


def test_pods_that_use_more_than_they_hold_stand_in_the_device(arena: Arena, begin: Start, proc: Path) -> None:
    (node,) = arena.nodes(1)
    quarter = f'{{"gpu": [{{"minor": 3, "id": "{IDS[3]}", "resources": {{"kubernetes.io/gpu-core": "25"'
    quarter += ', "kubernetes.io/gpu-memory": "20Gi", "kubernetes.io/gpu-memory-ratio": "25"}}]}'
    pods = [arena.pod(name, annotations={names.ALLOCATED: quarter}, nodeName=node) for name in ("greedy", "modest")]
    pods.append(arena.pod("without", nodeName=node))
    uids = [each["metadata"]["uid"] for each in arena.create(pods)]
    for pid, uid in enumerate(uids, 10):
        process(proc, pid, f"/kubepods/pod{uid}/c")
    used = [Process(pid=10 + place, used=gibibytes * 2**30) for place, gibibytes in enumerate((30, 20, 9))]
    agent = begin(node, processes=tuple(used))
    card = {"type": "gpu", "minor": 3, "namespace": arena.namespace}
    exceeding = {**card, "pod": "greedy", "podUID": uids[0], "memory": "30Gi", "limit": "20Gi"}
    unheld = {**card, "id": IDS[3], "pod": "without", "podUID": uids[2], "memory": "9Gi"}
    arena.wait(lambda: status(arena, node).get("exceeding") == [exceeding], deadline=START, what="the exceeded share")
    arena.wait(lambda: status(arena, node).get("unheld") == [unheld], deadline=SOON, what="the card that is not held")
    arena.delete("pods", "greedy", grace_seconds=0)
    arena.wait(lambda: not status(arena, node).get("exceeding"), deadline=SOON, what="the end of it")
    # The next run knows from the Device whose process this is: its pod is gone, and the process runs on.
    assert agent.stop() == 0
    arena.delete("pods", "without", grace_seconds=0)
    begin(node, processes=(Process(pid=12, used=12 * 2**30),))
    more = [{**unheld, "memory": "12Gi"}]
    arena.wait(lambda: status(arena, node).get("unheld") == more, deadline=START, what="the report of the next run")
    (proc / "12" / "cgroup").unlink()
    arena.wait(lambda: not status(arena, node).get("unheld"), deadline=SOON, what="the end of the process")


def test_kubelet_s_absence_removes_nothing_and_is_logged_once(
    arena: Arena, begin: Start, resources: PodResourcesServer
) -> None:
    (node,) = arena.nodes(1)
    agent = begin(node)
    uid = bound(arena, node, "a")["metadata"]["uid"]
    resources.given = {(arena.namespace, "a", "main"): {GPU: [IDS[1]]}}
    arena.wait(lambda: held(arena, node) == [("a", uid, [1])], deadline=START, what="what the pod holds")
    before = status(arena, node)
    resources.stop()
    arena.wait(lambda: "PodResources not read" in agent.log, what="a log line about kubelet")
    time.sleep(1.2)
    assert agent.log.count("PodResources not read") == 1
    assert status(arena, node) == before
    assert agent.stop() == 0
    again = begin(node)
    arena.wait(lambda: "PodResources not read" in again.log, what="a log line of the next agent")
    time.sleep(0.5)
    assert status(arena, node)["held"] == before["held"]
    resources.start()
    arena.wait(lambda: "kubelet answers again" in again.log, what="kubelet")


def test_the_shipped_role_is_enough(arena: Arena, begin: Start, resources: PodResourcesServer) -> None:
    (node,) = arena.nodes(1)
    role = next(each for each in yaml.safe_load_all(RBAC.read_text()) if each["kind"] == "ClusterRole")
    role["metadata"] = {"name": f"{arena.id}-agent", "labels": arena.labels}
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    arena.cluster.api.post(roles, role)
    try:
        kubeconfig = arena.service_account("agent", f"{arena.id}-agent")
        begin(node, "--kubeconfig", str(kubeconfig))
        bound(arena, node, "a")
        resources.given = {(arena.namespace, "a", "main"): {GPU: [IDS[1]]}}
        arena.wait(lambda: gpu_pods(arena) == {"a": [IDS[1]]}, deadline=START, what="the GpuPod")
        resources.given = {}
        arena.wait(lambda: gpu_pods(arena) == {}, deadline=SOON, what="the end of the GpuPod")
    finally:
        arena.cluster.api.delete(f"{roles}/{arena.id}-agent")


async def test_a_pod_without_an_object_that_is_refused_is_reported_on_the_node(
    arena: Arena, begin: Start, kubelet: Kubelet, tmp_path: Path
) -> None:
    """A static pod that fails has none."""
    (node,) = arena.nodes(1)
    begin(node, "--device-plugin", "--kubelet-socket", str(kubelet.socket), "--cdi-folder", str(tmp_path / "cdi"))
    share = {"minor": 1, "id": IDS[1], "resources": {"kubernetes.io/gpu-core": "50"}}
    own = {names.ALLOCATED: json.dumps({"gpu": [share]}), **NOT_STARTED}
    arena.create([arena.pod("half", annotations=own, nodeName=node)])
    await kubelet.sees(lambda units: units.get(GPU, {}).get(IDS[1]) == "Unhealthy")
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError, match="none waits for 1 of them"):
            await kubelet.allocate(IDS[1])
    [event] = await asyncio.to_thread(arena.wait, lambda: node_events(arena, node), what="the Event on the Node")
    assert (event["type"], event["reason"]) == ("Warning", "DevicesRefused")
    assert "If a static pod requested it, it starts when its file has changed: " in event["message"]


async def test_pods_get_the_devices_of_their_annotations_and_nothing_else(
    arena: Arena, begin: Start, kubelet: Kubelet, resources: PodResourcesServer, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    begin(node, "--device-plugin", "--kubelet-socket", str(kubelet.socket), "--cdi-folder", str(tmp_path / "cdi"))
    await kubelet.sees(lambda units: GPU in units)
    whole = '{"gpu": [{"minor": %d, "id": "%s", "resources": {"kubernetes.io/gpu-core": "100"}}]}'
    for name, minor in (("a", 2), ("b", 0)):
        bound(arena, node, name, annotations={names.ALLOCATED: whole % (minor, IDS[minor]), **NOT_STARTED})
    assert await kubelet.prefer(IDS, 1) == [IDS[2]]
    assert (await kubelet.allocate(IDS[2])).envs["NVIDIA_VISIBLE_DEVICES"] == IDS[2]
    resources.given = {(arena.namespace, "a", "main"): {GPU: [IDS[2]]}}
    assert await kubelet.prefer([IDS[0], IDS[1], IDS[3]], 1) == [IDS[0]]
    text = f"{GPU} {IDS[3]}: no pod that waits on this node can be given these ({arena.namespace}/b was given {IDS[0]})"
    with pytest.raises(grpc.aio.AioRpcError, match=re.escape(text)):
        await kubelet.allocate(IDS[3])

    def refusals() -> list[dict[str, Any]]:
        return [event for event in arena.list("events") if event["reason"] == "DevicesRefused"]

    (event,) = await asyncio.to_thread(arena.wait, refusals, what="the Event of the refusal")
    assert (event["involvedObject"]["name"], event["type"], event["message"]) == ("b", "Warning", text)
    [on_node] = await asyncio.to_thread(arena.wait, lambda: node_events(arena, node), what="the Event on the Node")
    assert on_node["message"].startswith(f"kubelet was refused {GPU}. ")
    assert on_node["message"].endswith(text)

    half = whole.replace("100", "50") % (1, IDS[1])
    arena.create([arena.pod("half", annotations={names.ALLOCATED: half}, nodeName=node)])
    async with waiting.limit("an unhealthy card", deadline=SOON):
        capacity = await kubelet.sees(lambda units: units[GPU][IDS[1]] == "Unhealthy")
    assert list(capacity[GPU].values()).count("Healthy") == 3
