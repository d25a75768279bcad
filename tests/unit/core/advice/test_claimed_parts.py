"""The rows of nodes and pods show the instances and shares that claims have, and where instances are."""

from dataclasses import replace
from typing import Any, Final

import pytest

from berth_agent.dra import partitions
from berth_agent.dra.devices import ListedDevice
from berth_api.allocation.device_ids import device_name
from berth_api.names import DRA_DRIVER
from berth_operator.core.advice.fleet_rows import fleet_row
from berth_operator.core.advice.holders import held_by_claim, holder_row
from berth_operator.core.claims.objects.slices import PoolID
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.fleet.nodes.cards import card_id
from tests.claims.own import reported
from tests.nvml import mig_profiles
from tests.objects.builders import GI, NVIDIA, pod, whole
from tests.objects.resource_claims import allocated, listed, resource_slice
from tests.unit.state.test_pods_with_claims import World

Raw = dict[str, Any]
CARD: Final = ListedDevice(
    name=device_name("GPU-0"),
    id="GPU-0",
    card="GPU-0",
    place="0000:01:00.0",
    attributes={"type": {"string": "gpu"}, "uuid": {"string": "GPU-0"}},
    memory="80Gi",
)
QUARTER: Final = {"memory": "20Gi", "cores": "0"}
OWN: Final = OwnPools(drivers=frozenset({DRA_DRIVER}))


def world_with(*slices: Raw) -> World:
    world = World("node", own=OWN)
    for slice_ in slices:
        world.to.put_slice(slice_)
    return world


def opened_card() -> World:
    """Return a node of which one card is open for instances, as the driver lists it."""
    made = partitions.partitioned(CARD, reported(mig_profiles.H100_80), opened=True, keeps_counters=True)
    assert made is not None
    counters = resource_slice(name="counters", driver=DRA_DRIVER, count=2)
    counters["spec"] |= {"devices": None, "sharedCounters": [made.counters]}
    return world_with(resource_slice(*map(dict, made.devices), name="d", driver=DRA_DRIVER, count=2), counters)


def placed(world: World, profile: str, start: int) -> str:
    """Return the name of the device that is made at this placement."""
    [name] = [
        device.id.device
        for slice_ in world.cluster.fleet.claims.in_pool(PoolID(DRA_DRIVER, "node"))
        for device in slice_.devices
        if device.attributes[f"{DRA_DRIVER}/type"].value == "mig"
        and device.attributes[f"{DRA_DRIVER}/profile"].value == profile
        and device.id.device.endswith(f"-{start}")
    ]
    return name


def hold(world: World, name: str, *devices: str, **fields: Any) -> Raw:
    """Bind a pod whose claim has these devices, and return the pod's row."""
    return bind(world, name, allocated(name, *devices, driver=DRA_DRIVER, pods=[f"uid-{name}"], **fields))


def bind(world: World, name: str, claim: Raw) -> Raw:
    world.to.put_claim(claim)
    used = [{"name": name, "resourceClaimName": name}]
    world.pods.apply("ADDED", pod(name, on="node", resourceClaims=used))
    charge = world.cluster.fleet.charges[f"uid-{name}"]
    by_claim, placed = held_by_claim(world.cluster.fleet, charge)
    grants = (*charge.grants, *by_claim)
    return dict(holder_row(world.cluster.fleet, replace(charge, grants=grants), drifted=False, placed=placed))


def shown(world: World) -> Any:
    return fleet_row(world.cluster.fleet, "node", {})["devices"]


def test_an_instance_by_claim_is_shown_at_its_placement_and_its_pod_has_no_whole_card() -> None:
    world = opened_card()
    large, small = placed(world, "3g.40gb", 4), placed(world, "1g.10gb", 0)
    [of_large] = hold(world, "a", large)["devices"]
    [of_small] = hold(world, "b", small)["devices"]
    assert (of_large["minor"], of_large["id"], of_large["amounts"]) == (0, large, {"nvidia.com/mig-3g.40gb": 1})
    # Faults are found by the card's id.
    by_claim, _ = held_by_claim(world.cluster.fleet, world.cluster.fleet.charges["uid-a"])
    assert [card_id(grant) for grant in by_claim] == ["GPU-0"]
    assert of_large["placement"] == {"start": 4, "size": 4, "of": 8}
    assert of_small["placement"] == {"start": 0, "size": 1, "of": 8}
    first, other = shown(world)
    assert first["held"] == round(100 * 4 / 7)
    assert sorted(first["mig"], key=lambda instance: str(instance["profile"])) == [
        {"profile": "1g.10gb", "minor": 0, "free": False, "placement": {"start": 0, "size": 1, "of": 8}},
        {"profile": "3g.40gb", "minor": 0, "free": False, "placement": {"start": 4, "size": 4, "of": 8}},
    ]
    assert (other["held"], other["mig"]) == (0, [])
    assert not any(first["free"].values())  # nothing of it is given by name


def test_a_card_shows_the_instances_that_can_still_be_made() -> None:
    world = opened_card()
    whole, other = shown(world)
    of_empty = {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
    assert of_empty.items() <= whole["migOnDemand"].items()
    assert "migOnDemand" not in other
    hold(world, "a", placed(world, "3g.40gb", 4))
    hold(world, "b", placed(world, "1g.10gb", 0))
    left = shown(world)[0]["migOnDemand"]
    assert {profile: left[profile] for profile in of_empty if profile in left} == {
        "1g.10gb": 3,
        "1g.20gb": 1,
        "2g.20gb": 1,
    }


def test_a_card_that_a_pod_holds_by_name_has_no_place_for_instances() -> None:
    world = opened_card()
    world.pods.apply("ADDED", pod("by-name", {NVIDIA: "1"}, on="node", allocated=whole(0)))
    assert "migOnDemand" not in shown(world)[0]


def test_a_tainted_place_is_none() -> None:
    device = listed(f"{CARD.name}-1", {f"{DRA_DRIVER}/parentUUID": "GPU-0", f"{DRA_DRIVER}/profile": "1g.10gb"})
    device["consumesCounters"] = [{"counterSet": "gpu", "counters": {"memory-slice-0": {"value": "1"}}}]
    counters = resource_slice(name="counters", driver=DRA_DRIVER, count=2)
    sets = {"memory-slice-0": {"value": "1"}}
    counters["spec"] |= {"devices": None, "sharedCounters": [{"name": "gpu", "counters": sets}]}
    tainted = {**device, "taints": [{"key": "gpu.berth.dev/unhealthy", "effect": "NoSchedule"}]}
    for of_slice, expected in ((device, {"1g.10gb": 1}), (tainted, None)):
        world = world_with(resource_slice(of_slice, name="d", driver=DRA_DRIVER, count=2), counters)
        assert shown(world)[0].get("migOnDemand") == expected


def test_the_largest_instance_is_an_instance_and_a_whole_card_is_none() -> None:
    world = opened_card()
    [part] = hold(world, "a", placed(world, "7g.80gb", 0))["devices"]
    assert part["placement"] == {"start": 0, "size": 8, "of": 8}
    world = opened_card()
    [part] = hold(world, "a", CARD.name)["devices"]
    assert ("placement" in part, part["amounts"]["gpu-core"]) == (False, 100)
    assert [(card["held"], card["mig"]) for card in shown(world)] == [(100, []), (0, [])]


def shared_card(memory: str = "80Gi") -> World:
    capacity = {"memory": {"value": memory}, "cores": {"value": "100"}}
    uuid = {f"{DRA_DRIVER}/uuid": "GPU-0"}
    card = listed(CARD.name, uuid, capacity=capacity, allowMultipleAllocations=True)
    return world_with(resource_slice(card, name="d", driver=DRA_DRIVER))


@pytest.mark.parametrize(
    ("consumed", "amounts", "held"),
    [
        ({"memory": "20Gi", "cores": "40"}, {"gpu-core": 40, "gpu-memory": 20 * GI, "gpu-memory-ratio": 25}, 40),
        ({"memory": "1Mi", "cores": "0"}, {"gpu-memory": 2**20, "gpu-memory-ratio": 1}, 1),
    ],
)
def test_a_share_by_claim_is_shown_with_its_amounts(consumed: Raw, amounts: Raw, held: int) -> None:
    world = shared_card()
    [part] = hold(world, "a", CARD.name, shareID="1", consumedCapacity=consumed)["devices"]
    assert (part["minor"], part["id"], part["amounts"]) == (0, "GPU-0", amounts)
    assert [card["held"] for card in shown(world)] == [held, 0]


def test_several_shares_of_a_claim_are_one_sum() -> None:
    world = shared_card()
    claim = allocated("a", CARD.name, CARD.name, driver=DRA_DRIVER, pods=["uid-a"], consumedCapacity=QUARTER)
    for number, result in enumerate(claim["status"]["allocation"]["devices"]["results"]):
        result["shareID"] = str(number)
    [part] = bind(world, "a", claim)["devices"]
    assert part["amounts"] == {"gpu-memory": 40 * GI, "gpu-memory-ratio": 50}
    hold(world, "b", CARD.name, shareID="2", consumedCapacity=QUARTER)
    assert shown(world)[0]["held"] == 75


def test_a_card_that_a_pod_holds_by_name_as_well_stays_full() -> None:
    world = opened_card()
    hold(world, "a", placed(world, "1g.10gb", 0))
    world.pods.apply("ADDED", pod("by-name", {NVIDIA: "1"}, on="node", allocated=whole(0)))
    assert (shown(world)[0]["held"], shown(world)[0]["users"]) == (100, 2)


@pytest.mark.parametrize(
    ("memory", "consumed"),
    [("0", QUARTER), ("-1", QUARTER), ("80Gi", {"memory": "9E", "cores": "900"}), ("80Gi", {"memory": "-1"})],
)
def test_amounts_that_cannot_be_cost_no_row(memory: str, consumed: Raw) -> None:
    world = shared_card(memory)
    [part] = hold(world, "a", CARD.name, shareID="1", consumedCapacity=consumed)["devices"]
    assert 0 < shown(world)[0]["held"] <= 100
    assert all(0 < amount <= (80 * GI if name == "gpu-memory" else 100) for name, amount in part["amounts"].items())


@pytest.mark.parametrize("number", ["8", "99999999999999999999999", "x"])
def test_a_counter_that_the_card_does_not_have_is_no_placement(number: str) -> None:
    device = listed(f"{CARD.name}-1", {f"{DRA_DRIVER}/parentUUID": "GPU-0", f"{DRA_DRIVER}/profile": "1g.10gb"})
    device["consumesCounters"] = [{"counterSet": "gpu", "counters": {f"memory-slice-{number}": {"value": "1"}}}]
    counters = resource_slice(name="counters", driver=DRA_DRIVER, count=2)
    sets = {f"memory-slice-{at}": {"value": "1"} for at in (0, number)}
    counters["spec"] |= {"devices": None, "sharedCounters": [{"name": "gpu", "counters": sets}]}
    world = world_with(resource_slice(device, name="d", driver=DRA_DRIVER, count=2), counters)
    [part] = hold(world, "a", device["name"])["devices"]
    assert "placement" not in part


def test_placements_stay_while_the_driver_restarts() -> None:
    world = opened_card()
    held = placed(world, "3g.40gb", 4)
    hold(world, "a", held)
    for name in ("d", "counters"):
        world.to.remove_slice(name)
    [instance] = shown(world)[0]["mig"]
    assert instance["placement"] == {"start": 4, "size": 4, "of": 8}


def test_instances_of_a_driver_whose_counters_do_not_say_where_they_are() -> None:
    device = listed(f"{CARD.name}-part", {f"{DRA_DRIVER}/parentUUID": "GPU-0", f"{DRA_DRIVER}/profile": "1g.10gb"})
    world = world_with(resource_slice(device, name="d", driver=DRA_DRIVER))
    [part] = hold(world, "a", f"{CARD.name}-part")["devices"]
    assert ("placement" in part, part["amounts"]) == (False, {"nvidia.com/mig-1g.10gb": 1})
    assert shown(world)[0]["mig"] == [{"profile": "1g.10gb", "minor": 0, "free": False}]
