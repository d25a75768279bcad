"""Small random clusters with pods that constrain each other, and a plain reference of Kubernetes' rules.

The reference evaluates one node and one pod at a time. It shares only its input values with the code under test.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

from hypothesis import strategies as st

from berth_api.values.selectors import EVERYTHING, NOTHING, LabelSelector
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import releases
from berth_operator.core.values.affinity import Affinity, Identity, Peers, Term, TopologySpreadConstraint
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PodRequest, Taint, Toleration
from tests.objects.builders import asks, charge, label, node_info

TAINT = Taint(key="reserved")


@dataclass
class World:
    """Nodes, placed pods and namespaces."""

    nodes: Sequence[NodeInfo]
    pods: Sequence[Charge]
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kubernetes: int = releases.NEWEST

    def fleet(self) -> Fleet:
        made = Fleet()
        made.set_kubernetes(self.kubernetes)
        for name, labels in self.namespaces.items():
            made.affinity_index.put_namespace(name, labels)
        for pod in self.pods:
            made.charge(pod)
        for node in self.nodes:
            made.put_node(node)
        return made

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        return self.namespaces.get(namespace, {})

    def placed(self) -> Iterator[tuple[NodeInfo, Charge]]:
        """Return the placed pods whose node exists, each with the node."""
        for pod in self.pods:
            for node in self.nodes:
                if node.name == pod.node:
                    yield node, pod


# --- strategies -------------------------------------------------------------------------------------------------
#
# What has few forms is drawn whole from a list of all of them: that is several times as fast as part by part.


def of_labels(**values: Sequence[str]) -> list[dict[str, str]]:
    """Return all labels with some of these keys and values."""
    combinations_ = product(*(["", *each] for each in values.values()))
    return [{key: value for key, value in zip(values, each, strict=True) if value} for each in combinations_]


NAMESPACES = st.sampled_from(["a", "b", "c"])
NAMESPACE_LABELS = st.dictionaries(
    NAMESPACES, st.sampled_from([{}, {"team": "x"}, {"team": "y"}, {"team": "x", "old": ""}]), max_size=3
)
POD_LABELS = st.sampled_from([tuple(each.items()) for each in of_labels(app="xy", tier="12")])
CONTROLLERS = st.sampled_from(["", "set-1", "set-2"])
IDENTITIES = st.builds(Identity, namespace=NAMESPACES, labels=POD_LABELS, controller=CONTROLLERS)
KEYS = st.sampled_from(["zone", "host", "disk"])


def selectors(*keys: str, values: Sequence[str]) -> st.SearchStrategy[LabelSelector]:
    """Draw one of all selectors with up to two requirements."""
    sets = [*combinations(values, 1), *combinations(values, 2)]
    requirements = [label(key, operator, *each) for key in keys for operator in ("In", "In", "NotIn") for each in sets]
    requirements += [label(key, operator) for key in keys for operator in ("Exists", "DoesNotExist")]
    one, two = ([LabelSelector(requirements=each) for each in combinations(requirements, count)] for count in (1, 2))
    return st.one_of(st.sampled_from(one), st.sampled_from(two), st.sampled_from([*one[:2], EVERYTHING, NOTHING]))


OF_PODS = selectors("app", "tier", values=["x", "y", "1", "2"])
PEERS = st.builds(
    Peers,
    selector=OF_PODS,
    namespaces=st.sampled_from([each for count in range(3) for each in combinations("abc", count)]),
    namespace_selector=st.one_of(st.just(NOTHING), selectors("team", "old", values=["x", "y"])),
)
TERMS = st.builds(Term, key=KEYS, peers=PEERS)
SHAPES = [
    TopologySpreadConstraint(
        key=key, selector=NOTHING, max_skew=skew, min_domains=least, honor_affinity=affinity, honor_taints=taints
    )
    for key, skew, least, affinity, taints in product(
        ("zone", "host", "disk"), (1, 2, 3), (1, 1, 2, 4), (False, True), (False, True)
    )
]
SPREADS = st.builds(lambda shape, selector: replace(shape, selector=selector), st.sampled_from(SHAPES), OF_PODS)
WEIGHTED = st.tuples(TERMS, st.sampled_from([-100, -3, 1, 7, 100]))


def few(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.one_of(st.just(()), st.lists(of, min_size=1, max_size=2).map(tuple))


AFFINITIES = st.builds(
    Affinity,
    required_affinity=few(TERMS),
    required_anti_affinity=few(TERMS),
    preferred_terms=few(WEIGHTED),
    topology_spread=few(SPREADS),
    preferred_topology_spread=few(SPREADS),
)
NAMES = [f"n{i}" for i in range(6)]
NODE_LABELS = st.sampled_from(of_labels(zone="123", disk=["ssd", "hdd"]))


def _nodes(choices: Sequence[tuple[Mapping[str, str], bool, bool]]) -> list[NodeInfo]:
    return [
        node_info(name, labels={**labels, **({"host": name} if host else {})}, taints=[TAINT] if tainted else ())
        for name, (labels, host, tainted) in zip(NAMES, choices, strict=False)
    ]


NODES = st.lists(
    st.tuples(NODE_LABELS, st.sampled_from([True, True, False]), st.sampled_from([False, False, True])),
    min_size=1,
    max_size=5,
).map(_nodes)
PLACED = st.tuples(IDENTITIES, AFFINITIES, st.sampled_from(NAMES), st.sampled_from([False, False, False, True]))


def placed(number: int, each: tuple[Identity, Affinity, str, bool]) -> Charge:
    identity, affinity, node, terminating = each
    return charge(f"p{number}", node=node, identity=identity, affinity=affinity, terminating=terminating)


PODS = st.lists(PLACED, max_size=8).map(lambda pods: [placed(i, each) for i, each in enumerate(pods)])
WORLDS = st.builds(World, nodes=NODES, pods=PODS, namespaces=NAMESPACE_LABELS, kubernetes=st.sampled_from([36, 37]))
PENDING = st.builds(
    lambda identity, affinity, disk, tolerates: replace(
        asks(selector=disk, tolerations=[Toleration(key="reserved", operator="Exists")] if tolerates else ()),
        identity=identity,
        affinity=affinity,
    ),
    IDENTITIES,
    AFFINITIES,
    st.sampled_from([{}, {}, {"disk": "ssd"}]),
    st.booleans(),
)


def wanting(namespace: str = "ns", labels: Mapping[str, str] | None = None, **affinity: Any) -> PodRequest:
    """Return the request of a pod with these labels and affinity."""
    identity = Identity(namespace=namespace, labels=tuple(sorted((labels or {}).items())))
    return replace(asks(), identity=identity, affinity=Affinity(**affinity))


def select(**labels: str) -> LabelSelector:
    """Return a selector of these labels."""
    return LabelSelector(requirements=tuple(label(key, "In", value) for key, value in sorted(labels.items())))


# --- the reference ----------------------------------------------------------------------------------------------


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    for requirement in selector.requirements:
        there = requirement.key in labels
        right = {
            "In": there and labels.get(requirement.key) in requirement.values,
            "NotIn": not there or labels.get(requirement.key) not in requirement.values,
            "Exists": there,
            "DoesNotExist": not there,
        }
        if not right[requirement.operator]:
            return False
    return True


def matches(world: World, peers: Peers, pod: Identity) -> bool:
    selected = selects(peers.namespace_selector, world.labels_of(pod.namespace))
    return (pod.namespace in peers.namespaces or selected) and selects(peers.selector, dict(pod.labels))


def matches_for_incoming_pod(world: World, peers: Peers, pod: Identity) -> bool:
    """Return whether a term of the pod to be placed matches a pod: see `Peers.matches_for_incoming_pod`."""
    everywhere = selects(peers.namespace_selector, {}) and selects(peers.selector, dict(pod.labels))
    return (everywhere and world.kubernetes < 37) or matches(world, peers, pod)


def same_domain(key: str, one: NodeInfo, other: NodeInfo) -> bool:
    return key in one.labels and key in other.labels and one.labels[key] == other.labels[key]


def satisfies_affinity(world: World, pod: PodRequest, node: NodeInfo) -> bool:
    terms = pod.affinity.required_affinity
    if any(each.key not in node.labels for each in terms):
        return False
    matching = [
        at
        for at, other in world.placed()
        if all(matches_for_incoming_pod(world, each.peers, other.identity) for each in terms)
    ]
    if all(any(same_domain(each.key, node, at) for at in matching) for each in terms):
        return True
    counted = [at for at in matching if any(each.key in at.labels for each in terms)]
    return not counted and all(matches_for_incoming_pod(world, each.peers, pod.identity) for each in terms)


def satisfies_anti_affinity(world: World, pod: PodRequest, node: NodeInfo) -> bool:
    return not any(
        matches_for_incoming_pod(world, each.peers, other.identity) and same_domain(each.key, node, at)
        for each in pod.affinity.required_anti_affinity
        for at, other in world.placed()
    )


def satisfies_existing_anti_affinity(world: World, pod: PodRequest, node: NodeInfo) -> bool:
    return not any(
        matches(world, each.peers, pod.identity) and same_domain(each.key, node, at)
        for at, other in world.placed()
        for each in other.affinity.required_anti_affinity
    )


def eligible(pod: PodRequest, constraint: TopologySpreadConstraint, keys: set[str], node: NodeInfo) -> bool:
    if not keys <= set(node.labels):
        return False
    if constraint.honor_affinity and any(not each.holds(node.labels) for each in pod.node_selector):
        return False
    return not (constraint.honor_taints and any(not pod.tolerates(each) for each in node.taints))


def count_matching(world: World, pod: PodRequest, constraint: TopologySpreadConstraint, node: NodeInfo) -> int:
    """Return the number of a node's pods that a constraint counts."""
    if not constraint.selector.requirements:
        return 0
    return sum(
        at is node
        and not other.terminating
        and other.identity.namespace == pod.identity.namespace
        and selects(constraint.selector, dict(other.identity.labels))
        for at, other in world.placed()
    )


def satisfies_topology_spread(world: World, pod: PodRequest, node: NodeInfo) -> bool:
    keys = {each.key for each in pod.affinity.topology_spread}
    if not keys <= set(node.labels):
        return False
    for each in pod.affinity.topology_spread:
        domains: dict[str, int] = {}
        for other in world.nodes:
            if eligible(pod, each, keys, other):
                value = other.labels[each.key]
                domains[value] = domains.get(value, 0) + count_matching(world, pod, each, other)
        least = min(domains.values()) if len(domains) >= each.min_domains else 0
        itself = selects(each.selector, dict(pod.identity.labels))
        if domains.get(node.labels[each.key], 0) + itself - least > each.max_skew:
            return False
    return True
