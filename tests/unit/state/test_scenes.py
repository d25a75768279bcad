"""Random scenes of pods with affinity, from the API server's objects to filters and scores, against the reference.

kube-scheduler's own plugins can decide the same scenes, which checks the reference.
"""

import numpy as np
import pytest

from berth_operator.core import filters, scores
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import nodes, pods
from berth_operator.state.watches import sinks
from tests.differential.pods_among_pods import Raw, Scene, as_listed, scene
from tests.unit.core import affinity_worlds, references
from tests.unit.core.affinity_worlds import World

PLENTY = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}
REFERENCES = {
    "pod-affinity": affinity_worlds.satisfies_affinity,
    "pod-anti-affinity": affinity_worlds.satisfies_anti_affinity,
    "existing-anti-affinity": affinity_worlds.satisfies_existing_anti_affinity,
    "topology-spread": affinity_worlds.satisfies_topology_spread,
}
SCORES = {"pods-near": references.pod_affinity, "even-spread": references.topology_spread}


def cluster_of(drawn: Scene) -> Cluster:
    """Return the state after the API server has sent the objects of a scene."""
    cluster = Cluster(grace=1.0, clock=lambda: 0.0)
    for raw in drawn.placed:
        cluster.put_bound(pods.transform(dict(raw)))
    for raw in drawn.nodes:
        cluster.node_cache.put_node(with_capacity(raw))
    for raw in drawn.namespaces:
        sinks.namespaces(cluster).apply("ADDED", dict(raw))
    return cluster


def with_capacity(node: Raw) -> Raw:
    return {**node, "status": PLENTY}


def world_of(drawn: Scene) -> World:
    return World(
        nodes=[nodes.info(with_capacity(node)) for node in drawn.nodes],
        pods=[pods.charge(each) for each in drawn.placed],
        namespaces={namespace["metadata"]["name"]: namespace["metadata"]["labels"] for namespace in drawn.namespaces},
    )


@pytest.mark.parametrize("first", [pytest.param(first, id=f"from {first}") for first in range(0, 300, 50)])
def test_scenes_are_decided_as_promised(first: int) -> None:
    for seed in range(first, first + 50):
        drawn = as_listed(scene(seed))
        fleet, world, pod = cluster_of(drawn).fleet, world_of(drawn), pods.pending(drawn.pod).request
        rows = [fleet.rows[node.name] for node in world.nodes]
        for module in filters.ORDER:
            if reference := REFERENCES.get(module.NAME):
                expected = [reference(world, pod, node) for node in world.nodes]
                assert module.passes(fleet, pod)[rows].tolist() == expected, (seed, module.NAME)
        for score in scores.ALL:
            if score.NAME in SCORES:
                expected_scores = SCORES[score.NAME](world, pod, world.nodes)
                promised = [expected_scores[node.name] for node in world.nodes]
                values = score.score(fleet, pod, fleet.present)
                agree = len(set(promised)) == 1 if values is None else np.array_equal(values[rows], promised)
                assert agree, (seed, score.NAME)


def test_a_seed_gives_the_same_scene_and_another_one_another() -> None:
    assert scene(1) == scene(1)
    assert scene(1) != scene(2)
    assert {node["metadata"]["name"].partition("-")[0] for node in scene(1, prefix="q7").nodes} == {"q7"}
