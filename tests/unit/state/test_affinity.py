"""Affinity of pods, from the API server's objects to the decision, and what wakes waiting pods."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from berth_api.values.selectors import EVERYTHING, NOTHING, LabelSelector
from berth_operator.core import filters
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.values.affinity import NO_AFFINITY, Identity, Peers, Term, TopologySpreadConstraint
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import affinity, pod_limits, pods
from berth_operator.state.watches import sinks
from tests.objects.builders import decided, label, node, owner, parked, pod

Raw = dict[str, Any]
Act = Callable[[Cluster], object]

REQUIRED, PREFERRED = pod_limits.REQUIRED, pod_limits.PREFERRED


def term(selector: Raw | None = None, key: str = "zone", **fields: Any) -> Raw:
    return {
        "labelSelector": {"matchLabels": {"app": "x"}} if selector is None else selector,
        "topologyKey": key,
        **fields,
    }


def pod_affinity(*terms: Raw) -> Raw:
    return {"podAffinity": {REQUIRED: list(terms)}}


def pod_anti_affinity(*terms: Raw) -> Raw:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def spread(**fields: Any) -> Raw:
    base = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {**base, "labelSelector": {"matchLabels": {"app": "x"}}, **fields}


# --- reading ----------------------------------------------------------------------------------------------------

X = LabelSelector(requirements=(label("app", "In", "x"),))

SELECTORS = [
    pytest.param(None, NOTHING, id="null"),
    pytest.param({}, EVERYTHING, id="empty"),
    pytest.param({"matchLabels": {}, "matchExpressions": None}, EVERYTHING, id="empty in other words"),
    pytest.param({"matchLabels": {"app": "x"}}, X, id="labels"),
    pytest.param(
        {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]}, X, id="the same said longer"
    ),
    pytest.param(
        {
            "matchLabels": {"app": "x"},
            "matchExpressions": [
                {"key": "tier", "operator": "NotIn", "values": ["2", "1"]},
                {"key": "tier", "operator": "Exists"},
                {"key": "old", "operator": "DoesNotExist", "values": None},
            ],
        },
        LabelSelector(
            requirements=(
                label("app", "In", "x"),
                label("old", "DoesNotExist"),
                label("tier", "Exists"),
                label("tier", "NotIn", "1", "2"),
            )
        ),
        id="all operators",
    ),
]


@pytest.mark.parametrize(("raw", "expected"), SELECTORS)
def test_a_selector_is_read(raw: Raw | None, expected: LabelSelector) -> None:
    assert affinity.selector(raw) == expected


def test_an_unknown_operator_is_reported() -> None:
    bad = {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}
    assert 'operator "Gt"; allowed are In, ' in pods.pending(pod(affinity=pod_affinity(term(bad)))).error
    assert pods.charge(pod(on="node", affinity=pod_affinity(term(bad)))).affinity is NO_AFFINITY


NAMESPACES = [
    pytest.param({}, ("ns",), NOTHING, id="its own"),
    pytest.param({"namespaces": ["b", "a"]}, ("a", "b"), NOTHING, id="by name"),
    pytest.param({"namespaceSelector": {}}, (), EVERYTHING, id="all"),
    pytest.param({"namespaceSelector": {"matchLabels": {"app": "x"}}}, (), X, id="by labels"),
    pytest.param({"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"app": "x"}}}, ("a",), X, id="both"),
]


@pytest.mark.parametrize(("fields", "names", "selector"), NAMESPACES)
def test_a_terms_namespaces_are_read(fields: Raw, names: Sequence[str], selector: LabelSelector) -> None:
    (parsed,) = pods.pending(pod(affinity=pod_affinity(term(**fields)))).request.affinity.required_affinity
    assert parsed == Term(key="zone", peers=Peers(selector=X, namespaces=tuple(names), namespace_selector=selector))


def test_preferred_terms_have_weights_and_those_that_push_away_negative_ones() -> None:
    affinity = {
        "podAffinity": {PREFERRED: [{"weight": 7, "podAffinityTerm": term()}]},
        "podAntiAffinity": {PREFERRED: [{"weight": 3, "podAffinityTerm": term(key="host")}]},
    }
    parsed = pods.pending(pod(affinity=affinity)).request.affinity
    assert [(each.key, weight) for each, weight in parsed.preferred_terms] == [("zone", 7), ("host", -3)]
    assert not parsed.required_affinity
    assert not parsed.required_anti_affinity


SPREADS = {
    "defaults": ({}, TopologySpreadConstraint(key="zone", selector=X, max_skew=1)),
    "everything said": (
        {"maxSkew": 3, "minDomains": 4, "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"},
        TopologySpreadConstraint(
            key="zone", selector=X, max_skew=3, min_domains=4, honor_affinity=False, honor_taints=True
        ),
    ),
    "no selector": ({"labelSelector": None}, TopologySpreadConstraint(key="zone", selector=NOTHING, max_skew=1)),
    "keys of its own labels": (
        {"matchLabelKeys": ["tier", "missing"]},
        TopologySpreadConstraint(
            key="zone", selector=LabelSelector(requirements=(*X.requirements, label("tier", "In", "1"))), max_skew=1
        ),
    ),
    "keys and an empty selector": (
        {"matchLabelKeys": ["tier"], "labelSelector": {}},
        TopologySpreadConstraint(
            key="zone", selector=LabelSelector(requirements=(label("tier", "In", "1"),)), max_skew=1
        ),
    ),
}


@pytest.mark.parametrize(("fields", "expected"), SPREADS.values(), ids=SPREADS)
def test_a_spread_is_read(fields: Raw, expected: TopologySpreadConstraint) -> None:
    raw = pod(labels={"app": "x", "tier": "1"}, topologySpreadConstraints=[spread(**fields)])
    parsed = pods.pending(raw).request.affinity
    assert (parsed.topology_spread, parsed.preferred_topology_spread) == ((expected,), ())
    raw["spec"]["topologySpreadConstraints"][0]["whenUnsatisfiable"] = "ScheduleAnyway"
    parsed = pods.pending(raw).request.affinity
    assert (parsed.topology_spread, parsed.preferred_topology_spread) == ((), (expected,))


def test_keys_without_a_selector_match_nothing_still() -> None:
    raw = pod(labels={"tier": "1"}, topologySpreadConstraints=[spread(labelSelector=None, matchLabelKeys=["tier"])])
    (parsed,) = pods.pending(raw).request.affinity.topology_spread
    assert not parsed.selector.matches({"tier": "1"})


def test_what_waits_and_what_is_placed_are_read_alike() -> None:
    fields: Raw = {"labels": {"b": "2", "a": "1"}, "affinity": pod_anti_affinity(term())}
    waiting, placed = pods.pending(pod(**fields)).request, pods.charge(pod(on="node", **fields))
    assert waiting.identity == placed.identity == Identity(namespace="ns", labels=(("a", "1"), ("b", "2")))
    assert waiting.affinity is placed.affinity
    assert not placed.terminating
    assert pods.charge(pod(on="node", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})).terminating


def test_replicas_share_their_affinity_and_most_pods_have_none() -> None:
    one = pods.pending(pod("a", labels={"index": "1"}, affinity=pod_affinity(term()))).request
    two = pods.pending(pod("b", labels={"index": "2"}, affinity=pod_affinity(term()))).request
    assert one.affinity is two.affinity
    assert (
        pods.pending(pod(affinity={"nodeAffinity": {}}, topologySpreadConstraints=[])).request.affinity is NO_AFFINITY
    )


# --- replicas of which controller ---------------------------------------------------------------------------------

REPLICAS = [
    pytest.param([owner("set")], "uid-set", id="of a ReplicaSet"),
    pytest.param([owner("set", "StatefulSet")], "uid-set", id="of a StatefulSet"),
    pytest.param([owner("set", "ReplicationController", "v1")], "uid-set", id="of a ReplicationController"),
    pytest.param([owner("job", "Job", "batch/v1")], "", id="of a Job"),
    pytest.param([owner("set", version="apps.example/v1")], "", id="of another group's ReplicaSet"),
    pytest.param([owner("set", controller=False)], "", id="not its controller"),
    pytest.param([owner("group", "PodGroup", "x/v1", controller=None), owner("set")], "uid-set", id="the second owner"),
    pytest.param([], "", id="no pod"),
]


@pytest.mark.parametrize(("owners", "expected"), REPLICAS)
def test_the_controller_of_a_replica(owners: list[Raw], expected: str) -> None:
    fields: Raw = {"labels": {"app": "x"}, "metadata": {"ownerReferences": owners}}
    waiting, placed = (
        pods.pending(pods.transform(pod(**fields))).request,
        pods.charge(pods.transform(pod(on="node", **fields))),
    )
    assert waiting.identity == placed.identity
    assert placed.identity.controller == expected


def test_replicas_are_of_one_class_and_those_of_another_set_are_not() -> None:
    one, two, other = (
        pods.pending(pod(name, labels={"app": "x"}, metadata={"ownerReferences": [owner(of)]})).request
        for name, of in (("a", "set"), ("b", "set"), ("c", "other"))
    )
    assert one is two
    assert one != other


def test_services_are_known_as_the_api_server_shows_them() -> None:
    cluster, labelled = with_nodes(), Identity(namespace="ns", labels=(("app", "x"),))
    table = sinks.services(cluster)
    service: Raw = {"metadata": {"namespace": "ns", "name": "web"}, "spec": {"selector": {"app": "x"}}}
    table.apply("ADDED", service)
    assert cluster.fleet.affinity_index.services.selector_of(labelled) == X
    table.apply("MODIFIED", {**service, "spec": {"selector": {"app": "y"}}})
    assert cluster.fleet.affinity_index.services.selector_of(labelled) is NOTHING
    table.apply("MODIFIED", service)
    table.apply("DELETED", service)
    assert cluster.fleet.affinity_index.services.selector_of(labelled) is NOTHING
    table.apply("ADDED", {**service, "spec": {"type": "ExternalName"}})
    assert cluster.fleet.affinity_index.services.selector_of(labelled) is NOTHING


# --- waking -----------------------------------------------------------------------------------------------------


def with_nodes(**zones: str | None) -> Cluster:
    cluster = Cluster(grace=20.0, clock=lambda: 0.0)
    for name, zone in zones.items():
        cluster.node_cache.put_node(node(name, labels={"zone": zone} if zone else {}))
    return cluster


def placed(name: str = "there", on: str = "a", labels: Raw | None = None, **fields: Any) -> Act:
    raw = pod(name, on=on, labels={"app": "x"} if labels is None else labels, **fields)
    return lambda cluster: cluster.put_bound(raw)


def leaves(name: str = "there") -> Act:
    return lambda cluster: cluster.remove_bound(f"uid-{name}")


def node_is(name: str, labels: Raw | None = None, **fields: Any) -> Act:
    return lambda cluster: cluster.node_cache.put_node(node(name, labels=labels or {}, **fields))


def node_goes(name: str) -> Act:
    return lambda cluster: cluster.node_cache.remove_node(name)


def namespace_is(labels: Raw) -> Act:
    table_of = {"metadata": {"name": "ns", "labels": labels}}
    return lambda cluster: sinks.namespaces(cluster).apply("MODIFIED", table_of)


OTHER_KIND = {"app": "y"}
OWN = {"app": "x"}
TEAM: Raw = {"namespaceSelector": {"matchLabels": {"team": "x"}}}
FULLEST: Raw = {
    "labels": OWN,
    "topologySpreadConstraints": [spread(nodeAffinityPolicy="Ignore")],
    "nodeSelector": {"zone": "1"},
}
"""A pod for the domain that has the most of its kind already."""
LOCKED = {"taints": [{"key": "locked", "effect": "NoSchedule"}]}

WITH_PEERS: Raw = {"affinity": pod_affinity(term())}
ELSEWHERE: Raw = {"labels": OWN, **WITH_PEERS, "nodeSelector": {"zone": "2"}}
APART: Raw = {"affinity": pod_anti_affinity(term())}
APART_FROM_TEAM: Raw = {"affinity": pod_anti_affinity(term(**TEAM))}
ON_BOTH = [placed(), placed("second", "b")]
IN_RACK, IN_TEAM = {"rack": "1"}, namespace_is({"team": "x"})

WAKES = {
    "its peer comes": ("pod-affinity", WITH_PEERS, [], placed(), Change.POD_ASSIGNED),
    "a pod becomes its peer": ("pod-affinity", WITH_PEERS, [placed(labels=OTHER_KIND)], placed(), Change.POD_LABELS),
    "a namespace becomes its peers'": (
        "pod-affinity",
        {"affinity": pod_affinity(term(**TEAM))},
        [placed()],
        IN_TEAM,
        Change.NAMESPACE_LABELS,
    ),
    "its peer's node gets the key": (
        "pod-affinity",
        {"affinity": pod_affinity(term(key="rack"))},
        [placed()],
        node_is("a", IN_RACK),
        Change.NODE_LABELS,
    ),
    "it becomes the first of its kind": ("pod-affinity", ELSEWHERE, [placed()], leaves(), Change.POD_DELETED),
    "the first of its kind goes with its node": (
        "pod-affinity",
        ELSEWHERE,
        [placed()],
        node_goes("a"),
        Change.NODE_REMOVED,
    ),
    "the pod that it avoids leaves": ("pod-anti-affinity", APART, ON_BOTH, leaves(), Change.POD_DELETED),
    "the pod that it avoids becomes another": (
        "pod-anti-affinity",
        APART,
        ON_BOTH,
        placed(labels=OTHER_KIND),
        Change.POD_LABELS,
    ),
    "the pod that it avoids is no longer of that team": (
        "pod-anti-affinity",
        APART_FROM_TEAM,
        [IN_TEAM, *ON_BOTH],
        namespace_is({}),
        Change.NAMESPACE_LABELS,
    ),
    "the pod that it avoids is in no zone any more": (
        "pod-anti-affinity",
        APART,
        ON_BOTH,
        node_is("b"),
        Change.NODE_LABELS,
    ),
    "the pod that it avoids goes with its node": (
        "pod-anti-affinity",
        {"affinity": pod_anti_affinity(term(key="region"))},
        [node_is("a", {"region": "1"}), node_is("b", {"region": "1"}), placed()],
        node_goes("a"),
        Change.NODE_REMOVED,
    ),
    "the pod with anti-affinity leaves": (
        "existing-anti-affinity",
        {"labels": OWN},
        [placed(**APART), placed("second", "b", **APART)],
        leaves(),
        Change.POD_DELETED,
    ),
    "the pod with anti-affinity is in no zone any more": (
        "existing-anti-affinity",
        {"labels": OWN},
        [placed(**APART), placed("second", "b", **APART)],
        node_is("b"),
        Change.NODE_LABELS,
    ),
    "the anti-affinity now selects another namespace": (
        "existing-anti-affinity",
        {"labels": OWN},
        [IN_TEAM, placed(**APART_FROM_TEAM), placed("second", "b", **APART_FROM_TEAM)],
        namespace_is({}),
        Change.NAMESPACE_LABELS,
    ),
    "one of the fullest domain leaves": ("topology-spread", FULLEST, [placed()], leaves(), Change.POD_DELETED),
    "the emptiest domain fills": ("topology-spread", FULLEST, [placed()], placed("second", "b"), Change.POD_ASSIGNED),
    "one of the fullest domain begins to terminate": (
        "topology-spread",
        FULLEST,
        [placed()],
        placed(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        Change.POD_LABELS,
    ),
    "the emptiest domain goes": ("topology-spread", FULLEST, [placed()], node_goes("b"), Change.NODE_REMOVED),
    "a node gets the key": (
        "topology-spread",
        {"labels": OWN, "topologySpreadConstraints": [spread(key="rack", topologyKey="rack")]},
        [],
        node_is("a", IN_RACK),
        Change.NODE_LABELS,
    ),
    "the emptiest domain is tainted": (
        "topology-spread",
        {**FULLEST, "topologySpreadConstraints": [spread(nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor")]},
        [placed()],
        node_is("b", {"zone": "2"}, **LOCKED),
        Change.NODE_TAINTS,
    ),
}


@pytest.mark.parametrize(("name", "fields", "before", "act", "event"), WAKES.values(), ids=WAKES)
def test_what_makes_a_pod_fit_wakes_it(name: str, fields: Raw, before: Sequence[Act], act: Act, event: Change) -> None:
    cluster = with_nodes(a="1", b="2")
    for pending in before:
        pending(cluster)
    failure = parked(cluster, pod("waits", **fields))
    assert failure.wakes_on & event
    assert next(each for each in filters.ORDER if name == each.NAME).WAKES_ON & event
    act(cluster)
    [outcome] = decided(cluster)
    assert isinstance(outcome, Placement), failure.message
    assert outcome.pod.name == "waits"


def test_each_change_that_a_filter_waits_for_has_its_case() -> None:
    names = {"pod-affinity", "pod-anti-affinity", "existing-anti-affinity", "topology-spread"}
    awaited = {(each.NAME, change) for each in filters.ORDER if each.NAME in names for change in each.WAKES_ON}
    tested = {(name, event) for name, *_, event in WAKES.values()}
    # A new node may help every waiting pod; a node that goes helps only pods that share its topology domain.
    elsewhere = {(name, Change.NODE_ADDED) for name in names} | {("existing-anti-affinity", Change.NODE_REMOVED)}
    assert awaited - tested == elsewhere


def test_a_decided_pod_is_seen_at_once_with_its_terms() -> None:
    cluster = with_nodes(a="1", b="2")
    for i in range(3):
        cluster.put_pending(pod(f"p{i}", labels=OWN, affinity=pod_anti_affinity(term()), created=str(i)))
    assert [isinstance(outcome, Placement) for outcome in decided(cluster)] == [True, True, False]
    last = parked(cluster, pod("plain", labels=OWN))
    assert last.reasons == (("node(s) didn't satisfy existing pods anti-affinity rules", 2),)
