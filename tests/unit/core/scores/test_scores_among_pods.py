"""Scores about other pods, compared with a plain reference of kube-scheduler's rules on random clusters."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_operator.core.filters.spreading import HOSTNAME
from berth_operator.core.scores import even_spread, pod_affinity
from berth_operator.core.values.affinity import Affinity, Peers, Term, TopologySpreadConstraint
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PodRequest
from tests.builders import asks, charge, node_info, score_values
from tests.unit.core import affinity_worlds, references
from tests.unit.core.affinity_worlds import World, select, wanting


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


# --- cases ------------------------------------------------------------------------------------------------------

NODES = [node_info(name, labels={"zone": zone}) for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))]
X = Term(key="zone", peers=Peers(selector=select(app="x"), namespaces=("ns",)))
THERE = wanting(labels={"app": "x"}).identity


def there(on: str, name: str = "there", **affinity: Any) -> Any:
    return charge(name, node=on, identity=THERE, affinity=Affinity(**affinity))


ITS_KIND = wanting(labels={"app": "x"})
AB = {"a": 100, "b": 100, "c": 0}
C = {"a": 0, "b": 0, "c": 100}
NONE = {"a": 0, "b": 0, "c": 0}
NEAR = [
    pytest.param([there("a")], wanting(preferred_terms=((X, 5),)), AB, id="drawn to a pod"),
    pytest.param([there("a")], wanting(preferred_terms=((X, -5),)), C, id="pushed away"),
    pytest.param([there("a", preferred_terms=((X, 5),))], ITS_KIND, AB, id="wanted there"),
    pytest.param([there("a", preferred_terms=((X, -5),))], ITS_KIND, C, id="not wanted there"),
    pytest.param([there("a", required_affinity=(X,))], ITS_KIND, AB, id="needed there"),
    pytest.param(
        [there("a", required_affinity=(X,)), there("c", "other", preferred_terms=((X, 4),))],
        ITS_KIND,
        C,
        id="needed counts 1",
    ),
    pytest.param([there("a")], ITS_KIND, NONE, id="no preference"),
]


@pytest.mark.parametrize(("pods", "pod", "expected"), NEAR)
def test_pod_affinity_scores(pods: Sequence[Any], pod: PodRequest, expected: dict[str, float]) -> None:
    assert scored(pod_affinity, World(nodes=NODES, pods=pods), pod) == expected


def test_the_emptier_domain_is_better() -> None:
    pod = wanting(
        labels={"app": "x"},
        preferred_topology_spread=(TopologySpreadConstraint(key="zone", selector=select(app="x"), max_skew=1),),
    )
    points = scored(even_spread, World(nodes=NODES, pods=[there("a"), there("b", "second"), there("c", "third")]), pod)
    # 2 pods and 1 pod, times log(2 domains + 2), rounded: 3 and 1.
    assert points == {"a": 100 * 1 // 3, "b": 33, "c": 100}


@pytest.mark.parametrize("module", [pod_affinity, even_spread], ids=lambda each: each.NAME)
def test_a_pod_without_preferences_scores_no_node(module: Any) -> None:
    assert set(scored(module, World(nodes=NODES, pods=[there("a")]), asks()).values()) == {0.0}
