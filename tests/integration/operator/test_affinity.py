"""Pods with affinity, anti-affinity and topology spread, and what wakes them when they wait."""

from typing import Any

from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"app": "web"}


def term(**fields: Any) -> Manifest:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": WEB}, **fields}


def pod_affinity(**fields: Any) -> Manifest:
    return {"podAffinity": {REQUIRED: [term(**fields)]}}


def pod_anti_affinity(**fields: Any) -> Manifest:
    return {"podAntiAffinity": {REQUIRED: [term(**fields)]}}


def zones(world: World) -> list[str]:
    """Create two nodes, each in a zone of its own."""
    return [world.bare_nodes(labels={"zone": zone})[0] for zone in ("a", "b")]


def node_of(world: World, name: str) -> str:
    return str(world.bound(name)["spec"]["nodeName"])


def test_replicas_that_avoid_each_other_are_one_to_a_zone(shared: World) -> None:
    nodes = zones(shared)
    shared.pods(["p", "q", "r"], {"cpu": "1"}, labels=WEB, affinity=pod_anti_affinity())

    shared.wait(lambda: len(shared.bound_names()) == 2, what="two pods to be bound")
    (left,) = {"p", "q", "r"} - shared.bound_names()
    shared.waits(left, "^0/2 nodes are available: 2 node.s. didn't match pod anti-affinity rules[.]")
    assert {node_of(shared, name) for name in shared.bound_names()} == set(nodes)

    gone = min(shared.bound_names())
    shared.arena.delete("pods", gone)
    shared.bound(left)


def test_pod_waits_for_its_peer_and_follows_it(shared: World) -> None:
    _, second = zones(shared)
    shared.pod("follower", {"cpu": "1"}, affinity=pod_affinity())
    assert shared.waits("follower", "^0/2") == "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."

    shared.pod("leader", {"cpu": "1"}, labels=WEB, nodeSelector={"zone": "b"})
    assert node_of(shared, "follower") == second


def test_replicas_of_one_revision_are_spread_evenly(shared: World) -> None:
    zones(shared)
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
        "matchLabelKeys": ["revision"],
    }
    for revision in ("1", "2"):
        names = [f"p{revision}-{i}" for i in range(4)]
        labels = {**WEB, "revision": revision}
        shared.pods(names, {"cpu": "1"}, labels=labels, topologySpreadConstraints=[spread])
        placed = [node_of(shared, name) for name in names]
        assert sorted(placed.count(each) for each in set(placed)) == [2, 2]


def test_label_of_a_namespace_selects_its_pods(shared: World) -> None:
    zones(shared)
    path = f"/api/v1/namespaces/{shared.arena.namespace}"
    team = {"matchLabels": {"team": shared.arena.namespace}}
    shared.pod("leader", {"cpu": "1"}, labels=WEB)
    shared.bound("leader")
    shared.pod("follower", {"cpu": "1"}, affinity=pod_affinity(namespaceSelector=team))
    shared.waits("follower", "pod affinity")

    shared.api.merge(path, {"metadata": {"labels": {"team": shared.arena.namespace}}})
    assert node_of(shared, "follower") == node_of(shared, "leader")
