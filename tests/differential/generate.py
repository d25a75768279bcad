"""Scenarios from a seed. Each is about one rule, with up to two other rules added.

`RULES` lists the rules: functions of (draft, focus) that write their part of the draft. The first node must always be
able to take the probe. With `focus`, the last node must not.
"""

from collections.abc import Iterator
from random import Random
from typing import Final, Protocol

from tests.differential import draft, on_nodes, on_pods, on_ports, on_resources, on_volumes
from tests.differential.draft import Draft, Raw


class Rule(Protocol):
    """Writes one rule's part of a draft."""

    def __call__(self, draft: Draft, *, focus: bool) -> None: ...


RULES: Final[dict[str, Rule]] = {
    "node-selector": on_nodes.node_selector,
    "node-affinity": on_nodes.node_affinity,
    "taints": on_nodes.taints,
    "cordon": on_nodes.cordon,
    "readiness": on_nodes.readiness,
    "declared-features": on_nodes.declared_features,
    "host-ports": on_ports.host_ports,
    "pod-affinity": on_pods.pod_affinity,
    "pod-anti-affinity": on_pods.pod_anti_affinity,
    "existing-anti-affinity": on_pods.existing_anti_affinity,
    "topology-spread": on_pods.topology_spread,
    "volume-claims": on_volumes.volume_claims,
    "volume-in-use": on_volumes.volume_in_use,
    "volume-conflicts": on_volumes.volume_conflicts,
    "volume-limits": on_volumes.volume_limits,
    "volume-affinity": on_volumes.volume_affinity,
    "volume-binding": on_volumes.volume_binding,
    "volume-zones": on_volumes.volume_zones,
    # Last, because it counts the pods that the other rules put on the nodes.
    "resources": on_resources.node_resources,
}
"""Rules by name, in the order in which they write."""

OBJECTS: Final[tuple[tuple[str, Raw], ...]] = (on_resources.RUNTIME_CLASS, *on_volumes.OBJECTS)
"""(path, manifest) of what scenarios share."""


def scenarios(seed: int, numbers: range, namespaces: list[str], kubernetes: int) -> Iterator[Draft]:
    """Return scenarios for a minor version, each in its own namespace; the same seed and number give the same one."""
    for number, namespace in zip(numbers, namespaces, strict=True):
        yield scenario(seed, number, namespace, kubernetes)


def scenario(seed: int, number: int, namespace: str, kubernetes: int) -> Draft:
    """Return one scenario."""
    random = Random(f"{seed}/{number}")
    made = draft.begin(f"s{seed}-{number}", namespace, random, kubernetes)
    names = list(RULES)
    focus = names[number % len(names)]
    others = set(random.sample([each for each in names if each != focus], random.choice([0, 1, 1, 2])))
    for name, rule in RULES.items():
        if name == focus or name in others:
            rule(made, focus=name == focus)
    return made
