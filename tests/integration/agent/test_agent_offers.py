"""An agent process on the NVML fixture is the device plugin of its node."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from berth_api import names
from devcluster import Arena
from tests.nvml.fixture import NvmlFixture, a100
from tests.objects.devices import GPU
from tests.stand_ins.kubelet import Kubelet
from tests.stand_ins.pod_resources import PodResourcesServer

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
Wait = Callable[[str], dict[str, Any]]
Start = Callable[..., Any]


def entries(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def condition(arena: Arena, node: str) -> dict[str, Any] | None:
    conditions = arena.get("devices", node).get("status", {}).get("conditions", [])
    return next(
        (each for each in conditions if each["type"] == names.DEVICES_OFFERED and each["status"] == "True"), None
    )


async def test_the_cards_of_a_node_are_offered_and_change_without_a_restart(  # noqa: PLR0917
    arena: Arena, start_nvml: Start, device: Wait, kubelet: Kubelet, folder: Path, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    machine = NvmlFixture(tmp_path, gpus=[a100(0), a100(1)])
    file = tmp_path / "config.yaml"
    file.write_text("version: v1")
    words = ["--device-plugin", "--kubelet-socket", str(kubelet.socket), "--config-file", str(file)]
    words += ["--admission", "false"]
    agent = start_nvml(node, machine, *words, "--cdi-folder", str(tmp_path / "cdi"))
    capacity = await kubelet.sees(lambda units: GPU in units)
    assert list(capacity[GPU].values()) == ["Healthy", "Healthy"]
    first = next(iter(capacity[GPU]))
    assert (await kubelet.allocate(first)).envs["NVIDIA_VISIBLE_DEVICES"] == first

    published = await asyncio.to_thread(device, node)
    assert [each["id"] for each in published["spec"]["devices"]] == list(capacity[GPU])
    await asyncio.to_thread(arena.wait, lambda: condition(arena, node), what="the condition that the cards are offered")

    machine.lose(0)
    await kubelet.sees(lambda units: units[GPU][first] == "Unhealthy")
    machine.unbind(0)
    await asyncio.to_thread(arena.wait, lambda: "cards=1" in agent.log, what="a reading while the driver has one card")
    machine.restore(0)
    await kubelet.sees(lambda units: units[GPU][first] == "Healthy")

    file.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")
    agent.signal(signal.SIGHUP)
    await kubelet.sees(lambda units: GPU in units and len(units[GPU]) == 4)

    assert await asyncio.to_thread(agent.stop) == 0
    assert entries(folder) == ["kubelet.sock"]


async def test_an_agent_that_leaves_says_first_that_nothing_is_offered(
    arena: Arena, start_nvml: Start, kubelet: Kubelet, folder: Path, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    with PodResourcesServer(folder / "pods.sock") as pods:
        words = ["--device-plugin", "--kubelet-socket", str(kubelet.socket), "--cdi-folder", str(tmp_path / "cdi")]
        words += ["--pod-resources-socket", str(pods.socket), "--checkpoint", str(tmp_path / "checkpoint.json")]
        agent = start_nvml(node, NvmlFixture(tmp_path, gpus=[a100(0), a100(1)]), *words)
        await kubelet.sees(lambda units: GPU in units)
        await asyncio.to_thread(arena.wait, lambda: withheld(arena, node) == [], what="the cards on offer")
        assert await asyncio.to_thread(agent.stop) == 0
    assert withheld(arena, node) == [0, 1], agent.log


def withheld(arena: Arena, node: str) -> list[int] | None:
    path = f"/apis/{names.API_VERSION}/devices/{node}"
    if not arena.cluster.api.exists(path):
        return None
    withheld: list[int] | None = arena.get("devices", node).get("status", {}).get("withheld")
    return withheld
