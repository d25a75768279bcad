"""Scores about other pods, compared with a plain reference of kube-scheduler's rules on random clusters."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_operator.core.filters.spreading import HOSTNAME
from berth_operator.core.scores import even_spread, pod_affinity
from berth_operator.core.values.affinity import Affinity
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import asks, charge, node_info, score_values
from tests.unit.core import affinity_worlds, references
from tests.unit.core.affinity_worlds import World, wanting


def scored(module: Any, world: World, pod: PodRequest, fits: set[str] | None = None) -> dict[str, float]:
    """Return the scores of the nodes that fit, by default of all."""
    fleet = world.fleet()
    mask = np.zeros(len(fleet.names), np.bool_)
    names = {node.name for node in world.nodes if fits is None or node.name in fits}
    mask[[fleet.rows[name] for name in names]] = True
    points = score_values(module, fleet, pod, mask)
    assert np.isfinite(points).all()
    return {name: float(points[fleet.rows[name]]) for name in names}


SCENES = st.tuples(affinity_worlds.WORLDS, affinity_worlds.PENDING, st.sets(st.sampled_from(affinity_worlds.NAMES)))


def seen(world: World, chosen: set[str]) -> list[NodeInfo]:
    return [node for node in world.nodes if node.name not in chosen] or list(world.nodes)


@settings(max_examples=40, deadline=None)
@given(SCENES)
def test_pod_affinity_scores_equal_the_reference(scene: tuple[World, PodRequest, set[str]]) -> None:
    world, pod, left_out = scene
    fits = seen(world, left_out)
    assert scored(pod_affinity, world, pod, {each.name for each in fits}) == references.pod_affinity(world, pod, fits)


@settings(max_examples=40, deadline=None)
@given(SCENES, st.booleans())
def test_preferred_topology_spread_scores_equal_the_reference(
    scene: tuple[World, PodRequest, set[str]],
    by_host: bool,
) -> None:
    world, pod, left_out = scene
    if by_host:
        world.nodes = [replace(node, labels={**node.labels, HOSTNAME: node.name}) for node in world.nodes]
        spreads = tuple(replace(each, key=HOSTNAME) for each in pod.affinity.preferred_topology_spread[:1])
        pod = replace(
            pod, affinity=Affinity(preferred_topology_spread=(*spreads, *pod.affinity.preferred_topology_spread[1:]))
        )
    fits = seen(world, left_out)
    assert scored(even_spread, world, pod, {each.name for each in fits}) == references.topology_spread(world, pod, fits)


@pytest.mark.parametrize("module", [pod_affinity, even_spread], ids=lambda each: each.NAME)
def test_a_pod_without_preferences_scores_no_node(module: Any) -> None:
    nodes = [node_info(name, labels={"zone": zone}) for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))]
    there = charge("there", node="a", identity=wanting(labels={"app": "x"}).identity)
    assert set(scored(module, World(nodes=nodes, pods=[there]), asks()).values()) == {0.0}
