"""Cards that ResourceClaims hold or may be given, in any order of the objects."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from berth_api import names
from berth_api.names import GPU_CORE
from berth_operator.controllers.reconcile import status
from berth_operator.core.claims.objects.slices import PoolID
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.views import NodeView, StatusKind
from berth_operator.state.watches import claims
from tests.objects.builders import (
    GPU,
    NVIDIA,
    device,
    entry,
    every_pod,
    lease,
    node,
    parked,
    pod,
    popped,
    waiting,
    whole,
)
from tests.objects.resource_claims import (
    NVIDIA_DRIVER,
    PCI,
    ClaimsInTurns,
    allocated,
    claim,
    gpu,
    listed,
    resource_slice,
    taint,
    taint_rule,
)

Raw = dict[str, Any]
OWN = OwnPools(drivers=frozenset({NVIDIA_DRIVER}))
MIG = "MIG-0"
LISTED = (
    "listed by driver gpu.nvidia.com in pool node, so kube-scheduler may give it to a ResourceClaim; if no other "
    "scheduler serves this pool, add gpu.nvidia.com to claims.drivers, or gpu.nvidia.com/node to claims.pools, of the "
    "configuration"
)
CLAIM_UNKNOWN = (
    "no gpu is allocated: the devices of these ResourceClaims are in no ResourceSlice, or have no "
    "attribute by which the cards are known: "
)


class World:
    """A node of four GPUs, whose pool is Berth's unless `own` says otherwise."""

    def __init__(self, own: OwnPools = OWN) -> None:
        self.now = 100.0
        self.cluster = Cluster(grace=20.0, clock=lambda: self.now)
        self.cluster.set_own_pools(own)
        self.to = ClaimsInTurns(self.cluster)
        self.tables = {name: table for name, (_, table) in claims.sources(self.to).items()}
        self.pods = every_pod(self.cluster)
        self.cluster.node_cache.put_node(node())
        self.put_device()
        self.cluster.node_cache.put_lease(lease())

    def later(self, seconds: float) -> None:
        """Let time pass; the agent renews its Lease."""
        self.now += seconds
        self.cluster.node_cache.put_lease(lease(renewed=str(self.now)))
        self.cluster.expire_slices()

    def put_device(self, *entries: Raw, **fields: Any) -> None:
        self.cluster.node_cache.put_device(device("node", *(entries or map(entry, range(4))), **fields))

    def used(self) -> list[int]:
        """Return the hundredths of each card that are charged."""
        fleet = self.cluster.fleet
        row, cards = fleet.rows["node"], fleet.cards["gpu"]
        return [int(cards.used[cards.index[GPU_CORE], row, slot]) for slot in cards.slots(row)]

    def unknown(self) -> int:
        return int(self.cluster.fleet.cards["gpu"].unknown[self.cluster.fleet.rows["node"]])

    def decision(self, amount: int = 100) -> Placement | Failure:
        return decide(self.cluster.fleet, waiting("p", {GPU: amount}), Policy())

    def conditions(self) -> dict[str, tuple[str, str, str]]:
        return {
            condition.type: (condition.status, condition.reason, condition.message)
            for condition in status.wanted(self.view(), str).conditions
        }

    def view(self) -> NodeView:
        view = self.cluster.view(StatusKind.NODE, "node")
        assert isinstance(view, NodeView)
        return view


def sliced(own: OwnPools = OWN) -> World:
    """Return a world whose node has the slice of its four GPUs."""
    world = World(own)
    world.to.put_slice(slice_of())
    return world


def slice_of(*minors: int, **fields: Any) -> Raw:
    return resource_slice(*map(gpu, minors or range(4)), **fields)


# --- charges ----------------------------------------------------------------------------------------------------

Event = Callable[[World], object]
EVENTS: dict[str, Event] = {
    "slice": lambda world: world.to.put_slice(slice_of()),
    "claim": lambda world: world.to.put_claim(allocated("c", "gpu-1", "gpu-2")),
    "device": World.put_device,
}


@pytest.mark.parametrize("order", list(itertools.permutations(EVENTS)), ids="-".join)
def test_the_cards_of_a_claim_are_charged_whatever_comes_first(order: tuple[str, ...]) -> None:
    world = World()
    world.cluster.node_cache.remove_device("node")
    for name in order:
        EVENTS[name](world)
    assert world.used() == [0, 100, 100, 0]
    assert world.unknown() == 0


@pytest.mark.parametrize("end", ["deallocated", "deleted", "another of its name"])
def test_a_claim_is_charged_until_it_is_deallocated_or_deleted(end: str) -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-0", "gpu-1", "gpu-2", "gpu-3"))
    parked(world.cluster, pod("p", {GPU: "100"}), 100.0)
    if end == "deallocated":
        world.to.put_claim(claim("c"))
    elif end == "deleted":
        world.to.remove_claim("ns/c")
    else:
        world.to.put_claim(claim("c", uid="new"))
    assert world.used() == [0, 0, 0, 0]
    assert popped(world.cluster.queue, 200.0) is not None


def test_what_cannot_be_read_leaves_what_was_known() -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-0"))
    world.to.put_claim({**allocated("c"), "status": {"allocation": {"devices": {"results": "none"}}}})
    world.to.put_slice({**slice_of(), "spec": {"driver": 1}})
    assert world.used() == [100, 0, 0, 0]


def test_a_claim_of_a_node_that_moves_is_charged_where_it_is() -> None:
    world = World()
    world.cluster.node_cache.put_device(device("other", entry(0, id="GPU-0")))
    world.to.put_slice(slice_of())
    world.to.put_slice(slice_of(0, node="other"))
    world.to.put_claim(allocated("c", "gpu-0"))
    world.to.put_claim(allocated("c", "gpu-0", node="other"))
    assert world.used() == [0, 0, 0, 0]
    assert world.cluster.fleet.cards["gpu"].users[world.cluster.fleet.rows["other"]].sum() == 1


def test_a_device_with_admin_access_is_not_charged() -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-0", adminAccess=True))
    assert world.used() == [0, 0, 0, 0]


def test_a_card_is_charged_once_for_a_pod_with_it_by_name_and_by_claim() -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-0", "gpu-1", pods=["uid-both"]))
    assert world.used() == [100, 100, 0, 0]
    world.pods.apply("ADDED", pod("both", {GPU: "100"}, on="node", allocated=whole(0)))
    assert world.used() == [100, 100, 0, 0]
    world.pods.apply("DELETED", pod("both", {GPU: "100"}, on="node", allocated=whole(0)))
    assert world.used() == [100, 100, 0, 0]


@pytest.mark.parametrize("bound_by", ["kube-scheduler", "Berth"])
def test_a_resource_that_a_claim_provides_is_charged_to_the_claim(bound_by: str) -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-2", pods=["uid-p"]))
    mapping = {"containerName": "main", "resourceName": NVIDIA, "requestName": "container-0-request-0"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]}}
    own = {"allocated": whole(0)} if bound_by == "Berth" else {"schedulerName": "default-scheduler"}
    world.pods.apply("ADDED", pod("p", {NVIDIA: "1"}, on="node", status=status, **own))
    assert world.used() == ([100, 0, 100, 0] if bound_by == "Berth" else [0, 0, 100, 0])
    assert world.unknown() == 0


def test_a_mig_device_is_charged_as_the_instance_that_it_is() -> None:
    world = World()
    instance = {"id": MIG, "profile": "1g.10gb", "gpuInstance": 1, "computeInstance": 0, "memory": "10Gi"}
    other = {**instance, "id": "MIG-1", "gpuInstance": 2}
    world.put_device(entry(0, mig={"enabled": True, "instances": [instance, other]}), generation=2)
    parts = [listed(f"mig-{n}", {"uuid": f"MIG-{n}", "parentUUID": "GPU-0"}) for n in range(2)]
    world.to.put_slice(resource_slice(*parts))
    world.to.put_claim(allocated("c", "mig-0"))
    one, two = (decide(world.cluster.fleet, waiting("p", {"nvidia.com/mig-1g.10gb": n}), Policy()) for n in (1, 2))
    assert isinstance(one, Placement)
    assert isinstance(two, Failure)
    assert {grant.id for grant in one.charge.grants} == {"MIG-1"}


def test_a_mig_device_that_the_device_does_not_list_is_charged_as_its_card() -> None:
    world = World()
    world.to.put_slice(resource_slice(listed("mig", {"uuid": "MIG-x", "parentUUID": "GPU-3"})))
    world.to.put_claim(allocated("c", "mig"))
    assert world.used() == [0, 0, 0, 100]


@pytest.mark.parametrize("driver", [NVIDIA_DRIVER, "cpu.example.com"])
def test_a_claim_whose_device_no_slice_lists_may_hold_any_card_of_its_type(driver: str) -> None:
    world = World()
    world.to.put_claim(allocated("c", "gpu-0", driver=driver))
    is_known = driver == NVIDIA_DRIVER
    assert world.unknown() == is_known
    assert isinstance(world.decision(), Failure if is_known else Placement)
    if is_known:
        assert world.conditions()["Accounted"] == (
            "False",
            "ClaimUnknown",
            CLAIM_UNKNOWN + "ns/resourceclaim/c",
        )
        world.to.put_slice(slice_of())
        assert (world.unknown(), world.used()) == (0, [100, 0, 0, 0])


def test_an_older_generation_of_a_pool_does_not_decide_what_a_device_is() -> None:
    world = World()
    renamed = listed("gpu-0", {"uuid": "GPU-3"})
    world.to.put_slice(slice_of())
    world.to.put_slice(resource_slice(renamed, name="new", generation=2))
    world.to.put_claim(allocated("c", "gpu-0"))
    assert world.used() == [0, 0, 0, 100]


# --- claims that are gone ---------------------------------------------------------------------------------------


def claimed(*devices: str, name: str = "c") -> list[Raw]:
    """Return what an agent reports of a claim."""
    return [
        {"namespace": "ns", "claim": name, "driver": NVIDIA_DRIVER, "pool": "node", "device": device}
        for device in devices
    ]


def test_what_containers_have_of_a_deleted_claim_stays_charged_until_they_end() -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-0", "gpu-1"))
    world.put_device(status={"bootID": "boot-1", "claimed": claimed("gpu-0", "gpu-1")})
    assert world.used() == [100, 100, 0, 0]
    world.to.remove_claim("ns/c")
    assert world.used() == [100, 100, 0, 0]
    assert status.wanted(world.view(), str).devices[0].holders[0].name == "resourceclaim/c"
    world.put_device(status={"bootID": "boot-1", "claimed": claimed("gpu-1")})
    assert world.used() == [0, 100, 0, 0]
    world.put_device(status={"bootID": "boot-1"})
    assert world.used() == [0, 0, 0, 0]


def test_a_device_that_another_claim_holds_now_is_charged_once() -> None:
    world = sliced()
    world.put_device(status={"bootID": "boot-1", "claimed": claimed("gpu-0")})
    assert world.used() == [100, 0, 0, 0]
    world.to.put_claim(allocated("new", "gpu-0"))
    assert world.used() == [100, 0, 0, 0]


def test_what_an_agent_reported_before_a_reboot_is_not_charged() -> None:
    world = sliced()
    world.put_device(status={"bootID": "boot-1", "claimed": claimed("gpu-0")})
    world.cluster.node_cache.put_node(node(boot="boot-2"))
    assert world.used() == [0, 0, 0, 0]


def test_a_copy_is_independent() -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-0", pods=["a"]))
    copied = world.cluster.fleet.copy()
    world.to.remove_claim("ns/c")
    world.to.remove_slice("node-gpu.nvidia.com")
    assert [each.key for each in copied.claims.of_pod("a")] == ["ns/c"]
    assert [each.id.device for each in copied.claims.devices_on("node")] == [f"gpu-{n}" for n in range(4)]
    assert not world.cluster.fleet.claims.of_pod("a")
    kept = copied.claims.by_uid("uid-claim-c")
    assert kept is not None
    assert kept.key == "ns/c"
    assert world.cluster.fleet.claims.by_uid("uid-claim-c") is None


# --- cards that are not given by name ---------------------------------------------------------------------------


def test_cards_that_a_slice_lists_are_not_given_by_name() -> None:
    world = World(OwnPools())
    world.to.put_slice(slice_of(0, 1, 2))
    assert isinstance(world.decision(), Placement)
    outcome = world.decision(200)
    assert isinstance(outcome, Failure)
    assert outcome.message == (
        "0/1 nodes are available: 1 node(s) have too few GPUs that are given by name (2 requested; listed by "
        "gpu.nvidia.com for ResourceClaims)."
    )
    assert world.conditions()["GivenByName"] == (
        "False",
        "CardsWithheld",
        f"gpu 0, gpu 1, gpu 2: {LISTED}",
    )
    uses = status.wanted(world.view(), str).devices
    assert [bool(use.barred) for use in uses] == [True, True, True, False]
    assert [bool(sum(map(int, (use.free[name] for name in use.free if "core" in name)))) for use in uses] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "own",
    [OWN, OwnPools(pools=frozenset({PoolID(NVIDIA_DRIVER, "node")})), OwnPools(drivers=frozenset({"*"}))],
    ids=["driver", "pool", "every driver"],
)
def test_the_configuration_gives_pools_to_berth(own: OwnPools) -> None:
    world = sliced(OwnPools())
    assert isinstance(world.decision(), Failure)
    world.cluster.set_own_pools(own)
    assert isinstance(world.decision(400), Placement)
    assert "GivenByName" not in world.conditions()
    world.cluster.set_own_pools(OwnPools(pools=frozenset({PoolID(NVIDIA_DRIVER, "another")})))
    assert isinstance(world.decision(), Failure)


def test_cards_of_a_driver_that_is_gone_are_kept_for_its_return() -> None:
    world = sliced(OwnPools())
    world.to.remove_slice("node-gpu.nvidia.com")
    world.later(claims.KEPT_SECONDS - 1)
    assert isinstance(world.decision(), Failure)
    world.to.put_slice(slice_of(0, 1, name="new"))
    assert isinstance(world.decision(200), Placement)
    world.later(claims.KEPT_SECONDS)
    assert isinstance(world.decision(300), Failure)


def test_a_card_that_its_driver_lists_no_more_is_given_at_once() -> None:
    world = World(OwnPools())
    world.to.put_slice(slice_of(0, 1, name="a", count=2))
    world.to.put_slice(slice_of(2, 3, name="b", count=2))
    world.to.remove_slice("b")
    assert isinstance(world.decision(), Failure)  # it may come back
    world.to.put_slice(slice_of(0, 1, name="a", generation=2))
    assert isinstance(world.decision(200), Placement)


def test_nodes_whose_slices_a_pool_does_not_list_any_more_are_given_back() -> None:
    world = World(OwnPools())
    world.to.put_slice(slice_of(pool="rack"))
    world.to.remove_slice("node-gpu.nvidia.com")
    world.to.put_slice(resource_slice(node="other", pool="rack"))
    assert isinstance(world.decision(400), Placement)


def test_a_pool_that_becomes_berths_while_its_driver_is_gone_is_given_by_name() -> None:
    world = sliced(OwnPools())
    world.to.remove_slice("node-gpu.nvidia.com")
    world.cluster.set_own_pools(OWN)
    assert isinstance(world.decision(400), Placement)


@pytest.mark.parametrize("driver", [NVIDIA_DRIVER, "example.com"])
def test_what_a_claim_holds_stays_charged_while_its_driver_is_gone(driver: str) -> None:
    world = World(OwnPools(drivers=frozenset({driver})))
    world.put_device(entry(0, topology={"busID": "0000:3b:00.0"}), *map(entry, (1, 2, 3)), generation=2)
    listing = resource_slice(listed("gpu-0", {PCI: "0000:3b:00.0"}), driver=driver, name="s")
    world.to.put_slice(listing)
    world.to.put_claim(allocated("c", "gpu-0", driver=driver))
    world.to.remove_slice("s")
    world.to.put_claim(allocated("c", "gpu-0", driver=driver, pods=["p"]))
    assert (world.used(), world.unknown()) == ([100, 0, 0, 0], 0)
    world.later(claims.KEPT_SECONDS)
    assert (world.used(), world.unknown()) == ([100, 0, 0, 0], 0)
    world.to.remove_claim("ns/c")
    world.later(1)
    assert not list(world.cluster.fleet.claims.devices_on("node"))


def test_pods_wake_when_a_slice_goes() -> None:
    world = sliced(OwnPools())
    parked(world.cluster, pod("p", {GPU: "100"}), 100.0)
    world.to.remove_slice("node-gpu.nvidia.com")
    assert popped(world.cluster.queue, 200.0) is None
    world.later(claims.KEPT_SECONDS)
    assert popped(world.cluster.queue, 200.0) is not None


def test_what_pods_hold_stays_charged_when_a_slice_lists_their_card() -> None:
    world = World(OwnPools())
    world.pods.apply("ADDED", pod("held", {GPU: "100"}, on="node", allocated=whole(0)))
    world.to.put_slice(slice_of())
    assert world.used() == [100, 0, 0, 0]
    world.to.remove_slice("node-gpu.nvidia.com")
    assert world.used() == [100, 0, 0, 0]


def test_instances_of_a_listed_card_are_not_given_either() -> None:
    world = World(OwnPools())
    instance = {"id": MIG, "profile": "1g.10gb", "gpuInstance": 1, "computeInstance": 0, "memory": "10Gi"}
    world.put_device(entry(0, mig={"enabled": True, "instances": [instance]}), generation=2)
    world.to.put_slice(resource_slice(listed("mig", {"uuid": MIG, "parentUUID": "GPU-0"})))
    outcome = decide(world.cluster.fleet, waiting("p", {"nvidia.com/mig-1g.10gb": 1}), Policy())
    assert isinstance(outcome, Failure)
    assert "too few GPUs that are given by name (1 requested; listed by gpu.nvidia.com for Res" in outcome.message


def test_a_listed_device_that_may_be_any_card_keeps_all_of_them() -> None:
    world = World(OwnPools())
    world.to.put_slice(resource_slice(listed("gpu-0", {"type": "gpu"})))
    assert isinstance(world.decision(), Failure)


# --- device taints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "kept"), [("NoSchedule", True), ("NoExecute", True), ("None", False)])
def test_a_taint_in_a_slice_counts_as_health(effect: str, *, kept: bool) -> None:
    world = World()
    world.to.put_slice(resource_slice(gpu(0, taints=[taint(effect=effect, value="x")]), *map(gpu, (1, 2, 3))))
    outcome = world.decision(400)
    assert isinstance(outcome, Failure if kept else Placement)
    if isinstance(outcome, Failure):
        assert f"given by name (4 requested; device taint example.com/broken:{effect})" in outcome.message
        assert world.conditions()["GivenByName"][2] == (
            f"gpu 0: device taint example.com/broken=x:{effect} on gpu.nvidia.com/node/gpu-0"
        )


@pytest.mark.parametrize(("driver", "is_read"), [(names.DRA_DRIVER, False), (NVIDIA_DRIVER, True)])
def test_the_taint_of_pods_by_name_counts_only_if_another_driver_has_it(driver: str, *, is_read: bool) -> None:
    world = World(OwnPools(drivers=frozenset({driver})))
    tainted = gpu(0, taints=[taint(names.HELD_BY_NAME)])
    world.to.put_slice(resource_slice(tainted, *map(gpu, (1, 2, 3)), driver=driver))
    assert isinstance(world.decision(400), Failure if is_read else Placement)
    assert ("GivenByName" in world.conditions()) == is_read


@pytest.mark.parametrize(
    ("selector", "cards"),
    [
        ({}, 4),
        ({"driver": NVIDIA_DRIVER}, 4),
        ({"pool": "node", "device": "gpu-2"}, 1),
        ({"driver": "other"}, 0),
        (None, 0),
    ],
)
@pytest.mark.parametrize("kind", ["device taint rules", "device taint rules of v1beta2"])
def test_a_taint_rule_counts_as_health_until_it_is_gone(kind: str, selector: dict[str, str] | None, cards: int) -> None:
    world = sliced()
    rule = taint_rule(selector=selector, tainted=taint(effect="NoExecute"))
    world.tables[kind].apply("ADDED", rule)
    assert sum(bool(use.barred) for use in status.wanted(world.view(), str).devices) == cards
    world.tables[kind].apply("DELETED", rule)
    assert isinstance(world.decision(400), Placement)


def test_taints_of_an_older_generation_are_over() -> None:
    world = World()
    world.to.put_slice(slice_of(name="new", generation=2))
    world.to.put_slice(resource_slice(*(gpu(minor, taints=[taint()]) for minor in range(4)), name="old"))
    assert isinstance(world.decision(400), Placement)


def test_the_charge_of_a_claim_follows_a_card_that_gets_another_minor() -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-0"))
    assert world.used() == [100, 0, 0, 0]
    others = [entry(0, id="GPU-3"), entry(1, id="GPU-1"), entry(2, id="GPU-2"), entry(3, id="GPU-0")]
    world.put_device(*others, generation=2)
    assert (world.used(), world.unknown()) == ([0, 0, 0, 100], 0)
    outcome = world.decision(300)
    assert isinstance(outcome, Placement)
    assert {grant.minor for grant in outcome.grants} == {0, 1, 2}
    assert isinstance(world.decision(400), Failure)
    world.to.put_claim(claim("c"))
    assert world.used() == [0, 0, 0, 0]


def for_many(*minors: int, **where: Any) -> Raw:
    raw = slice_of(*minors, name="many", pool="fabric")
    spec = {key: value for key, value in raw["spec"].items() if key != "nodeName"}
    return {**raw, "spec": {**spec, **(where or {"allNodes": True})}}


@pytest.mark.parametrize("first", ["slice", "device"])
@pytest.mark.parametrize("own", [OWN, OwnPools()])
def test_cards_that_a_slice_for_many_nodes_lists_by_their_uuid_are_not_given_by_name(own: OwnPools, first: str) -> None:
    world = World(own=own)
    if first == "slice":
        world.cluster.node_cache.remove_device("node")
    world.to.put_slice(for_many(1, 2))
    world.put_device()
    assert isinstance(world.decision(200), Placement)
    assert isinstance(world.decision(300), Failure)
    assert "listed by driver gpu.nvidia.com in pool fabric for many nodes" in world.conditions()["GivenByName"][2]
    world.to.put_slice(for_many(1))
    assert isinstance(world.decision(300), Placement)
    newer = for_many(1)
    world.to.put_slice({**newer, "metadata": {"name": "newer"}})
    world.to.remove_slice("many")
    world.later(claims.KEPT_SECONDS + 1)
    assert isinstance(world.decision(400), Failure)
    world.to.remove_slice("newer")
    world.later(claims.KEPT_SECONDS + 1)
    assert isinstance(world.decision(400), Placement)


def test_a_card_that_two_slices_for_many_nodes_list_is_kept_until_both_are_gone() -> None:
    world = World(own=OwnPools())
    for name in ("older", "newer"):
        world.to.put_slice({**for_many(1), "metadata": {"name": name}})
    for name, cards in {"newer": 300, "older": 400}.items():
        assert isinstance(world.decision(400), Failure)
        world.to.remove_slice(name)
        world.later(claims.KEPT_SECONDS + 1)
        assert isinstance(world.decision(cards), Placement)
    assert not world.cluster.fleet.claims.anywhere


def unreadable(**fields: Any) -> Raw:
    raw = slice_of(**fields)
    return {**raw, "spec": {**raw["spec"], "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": 1}}}]}}


@pytest.mark.parametrize("end", ["read", "removed"])
def test_a_slice_that_cannot_be_read_at_first_sight_keeps_all_cards_of_its_type(end: str) -> None:
    world = World(own=OwnPools())
    world.to.put_slice(unreadable())
    world.to.put_slice(unreadable())
    assert isinstance(world.decision(), Failure)
    assert LISTED in world.conditions()["GivenByName"][2]
    world.later(claims.KEPT_SECONDS + 1)
    assert isinstance(world.decision(), Failure)
    if end == "read":
        world.to.put_slice(slice_of(0))
    else:
        world.to.remove_slice(f"node-{NVIDIA_DRIVER}")
    assert isinstance(world.decision(300 if end == "read" else 400), Placement)
    assert isinstance(world.decision(400), Failure if end == "read" else Placement)


def test_a_slice_that_cannot_be_read_keeps_cards_also_when_the_others_of_its_pool_are_complete() -> None:
    world = World(own=OwnPools())
    world.to.put_slice(unreadable(name="newer"))
    world.to.put_slice(slice_of(0))
    assert isinstance(world.decision(), Failure)
    world.to.remove_slice("newer")
    assert isinstance(world.decision(300), Placement)


def test_a_slice_that_cannot_be_read_gives_no_device_to_claims() -> None:
    world = World()
    world.to.put_slice(unreadable())
    assert not world.cluster.fleet.claims.supply.on("node", {}).own
    assert isinstance(world.decision(400), Placement)


# --- nodes that leave -------------------------------------------------------------------------------------------


def leave(world: World) -> None:
    """Remove the node with all that is known of it, in the order in which they go after the Node is deleted."""
    world.cluster.node_cache.remove_node("node")
    world.to.remove_slice(f"node-{NVIDIA_DRIVER}")
    world.cluster.node_cache.remove_device("node")
    world.cluster.node_cache.remove_lease("node")


def come_back(world: World, *cards: Raw) -> None:
    world.cluster.node_cache.put_node(node(uid="another"))
    world.put_device(*cards, generation=2)
    world.later(0)


def test_a_claim_holds_the_device_of_its_name_on_a_node_that_comes_back_with_other_cards() -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-1"))
    leave(world)
    come_back(world, entry(0, id="GPU-8"), entry(1, id="GPU-9"))
    # Until a slice lists it, the device may be any of the cards.
    assert world.unknown() == 1
    assert isinstance(world.decision(), Failure)
    others = [listed(f"gpu-{number}", {"uuid": f"GPU-{number + 8}"}) for number in range(2)]
    world.to.put_slice(resource_slice(*others))
    assert (world.unknown(), world.used()) == (0, [0, 100])
    assert isinstance(world.decision(), Placement)
    world.to.put_claim(claim("c"))
    assert world.used() == [0, 0]


@pytest.mark.parametrize("end", ["deallocated", "deleted"])
def test_a_claim_that_ends_while_its_node_is_gone_is_not_charged_when_the_node_is_back(end: str) -> None:
    world = sliced()
    world.to.put_claim(allocated("c", "gpu-1"))
    leave(world)
    if end == "deallocated":
        world.to.put_claim(claim("c"))
    else:
        world.to.remove_claim("ns/c")
    come_back(world)
    world.to.put_slice(slice_of())
    assert (world.unknown(), world.used()) == (0, [0, 0, 0, 0])


@pytest.mark.parametrize("kind", ["device classes", "resource claims"])
def test_parameters_for_drivers_are_not_kept(kind: str) -> None:
    config = [{"opaque": {"driver": NVIDIA_DRIVER, "parameters": {"a": 1}}}, {}]
    raw = claim()
    raw["spec"] = (
        {"config": config} if kind == "device classes" else {"devices": {**raw["spec"]["devices"], "config": config}}
    )
    raw["status"] = {"allocation": {"devices": {"config": [{"source": "FromClass", **config[0]}]}}}
    source, _ = claims.sources(ClaimsInTurns(Cluster(grace=1.0, clock=lambda: 0.0)))[kind]
    kept = source.transform(raw)
    assert "parameters" not in str(kept)
    assert str(kept).count(f"{{'opaque': {{'driver': '{NVIDIA_DRIVER}'}}}}") >= 1
