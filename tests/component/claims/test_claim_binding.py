"""Writes of ResourceClaims before a Binding, on an API server in memory and in virtual time."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import looptime
import orjson
import pytest

from berth_api import names
from berth_client.errors import ApiError, Unreachable
from berth_operator.binding.prebind import claim_objects
from berth_operator.binding.prebind.changes import GoneError
from berth_operator.binding.prebind.claim_objects import FINALIZER, ResourceClaimError
from berth_operator.binding.prebind.claim_writer import TRIES
from berth_operator.binding.prebind.claims import TIMEOUT, ClaimBinder
from berth_operator.binding.upkeep import doubled_claims
from berth_operator.core.claims.allocation.results import Allocation, Result
from berth_operator.core.claims.objects import requests, slices, status
from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.claims.objects.requests import Config, DeviceClass
from berth_operator.core.claims.objects.slices import PoolID
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.pod_claims import PodClaims
from berth_operator.state.cache.cluster import Cluster
from tests.component.claims.claim_server import LAG, TOOK_PLACE, Server
from tests.objects.builders import cards, charge, device, entry, grant, inventory, node, pod
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, gpu, resource_slice

pytestmark = pytest.mark.looptime

Raw = dict[str, Any]

CLASS = DeviceClass(name=NVIDIA_DRIVER)
WRITERS = ("kube-scheduler", "ancient-changes")
SHARES = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")
MEMORY = {"memory": ExactQuantity.parse("60Gi")}
SHAREABLE = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
BY_OTHERS = [{"manager": WRITERS[0], "fieldsV1": {"f:status": {"f:allocation": {}}}}]


def now() -> float:
    return asyncio.get_running_loop().time()


def share_of(amount: int) -> Raw:
    """Return what a result has of a share of so many GiB."""
    return {"shareID": SHARES[1], "consumedCapacity": {"memory": f"{amount}Gi"}}


class World:
    """A node with the pool `node` of Berth, a pod that waits, and the binder of its claims."""

    def __init__(self) -> None:
        self.cluster = Cluster(grace=1.0, clock=now)
        self.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
        self.watch = ClaimsInTurns(self.cluster)
        self.server = Server(lambda raw: self.watch.put_claim(status.with_writers(raw)), self.watch.remove_claim)
        self.term: int | None = 1
        self.binder = ClaimBinder(
            api=self.server, cluster=self.cluster, lease="berth", term=lambda: self.term, fenced=True
        )
        self.cluster.claim_tracker.on_change = self.binder.changed
        self.cluster.node_cache.put_node(node())
        self.watch.put_slice(resource_slice(gpu(0), gpu(1)))
        self.put_pod("p")

    def put_pod(self, name: str) -> None:
        used = [{"name": each, "resourceClaimName": each} for each in "cd"]
        self.cluster.put_pending(pod(name, resourceClaims=used))

    async def put_claims(self, *names_: str) -> None:
        for name in names_:
            self.server.change(name)
        await asyncio.sleep(LAG + 0.01)

    def placement(
        self,
        *allocated: str,
        reserved: tuple[str, ...] = (),
        name: str = "p",
        card: int = 0,
        device_class: DeviceClass = CLASS,
        share: str = "",
    ) -> Placement:
        pending = self.cluster.pending[f"uid-{name}"]
        allocations = tuple(allocation(self.server.claims[each], card, device_class, share) for each in allocated)
        claims = PodClaims(allocations=allocations, reserved=tuple(f"ns/{each}" for each in reserved))
        return Placement(pod=pending, node="node", claims=claims)

    def leads(self) -> bool:
        return self.term == 1

    async def bind(self, placement: Placement) -> None:
        await self.binder.bind(placement, self.leads)

    def status(self, name: str = "c") -> Raw:
        shown: Raw = self.server.claims[name].get("status") or {}
        return shown

    def consumers(self, name: str = "c") -> list[str]:
        return [each["name"] for each in self.status(name).get("reservedFor") or ()]

    def device(self, name: str = "c") -> str:
        results = (self.status(name).get("allocation") or {}).get("devices", {}).get("results") or [{}]
        return str(results[0].get("device", ""))


@pytest.fixture
async def world() -> World:
    own = World()
    with looptime.enabled(strict=True):
        await own.put_claims("c")
    return own


def allocation(raw: Raw, card: int, device_class: DeviceClass, share: str = "") -> Allocation:
    """Return the allocation of a GPU for a claim, or of a share of 60 GiB with this ID."""
    spec = requests.read_claim(raw)
    [device] = slices.read(resource_slice(gpu(card))).devices
    [request] = spec.requests[0].choices
    return Allocation(
        claim=spec,
        results=(Result(request=request, device=device, consumed=MEMORY if share else None, share_id=share),),
        chosen=((request, device_class),),
        node="node",
    )


def reference(name: str) -> Raw:
    return {"resource": "pods", "name": name, "uid": f"uid-{name}"}


def result(card: int) -> Raw:
    return {"driver": NVIDIA_DRIVER, "pool": "node", "device": f"gpu-{card}", "request": "gpu"}


def of_others(card: int, *pods: str) -> Raw:
    """Return the status of a claim that another scheduler allocated."""
    return {
        "allocation": {"devices": {"results": [result(card)]}},
        "reservedFor": [reference(each) for each in pods],
    }


async def test_the_finalizer_is_written_before_the_status_and_both_are_seen_before_the_binding(world: World) -> None:
    began = now()
    await world.bind(world.placement("c"))
    assert now() - began >= LAG
    assert world.server.writes == ["c", "c/status"]
    metadata = world.server.claims["c"]["metadata"]
    assert (metadata["finalizers"], metadata["labels"]) == ([FINALIZER], {names.FENCED_BY: "berth"})
    allocated = world.status()["allocation"]
    assert allocated["devices"]["results"] == [result(0)]
    assert allocated["allocationTimestamp"].endswith("Z")
    assert allocated["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["node"]
    assert world.consumers() == ["p"]
    assert world.server.reads == []  # it is written from what the watch showed


async def test_a_claim_that_is_allocated_gets_the_pod_as_one_more_consumer(world: World) -> None:
    world.server.change("c", status=of_others(0, "other"))
    await world.bind(world.placement(reserved=("c",)))
    assert (world.device(), world.consumers()) == ("gpu-0", ["other", "p"])
    written = list(world.server.writes)
    await world.bind(world.placement(reserved=("c",)))
    assert world.server.writes == written


async def test_parameters_are_written_byte_by_byte_as_claim_and_class_have_them(world: World) -> None:
    of_claim, of_class = b'{"a": null, "b": [1.50, 1e3, 12345678901234567890123], "c": "\\u003c<&"}', b'{ "n": 1.0 }'
    world.server.parameters = {"c": of_claim, NVIDIA_DRIVER: of_class}
    opaque = {"driver": NVIDIA_DRIVER, "parameters": orjson.loads(of_claim)}
    spec = world.server.claims["c"]["spec"]
    world.server.claims["c"]["spec"] = {"devices": {**spec["devices"], "config": [{"opaque": opaque}]}}
    config = Config(raw={"opaque": {"driver": NVIDIA_DRIVER, "parameters": orjson.loads(of_class)}})
    placement = world.placement("c", device_class=DeviceClass(name=NVIDIA_DRIVER, config=(config,)))
    await world.bind(placement)
    assert [each["source"] for each in world.status()["allocation"]["devices"]["config"]] == ["FromClass", "FromClaim"]
    assert of_class in world.server.written
    assert of_claim in world.server.written
    world.put_pod("q")
    await world.bind(world.placement(reserved=("c",), name="q"))
    await world.binder.release(placement, world.leads)
    assert world.consumers() == ["q"]


async def test_a_write_that_conflicts_is_made_again_on_what_is_there(world: World) -> None:
    world.server.faults["c"] = [lambda: world.server.change("c", metadata={"annotations": {"a": "b"}})]
    await world.bind(world.placement("c"))
    assert world.server.claims["c"]["metadata"]["annotations"] == {"a": "b"}
    assert world.consumers() == ["p"]


async def test_a_write_whose_answer_was_lost_is_not_made_twice(world: World) -> None:
    world.server.faults["c/status"] = [Unreachable(TOOK_PLACE)]
    await world.bind(world.placement("c"))
    assert world.server.writes == ["c", "c/status"]
    assert world.binder.unanswered


@pytest.mark.parametrize(
    ("stored", "node_name", "why"),
    [
        ({"device": "gpu-1"}, "node", "with other devices"),
        ({"pool": "node2"}, "node2", "on another node"),
        ({}, "node2", "on another node"),  # as with a device that several nodes can reach
        ({"request": "gpu/small"}, "node", "with other devices"),
        (share_of(60), "node", "with other devices"),
        ({"shareID": SHARES[0], "consumedCapacity": {"memory": "40Gi"}}, "node", "with other devices"),
    ],
)
async def test_what_an_earlier_attempt_has_stored_is_released_if_this_one_decided_otherwise(
    world: World, stored: Raw, node_name: str, why: str
) -> None:
    placement = world.placement("c", share=SHARES[0] if "shareID" in stored else "")
    # Its answer and its release were lost, and the watch shows nothing of it yet.
    world.server.lag = 5.0
    written = of_others(0, "p")["allocation"]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}]
    allocation_ = {
        "devices": {"results": [written["devices"]["results"][0] | stored]},
        "nodeSelector": {"nodeSelectorTerms": terms},
    }
    world.server.change("c", status={"allocation": allocation_, "reservedFor": [reference("p")]})
    with pytest.raises(ResourceClaimError, match=why):
        await world.bind(placement)
    assert world.status() == {}
    await asyncio.sleep(10.0)
    await world.bind(placement)
    assert (world.device(), world.consumers()) == ("gpu-0", ["p"])


async def test_a_share_whose_answer_was_lost_is_not_written_twice_however_its_amount_is_spelled(world: World) -> None:
    placement = world.placement("c", share=SHARES[0])
    consumed = {"memory": str(60 * 2**30)}
    world.server.lag = 1.0
    entry = {**result(0), "shareID": SHARES[0], "consumedCapacity": consumed}
    status_ = {"allocation": {"devices": {"results": [entry]}}, "reservedFor": [reference("p")]}
    world.server.change("c", status=status_)
    await world.bind(placement)
    assert "c/status" not in world.server.writes


async def test_a_write_that_is_given_up_without_an_answer_may_still_be_executed(world: World) -> None:
    world.server.late = [TIMEOUT + 1.0]
    with pytest.raises(ResourceClaimError, match="not done within"):
        await world.bind(world.placement("c"))
    assert world.binder.unanswered


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda server: server.remove("c"), "not found"),
        (lambda server: server.change("c", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "got deleted"),
        (lambda server: server.change("c", status=of_others(1, "other")), "got allocated elsewhere"),
        (lambda server: server.change("c", metadata={"uid": "uid-of-another"}, spec={"devices": {}}), "got replaced"),
    ],
)
async def test_a_claim_that_changed_between_the_two_writes_is_left_alone(
    world: World, change: Callable[[Server], None], why: str
) -> None:
    world.server.faults["c/status"] = [lambda: change(world.server)]
    placement = world.placement("c")
    with pytest.raises(ResourceClaimError, match=why):
        await world.bind(placement)
    assert "c/status" not in world.server.writes


async def test_of_two_claims_the_first_is_released_if_the_second_cannot_be_written(world: World) -> None:
    await world.put_claims("d")
    world.server.faults["d/status"] = [ApiError(422, "Invalid", "too many consumers")]
    with pytest.raises(ResourceClaimError, match=r"^binding claims: .*too many consumers"):
        await world.bind(world.placement("c", "d"))
    assert (world.status(), world.status("d")) == ({}, {})


async def test_attempts_end(world: World) -> None:
    world.server.faults["c/status"] = [ApiError(500, "InternalError", "etcd")] * TRIES
    with pytest.raises(ResourceClaimError, match="etcd"):
        await world.bind(world.placement("c"))
    assert not world.server.faults["c/status"]
    assert world.status() == {}


async def test_ours_is_given_up_if_another_claim_holds_the_device_when_it_is_seen(world: World) -> None:
    await world.put_claims("d")
    world.server.faults["c/status"] = [lambda: world.server.change("d", status=of_others(0, "other"))]
    with pytest.raises(ResourceClaimError, match=r"device gpu\.nvidia\.com/node/gpu-0 got allocated to another claim"):
        await world.bind(world.placement("c"))
    assert (world.status(), world.device("d")) == ({}, "gpu-0")


GPU_0 = r"gpu\.nvidia\.com/node/gpu-0"


def exclusive(counter: str = "slice-0") -> Raw:
    """Return what a device consumes that uses up a counter."""
    return {"consumesCounters": [{"counterSet": "set", "counters": {counter: {"value": "1"}}}]}


@pytest.mark.parametrize(
    ("listed", "share", "stored", "why"),
    [
        pytest.param((SHAREABLE, {}), SHARES[0], share_of(20), "", id="shares that fit"),
        pytest.param((SHAREABLE, {}), SHARES[0], share_of(21), f'"memory" of device {GPU_0} got', id="too many shares"),
        pytest.param(
            (SHAREABLE, {}), SHARES[0], {}, f"{GPU_0} got allocated to another", id="a share of a whole device"
        ),
        pytest.param(
            (SHAREABLE, {}), "", share_of(1), f"{GPU_0} got allocated to another", id="a whole device in shares"
        ),
        pytest.param((exclusive(), exclusive()), "", {"device": "gpu-1"}, f"exclude device {GPU_0} got", id="counters"),
        pytest.param((exclusive(), exclusive("slice-1")), "", {"device": "gpu-1"}, "", id="other counters"),
        pytest.param(({}, exclusive()), "", {"device": "gpu-1"}, "", id="no counters"),
    ],
)
async def test_ours_is_given_up_if_others_hold_too_much_of_the_device_when_it_is_seen(
    world: World, listed: tuple[Raw, Raw], share: str, stored: Raw, why: str
) -> None:
    counters = {"name": "set", "counters": {name: {"value": "1"} for name in ("slice-0", "slice-1")}}
    sets = resource_slice(name="sets", count=2)
    sets["spec"]["sharedCounters"] = [counters]
    del sets["spec"]["devices"]
    world.watch.remove_slice(f"node-{NVIDIA_DRIVER}")
    for each in (sets, resource_slice(*(gpu(minor, **fields) for minor, fields in enumerate(listed)), count=2)):
        world.watch.put_slice(each)
    await world.put_claims("d")
    allocation_ = {"devices": {"results": [result(0) | stored]}}
    status_ = {"allocation": allocation_, "reservedFor": [reference("other")]}
    world.server.faults["c/status"] = [lambda: world.server.change("d", status=status_)]
    placement = world.placement("c", share=share)
    if why:
        with pytest.raises(ResourceClaimError, match=why):
            await world.bind(placement)
    else:
        await world.bind(placement)
    assert (world.consumers(), world.consumers("d")) == ([] if why else ["p"], ["other"])


@pytest.mark.parametrize(
    ("holder", "minor", "is_refused"),
    [("q", 0, True), ("p", 0, False), ("q", 1, False)],
    ids=["another pod", "the pod itself", "another card"],
)
async def test_ours_is_given_up_if_another_pod_got_the_card_by_name(
    world: World, holder: str, minor: int, is_refused: bool
) -> None:
    fleet = world.cluster.fleet
    fleet.put_device("node", inventory(*cards(2)))
    fleet.claims.supply.put_cards("node", cards(2))
    # As if the watch shows the claim of an earlier decision only after it was decided.
    world.server.faults["c/status"] = [lambda: fleet.charge(charge(holder, grant(minor, core=100)))]
    placement = world.placement("c")
    if is_refused:
        with pytest.raises(ResourceClaimError, match=f"{GPU_0} is a card that pod ns/q got by name in the meantime"):
            await world.bind(placement)
        assert world.status() == {}
    else:
        await world.bind(placement)


async def test_processes_that_hold_no_card_do_not_count_as_a_pod_that_got_it_by_name(world: World) -> None:
    world.cluster.node_cache.put_device(device("node", *map(entry, range(2))))
    await world.bind(world.placement("c"))
    foreign = [{"type": "gpu", "minor": 0, "processes": 1, "memory": "3Gi"}]
    world.cluster.node_cache.put_device(device("node", *map(entry, range(2)), status={"foreign": foreign}))
    world.put_pod("q")
    await world.bind(world.placement(reserved=("c",), name="q"))
    assert world.consumers() == ["p", "q"]


async def test_a_pod_shares_a_claim_of_a_pod_that_runs_even_if_another_pod_got_the_card_by_name(world: World) -> None:
    fleet = world.cluster.fleet
    fleet.put_device("node", inventory(*cards(2)))
    fleet.claims.supply.put_cards("node", cards(2))
    await world.bind(world.placement("c"))
    for running in (charge("p"), charge("x", grant(0, core=100))):
        fleet.charge(running)
    world.put_pod("q")
    await world.bind(world.placement(reserved=("c",), name="q"))
    assert world.consumers() == ["p", "q"]


async def test_ours_is_given_up_if_the_watch_does_not_show_it(world: World) -> None:
    placement, began = world.placement("c"), now()
    world.server.lag = 10 * TIMEOUT
    with pytest.raises(ResourceClaimError, match="not done within 30 s"):
        await world.bind(placement)
    assert now() - began < TIMEOUT + 1
    assert world.status() == {}


async def test_of_a_pod_that_is_gone_nothing_more_is_written(world: World) -> None:
    world.server.faults["c"] = [lambda: world.cluster.remove_pending("uid-p")]
    await world.put_claims("d")
    with pytest.raises(GoneError):
        await world.bind(world.placement("c", "d"))
    # What it has reserved is removed by the resource claim controller of Kubernetes.
    assert world.server.writes == ["c", "c/status"]


async def test_a_leader_that_is_stopped_between_its_two_writes_does_not_make_the_second(world: World) -> None:
    def next_leader() -> None:
        world.server.term = 2

    await world.bind(world.placement("c"))
    await world.put_claims("d")
    world.server.faults["d"] = [next_leader]
    with pytest.raises(ResourceClaimError, match="berth/1 is over"):
        await world.bind(world.placement("d", card=1))
    assert world.status("d") == {}


async def test_nothing_is_allocated_if_no_fence_would_stop_a_leader_of_the_past(world: World) -> None:
    world.server.fenced = False
    with pytest.raises(ResourceClaimError, match="no policy berth-fence-claims refuses"):
        await world.bind(world.placement("c"))
    assert world.status() == {}


async def test_after_a_change_of_the_leader_what_was_reserved_is_used(world: World) -> None:
    await world.bind(world.placement("c"))
    world.server.term = world.term = 2
    await world.binder.bind(world.placement(reserved=("c",)), lambda: True)
    assert world.server.writes == ["c", "c/status"]
    assert world.consumers() == ["p"]


async def test_what_the_leader_before_reserved_is_given_up_if_another_claim_holds_the_device(world: World) -> None:
    await world.put_claims("d")
    world.server.faults["c/status"] = [lambda: world.server.change("d", status=of_others(0, "other"))]
    first = asyncio.create_task(world.bind(world.placement("c")))
    # The first leader ends before the watch shows its write.
    await asyncio.sleep(LAG / 2)
    world.server.term = world.term = 2
    with pytest.raises(GoneError):
        await first
    with pytest.raises(ResourceClaimError, match=r"device gpu\.nvidia\.com/node/gpu-0 got allocated to another claim"):
        await world.binder.bind(world.placement(reserved=("c",)), lambda: True)
    assert (world.status(), world.device("d")) == ({}, "gpu-0")


async def test_a_pod_that_shares_a_claim_waits_until_the_other_has_allocated_it(world: World) -> None:
    world.put_pod("q")
    first, second = world.placement("c"), world.placement(reserved=("c",), name="q")
    await asyncio.gather(world.bind(second), world.bind(first))
    assert world.consumers() == ["p", "q"]
    await world.binder.release(first, world.leads)
    assert (world.device(), world.consumers()) == ("gpu-0", ["q"])
    await world.binder.release(second, world.leads)
    assert world.status() == {}


def sharing(world: World, number: int, *, claim: str = "c") -> list[Placement]:
    names_ = [f"s{each:03}" for each in range(number)]
    for name in names_:
        world.put_pod(name)
    return [world.placement(reserved=(claim,), name=name) for name in names_]


async def test_pods_that_share_a_claim_are_reserved_by_two_writes(world: World) -> None:
    await asyncio.gather(world.bind(world.placement("c")), *map(world.bind, sharing(world, 30)))
    assert len(world.consumers()) == 31
    # The first one writes alone, and the second one for all that wait for their turn.
    assert world.server.writes == ["c", *["c/status"] * 3]
    assert len(world.server.reads) == 2


async def test_a_claim_is_reserved_for_256_pods_and_the_others_are_told(world: World) -> None:
    results = await asyncio.gather(
        world.bind(world.placement("c")), *map(world.bind, sharing(world, 260)), return_exceptions=True
    )
    assert len(world.consumers()) == 256
    refused = [str(each) for each in results if each]
    assert refused == ["binding claims: claim ns/c is reserved for 256 pods; the API allows no more"] * 5


async def test_a_write_for_several_pods_that_fails_is_made_for_each_of_them(world: World) -> None:
    await world.bind(world.placement("c"))
    world.server.faults["c/status"] = [lambda: None, ApiError(403, "Forbidden", "one of them is not allowed")]
    await asyncio.gather(*map(world.bind, sharing(world, 3)))
    assert sorted(world.consumers()) == ["p", "s000", "s001", "s002"]
    assert world.server.writes[2:] == ["c/status"] * 3
    assert not world.server.faults["c/status"]


async def test_pods_that_are_gone_or_out_of_time_do_not_keep_the_others_that_share_their_claim(world: World) -> None:
    await world.bind(world.placement("c"))
    gone, late, *others = sharing(world, 5)
    world.server.late = [1.0]

    async def bind_late() -> None:
        with pytest.raises(TimeoutError):
            # It ends while the write for all is in flight.
            await asyncio.wait_for(world.bind(late), 0.5)

    first = asyncio.create_task(bind_late())
    await asyncio.sleep(0)
    world.cluster.remove_pending("uid-s000")
    results = await asyncio.gather(world.bind(gone), *map(world.bind, others), return_exceptions=True)
    await first
    assert [type(each) for each in results] == [GoneError, *[type(None)] * 3]
    assert set(world.consumers()) >= {"p", "s002", "s003", "s004"}
    assert "s000" not in world.consumers()


async def test_claims_that_hold_a_pod_to_a_node_are_deallocated_if_no_other_pod_uses_them(world: World) -> None:
    await world.put_claims("d")
    await world.bind(world.placement("c"))
    world.server.change("d", status=of_others(1, "p", "other"))
    await asyncio.sleep(1)
    await world.binder.deallocate([world.cluster.pending["uid-p"]], world.leads)
    assert (world.status(), world.consumers("d")) == ({}, ["p", "other"])


async def test_a_pod_is_not_bound_with_a_claim_that_was_released_though_the_watch_still_shows_it(world: World) -> None:
    await world.bind(world.placement("c"))
    await world.binder.release(world.placement("c"), world.leads)
    with pytest.raises(ResourceClaimError, match="got deallocated elsewhere"):
        await world.bind(world.placement(reserved=("c",)))


async def test_a_pod_is_not_bound_while_its_claims_are_deallocated(world: World) -> None:
    await world.bind(world.placement("c"))
    pods = [world.cluster.pending["uid-p"]]
    under_way = [asyncio.create_task(world.binder.deallocate(pods, world.leads)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceClaimError, match="are being deallocated"):
        await world.bind(world.placement(reserved=("c",)))
    await asyncio.gather(*under_way)
    assert world.status() == {}
    assert world.server.writes == ["c", "c/status", "c/status"]
    await asyncio.sleep(2 * LAG)
    await world.bind(world.placement("c"))


async def test_a_claim_of_which_a_tenant_removed_the_label_is_released(world: World) -> None:
    await world.bind(world.placement("c"))
    world.server.change("c", metadata={"labels": {}, "finalizers": []})
    await world.binder.release(world.placement("c"), world.leads)
    assert world.status() == {}
    assert world.server.claims["c"]["metadata"]["labels"] == {names.FENCED_BY: "berth"}


async def test_of_a_claim_that_is_not_reserved_nothing_is_written_to_release_it(world: World) -> None:
    await world.binder.release(world.placement("c"), world.leads)
    assert world.server.writes == []


async def test_what_a_tenant_writes_to_his_claim_does_not_end_the_service_of_its_pool(world: World) -> None:
    await world.bind(world.placement("c"))
    for entries in ([], BY_OTHERS):
        world.server.change("c", metadata={"managedFields": entries})
        await asyncio.sleep(1)
        assert world.cluster.fleet.claims.serves(PoolID(NVIDIA_DRIVER, "node"))


@pytest.mark.parametrize("is_bound", [True, False])
@pytest.mark.parametrize("entries", [*([{**each, "manager": name} for each in BY_OTHERS] for name in WRITERS), []])
async def test_nor_for_the_next_leader_whatever_it_reads_first(
    world: World, entries: list[Raw], is_bound: bool
) -> None:
    await world.bind(world.placement("c"))
    world.server.change("c", metadata={"managedFields": entries})
    following, pool = World(), PoolID(NVIDIA_DRIVER, "node")
    following.cluster.gangs.set_schedulers([names.SCHEDULER])
    claims = following.cluster.fleet.claims
    following.cluster.remove_pending("uid-p")
    following.watch.put_claim(status.with_writers(copy.deepcopy(world.server.claims["c"])))
    used = [{"name": "c", "resourceClaimName": "c"}]
    following.cluster.put_bound(
        pod("p", on="node", schedulerName=names.SCHEDULER, resourceClaims=used)
    ) if is_bound else following.put_pod("p")
    assert claims.serves(pool)
    assert len(claims.claims["ns/c"].devices) == 1
    # As after the watch is broken: the claim is read again after its pod.
    following.watch.remove_claim("ns/c")
    following.watch.put_claim(status.with_writers(copy.deepcopy(world.server.claims["c"])))
    assert claims.serves(pool)


async def test_a_pod_of_another_scheduler_is_no_proof_for_a_claim(world: World) -> None:
    world.cluster.gangs.set_schedulers([names.SCHEDULER])
    await world.put_claims("d")
    world.server.change("d", status=of_others(1, "other"), metadata={"managedFields": BY_OTHERS})
    await asyncio.sleep(1)
    used = [{"name": "d", "resourceClaimName": "d"}]
    world.cluster.put_bound(pod("other", on="node", schedulerName="default-scheduler", resourceClaims=used))
    assert not world.cluster.fleet.claims.serves(PoolID(NVIDIA_DRIVER, "node"))


async def test_another_scheduler_in_a_pool_of_ours_ends_its_service_until_it_has_left(world: World) -> None:
    pool = PoolID(NVIDIA_DRIVER, "node")
    claims = world.cluster.fleet.claims
    await world.bind(world.placement("c"))
    assert claims.serves(pool)
    await world.put_claims("d")
    world.server.change("d", status=of_others(1, "other"), metadata={"managedFields": BY_OTHERS})
    await asyncio.sleep(1)
    assert not claims.serves(pool)
    assert claims.foreign(pool) == {"ns/d"}
    world.server.change("d", status={})
    await asyncio.sleep(1)
    assert claims.serves(pool)


async def test_two_claims_on_one_device_are_reported_on_both_within_a_second(world: World) -> None:
    reports: list[tuple[str, str, list[str]]] = []

    class Reports:
        def doubled(self, claim: ClaimState, device: str, others: Any) -> None:
            reports.append((claim.key, device, list(others)))

    keeper = asyncio.create_task(doubled_claims.run(world.cluster, Reports()))
    await world.put_claims("d")
    await world.bind(world.placement("c"))
    world.server.change("d", status=of_others(0, "other"))
    await asyncio.sleep(LAG + 1)
    device = f"{NVIDIA_DRIVER}/node/gpu-0"
    assert reports == [("ns/c", device, ["ns/d"]), ("ns/d", device, ["ns/c"])]
    await asyncio.sleep(5)
    assert len(reports) == 2
    world.server.change("d", status={})
    await asyncio.sleep(1)
    assert not world.cluster.fleet.claims.doubled
    keeper.cancel()


def test_the_path_of_a_claim() -> None:
    assert claim_objects.path("ns/c") == "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c"
