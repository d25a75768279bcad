"""Random scenes of pods with affinity, from the API server's objects to filters and scores, against the reference.

kube-scheduler's own plugins can decide the same scenes, which checks the reference.
"""

import numpy as np
import pytest

from berth_operator.core import filters, scores
from berth_operator.state import nodes, pods, sinks
from berth_operator.state.cluster import Cluster
from tests.differential.pods_among_pods import Raw, Scene, as_listed, scene
from tests.unit.core import crowds, references
from tests.unit.core.crowds import World

PLENTY = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}
REFERENCES = {
    "pod-affinity": crowds.near,
    "pod-anti-affinity": crowds.apart,
    "existing-anti-affinity": crowds.left_alone,
    "topology-spread": crowds.even,
}
SCORES = {"pods-near": references.near, "even-spread": references.even}


def told(made: Scene) -> Cluster:
    """Return the state after the API server has sent the objects of a scene."""
    cluster = Cluster(grace=1.0, clock=lambda: 0.0)
    for each in made.placed:
        cluster.put_bound(pods.keep(dict(each)))
    for each in made.nodes:
        cluster.put_node(with_room(each))
    for each in made.namespaces:
        sinks.namespaces(cluster).apply("ADDED", dict(each))
    return cluster


def with_room(node: Raw) -> Raw:
    return {**node, "status": PLENTY}


def world_of(made: Scene) -> World:
    return World(
        nodes=[nodes.info(with_room(each)) for each in made.nodes],
        pods=[pods.charge(each) for each in made.placed],
        namespaces={each["metadata"]["name"]: each["metadata"]["labels"] for each in made.namespaces},
    )


@pytest.mark.parametrize("first", [pytest.param(first, id=f"from {first}") for first in range(0, 300, 50)])
def test_scenes_are_decided_as_promised(first: int) -> None:
    for seed in range(first, first + 50):
        made = as_listed(scene(seed))
        fleet, world, pod = told(made).fleet, world_of(made), pods.pending(made.pod).request
        rows = [fleet.rows[node.name] for node in world.nodes]
        for module in filters.ORDER:
            if reference := REFERENCES.get(module.NAME):
                expected = [reference(world, pod, node) for node in world.nodes]
                assert module.passes(fleet, pod)[rows].tolist() == expected, (seed, module.NAME)
        for score in scores.ALL:
            if score.NAME in SCORES:
                wanted = SCORES[score.NAME](world, pod, world.nodes)
                promised = [wanted[node.name] for node in world.nodes]
                found = score.score(fleet, pod, fleet.present)
                agree = len(set(promised)) == 1 if found is None else np.array_equal(found[rows], promised)
                assert agree, (seed, score.NAME)


def test_a_seed_gives_the_same_scene_and_another_one_another() -> None:
    assert scene(1) == scene(1)
    assert scene(1) != scene(2)
    assert {each["metadata"]["name"].partition("-")[0] for each in scene(1, prefix="q7").nodes} == {"q7"}
