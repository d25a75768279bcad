"""kube-scheduler's default constraints spread replicas and pods of one Service if a pod has no own constraints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.values.selectors import EVERYTHING, NOTHING
from berth_operator.core.filters.spreading import HOSTNAME
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.pods import replicas
from berth_operator.core.fleet.pods.services import Services
from berth_operator.core.scores import default_spread
from berth_operator.core.scores.default_spread import ZONE
from berth_operator.core.values.affinity import Affinity, Identity, TopologySpreadConstraint
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import asks, charge, node_info, score_values
from tests.unit.core import affinity_worlds, references
from tests.unit.core.affinity_worlds import World, select

REPLICA = Identity(namespace="ns", labels=(("app", "x"),), controller="set")
ALONE = replace(REPLICA, controller="")
HIDDEN = Identity(namespace="ns", labels=(("app", "y"),))


def node(name: str, zone: str | None, *, host: bool = True, **labels: str) -> NodeInfo:
    named = {HOSTNAME: name} if host else {}
    return node_info(name, labels={**({ZONE: zone} if zone else {}), **named, **labels})


def on(*nodes: str, identity: Identity = REPLICA, **fields: Any) -> list[Charge]:
    return [
        charge(f"{identity.controller}-{i}", node=each, identity=identity, **fields) for i, each in enumerate(nodes)
    ]


def pod(identity: Identity = REPLICA, **fields: Any) -> PodRequest:
    return replace(asks(**fields), identity=identity)


def scored(fleet: Fleet, request: PodRequest, fits: Sequence[str]) -> dict[str, float]:
    mask = sum((fleet.named(name) for name in fits), start=fleet.named("")).astype(bool)
    points = score_values(default_spread, fleet, request, mask)
    return {name: float(points[fleet.rows[name]]) for name in fits}


ABC = [node("a", "1"), node("b", "1"), node("c", "2")]
NAMED = (TopologySpreadConstraint(key="rack", selector=EVERYTHING, max_skew=1),)


@pytest.mark.parametrize("affinity", [Affinity(topology_spread=NAMED), Affinity(preferred_topology_spread=NAMED)])
def test_a_pod_with_own_constraints_has_no_defaults(affinity: Affinity) -> None:
    fleet = World(nodes=ABC, pods=on("a")).fleet()
    assert default_spread.score(fleet, replace(pod(), affinity=affinity), fleet.present) is None


# --- Services -----------------------------------------------------------------------------------------------------


def test_a_service_of_another_namespace_spreads_no_pod() -> None:
    fleet = World(nodes=ABC, pods=on("a", identity=ALONE)).fleet()
    fleet.affinity_index.services.put("other/s", (("app", "x"),))
    assert default_spread.score(fleet, pod(ALONE), fleet.present) is None


def test_services_change_and_go() -> None:
    services = Services()
    services.put("ns/s", (("app", "x"),))
    assert services.selector_of(ALONE) == select(app="x")
    assert services.selector_of(HIDDEN) is NOTHING
    services.put("ns/t", (("app", "x"),))
    assert services.selector_of(ALONE) == select(app="x")
    services.put("ns/s", (("app", "y"),))
    assert services.selector_of(HIDDEN) == select(app="y")
    services.put("ns/s", ())
    assert services.selector_of(HIDDEN) is NOTHING
    services.put("ns/t", ())
    assert services.selector_of(ALONE) is NOTHING


# --- replicas are counted -----------------------------------------------------------------------------------------


def test_controllers_that_are_no_longer_read_are_dropped_and_counted_again() -> None:
    fleet = World(nodes=ABC, pods=on("a", "a", "b")).fleet()
    known = fleet.affinity_index.replicas
    assert known.count("set")[fleet.rows["a"]] == 2
    for number in range(replicas.MAX_CONTROLLERS):
        assert not known.count(f"other-{number}").any()
    fleet.release("uid-set-0")
    assert [known.count("set")[fleet.rows[name]] for name in "abc"] == [1, 1, 0]


RELABELLED = {"zone": ZONE, "host": HOSTNAME}
SELECTED = st.lists(
    st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["x", "1"]), max_size=2), max_size=2
)


def _relabelled(world: World) -> World:
    nodes = [
        replace(each, labels={RELABELLED.get(key, key): value for key, value in each.labels.items()})
        for each in world.nodes
    ]
    return replace(world, nodes=nodes)


@settings(max_examples=40, deadline=None)
@given(
    affinity_worlds.WORLDS.map(_relabelled),
    affinity_worlds.PENDING,
    st.sets(st.sampled_from(affinity_worlds.NAMES)),
    SELECTED,
)
def test_scores_are_what_a_plain_reading_of_the_rules_says(
    world: World, asked: PodRequest, left_out: set[str], services: list[Mapping[str, str]]
) -> None:
    asked = replace(asked, affinity=Affinity())
    fits = [each for each in world.nodes if each.name not in left_out] or list(world.nodes)
    fleet = world.fleet()
    for number, each in enumerate(services):
        fleet.affinity_index.services.put(f"{asked.identity.namespace}/{number}", tuple(sorted(each.items())))
    names = [each.name for each in fits]
    assert scored(fleet, asked, names) == references.default(world, asked, fits, services)
