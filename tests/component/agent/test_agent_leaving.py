"""An agent that ends serves kubelet until bound pods are admitted. Without the agent, kubelet would reject them."""

import asyncio
import random
from pathlib import Path

import pytest

from berth_agent.kubelet.admission.admission import POLL, QUIET
from tests.component.world import now
from tests.unit.agent.kubelet.admission.kubelets import Agent, Api, Kubelet, pod, whole

pytestmark = pytest.mark.looptime

CARDS = 2


class Node:
    """The pods of a node, its kubelet, and the agent that is about to end."""

    def __init__(self, folder: Path) -> None:
        self.api = Api()
        self.kubelet = Kubelet(devices=[f"GPU-{minor}" for minor in range(CARDS)], chance=random.Random(1))
        self.agent = Agent(api=self.api, kubelet=self.kubelet, path=folder / "checkpoint", cards=CARDS, clock=now)
        self.admission = self.agent.admission

    async def bind(self, name: str, minor: int, *, after: float) -> None:
        """Bind a pod that gets a card; the agent learns of it at once."""
        await asyncio.sleep(after)
        self.api.put(pod(name, 1, grants=whole(minor)))
        self.agent.hear()

    async def admit(self, *, after: float) -> None:
        """Admit all pods, as kubelet does."""
        await asyncio.sleep(after)
        await self.kubelet.hear(self.api, self.admission)
        self.agent.hear()


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def seconds(node: Node) -> float:
    """Return how long the agent waits before it ends."""
    start = now()
    await node.admission.until_admitted()
    return now() - start


async def test_without_waiting_pods_it_ends_after_a_moment(node: Node) -> None:
    assert await seconds(node) == pytest.approx(QUIET, abs=POLL)


async def test_pods_that_kubelet_has_not_asked_for_are_waited_for(node: Node) -> None:
    await node.bind("a", 0, after=0)
    asyncio.get_running_loop().create_task(node.admit(after=2))
    assert await seconds(node) == pytest.approx(2 + QUIET, abs=2 * POLL)
    assert node.kubelet.failed == {}


async def test_a_pod_that_comes_in_the_last_moment_is_waited_for(node: Node) -> None:
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(node.bind("a", 0, after=0.4)), loop.create_task(node.admit(after=1.4))]
    assert await seconds(node) == pytest.approx(1.4 + QUIET, abs=2 * POLL)
    await asyncio.gather(*tasks)
    assert node.kubelet.failed == {}
