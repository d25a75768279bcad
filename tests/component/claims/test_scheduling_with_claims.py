"""From decision to Binding of pods with ResourceClaims, and what happens to the claims of pods that are not bound."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from berth_api import names
from berth_api.names import DRA_DRIVER
from berth_client.errors import ApiError
from berth_operator.binding.prebind.claims import CONDITIONS_TIMEOUT, TIMEOUT
from berth_operator.core.claims.objects import status
from berth_operator.core.decision.gang import NOT_FINISHED
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.state.watches.claims import ResourceClaims
from tests.claims import own, together
from tests.component.claims import claim_server
from tests.component.claims.claim_server import LAG
from tests.component.world import Api, Raw, World, refusal
from tests.objects.builders import pod, pod_group
from tests.objects.resource_claims import NVIDIA_DRIVER, allocated, claim, gpu, resource_slice

pytestmark = pytest.mark.looptime

CPU = {"cpu": "1"}
HOSTNAME = "kubernetes.io/hostname"


class Server(Api):
    """Pods, Events and ResourceClaims in memory."""

    claims: claim_server.Server

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Raw:
        return await self.claims.get(path, params)

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any, **options: Any
    ) -> Any:
        return await self.claims.request(method, path, params=params, body=body, **options)


class Claims:
    """Nodes of two GPUs and one CPU, whose pools are Berth's, and the operator's parts that decide and bind."""

    def __init__(self, *nodes: str, gpus: int = 2) -> None:
        self.server = Server()
        self.world = World(api=self.server)
        self.watch = watch = ResourceClaims(self.world.cluster)
        self.server.claims = self.claims = claim_server.Server(
            lambda raw: watch.put_claim(status.with_writers(raw)), watch.remove_claim
        )
        self.world.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
        watch.put_class({"metadata": {"name": NVIDIA_DRIVER}, "spec": {}})
        for name in nodes or ("node",):
            self.add(name, gpus)

    def add(self, node: str, gpus: int = 2) -> None:
        """Add a node, which a driver has listed."""
        self.world.add_node(node, cards=gpus, allocatable={"cpu": "1", "pods": "300"}, labels={HOSTNAME: node})
        self.watch.put_slice(resource_slice(*map(gpu, range(gpus)), node=node))

    def leave(self, node: str) -> None:
        """Remove a node, and what is there of it."""
        self.world.cluster.node_cache.remove_node(node)
        self.watch.remove_slice(f"{node}-{NVIDIA_DRIVER}")
        self.world.cluster.node_cache.remove_device(node)

    async def put(self, *raws: Raw) -> None:
        """Create claims, and wait until the watch has shown them."""
        for raw in raws:
            self.claims.change(raw["metadata"]["name"], **raw)
        await asyncio.sleep(LAG + 0.01)

    def pod(self, name: str, *claims: str, requests: Mapping[str, str] | None = None, **fields: Any) -> None:
        used = [{"name": each, "resourceClaimName": each} for each in claims]
        self.world.submit(pod(name, dict(requests or {}), resourceClaims=used, **fields))

    def gang(self, **members: str) -> None:
        """Create a gang of members, each with a claim."""
        self.world.groups.apply("ADDED", pod_group(minimum=len(members)))
        for name, used in members.items():
            self.pod(name, used, labels={names.POD_GROUP_LABEL: "g"})

    def held(self) -> dict[str, list[str]]:
        """Return {claim: devices, as node/device} of those that are allocated."""
        return {name: held for name in self.claims.claims if (held := self._devices(name))}

    def _devices(self, name: str) -> list[str]:
        allocation = (self.claims.claims[name].get("status") or {}).get("allocation") or {}
        return [f"{each['pool']}/{each['device']}" for each in allocation.get("devices", {}).get("results", ())]

    def consumers(self, name: str) -> list[str]:
        status = self.claims.claims[name].get("status") or {}
        return sorted(each["name"] for each in status.get("reservedFor") or ())


def left(name: str, *devices: str, node: str, pods: tuple[str, ...] = ()) -> Raw:
    """Return a claim as a leader of the past left it."""
    raw = allocated(name, *devices, node=node, pods=[f"uid-{each}" for each in pods])
    written = [{"manager": "berth/1", "fieldsV1": {"f:status": {"f:allocation": {}}}}]
    return {**raw, "metadata": {**raw["metadata"], "managedFields": written}}


async def test_a_claim_that_holds_a_pod_to_a_full_node_is_deallocated_and_the_pod_goes_elsewhere() -> None:
    claims = Claims("full", "free")
    async with claims.world.running() as api:
        claims.pod("first", requests=CPU, nodeSelector={HOSTNAME: "full"})
        await claims.put(left("c", "gpu-1", node="full", pods=("p",)))
        assert api.bound() == {"first": "full"}
        claims.pod("p", "c", requests=CPU)
        await asyncio.sleep(30)
        assert api.bound() == {"first": "full", "p": "free"}
        assert claims.held() == {"c": ["free/gpu-0"]}
        assert claims.consumers("c") == ["p"]


async def test_the_event_of_a_pod_asks_about_memory_without_a_unit_in_its_claim() -> None:
    claims = Claims()
    claims.watch.put_slice(resource_slice(gpu(0, capacity={"memory": {"value": "80Gi"}}), node="node"))
    raw = claim()
    raw["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": "20"}}
    async with claims.world.running() as api:
        await claims.put(raw)
        claims.pod("p", "c")
        await asyncio.sleep(5)
    [note] = api.events_of("p", "Scheduled")
    assert note.endswith("(ResourceClaim ns/c: request gpu: capacity memory: 20 is in bytes; did you mean 20Gi?)")


async def test_a_claim_that_another_pod_uses_keeps_a_pod_waiting_that_fits_on_none_of_its_nodes() -> None:
    claims = Claims("full", "free")
    async with claims.world.running() as api:
        claims.pod("first", requests=CPU, nodeSelector={HOSTNAME: "full"})
        await claims.put(left("c", "gpu-1", node="full", pods=("p", "other")))
        claims.pod("p", "c", requests=CPU)
        await asyncio.sleep(30)
        assert api.bound() == {"first": "full"}
        assert claims.held() == {"c": ["full/gpu-1"]}
        assert claims.consumers("c") == ["uid-other", "uid-p"]


async def test_a_claim_that_equal_waiting_pods_share_keeps_them_waiting_when_they_are_woken_together() -> None:
    claims = Claims("full")
    async with claims.world.running() as api:
        claims.pod("first", requests=CPU)
        await claims.put(left("c", "gpu-1", node="full", pods=("p", "q")))
        claims.pod("p", "c", requests=CPU)
        claims.pod("q", "c", requests=CPU)
        await asyncio.sleep(30)
        claims.add("free")
        await asyncio.sleep(30)
        assert api.bound() == {"first": "full"}
        assert claims.held() == {"c": ["full/gpu-1"]}
        assert claims.consumers("c") == ["uid-p", "uid-q"]


async def test_claims_that_hold_a_gang_to_a_full_node_are_deallocated() -> None:
    claims = Claims("full", "free", gpus=3)
    async with claims.world.running() as api:
        claims.pod("first", requests=CPU, nodeSelector={HOSTNAME: "full"})
        # Of a leader that died between these writes and the Bindings; both use the second claim.
        await claims.put(
            left("c", "gpu-0", node="full", pods=("m0",)), left("d", "gpu-1", node="full", pods=("m0", "m1"))
        )
        claims.world.groups.apply("ADDED", pod_group(minimum=2))
        half = {"cpu": "500m"}
        claims.pod("m0", "c", "d", requests=half, labels={names.POD_GROUP_LABEL: "g"})
        claims.pod("m1", "d", requests=half, labels={names.POD_GROUP_LABEL: "g"})
        await asyncio.sleep(60)
        assert api.bound() == {"first": "full", "m0": "free", "m1": "free"}
        assert claims.consumers("d") == ["m0", "m1"]
        assert {each.partition("/")[0] for held in claims.held().values() for each in held} == {"free"}


async def test_if_the_claim_of_one_member_cannot_be_written_those_of_the_others_are_released() -> None:
    claims = Claims()
    claims.claims.faults["d/status"] = [ApiError(422, "Invalid", "too many consumers")]
    async with claims.world.running() as api:
        await claims.put(claim("c"), claim("d"))
        claims.gang(m0="c", m1="d")
        await asyncio.sleep(3 * LAG)
        assert (claims.held(), api.bound()) == ({}, {})
        assert "too many consumers" in claims.world.api.messages("m1")[-1]
        await asyncio.sleep(60)
        assert claims.held() == {"c": ["node/gpu-0"], "d": ["node/gpu-1"]}
        assert api.bound().keys() == {"m0", "m1"}


async def test_the_claim_of_a_member_whose_binding_is_refused_is_released_when_the_gang_is_undone() -> None:
    claims = Claims()
    claims.server.always["bind m1"] = refusal(422, "no")
    async with claims.world.running() as api:
        await claims.put(claim("c"), claim("d"))
        claims.world.groups.apply("ADDED", pod_group(minimum=2, timeout=10))
        claims.pod("m0", "c", labels={names.POD_GROUP_LABEL: "g"})
        claims.pod("m1", "d", labels={names.POD_GROUP_LABEL: "g"})
        await asyncio.sleep(5)
        assert api.bound().keys() == {"m0"}
        await asyncio.sleep(30)
        # The resource claim controller of Kubernetes takes the reservation of the member that was deleted.
        assert [name for _, name in api.deletes] == ["m0"]
        assert (claims.consumers("c"), claims.consumers("d")) == (["m0"], [])


async def test_members_that_share_a_claim_are_placed_where_it_is_allocated() -> None:
    claims = Claims("node0", "node1")
    async with claims.world.running() as api:
        await claims.put(claim("c"))
        claims.gang(m0="c", m1="c", m2="c")
        await asyncio.sleep(10)
        [[device]] = claims.held().values()
        assert claims.consumers("c") == ["m0", "m1", "m2"]
        assert set(api.bound().values()) == {device.partition("/")[0]}
        assert api.bound().keys() == {"m0", "m1", "m2"}


async def test_members_that_share_a_claim_and_do_not_fit_on_one_node_wait_and_leave_nothing_behind() -> None:
    claims = Claims("node0", "node1")
    async with claims.world.running() as api:
        await claims.put(claim("c"))
        claims.world.groups.apply("ADDED", pod_group(minimum=2))
        for name in ("m0", "m1"):
            claims.pod(name, "c", requests=CPU, labels={names.POD_GROUP_LABEL: "g"})
        await asyncio.sleep(30)
        assert (claims.held(), api.bound()) == ({}, {})
        assert "1 of the 2 required members fit" in api.messages("m0")[-1]
        assert not claims.world.cluster.fleet.claims.claims["ns/c"].allocation


async def test_if_the_claim_that_members_share_cannot_be_written_all_are_tried_again() -> None:
    claims = Claims()
    claims.claims.faults["c/status"] = [ApiError(422, "Invalid", "no")]
    async with claims.world.running() as api:
        await claims.put(claim("c"))
        claims.gang(m0="c", m1="c")
        await asyncio.sleep(TIMEOUT / 2)
        assert claims.consumers("c") == ["m0", "m1"]
        assert api.bound().keys() == {"m0", "m1"}


async def test_of_equal_nodes_pods_with_claims_fill_the_first() -> None:
    nodes = tuple("abcdefgh")
    claims = Claims(*nodes)
    async with claims.world.running() as api:
        await claims.put(claim("c0"), claim("c1"))
        for number in range(2):
            claims.pod(f"p{number}", f"c{number}")
            await asyncio.sleep(5)
        assert api.bound() == {"p0": "a", "p1": "a"}


async def test_a_claim_whose_node_leaves_while_it_is_written_is_released_and_the_pod_goes_elsewhere() -> None:
    claims = Claims("first")
    async with claims.world.running() as api:
        await claims.put(claim("c"))
        claims.claims.faults["c/status"] = [lambda: claims.leave("first")]
        claims.pod("p", "c")
        await asyncio.sleep(3 * LAG)
        assert (claims.held(), api.bound()) == ({}, {})
        claims.add("second")
        await asyncio.sleep(30)
        assert (claims.held(), api.bound()) == ({"c": ["second/gpu-0"]}, {"p": "second"})


async def test_a_claim_of_a_node_that_left_after_its_pod_was_bound_is_left_to_its_controller() -> None:
    claims = Claims("first")
    async with claims.world.running() as api:
        await claims.put(claim("c"))
        claims.pod("p", "c")
        await asyncio.sleep(3)
        assert api.bound() == {"p": "first"}
        claims.leave("first")
        claims.world.delete("p")
        await asyncio.sleep(3)
        assert claims.held() == {"c": ["first/gpu-0"]}
        claims.claims.change("c", status={})
        claims.add("first")
        claims.pod("q", "c")
        await asyncio.sleep(30)
        assert (claims.held(), claims.consumers("c"), api.bound()) == ({"c": ["first/gpu-0"]}, ["q"], {"q": "first"})


# --- binding conditions -----------------------------------------------------------------------------------------

READY = {"bindingConditions": ["example.com/attached"], "bindingFailureConditions": ["example.com/failed"]}


async def waiting_for_a_device(claims: Claims) -> None:
    """Have a pod wait for the only device, which its driver must attach."""
    claims.watch.put_slice(resource_slice(gpu(0, **READY)))
    await claims.put(claim("c"))
    claims.pod("p", "c")
    await asyncio.sleep(20)
    assert claims.world.api.bound() == {}
    assert claims.held() == {"c": ["node/gpu-0"]}


def report(claims: Claims, condition: str) -> None:
    """Report a condition of the device as true, as its driver does."""
    current = claims.claims.claims["c"]["status"]
    [result] = current["allocation"]["devices"]["results"]
    identity = {key: result[key] for key in ("driver", "pool", "device")}
    true = {"type": condition, "status": "True", "reason": "R", "message": "broken"}
    claims.claims.change("c", status={**current, "devices": [{**identity, "conditions": [true]}]})


async def test_a_pod_is_bound_when_the_binding_conditions_of_its_device_are_true() -> None:
    claims = Claims()
    async with claims.world.running() as api:
        await waiting_for_a_device(claims)
        report(claims, "example.com/other")
        await asyncio.sleep(20)
        assert api.bound() == {}
        report(claims, "example.com/attached")
        await asyncio.sleep(5)
        assert api.bound() == {"p": "node"}


async def test_a_device_that_fails_to_bind_is_given_up_for_another_one() -> None:
    claims = Claims()
    async with claims.world.running() as api:
        await waiting_for_a_device(claims)
        report(claims, "example.com/failed")
        claims.watch.put_slice(resource_slice(gpu(1)))
        await asyncio.sleep(30)
        assert api.bound() == {"p": "node"}
        assert claims.held() == {"c": ["node/gpu-1"]}
        why = "device binding failed: example.com/failed of device gpu.nvidia.com/node/gpu-0: R broken"
        assert any(why in each for each in (*api.messages("p"), *api.events_of("p", "FailedScheduling")))


async def test_a_device_that_does_not_get_ready_is_given_up() -> None:
    claims = Claims()
    async with claims.world.running() as api:
        await waiting_for_a_device(claims)
        claims.watch.put_slice(resource_slice(gpu(1)))
        await asyncio.sleep(CONDITIONS_TIMEOUT + 30)
        assert api.bound() == {"p": "node"}
        assert claims.held() == {"c": ["node/gpu-1"]}


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z"])
async def test_a_device_with_an_allocation_time_that_nothing_can_hold_does_not_get_late(time: str) -> None:
    claims = Claims()
    async with claims.world.running() as api:
        await waiting_for_a_device(claims)
        current = claims.claims.claims["c"]["status"]
        allocation = {**current["allocation"], "allocationTimestamp": time}
        claims.claims.change("c", status={**current, "allocation": allocation})
        await asyncio.sleep(CONDITIONS_TIMEOUT + 30)
        assert api.bound() == {}
        report(claims, "example.com/attached")
        await asyncio.sleep(5)
        assert api.bound() == {"p": "node"}


# --- preemption -------------------------------------------------------------------------------------------------


async def test_a_pod_waits_until_the_claim_of_its_victim_is_deallocated_and_evicts_no_other() -> None:
    claims = Claims("first", "second", gpus=1)
    async with claims.world.running() as api:
        await claims.put(claim("c"), claim("d"), claim("e"))
        claims.pod("low", "c")
        claims.pod("lower", "d", priority=-1)
        await asyncio.sleep(10)
        assert api.bound().keys() == {"low", "lower"}
        claims.pod("high", "e", priority=10)
        await asyncio.sleep(60)
        assert [name for _, name in api.deletes] == ["lower"]
        assert api.bound().keys() == {"low"}
        assert api.nominations == [("high", api_node := claims.held()["d"][0].partition("/")[0])]
        # As the resource claim controller does.
        claims.claims.change("d", status={})
        await asyncio.sleep(5)
        assert api.bound()["high"] == api_node
        assert claims.held()["e"] == [f"{api_node}/gpu-0"]


async def test_the_devices_of_a_victim_are_given_to_no_other_pod() -> None:
    claims = Claims(gpus=1)
    async with claims.world.running() as api:
        await claims.put(claim("c"), claim("d"), claim("e"))
        claims.pod("low", "c")
        await asyncio.sleep(10)
        claims.pod("high", "d", priority=10)
        await asyncio.sleep(0.2)
        claims.pod("equal", "e", priority=10)
        claims.claims.change("c", status={})
        await asyncio.sleep(30)
        assert api.bound() == {"high": "node"}


async def test_a_gang_with_claims_evicts_pods_that_hold_devices() -> None:
    claims = Claims("first", "second", gpus=1)
    async with claims.world.running() as api:
        await claims.put(*(claim(each) for each in "abcd"))
        claims.pod("low0", "a")
        claims.pod("low1", "b")
        await asyncio.sleep(10)
        claims.world.groups.apply("ADDED", pod_group(minimum=2))
        for name, used in {"m0": "c", "m1": "d"}.items():
            claims.pod(name, used, priority=10, labels={names.POD_GROUP_LABEL: "g"})
        await asyncio.sleep(20)
        assert sorted(name for _, name in api.deletes) == ["low0", "low1"]
        assert not api.bound()
        for name in "ab":
            claims.claims.change(name, status={})
        await asyncio.sleep(30)
        assert api.bound().keys() == {"m0", "m1"}
        assert len(api.deletes) == 2


async def test_250_pods_that_share_a_claim_are_bound_at_20_a_second_where_a_call_takes_300_ms() -> None:
    claims = Claims()
    claims.claims.seconds = 0.3
    async with claims.world.running() as api:
        await claims.put(claim("c"))
        for number in range(250):
            claims.pod(f"p{number:03}", "c")
        await asyncio.sleep(250 / 20)
        assert len(api.bound()) == 250
        assert len(claims.consumers("c")) == 250


async def test_a_search_that_ended_at_its_bound_goes_on_in_turns_that_are_idle() -> None:
    claims = Claims()
    shared = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10"}}}
    claims.watch.put_slice(resource_slice(*({**gpu(number), **shared} for number in range(8)), node="node"))
    exactly = {"deviceClassName": NVIDIA_DRIVER, "capacity": {"requests": {"memory": "6"}}}
    # One more than there are devices, which only a search of all of them shows.
    requests = [{"name": f"r{number}", "exactly": exactly} for number in range(9)]
    async with claims.world.running() as api:
        await claims.put({**claim("c"), "spec": {"devices": {"requests": requests}}})
        claims.pod("p", "c")
        await asyncio.sleep(5)
        assert "no devices were found within 8000 steps" in api.messages("p")[-1]
        claims.claims.change("c", spec={"devices": {"requests": requests}})
        claims.pod("q")
        await asyncio.sleep(5)
        assert api.bound() == {"q": "node"}


async def test_a_gang_gets_all_instances_of_a_card() -> None:
    claims = Claims(gpus=0)
    claims.world.cluster.set_own_pools(OwnPools(drivers=frozenset({DRA_DRIVER})))
    for device_class in own.CLASSES:
        claims.watch.put_class(device_class)
    for made in together.in_order(together.divided("A100"), "as listed", random.Random(0)):
        claims.watch.put_slice(made)
    large = f'device.capacity["{DRA_DRIVER}"].memory.compareTo(quantity("5Gi")) >= 0'
    first, second = together.split((3, 3), 0, expression=large)
    async with claims.world.running() as api:
        await claims.put(
            {**claim("c"), "spec": {"devices": {"requests": first}}},
            {**claim("d"), "spec": {"devices": {"requests": second}}},
        )
        claims.gang(m0="c", m1="d")
        await asyncio.sleep(5)
        assert api.bound() == {"m0": "node", "m1": "node"}
        starts = [device[-1] for held in claims.held().values() for device in held]
        assert sorted(starts) == ["0", "1", "2", "3", "4", "5", "6"]


async def test_a_gang_whose_search_for_devices_ended_at_its_bound_reports_it() -> None:
    claims = Claims()
    shared = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10"}}}
    claims.watch.put_slice(resource_slice(*({**gpu(number), **shared} for number in range(8)), node="node"))
    exactly = {"deviceClassName": NVIDIA_DRIVER, "capacity": {"requests": {"memory": "6"}}}
    names_ = [f"c{number}" for number in range(9)]
    async with claims.world.running() as api:
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        await claims.put(*({**claim(name), "spec": spec} for name in names_))
        claims.gang(**{f"m{number}": name for number, name in enumerate(names_)})
        await asyncio.sleep(5)
        assert not api.bound()
        assert api.messages("m0")[-1].endswith(NOT_FINISHED)
