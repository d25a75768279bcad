"""The labels of a Node that is deleted under its agent."""

from collections.abc import AsyncIterator

import pytest

from berth_agent import cluster
from berth_agent.publishing.labelling import Labeller
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.readings import Reading
from berth_agent.vendors.nvidia.labels import CardFacts, Facts
from berth_api.device import DeviceInfo, DeviceSpec
from berth_client import credentials
from berth_client.client import ApiClient
from devcluster import Arena
from devcluster.control_plane.api import Manifest

GPU = DeviceInfo(
    type="gpu", minor=0, id="GPU-0", health=True, model="NVIDIA A100", resources={"kubernetes.io/gpu": 100}
)
FACTS = Facts(cards={GPU.id: CardFacts(compute=(8, 0), pci_class="0x030200")})
READING = Reading(spec=DeviceSpec(devices=[GPU]), findings=(), facts=FACTS)
COUNT = "nvidia.com/gpu.count"


@pytest.fixture
async def client(arena: Arena) -> AsyncIterator[ApiClient]:
    """Return the client of an account that may create Nodes, unlike an agent's."""
    made = cluster.client_of(credentials.load(arena.cluster.kubeconfig), timeout=60.0, connections=2)
    yield made
    made.close()


async def test_a_node_that_was_deleted_is_not_created_by_its_labels(client: ApiClient, arena: Arena) -> None:
    [name] = arena.nodes()
    nodes = NodeCache(client=client)
    await nodes.refresh([name])
    labeller = Labeller(client=client, nodes=nodes)
    arena.delete("nodes", name)

    await labeller.publish({name: READING}, renamed=False)

    assert not arena.cluster.api.exists(f"/api/v1/nodes/{name}")


async def test_a_new_node_of_the_same_name_is_labelled_once_it_is_known(client: ApiClient, arena: Arena) -> None:
    [name] = arena.nodes()
    nodes = NodeCache(client=client)
    await nodes.refresh([name])
    labeller = Labeller(client=client, nodes=nodes)
    arena.delete("nodes", name)
    arena.cluster.create_nodes([name], labels=arena.labels)

    await labeller.publish({name: READING}, renamed=False)
    assert COUNT not in _labels(arena, name)

    await nodes.refresh([name])
    await labeller.publish({name: READING}, renamed=False)
    assert _labels(arena, name)[COUNT] == "1"


async def test_labels_of_another_manager_stay_and_all_others_are_written(client: ApiClient, arena: Arena) -> None:
    """GPU Feature Discovery runs, too, and disagrees about two labels."""
    [name] = arena.nodes()
    theirs = {COUNT: "7", "nvidia.com/gpu.product": "Other"}
    arena.cluster.api.request(
        "PATCH",
        f"/api/v1/nodes/{name}",
        body={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": theirs}},
        query={"fieldManager": "gpu-feature-discovery", "force": "true"},
        content_type="application/apply-patch+yaml",
    )
    nodes = NodeCache(client=client)
    labeller = Labeller(client=client, nodes=nodes)
    answers: list[str] = []
    client.observe = lambda _host, method, code, _seconds: answers.append(f"{method} {code}")
    for _ in range(3):
        await nodes.refresh([name])
        await labeller.publish({name: READING}, renamed=False)
    assert [answer for answer in answers if answer.startswith("PATCH")] == ["PATCH 409", "PATCH 200"]
    labels = _labels(arena, name)
    assert {key: labels[key] for key in theirs} == theirs
    assert labels["nvidia.com/gpu.compute.major"] == "8"


def _labels(arena: Arena, name: str) -> dict[str, str]:
    node: Manifest = arena.cluster.api.get(f"/api/v1/nodes/{name}")
    labels: dict[str, str] = node["metadata"]["labels"]
    return labels
