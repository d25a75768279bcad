"""A Node's resources for devices are compared with its pods' requests, in addition to the Device's cards."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_operator.core.advice.simulate import simulate
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.decision.promise import is_doubtful, promised
from berth_operator.core.decision.reservation import lacking_resources
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.fleet.extended_resources import rows_by_class
from berth_operator.core.values.pod_claims import NO_POD_CLAIMS
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches import claims
from berth_operator.state.watches.claims import ResourceClaims
from tests.objects.builders import (
    NVIDIA,
    SUMS,
    container,
    device,
    entry,
    half,
    lease,
    node,
    pod,
    popped,
    waiting,
    whole,
)
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, allocated, gpu, listed, resource_slice

Raw = dict[str, Any]

CARDS = 8
SHORT = "0/1 nodes are available: 1 Insufficient {}."


def cluster(offered: Mapping[str, int], *entries: Raw, sums: Mapping[str, int] = SUMS) -> Cluster:
    """Return a node with eight healthy cards, or these devices, that shows these amounts of devices."""
    state = Cluster(grace=20.0, clock=lambda: 0.0)
    state.node_cache.put_node(node(offered=offered, sums=sums))
    state.node_cache.put_device(device("node", *(entries or map(entry, range(CARDS)))))
    return state


def decided(of: Cluster, raw: Raw) -> Placement | Failure:
    of.put_pending(raw)
    pending = popped(of.queue)
    assert pending is not None
    outcome = decide(of.fleet, pending, Policy())
    if isinstance(outcome, Failure):
        of.queue.park(pending, outcome)
    return outcome


def message(of: Cluster, raw: Raw) -> str:
    outcome = decided(of, raw)
    return outcome.message if isinstance(outcome, Failure) else ""


# --- offered amounts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "requested", "fits"),
    [
        pytest.param({NVIDIA: 8}, 8, True, id="all that is wanted"),
        pytest.param({NVIDIA: 7}, 7, True, id="less than the Device has, and enough"),
        pytest.param({NVIDIA: 7}, 8, False, id="one too few"),
        pytest.param({NVIDIA: 0}, 1, False, id="none: kubelet restarted, or its plugin left"),
        pytest.param({}, 1, False, id="nothing: there is no plugin"),
    ],
)
def test_a_pod_is_bound_only_where_the_node_offers_enough(
    offered: Mapping[str, int], requested: int, *, fits: bool
) -> None:
    assert message(cluster(offered), pod("a", {NVIDIA: requested})) == ("" if fits else SHORT.format(NVIDIA))


@pytest.mark.parametrize("resource", ["kubernetes.io/gpu", "koordinator.sh/gpu"])
@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        pytest.param({}, False, id="not written yet: kubelet would end the pod"),
        pytest.param({"gpu": 700}, False, id="of a card that has just healed not written yet"),
        pytest.param({"gpu": 800}, True, id="all cards"),
    ],
)
def test_a_pod_waits_until_the_node_shows_the_sums_that_kubelet_checks(
    resource: str, shown: Mapping[str, int], *, fits: bool
) -> None:
    prefix, _, _ = resource.partition("/")
    of = cluster({}, sums={f"{prefix}/{name}": amount for name, amount in shown.items()})
    assert message(of, pod("a", {resource: 800})) == ("" if fits else SHORT.format(resource))
    of.node_cache.put_node(node(offered={}))
    assert fits or wakes(of)


def test_the_device_speaks_first() -> None:
    sick = [entry(0, health=False)]
    assert "node(s) have too few healthy GPUs (1 requested" in message(cluster({}, *sick), pod("a", {NVIDIA: 1}))


# --- amounts in use ---------------------------------------------------------------------------------------------

ON: Raw = {"on": "node"}


ALL_PODS_OF_THE_NODE_COUNT_BY_KUBE_SCHEDULERS_ARITHMETIC = {
    "a pod of ours": (pod("o", {NVIDIA: 1}, allocated=whole(0), **ON), False),
    "of another": (pod("o", {NVIDIA: 1}, schedulerName="other", allocated=whole(0), **ON), False),
    "one that terminates": (
        pod("o", {NVIDIA: 1}, allocated=whole(0), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, **ON),
        False,
    ),
    "an init container": (pod("o", initContainers=[container("i", {NVIDIA: 1})], allocated=whole(0), **ON), False),
    "a sidecar": (
        pod("o", initContainers=[container("i", {NVIDIA: 1}, restartPolicy="Always")], allocated=whole(0), **ON),
        False,
    ),
    "overhead": (pod("o", overhead={NVIDIA: "1"}, allocated=whole(0), **ON), False),
    "a share counts nothing": (pod("o", {"kubernetes.io/gpu": 50}, allocated=half(0), **ON), True),
}


@pytest.mark.parametrize(
    ("other", "fits"),
    ALL_PODS_OF_THE_NODE_COUNT_BY_KUBE_SCHEDULERS_ARITHMETIC.values(),
    ids=ALL_PODS_OF_THE_NODE_COUNT_BY_KUBE_SCHEDULERS_ARITHMETIC,
)
def test_all_pods_of_the_node_count_by_kube_schedulers_arithmetic(other: Raw, *, fits: bool) -> None:
    of = cluster({NVIDIA: 7})
    of.put_bound(other)
    assert message(of, pod("a", {NVIDIA: 7})) == ("" if fits else SHORT.format(NVIDIA))


# --- waking -----------------------------------------------------------------------------------------------------


def wakes(of: Cluster) -> bool:
    pending = popped(of.queue)
    return pending is not None and isinstance(decide(of.fleet, pending, Policy()), Placement)


@pytest.mark.parametrize("before", [{}, {NVIDIA: 0}, {NVIDIA: 7}])
def test_a_node_that_offers_more_wakes_the_pods_that_wait_for_it(before: Mapping[str, int]) -> None:
    of = cluster(before)
    assert message(of, pod("a", {NVIDIA: 8}))
    of.node_cache.put_node(node(offered={NVIDIA: 8}))
    assert wakes(of)


# --- DeviceClasses ----------------------------------------------------------------------------------------------


def test_a_device_class_is_no_offer() -> None:
    of = cluster({})
    claimed = (
        "0/1 nodes are available: 1 node(s) provide {} only by DeviceClass c (Berth allocates ResourceClaims only from "
        "pools in claims.drivers or claims.pools of its configuration)."
    )
    table = claims.sources(ResourceClaims(of))["device classes"][1]
    assert message(of, pod("a", {NVIDIA: 1})) == SHORT.format(NVIDIA)
    table.apply("ADDED", {"metadata": {"name": "c"}, "spec": {"extendedResourceName": NVIDIA}})
    assert message(of, pod("b", {NVIDIA: 1})) == SHORT.format(NVIDIA)
    ClaimsInTurns(of).put_slice(resource_slice(gpu(0)))
    assert message(of, pod("c", {NVIDIA: 1})) == claimed.format(NVIDIA)
    of.node_cache.put_node(node(offered={NVIDIA: 1}))
    assert wakes(of)
    table.apply("DELETED", {"metadata": {"name": "c"}, "spec": {"extendedResourceName": NVIDIA}})
    assert of.fleet.device_classes == {}


def test_only_nodes_with_devices_of_a_class_are_said_to_provide_its_resource() -> None:
    of = cluster({})
    for name, labels in (("has", {}), ("nic", {}), ("none", {}), ("other", {"pool": "b"})):
        of.node_cache.put_node(node(name, offered={}, labels={"pool": "a", **labels}))
    to = ClaimsInTurns(of)
    to.put_slice(resource_slice(gpu(0), node="has"))
    to.put_slice(resource_slice(gpu(0), node="other"))
    to.put_slice(resource_slice(listed("nic-0"), node="nic", driver="dra.net"))
    selector = {"cel": {"expression": f'device.driver == "{NVIDIA_DRIVER}"'}}
    to.put_class({"metadata": {"name": "c"}, "spec": {"extendedResourceName": NVIDIA, "selectors": [selector]}})
    of.set_device_classes({"c": (NVIDIA, "")})
    selected = {"nodeSelector": {"pool": "a"}}
    expected = (
        "0/5 nodes are available: 1 node(s) provide nvidia.com/gpu only by DeviceClass c (Berth allocates "
        "ResourceClaims only from pools in claims.drivers or claims.pools of its configuration), 2 node(s) "
        "didn't match Pod's node affinity/selector, 2 node(s) have no Device."
    )
    assert message(of, pod("a", {NVIDIA: 1}, **selected)) == expected
    to.remove_slice(f"has-{NVIDIA_DRIVER}")
    assert "only by DeviceClass" not in message(of, pod("b", {NVIDIA: 1}, **selected))


@pytest.mark.parametrize(("resource", "woken"), [(NVIDIA, True), ("", False)])
def test_a_device_class_wakes_those_that_ask_for_what_it_provides(resource: str, *, woken: bool) -> None:
    of = cluster({})
    assert message(of, pod("a", {NVIDIA: 1}))
    of.set_device_classes({"c": (resource, "")})
    assert (popped(of.queue) is not None) is woken


def test_of_two_device_classes_the_newest_provides_a_resource() -> None:
    of = cluster({})
    older, newer = (NVIDIA, "2026-01-01T00:00:00Z"), (NVIDIA, "2026-01-02T00:00:00Z")
    of.set_device_classes({"a": older, "b": newer})
    assert of.fleet.device_classes[NVIDIA] == "b"
    of.set_device_classes({"a": older, "b": ("", newer[1])})
    assert of.fleet.device_classes[NVIDIA] == "a"
    of.set_device_classes({"b": ("", newer[1])})
    assert NVIDIA not in of.fleet.device_classes


@pytest.mark.parametrize(
    ("labels", "offered", "by_class"),
    [
        pytest.param({}, {}, False, id="a device plugin that restarts"),
        pytest.param({names.CARDS_KEY: "name"}, {}, False, id="cards by name"),
        pytest.param({names.CARDS_KEY: "both"}, {}, False, id="cards by name and by claims"),
        pytest.param({names.CARDS_KEY: "claims"}, {}, True, id="cards by claims"),
        pytest.param({names.CARDS_KEY: "shares"}, {}, True, id="shares by claims"),
        pytest.param({names.CARDS_KEY: "claims"}, {NVIDIA: 1}, False, id="a device plugin that still offers some"),
    ],
)
def test_a_class_provides_cards_that_an_agent_lists_only_where_claims_get_them(
    labels: Mapping[str, str], offered: Mapping[str, int], *, by_class: bool
) -> None:
    of = cluster(offered)
    of.node_cache.put_node(node(offered=offered, labels=labels))
    of.set_own_pools(OwnPools(drivers=frozenset({names.DRA_DRIVER})))
    of.set_device_classes({"gpu.berth.dev": (NVIDIA, "")})
    of.put_pending(pod("a", {NVIDIA: 1}))
    rows = rows_by_class(of.fleet, of.pending["uid-a"].request)
    assert rows[NVIDIA][of.fleet.rows["node"]] == by_class


class ByClass:
    """A node of two cards whose label and offer change under a pod that has one of them by class."""

    def __init__(self, scheduler: str = names.SCHEDULER) -> None:
        self.of = Cluster(grace=20.0, clock=lambda: 0.0)
        self.of.set_own_pools(OwnPools(drivers=frozenset({names.DRA_DRIVER})))
        self.of.set_device_classes({"gpu": (NVIDIA, "")})
        self.to = ClaimsInTurns(self.of)
        self.to.put_class({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": NVIDIA}})
        self.mode(names.CARDS_BY_CLAIMS, offered=0)
        self.of.node_cache.put_device(device("node", entry(0), entry(1)))
        self.of.node_cache.put_lease(lease())
        self.to.put_slice(resource_slice(*map(gpu, (0, 1)), driver=names.DRA_DRIVER))
        self.scheduler = scheduler

    def mode(self, label: str, *, offered: int) -> None:
        shown = {NVIDIA: offered}
        self.of.node_cache.put_node(node(labels={names.CARDS_KEY: label}, offered=shown))

    def bind(self, name: str, minor: int) -> Raw:
        """Bind a pod by class, as the API server shows it."""
        mapping = {"containerName": "main", "resourceName": NVIDIA, "requestName": "container-0-request-0"}
        status = {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": [mapping]}}
        ours = {names.EPOCH: "1", f"main{names.BY_CLASS_SUFFIX}": NVIDIA} if self.scheduler == names.SCHEDULER else {}
        raw = pod(name, {NVIDIA: 1}, on="node", annotations=ours, status=status, schedulerName=self.scheduler)
        self.to.put_claim(allocated(name, f"gpu-{minor}", driver=names.DRA_DRIVER, pods=[f"uid-{name}"]))
        self.of.put_bound(raw)
        return raw


@pytest.mark.parametrize("scheduler", [names.SCHEDULER, "default-scheduler"])
def test_a_pod_by_class_uses_what_the_device_plugin_offers_as_kubelet_counts_it(scheduler: str) -> None:
    world = ByClass(scheduler)
    world.bind("by-class", 0)
    # The label changes under the pod: the plug-in offers the card that no claim holds.
    world.mode("name", offered=1)
    assert message(world.of, pod("a", {NVIDIA: 1})) == SHORT.format(NVIDIA)
    # Then the pod ends, and its card is offered as well.
    world.of.remove_bound("uid-by-class")
    world.to.remove_claim("ns/by-class")
    world.mode("name", offered=2)
    assert isinstance(decided(world.of, pod("b", {NVIDIA: 2})), Placement)


def test_a_pod_by_class_counts_from_its_decision_on() -> None:
    world = ByClass()
    placed = decided(world.of, pod("by-class", {NVIDIA: 1}))
    assert isinstance(placed, Placement)
    assert placed.claims.by_class == {NVIDIA}
    world.of.placements.assume(placed)
    world.mode("name", offered=1)
    assert message(world.of, pod("a", {NVIDIA: 1})) == SHORT.format(NVIDIA)


def test_pods_by_class_do_not_use_up_what_no_device_plugin_offers() -> None:
    world = ByClass()
    world.of.node_cache.put_node(node("other", offered={NVIDIA: 1}))
    world.bind("by-class", 0)
    place = decided(world.of, pod("next", {NVIDIA: 1}))
    assert isinstance(place, Placement)
    # Neither for a promised place, nor for what a node lacks.
    pending, row = place.pod, world.of.fleet.rows["node"]
    assert not is_doubtful(world.of.fleet, pending.request, promised(place, "ns/workload", since=0, until=1), Policy())
    assert lacking_resources(world.of.fleet, row, pending.request) == ()
    world.mode("name", offered=0)
    by_name = replace(place, claims=NO_POD_CLAIMS)
    assert is_doubtful(world.of.fleet, pending.request, promised(by_name, "ns/workload", since=0, until=1), Policy())


# --- what-ifs ---------------------------------------------------------------------------------------------------


def high(count: int = 1) -> PendingPod:
    of = cluster({})
    of.put_pending(pod("high", {NVIDIA: count}, priority=9))
    return of.pending["uid-high"]


@pytest.mark.parametrize(
    ("offered", "requested", "victims"),
    [
        pytest.param(2, 1, 1, id="what the victim held is enough"),
        pytest.param(2, 2, 2, id="two victims"),
        # One of the cards in use has failed since, and is no longer offered.
        pytest.param(1, 1, 2, id="more is in use than is offered"),
    ],
)
def test_preemption_gives_back_what_victims_hold(offered: int, requested: int, victims: int) -> None:
    of = cluster({NVIDIA: offered})
    for minor in (0, 1):
        of.put_bound(pod(f"low-{minor}", {NVIDIA: 1}, allocated=whole(minor), **ON))
    proposal = preempt(of.fleet, high(requested), Policy(), Budgets())
    assert proposal is not None
    assert len(proposal.victims) == victims


def members(count: int) -> tuple[PendingPod, ...]:
    return tuple(waiting(f"m{each}", {NVIDIA: 1}) for each in range(count))


def test_a_simulation_counts_what_is_offered() -> None:
    results = simulate(cluster({NVIDIA: 1}).fleet, members(2), {names.SCHEDULER: Policy()})
    assert [isinstance(outcome.result, Placement) for outcome in results.outcomes] == [True, False]
