"""Affinity, anti-affinity and topology spread: what each filter passes, against a reference and case by case."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.values.caching import size_of
from berth_api.values.selectors import EVERYTHING, LabelSelector
from berth_operator.core.filters import (
    existing_anti_affinity,
    pod_affinity,
    pod_anti_affinity,
    topology_spread,
)
from berth_operator.core.filters.reasons import count_reasons
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.pods import affinity_index
from berth_operator.core.fleet.pods.affinity_index import LABEL_BYTES, MAX_CACHED, ExistingTerms
from berth_operator.core.values.affinity import Affinity, Identity, Peers, PodSelection, Term, TopologySpreadConstraint
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import charge, label, node_info
from tests.unit.core import affinity_worlds
from tests.unit.core.affinity_worlds import World, select, wanting
from tests.unit.core.filters.test_filters import passing

Reference = Callable[[World, PodRequest, NodeInfo], bool]


# --- against the reference --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "reference"),
    [
        pytest.param(pod_affinity, affinity_worlds.satisfies_affinity, id="affinity"),
        pytest.param(pod_anti_affinity, affinity_worlds.satisfies_anti_affinity, id="anti-affinity"),
        pytest.param(
            existing_anti_affinity, affinity_worlds.satisfies_existing_anti_affinity, id="anti-affinity of those there"
        ),
        pytest.param(topology_spread, affinity_worlds.satisfies_topology_spread, id="spread"),
    ],
)
@settings(max_examples=40, deadline=None)
@given(world=affinity_worlds.WORLDS, pod=affinity_worlds.PENDING)
def test_a_filter_passes_what_the_reference_passes(
    module: Any, reference: Reference, world: World, pod: PodRequest
) -> None:
    fleet = world.fleet()
    expected = {node.name for node in world.nodes if reference(world, pod, node)}
    assert passing(module, fleet, pod) == expected
    rejected = fleet.present & ~module.passes(fleet, pod)
    if rejected.any():
        assert count_reasons(module.reasons(fleet, pod, rejected)).total() == rejected.sum()


# --- counts are kept --------------------------------------------------------------------------------------------

SELECTIONS = st.builds(
    PodSelection,
    peers=st.lists(affinity_worlds.PEERS, min_size=1, max_size=2).map(tuple),
    exclude_terminating=st.booleans(),
)
CLOSE = st.tuples(affinity_worlds.IDENTITIES, st.just(Affinity()), st.just("n0"), st.booleans())
"""Pods that are often placed on the same node."""
EVENTS = st.one_of(
    st.tuples(st.just("charge"), st.integers(0, 6), affinity_worlds.PLACED),
    st.tuples(st.just("charge"), st.integers(0, 6), CLOSE),
    st.tuples(st.just("release"), st.integers(0, 6), st.none()),
    st.tuples(st.just("node"), st.sampled_from(affinity_worlds.NAMES), affinity_worlds.NODE_LABELS),
    st.tuples(st.just("no node"), st.sampled_from(affinity_worlds.NAMES), st.none()),
    st.tuples(st.just("namespace"), affinity_worlds.NAMESPACES, st.sampled_from([{}, {"team": "x"}, {"team": "y"}])),
    st.tuples(st.just("ask"), st.none(), SELECTIONS),
    st.tuples(st.just("ask of"), affinity_worlds.CONTROLLERS, st.none()),
    st.tuples(st.just("grow"), st.none(), st.none()),
)


def happen(fleet: Fleet, kind: str, who: Any, what: Any) -> None:
    match kind:
        case "charge":
            fleet.charge(affinity_worlds.placed(who, what))
        case "release":
            fleet.release(f"uid-p{who}")
        case "node":
            fleet.put_node(node_info(who, labels=what))
        case "no node":
            fleet.remove_node(who)
        case "namespace":
            fleet.affinity_index.put_namespace(who, what)
        case "ask":
            fleet.affinity_index.count(what)
        case "ask of":
            fleet.affinity_index.replicas.count(who)
        case _:
            for i in range(len(fleet.names)):
                fleet.put_node(node_info(f"more-{i}"))


def charge_again(fleet: Fleet, of: Fleet) -> None:
    """Charge to an empty fleet what is charged to another one, in another order."""
    for name in reversed(of.rows):
        fleet.put_node(node_info(name))
    for namespace in "abc":
        fleet.affinity_index.put_namespace(namespace, of.affinity_index.labels_of(namespace))
    for each in reversed(of.charges.values()):
        fleet.charge(each)


def by_name(fleet: Fleet, counts: Any) -> dict[str, int]:
    return {name: int(counts[row]) for name, row in fleet.rows.items() if counts[row]}


def held(fleet: Fleet, counted: Any) -> dict[str, dict[str, int]]:
    return {key: by_name(fleet, counts) for key, counts in counted if by_name(fleet, counts)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(EVENTS, max_size=25),
    st.lists(SELECTIONS, min_size=1, max_size=4),
    st.lists(affinity_worlds.IDENTITIES, min_size=1, max_size=3),
)
def test_kept_counts_equal_a_recount(
    events: Sequence[tuple[str, Any, Any]], selections: Sequence[PodSelection], seen: Sequence[Identity]
) -> None:
    kept, fresh = Fleet(), Fleet()
    for selection in selections[:-1]:
        kept.affinity_index.count(selection)
    for event in events:
        happen(kept, *event)
        for identity in seen[:-1]:
            list(kept.affinity_index.existing_anti_affinity(identity))
    charge_again(fresh, kept)
    for selection in selections:
        assert by_name(kept, kept.affinity_index.count(selection)) == by_name(
            fresh, fresh.affinity_index.count(selection)
        )
        row_less = sum(
            all(_counts(kept, each, charge.identity) for each in selection.peers)
            and not (selection.exclude_terminating and charge.terminating)
            for charge in kept.charges.values()
        )
        assert kept.affinity_index.count(selection).sum() == row_less
    for controller in ("set-1", "set-2"):
        its = [each for each in kept.charges.values() if each.identity.controller == controller]
        counts = kept.affinity_index.replicas.count(controller)
        assert by_name(kept, counts) == Counter(each.node for each in its if not each.terminating)
    for identity in seen:
        for ask in ("existing_anti_affinity", "existing_preferred"):
            counted = [held(each, getattr(each.affinity_index, ask)(identity)) for each in (kept, fresh)]
            assert counted[0] == counted[1]


def _counts(fleet: Fleet, peers: Peers, identity: Identity) -> bool:
    world = World(nodes=(), pods=(), namespaces={each: fleet.affinity_index.labels_of(each) for each in "abc"})
    return affinity_worlds.matches_for_incoming_pod(world, peers, identity)


def test_pods_of_several_kinds_on_a_node_count_together() -> None:
    fleet = Fleet()
    for name in ("x", "y"):
        fleet.charge(charge(name, identity=Identity(namespace="ns", labels=(("app", name),))))
        fleet.charge(charge(f"{name}2", identity=Identity(namespace="ns", labels=(("app", name),))))
    selection = PodSelection(peers=(Peers(selector=EVERYTHING, namespaces=("ns",)),))
    assert by_name(fleet, fleet.affinity_index.count(selection)) == {"node": 4}


def test_selections_that_are_no_longer_read_are_dropped_and_counted_again() -> None:
    fleet = Fleet()
    fleet.charge(charge("pod", identity=Identity(namespace="ns", labels=(("app", "x"),))))
    wanted = PodSelection(peers=(Peers(selector=select(app="x"), namespaces=("ns",)),))
    others = [
        PodSelection(peers=(Peers(selector=select(app=str(i)), namespaces=("ns",)),))
        for i in range(affinity_index.MAX_SELECTIONS + 9)
    ]
    assert fleet.affinity_index.count(wanted).sum() == 1
    for other in others:
        assert not fleet.affinity_index.count(other).any()
    assert fleet.affinity_index.count(wanted).sum() == 1
    fleet.release("uid-pod")
    assert fleet.affinity_index.count(wanted).sum() == 0


# --- cases ------------------------------------------------------------------------------------------------------


def there(on: str, name: str = "there", **affinity: Any) -> Any:
    identity = Identity(namespace="ns", labels=(("app", "x"),))
    return charge(name, node=on, identity=identity, affinity=Affinity(**affinity))


def term(selector: LabelSelector, key: str = "zone", **peers: Any) -> Term:
    if not peers:
        peers = {"namespaces": ("ns",)}
    return Term(key=key, peers=Peers(selector=selector, **peers))


def zones(**nodes: str | None) -> list[NodeInfo]:
    """Return nodes by their zone; None for one without."""
    return [node_info(name, labels={"zone": zone} if zone else {}) for name, zone in nodes.items()]


ABC = zones(a="1", b="1", c="2", d=None)
X = select(app="x")
NAMESPACES: Mapping[str, Mapping[str, str]] = {"ns": {"team": "x"}, "other": {"team": "y"}}


def test_changed_namespace_labels_change_which_pods_match() -> None:
    apart = (term(X, namespace_selector=select(team="x")),)
    fleet = World(nodes=ABC, pods=[there("a", required_anti_affinity=apart)]).fleet()
    far, pod = wanting(required_anti_affinity=apart), wanting(labels={"app": "x"})
    assert passing(pod_anti_affinity, fleet, far) == passing(existing_anti_affinity, fleet, pod) == set("abcd")
    assert fleet.affinity_index.put_namespace("ns", {"team": "x"})
    assert not fleet.affinity_index.put_namespace("ns", {"team": "x"})
    assert passing(pod_anti_affinity, fleet, far) == passing(existing_anti_affinity, fleet, pod) == {"c", "d"}
    assert fleet.affinity_index.put_namespace("ns", {})
    assert passing(pod_anti_affinity, fleet, far) == passing(existing_anti_affinity, fleet, pod) == set("abcd")


@pytest.mark.parametrize(("kubernetes", "apart"), [(36, {"c", "d"}), (37, set("abcd"))])
def test_a_selector_that_unlabelled_namespaces_match_reaches_all_of_them_only_from_the_pod_to_be_placed_before_1_37(
    kubernetes: int, apart: set[str]
) -> None:
    peers: Any = {"namespace_selector": LabelSelector(requirements=(label("team", "DoesNotExist"),))}
    pods = [there("a", required_anti_affinity=(term(X, **peers),))]
    world = World(nodes=ABC, pods=pods, namespaces=NAMESPACES, kubernetes=kubernetes)
    assert passing(pod_anti_affinity, world.fleet(), wanting(required_anti_affinity=(term(X, **peers),))) == apart
    assert passing(existing_anti_affinity, world.fleet(), wanting(labels={"app": "x"})) == set("abcd")


def test_reasons_name_the_missing_key_and_the_skew() -> None:
    nodes = zones(a="1", b="1", c="2", d="3", e=None)
    fleet = World(nodes=nodes, pods=[there(name, name=name) for name in "ab"]).fleet()
    by_zone = TopologySpreadConstraint(key="zone", selector=X, max_skew=1)
    pod = wanting(labels={"app": "x"}, topology_spread=(by_zone,))
    rejected = fleet.present & ~topology_spread.passes(fleet, pod)
    assert count_reasons(topology_spread.reasons(fleet, pod, rejected)) == {
        topology_spread.UNLABELLED: 1,
        topology_spread.UNEVEN: 2,
    }


@pytest.mark.parametrize(
    ("module", "pod"),
    [
        pytest.param(pod_affinity, wanting(required_affinity=(term(select(app="y")),)), id="affinity"),
        pytest.param(pod_anti_affinity, wanting(required_anti_affinity=(term(X),)), id="anti-affinity"),
        pytest.param(existing_anti_affinity, wanting(labels={"app": "y"}), id="anti-affinity of those there"),
    ],
)
def test_reasons_count_the_nodes(module: Any, pod: PodRequest) -> None:
    fleet = World(nodes=ABC, pods=[there("a", required_anti_affinity=(term(select(app="y")),))]).fleet()
    rejected = fleet.present & ~module.passes(fleet, pod)
    assert count_reasons(module.reasons(fleet, pod, rejected)) == {module.REASON: int(rejected.sum())}
    assert rejected.any()


# --- held terms are looked up by a label ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "handle"),
    [
        pytest.param(select(app="x"), ("app", "x"), id="one label"),
        pytest.param(LabelSelector(), None, id="everything"),
        pytest.param(LabelSelector(requirements=(label("app", "In", "x", "y"),)), None, id="one of two values"),
        pytest.param(LabelSelector(requirements=(label("app", "NotIn", "x"),)), None, id="not a value"),
        pytest.param(
            LabelSelector(requirements=(label("app", "Exists"), label("tier", "In", "a"))), ("tier", "a"), id="second"
        ),
    ],
)
def test_a_selector_is_looked_up_by_a_label_without_which_it_matches_nothing(
    selector: LabelSelector, handle: tuple[str, str] | None
) -> None:
    assert selector.handle == handle


# --- the cache of terms that match identities takes a bounded amount of memory ------------------------------------

LARGEST_KEY, LARGEST_VALUE = 317, 63
"""Characters that the API server allows in a label."""


def test_no_label_is_larger_than_it_counts() -> None:
    assert size_of(("k" * LARGEST_KEY, "v" * LARGEST_VALUE)) <= LABEL_BYTES


def test_identities_of_many_pods_take_no_more_than_the_cache_may() -> None:
    terms: ExistingTerms[Term] = ExistingTerms(4, lambda each: each)
    everywhere = term(EVERYTHING)
    terms.place(0, [everywhere], 1)
    tracemalloc.start()
    for number in range(1000):
        labels = tuple((f"{place:0300}-{number}", f"{number:060}") for place in range(50))
        assert terms.matching(Identity(namespace="ns", labels=labels), lambda _namespace: {}) == (everywhere,)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < MAX_CACHED
