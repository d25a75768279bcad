"""Pods with affinity to others, and what wakes them when they wait.

Random affinity, anti-affinity and topology spread are compared with kube-scheduler by tests/differential.
"""

from typing import Any

from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"app": "web"}


def term(**fields: Any) -> Manifest:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": WEB}, **fields}


def pod_affinity(**fields: Any) -> Manifest:
    return {"podAffinity": {REQUIRED: [term(**fields)]}}


def zones(world: World) -> list[str]:
    """Create two nodes, each in a zone of its own."""
    return [world.bare_nodes(labels={"zone": zone})[0] for zone in ("a", "b")]


def node_of(world: World, name: str) -> str:
    return str(world.bound(name)["spec"]["nodeName"])


def test_pod_waits_for_its_peer_and_follows_it(shared: World) -> None:
    _, second = zones(shared)
    shared.pod("follower", {"cpu": "1"}, affinity=pod_affinity())
    assert shared.waits("follower", "^0/2") == "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."

    shared.pod("leader", {"cpu": "1"}, labels=WEB, nodeSelector={"zone": "b"})
    assert node_of(shared, "follower") == second


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
