"""Kubelet's PodResources over a real socket, and kubelets that are away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from berth_agent.admission.chooser import Away
from berth_agent.admission.mirror import Told
from berth_agent.truth.podresources import PodResources
from tests.pod_resources import PodResourcesServer

GPU = "nvidia.com/gpu"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[PodResources]:
    made = PodResources(tmp_path / "kubelet.sock")
    yield made
    await made.close()


@pytest.fixture
def kubelet(tmp_path: Path) -> PodResourcesServer:
    return PodResourcesServer(tmp_path / "kubelet.sock")


async def test_devices_of_the_plugin_are_told_whatever_numa_node_they_lie_on(
    client: PodResources, kubelet: PodResourcesServer
) -> None:
    with kubelet:
        kubelet.given = {
            ("ns", "a", "x"): {GPU: ["GPU-1", "GPU-2"], "nvidia.com/mig-1g.10gb": ["MIG-1"], "rdma/hca": ["0"]},
            ("ns", "a", "y"): {},
            ("ns", "b", "x"): {"nvidia.com/hostdev": ["0"]},
        }
        by_resource = {GPU: frozenset({"GPU-1", "GPU-2"}), "nvidia.com/mig-1g.10gb": frozenset({"MIG-1"})}
        told = Told(namespace="ns", pod="a", container="x", by_resource=by_resource)
        assert await client.told() == (told,)


async def answer(client: PodResources) -> tuple[Told, ...] | None:
    try:
        return await client.told()
    except Away:
        return None


async def test_a_kubelet_that_is_away_is_named_and_found_again(
    client: PodResources, kubelet: PodResourcesServer
) -> None:
    with pytest.raises(Away, match=r"kubelet\.sock"):
        await client.told()
    kubelet.start()
    try:
        async with asyncio.timeout(10):
            while await answer(client) is None:
                pass
    finally:
        kubelet.stop()
    with pytest.raises(Away):
        await client.told()
