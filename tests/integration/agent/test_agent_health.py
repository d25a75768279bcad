"""From an Xid error to the Device, and back, on a real API server.

tests/unit/agent/health has what ends which fault, and annotations that name no device.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from berth_agent import app
from berth_agent.configuration.settings import Settings
from berth_agent.health.faults import Fault, FaultEvent
from berth_agent.inventory.interface import NothingMeasured
from berth_agent.readings import Reading
from berth_agent.vendor import FaultListener
from berth_agent.vendors.simulated.inventory import FINDINGS
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec
from devcluster import Arena, waiting
from tests.nvml.fixture import MigDevice, NvmlFixture, a100
from tests.stand_ins.proxy import FaultProxy

Wait = Callable[[str], dict[str, Any]]
Start = Callable[..., Any]

WITHIN = 5.0
"""Longest time in seconds from an Xid to the Device."""
SLOW = ("--poll-interval", "60")
"""Within a test the agent does not read by itself, so every change that is seen came from an event."""


def reasons(device: dict[str, Any]) -> list[str]:
    """Return why each card is unhealthy; empty if it is healthy."""
    cards = device["spec"]["devices"]
    return ["" if card["health"] else card["conditions"][0]["reason"] for card in cards]


def annotate(arena: Arena, node: str, annotation: str, value: str | None) -> None:
    arena.cluster.api.request(
        "PATCH",
        f"/apis/{names.API_VERSION}/devices/{node}",
        body={"metadata": {"annotations": {annotation: value}}},
        content_type="application/merge-patch+json",
    )


def wait_for(arena: Arena, node: str, expected: list[str]) -> None:
    arena.wait(lambda: reasons(arena.get("devices", node)) == expected, what=f"the health {expected}")


def test_an_xid_is_published_within_seconds_and_outlives_the_agent(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    migs = [MigDevice(uuid="MIG-0", profile="3g.40gb", gpu_instance=1)]
    fixture = NvmlFixture(tmp_path, gpus=[replace(a100(0), mig_mode=True, migs=migs), a100(1)])
    agent = start_nvml(node, fixture, *SLOW)
    device(node)
    began = time.monotonic()
    fixture.xid(0, 79, gpu_instance=1, compute_instance=0)
    wait_for(arena, node, ["Xid79", ""])
    assert time.monotonic() - began < WITHIN

    before = arena.get("devices", node)["spec"]["devices"][0]["conditions"]
    assert [each["type"] for each in before] == ["Healthy", "Xid79"]
    assert agent.stop() == 0
    again = start_nvml(node, fixture)
    arena.wait(lambda: "Device published" in again.log, what="the second agent")
    fixture.remove(1)
    wait_for(arena, node, ["Xid79"])
    assert arena.get("devices", node)["spec"]["devices"][0]["conditions"] == before

    annotate(arena, node, names.RECOVERED_DEVICES, "gpu/0")
    wait_for(arena, node, [""])
    arena.wait(
        lambda: names.RECOVERED_DEVICES not in arena.get("devices", node)["metadata"].get("annotations", {}),
        what="the end of the annotation",
    )


def test_a_lost_card_is_healthy_again_only_after_a_reset(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    fixture = NvmlFixture(tmp_path, gpus=[a100(0), a100(1)])
    agent = start_nvml(node, fixture, "--quiet-period", "0.1")
    device(node)
    fixture.lose(0)
    wait_for(arena, node, ["GpuIsLost", ""])
    fixture.restore(0)
    fixture.lose(1)
    wait_for(arena, node, ["GpuIsLost", "GpuIsLost"])
    fixture.restore(1)
    earlier = len(agent.log)  # a reading in the middle of a change may have seen none, too
    fixture.unbind(0)
    fixture.unbind(1)
    arena.wait(lambda: "cards=0" in agent.log[earlier:], what="a reading without the driver's cards")
    fixture.write()
    wait_for(arena, node, ["", ""])


def test_people_are_heard_at_once(arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path) -> None:
    (node,) = arena.nodes(1)
    fixture = NvmlFixture(tmp_path, gpus=[a100(0), a100(1)])
    start_nvml(node, fixture, *SLOW, "--resync-interval", "3600")
    device(node)
    annotate(arena, node, names.CORDONED_DEVICES, "1")
    wait_for(arena, node, ["", "Cordoned"])
    annotate(arena, node, names.CORDONED_DEVICES, None)
    wait_for(arena, node, ["", ""])
    fixture.xid(0, 79)
    wait_for(arena, node, ["Xid79", ""])
    annotate(arena, node, names.RECOVERED_DEVICES, "0")
    wait_for(arena, node, ["", ""])


def test_people_are_heard_by_an_agent_that_may_not_watch(
    proxy: FaultProxy, arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    watch = proxy.answer("GET", "/devices.*watch=true", status=403)
    own = ["--kubeconfig", str(proxy.kubeconfig(arena.cluster.token))]
    agent = start_nvml(node, NvmlFixture(tmp_path, gpus=[a100(0), a100(1)]), *own)
    device(node)
    watch.wait()
    annotate(arena, node, names.CORDONED_DEVICES, "1")
    wait_for(arena, node, ["", "Cordoned"])
    assert "watch interrupted" in agent.log


def test_the_node_has_the_labels_of_its_cards_and_loses_them_with_them(
    arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path
) -> None:
    (node,) = arena.nodes(1)
    fixture = NvmlFixture(tmp_path, gpus=[a100(0), a100(1)])
    start_nvml(node, fixture)
    device(node)

    def labels() -> dict[str, str]:
        labels = arena.get("nodes", node)["metadata"]["labels"]
        return {key: value for key, value in labels.items() if key.startswith("nvidia.com/")}

    arena.wait(lambda: labels().get("nvidia.com/gpu.count") == "2", what="the labels")
    assert labels()["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    fixture.remove(1)
    arena.wait(lambda: labels()["nvidia.com/gpu.count"] == "1", what="one card less")
    fixture.remove(0)
    arena.wait(lambda: labels() == {}, what="the end of the labels")


def test_labels_of_others_are_left_to_them(arena: Arena, start_nvml: Start, device: Wait, tmp_path: Path) -> None:
    (node,) = arena.nodes(1)
    arena.cluster.api.request(
        "PATCH",
        f"/api/v1/nodes/{node}",
        body={"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"nvidia.com/gpu.count": "99"}}},
        query={"fieldManager": "gpu-feature-discovery"},
        content_type="application/apply-patch+yaml",
    )
    agent = start_nvml(node, NvmlFixture(tmp_path, gpus=[a100(0)]))
    device(node)
    arena.wait(lambda: "Node not labelled in full" in agent.log, what="a log line about the label")
    arena.wait(lambda: "nvidia.com/gpu.product" in arena.get("nodes", node)["metadata"]["labels"], what="other labels")
    assert arena.get("nodes", node)["metadata"]["labels"]["nvidia.com/gpu.count"] == "99"


class Given(NothingMeasured):
    """An inventory whose readings are given one by one; it hangs, as a driver may, until there is one more."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._readings: asyncio.Queue[Reading] = asyncio.Queue()
        self.fault_event: FaultListener = lambda _alarm: None
        self.hangs = asyncio.Event()

    async def give(self, model: str = "NVIDIA A100-SXM4-80GB", *, reset: bool = False) -> None:
        """Let one reading return, and wait until the next one hangs."""
        card = DeviceInfo(type="gpu", minor=0, id="GPU-0", health=True, model=model)
        ids = frozenset({card.id} if reset else ())
        self.hangs.clear()
        self._readings.put_nowait(Reading(spec=DeviceSpec(devices=[card]), findings=FINDINGS, reset=ids))
        async with waiting.limit("the next reading"):
            await self.hangs.wait()

    async def read(self) -> Mapping[str, Reading]:
        if self._readings.empty():
            self.hangs.set()
        return {self._node: await self._readings.get()}

    def listen(self, listener: FaultListener) -> None:
        self.fault_event = listener

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@contextlib.asynccontextmanager
async def running(arena: Arena, inventory: Given, node: str, kubeconfig: Path) -> AsyncIterator[None]:
    """Run an agent with a given inventory until its Device is there, and then in the background."""
    settings = Settings(
        node_name=node,
        kubeconfig=kubeconfig,
        poll_interval=0.1,
        lease_namespace=f"{arena.id}-leases",
        checkpoint=arena.folder / f"state-{node}" / "checkpoint.json",
    )
    work = asyncio.create_task(app._work(settings, inventory=inventory))
    await inventory.give()
    path = f"/apis/{names.API_VERSION}/devices/{node}"
    await asyncio.to_thread(arena.wait, lambda: arena.cluster.api.exists(path), what="the Device")
    yield
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    await asyncio.to_thread(arena.delete, "namespaces", f"{arena.id}-leases")


async def test_an_xid_is_published_while_a_reading_hangs_in_the_driver(arena: Arena) -> None:
    (node,) = arena.nodes(1)
    inventory = Given(node)
    async with running(arena, inventory, node, arena.cluster.kubeconfig):
        inventory.fault_event(FaultEvent(node=node, card="GPU-0", faults=(Fault(kind="Xid79"),)))
        await asyncio.to_thread(wait_for, arena, node, ["Xid79"])


async def test_a_reset_is_seen_while_the_api_server_hangs(proxy: FaultProxy, arena: Arena) -> None:
    (node,) = arena.nodes(1)
    inventory = Given(node)
    async with running(arena, inventory, node, proxy.kubeconfig(arena.cluster.token)):
        inventory.fault_event(FaultEvent(node=node, card="GPU-0", faults=(Fault(kind="Xid95"),)))
        await asyncio.to_thread(wait_for, arena, node, ["Xid95"])
        held = proxy.hold("PATCH", f"/devices/{node}")
        await inventory.give("NVIDIA H100 80GB HBM3")
        await asyncio.to_thread(held.wait)
        await inventory.give(reset=True)
        await inventory.give()
        held.release()
        await asyncio.to_thread(wait_for, arena, node, [""])
