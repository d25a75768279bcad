"""Replicas without their own constraints are spread as under kube-scheduler."""

from collections import Counter
from typing import Any, Final

from tests.integration.operator.world import World

Raw = dict[str, Any]

ZONE: Final = "topology.kubernetes.io/zone"
ZONES: Final = ("1", "2", "3")
NODES: Final = 3
"""Nodes in each zone."""
THEIRS: Final = "default-scheduler"


def test_a_replica_set_is_spread_over_zones_and_nodes_whatever_is_there(shared: World) -> None:
    zone_of = {name: zone for zone in ZONES for name in shared.bare_nodes(NODES, labels={ZONE: zone})}
    # By free resources alone all replicas would go to the first zone.
    for node, zone in zone_of.items():
        if zone != ZONES[0]:
            shared.pod(f"held-{node}", {"cpu": "8", "memory": "64Gi"}, nodeName=node)

    ours, theirs = (placed(shared, scheduler) for scheduler in (shared.arena.scheduler_name, THEIRS))

    # Equally many on each node, and so in each zone.
    assert Counter(ours) == Counter(theirs) == dict.fromkeys(zone_of, 1)


def placed(world: World, scheduler: str) -> list[str]:
    """Return the nodes on which a scheduler puts nine replicas, which are deleted before the return."""
    arena, name = world.arena, f"web-{scheduler}"
    labels = {"app": name}
    pod = arena.pod(requests={"cpu": "100m"}, scheduler_name=scheduler, nodeSelector=arena.labels)
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"replicas": 9, "selector": {"matchLabels": labels}, "template": template}
    arena.apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec})

    def nodes() -> list[str]:
        node_names = [each["spec"].get("nodeName") for each in arena.list("pods", labelSelector=f"app={name}")]
        return [each for each in node_names if each]

    world.wait(lambda: len(nodes()) == 9, what=f"nine replicas to be bound by {scheduler}")
    node_names = nodes()
    arena.delete("replicasets", name)
    world.wait(lambda: not nodes(), what="the replicas to go")
    return node_names
