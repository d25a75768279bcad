"""Pods with ResourceClaims: which of them are placed, what they get, and what keeps the others waiting."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from berth_operator.core.claims.objects.slices import PoolID
from berth_operator.core.decision.cycle import MAX_COMPARED, Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.pending_pods import CLAIMS_SECONDS
from berth_operator.state.watches import claims
from tests.claims import objects
from tests.claims.objects import exactly, first_available, request
from tests.objects import builders
from tests.objects.builders import GPU, NVIDIA, device, entry, every_pod, lease, node, pod, whole
from tests.objects.resource_claims import (
    NVIDIA_DRIVER,
    ClaimsInTurns,
    allocated,
    gpu,
    listed,
    resource_slice,
    taint,
    taint_rule,
)

Raw = dict[str, Any]
Event = Callable[["World"], object]
OWN = OwnPools(drivers=frozenset({NVIDIA_DRIVER}))
NOT_ALL = "cannot allocate all claims"


class World:
    """Nodes of two GPUs each, which NVIDIA's driver lists; `node` is the only one if nothing is said."""

    def __init__(self, *nodes: str, own: OwnPools = OWN, gpus: int = 2) -> None:
        self.now = 100.0
        self.cluster = Cluster(grace=20.0, clock=lambda: self.now)
        self.cluster.set_own_pools(own)
        self.to = ClaimsInTurns(self.cluster)
        self.tables = {name: table for name, (_, table) in claims.sources(self.to).items()}
        self.pods = every_pod(self.cluster)
        for name in nodes or ("node",):
            self.cluster.node_cache.put_node(node(name))
            self.cluster.node_cache.put_device(device(name, *map(entry, range(gpus))))
            self.cluster.node_cache.put_lease(lease(name))
            self.to.put_slice(resource_slice(*map(gpu, range(gpus)), node=name))
        self.to.put_class({"metadata": {"name": "gpu"}, "spec": {}})

    @property
    def supply(self) -> Any:
        return self.cluster.fleet.claims.supply

    def put_claim(self, *requests: Raw, name: str = "c", **fields: Any) -> None:
        """Put a claim of one GPU, or of these requests."""
        devices = {"requests": list(requests) or [request()], **fields.pop("devices", {})}
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-claim-{name}", **fields.pop("metadata", {})}
        self.to.put_claim({"metadata": metadata, "spec": {"devices": devices}, **fields})

    def decision(self, name: str = "p", *names: str, requests: Mapping[str, str] | None = None) -> Placement | Failure:
        """Decide about a pod that uses claims by name; `c` if none is given."""
        return decide(self.cluster.fleet, self.pending(name, *names, requests=requests), Policy())

    def pending(self, name: str, *names: str, requests: Mapping[str, str] | None = None, **fields: Any) -> PendingPod:
        used = [{"name": each, "resourceClaimName": each} for each in names or ("c",)]
        self.cluster.put_pending(pod(name, requests, **{"resourceClaims": used, **fields}))
        return self.cluster.pending[f"uid-{name}"]

    def placed(self, name: str = "p", *names: str, requests: Mapping[str, str] | None = None) -> Placement:
        """Decide about a pod and assume its placement."""
        outcome = self.decision(name, *names, requests=requests)
        assert isinstance(outcome, Placement), outcome
        self.cluster.placements.assume(outcome)
        return outcome

    def write(self, placement: Placement) -> None:
        """Apply the claims of a placement as the API server shows them once they are written."""
        for allocation in placement.claims.allocations:
            claim, pod_ = allocation.claim, placement.pod
            reserved = [{"resource": "pods", "name": pod_.name, "uid": pod_.uid}]
            status = {"allocation": allocation.written(), "reservedFor": reserved}
            state = self.cluster.fleet.claims.claims[str(claim)]
            metadata = {"name": claim.name, "namespace": claim.namespace, "uid": state.uid}
            raw = {"metadata": metadata, "spec": {"devices": {"requests": [request()]}}, "status": status}
            self.to.put_claim(raw)


def woken(world: World) -> list[str]:
    return builders.woken(world.cluster, world.now)


def got(placement: Placement) -> list[list[str]]:
    """Return the devices that each claim gets."""
    return [[result.device.id.device for result in one.results] for one in placement.claims.allocations]


def reason(outcome: Placement | Failure) -> str:
    assert isinstance(outcome, Failure), outcome
    [(text, _)] = outcome.reasons
    return text


# --- extended resources ------------------------------------------------------------------------------------------


def test_a_pod_whose_status_names_a_claim_of_an_earlier_attempt_fits_only_where_it_gets_another_claim() -> None:
    world = World("by-class")
    resource = "example.com/gpu"
    world.to.put_class({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": resource}})
    world.cluster.node_cache.put_node(node("plugin", allocatable={resource: "4"}))
    mapping = {"containerName": "main", "resourceName": resource, "requestName": "container-0-request-0"}
    left = {"extendedResourceClaimStatus": {"resourceClaimName": "gone", "requestMappings": [mapping]}}

    def decision(name: str, status: Raw) -> Placement | Failure:
        world.cluster.put_pending(pod(name, {resource: "1"}, status=status))
        return decide(world.cluster.fleet, world.cluster.pending[f"uid-{name}"], Policy())

    for number in range(2):
        placed = decision(f"left{number}", left)
        assert isinstance(placed, Placement)
        assert (placed.node, placed.claims.by_class) == ("by-class", frozenset({resource}))
        world.cluster.placements.assume(placed)
    assert isinstance(fresh := decision("fresh", {}), Placement)
    assert fresh.node == "plugin"
    outcome = decision("left2", left)
    assert isinstance(outcome, Failure)
    assert "1 cannot allocate all claims" in outcome.message
    assert "1 node(s) would get the pod without a ResourceClaim" in outcome.message
    # The class is what gives the pod a claim.
    world.to.remove_class("gpu")
    outcome = decision("left2", left)
    assert isinstance(outcome, Failure)
    assert "2 node(s) would get the pod without a ResourceClaim" in outcome.message


# --- which claims -----------------------------------------------------------------------------------------------


def test_without_own_pools_the_reason_names_the_setting() -> None:
    world = World(own=OwnPools())
    world.put_claim()
    outcome = world.decision()
    assert "claims.drivers or claims.pools" in reason(outcome)
    assert isinstance(outcome, Failure)
    assert outcome.condition == "NotSupported"


TEMPLATE = [{"name": "gpu", "resourceClaimTemplateName": "t"}]


def status_of(name: str | None) -> Raw:
    return {"resourceClaimStatuses": [{"name": "gpu", **({"resourceClaimName": name} if name else {})}]}


def test_a_claim_of_a_template_is_found_by_the_pods_status() -> None:
    world = World()
    raw = pod("p", resourceClaims=TEMPLATE)
    world.cluster.put_pending(raw)
    fleet = world.cluster.fleet
    assert (
        reason(decide(fleet, world.cluster.pending["uid-p"], Policy()))
        == 'pod "ns/p": ResourceClaim not created yet; check that ResourceClaimTemplate t exists'
    )
    owner = {"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    world.put_claim(name="p-gpu-x", metadata={"ownerReferences": [owner]})
    world.cluster.put_pending({**raw, "status": {**raw.get("status", {}), **status_of("p-gpu-x")}})
    placement = decide(fleet, world.cluster.pending["uid-p"], Policy())
    assert isinstance(placement, Placement)
    assert str(placement.claims.allocations[0].claim) == "ns/p-gpu-x"


@pytest.mark.parametrize("first", ["claim", "status"])
def test_a_pod_is_decided_when_the_claim_of_its_template_exists(first: str) -> None:
    world = World()
    raw = pod("p", resourceClaims=TEMPLATE)
    named = {**raw, "status": {**raw.get("status", {}), **status_of("p-gpu-x")}}
    owner = {"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    world.cluster.put_pending(raw)
    assert woken(world) == []
    steps: dict[str, Callable[[], None]] = {
        "status": lambda: world.cluster.put_pending(named),
        "claim": lambda: world.put_claim(name="p-gpu-x", metadata={"ownerReferences": [owner]}),
    }
    steps.pop(first)()
    assert woken(world) == []
    [last] = steps.values()
    last()
    assert woken(world) == ["p"]


@pytest.mark.parametrize("named", [False, True])
def test_a_pod_whose_claims_are_not_made_is_decided_after_a_while(*, named: bool) -> None:
    world = World()
    raw = pod("p", resourceClaims=TEMPLATE)
    world.cluster.put_pending({**raw, "status": {**raw.get("status", {}), **status_of("x")}} if named else raw)
    world.now += CLAIMS_SECONDS - 1.0
    assert woken(world) == []
    world.now += 1.0
    assert woken(world) == ["p"]
    world.cluster.put_pending(pod("p", resourceClaims=TEMPLATE, nodeSelector={"a": "b"}))
    assert woken(world) == ["p"]


def test_a_pod_that_waits_for_its_claims_and_is_deleted_leaves_nothing_behind() -> None:
    world = World()
    raw = pod("p", resourceClaims=TEMPLATE)
    world.cluster.put_pending({**raw, "status": {**raw.get("status", {}), **status_of("x")}})
    world.cluster.remove_pending("uid-p")
    world.put_claim(name="x")
    world.now += CLAIMS_SECONDS
    assert woken(world) == []


def test_a_change_of_a_claim_wakes_the_pods_that_use_it_and_no_others() -> None:
    world = World(own=OWN)
    for name in ("p", "q"):
        unit = world.pending(name, f"claim-{name}")
        assert woken(world) == [name]
        outcome = decide(world.cluster.fleet, unit, Policy())
        assert isinstance(outcome, Failure)
        world.cluster.queue.park(unit, outcome)
    world.put_claim(name="claim-q")
    assert woken(world) == ["q"]
    world.cluster.remove_pending("uid-p")
    world.put_claim(name="claim-p")
    assert woken(world) == []


def test_a_claim_that_another_one_of_its_name_replaces_is_read_anew() -> None:
    world = World()
    world.put_claim()
    assert isinstance(world.decision(), Placement)
    world.put_claim(request(count=3), metadata={"uid": "uid-of-another"})
    assert isinstance(world.decision(), Failure)


def test_a_template_may_need_no_claim() -> None:
    world = World()
    world.cluster.put_pending({**pod("p", resourceClaims=TEMPLATE), "status": status_of(None)})
    placement = decide(world.cluster.fleet, world.cluster.pending["uid-p"], Policy())
    assert isinstance(placement, Placement)
    assert not placement.claims


def test_a_claim_of_a_template_must_be_the_pods() -> None:
    world = World()
    world.put_claim(name="x", metadata={"ownerReferences": [{"uid": "another", "controller": True}]})
    world.cluster.put_pending({**pod("p", resourceClaims=TEMPLATE), "status": status_of("x")})
    outcome = decide(world.cluster.fleet, world.cluster.pending["uid-p"], Policy())
    assert reason(outcome) == "ResourceClaim ns/x was not created for Pod ns/p (Pod is not owner)"


def test_requests_for_the_largest_number_of_devices_end_nothing() -> None:
    world = World()
    world.put_claim(*[{"name": f"r{number}", "exactly": exactly(2**63 - 1)} for number in range(3)])
    low = pod("low", {"cpu": "1"}, on="node", priority=0)
    world.pods.apply("ADDED", low)
    waiting = world.pending("p", priority=10)
    outcome = decide(world.cluster.fleet, waiting, Policy())
    assert isinstance(outcome, Failure)
    world.cluster.queue.park(waiting, replace(outcome, wakes_on=outcome.wakes_on | Change.EVICTABLE))
    # Each asks whether the pod may fit now.
    world.cluster.node_cache.put_node(node("node", labels={"x": "y"}))
    world.to.put_slice(resource_slice(*map(gpu, range(2)), listed("n"), node="node"))
    world.pods.apply("DELETED", low)
    assert isinstance(decide(world.cluster.fleet, waiting, Policy()), Failure)


KUBE_SCHEDULERS_WORDS = {
    "missing": (lambda world: world.to.remove_claim("ns/c"), 'could not find ResourceClaim "ns/c"'),
    "being deleted": (
        lambda world: world.put_claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        'resourceclaim "c" is being deleted',
    ),
    "class": (lambda world: world.to.remove_class("gpu"), "request gpu: device class gpu does not exist"),
    "256 pods": (
        lambda world: world.to.put_claim(allocated("c", "gpu-0", pods=[f"uid-{each}" for each in range(256)])),
        "resourceclaim in use",
    ),
    "in flight": (lambda world: world.placed("other"), "resource claim ns/c is in the process of being allocated"),
}


@pytest.mark.parametrize(("change", "expected"), KUBE_SCHEDULERS_WORDS.values(), ids=KUBE_SCHEDULERS_WORDS)
def test_kube_schedulers_words(change: Event, expected: str) -> None:
    world = World()
    world.put_claim()
    assert isinstance(world.decision(), Placement)
    change(world)
    outcome = world.decision()
    assert isinstance(outcome, Failure)
    assert reason(outcome) == expected
    assert outcome.message == f"0/1 nodes are available: {expected}."


# --- which devices ----------------------------------------------------------------------------------------------


def test_a_pod_for_which_a_full_claim_is_reserved_uses_it() -> None:
    world = World()
    world.to.put_claim(allocated("c", "gpu-0", pods=[f"uid-{number}" for number in range(255)] + ["uid-p"]))
    assert isinstance(world.decision("p"), Placement)
    # They are of one class, so both are decided until the pod is placed. The other pod's Binding is refused.
    assert isinstance(world.decision("other"), Placement)
    world.placed("p")
    assert reason(world.decision("other")) == "resourceclaim in use"
    world.cluster.placements.forget("uid-p")
    assert isinstance(world.decision("p"), Placement)
    world.cluster.remove_pending("uid-p")
    assert reason(world.decision("other")) == "resourceclaim in use"


def test_pods_in_a_row_never_get_one_device_whatever_the_api_server_shows() -> None:
    world = World("a", "b")
    placements = []
    for number in range(4):
        world.put_claim(name=f"c{number}")
        placements.append(world.placed(f"p{number}", f"c{number}"))
    given = [str(each.claims.allocations[0].results[0].device.id) for each in placements]
    assert len(set(given)) == 4
    world.put_claim(name="more")
    assert reason(world.decision("more", "more")) == NOT_ALL
    for placement in placements[:2]:
        world.write(placement)
    assert reason(world.decision("more", "more")) == NOT_ALL
    world.cluster.placements.forget("uid-p3")
    assert given[3] == str(world.placed("more", "more").claims.allocations[0].results[0].device.id)


def test_the_api_server_confirms_what_was_assumed() -> None:
    world = World()
    world.put_claim()
    placement = world.placed()
    assert [charge.uid for charge in world.cluster.fleet.on_node("node")] == ["uid-p"]
    world.write(placement)
    world.cluster.put_bound(pod("p", on="node", resourceClaims=[{"name": "c", "resourceClaimName": "c"}]))
    charges = {charge.pod: [grant.minor for grant in charge.grants] for charge in world.cluster.fleet.on_node("node")}
    assert charges == {"ns/p": [], "ns/resourceclaim/c": [0]}
    assert not world.supply.is_assumed("ns/c")
    world.put_claim(name="d")
    assert got(world.placed("q", "d")) == [["gpu-1"]]


def test_an_allocated_claim_is_shared_on_its_nodes() -> None:
    world = World("a", "b")
    world.to.put_claim(allocated("c", "gpu-0", node="b", pods=["uid-first"]))
    placement = world.decision()
    assert isinstance(placement, Placement)
    assert (placement.node, placement.claims.allocations, placement.claims.reserved) == ("b", (), ("ns/c",))
    world.cluster.node_cache.put_node(node("b", unschedulable=True))
    outcome = world.decision()
    assert isinstance(outcome, Failure)
    assert dict(outcome.reasons) == {
        "resourceclaim not available on the node": 1,
        "node(s) were unschedulable": 1,
    }


@pytest.mark.parametrize(
    "own",
    [OwnPools(drivers=frozenset({"other"})), OwnPools(pools=frozenset({PoolID("other", "node")}))],
)
@pytest.mark.parametrize("fields", [{}, {"adminAccess": True}, {"count": 0}], ids=["exact", "admin", "all"])
def test_only_devices_of_own_pools_are_given(own: OwnPools, fields: Raw) -> None:
    world = World(own=own)
    world.put_claim(request(**fields))
    assert reason(world.decision()) == NOT_ALL
    world.to.put_slice(resource_slice(listed("x"), driver="other"))
    outcome = world.decision()
    if "count" in fields:
        # All devices includes those of the other pool.
        assert reason(outcome) == NOT_ALL
    else:
        assert isinstance(outcome, Placement)
        assert got(outcome) == [["x"]]


def _by_name(world: World, name: str) -> PendingPod:
    world.cluster.put_pending(pod(name, {GPU: "100"}))
    return world.cluster.pending[f"uid-{name}"]


def test_cards_of_claims_in_flight_are_not_given_by_name() -> None:
    world = World()
    world.put_claim(request(count=2))
    world.placed()
    assert isinstance(decide(world.cluster.fleet, _by_name(world, "n"), Policy()), Failure)


def test_a_pod_may_have_a_card_by_name_and_another_by_claim() -> None:
    world = World()
    world.put_claim()
    placement = world.placed(requests={GPU: "100"})
    assert {each.minor for each in (*placement.grants, *placement.claims.grants)} == {0, 1}


@pytest.mark.parametrize("held", [{}, {"allowMultipleAllocations": True}], ids=["whole", "a share"])
def test_a_card_that_two_drivers_list_is_given_by_one_of_them(held: Raw) -> None:
    world = World(gpus=1, own=OwnPools(drivers=frozenset({NVIDIA_DRIVER, "gpu.berth.dev"})))
    world.to.put_slice(resource_slice({**gpu(0), **held}))
    world.to.put_slice(resource_slice(gpu(0), driver="gpu.berth.dev"))
    world.put_claim(request(where=f'device.driver == "{NVIDIA_DRIVER}"'), name="first")
    world.put_claim(request(where='device.driver == "gpu.berth.dev"'), name="second")
    first = world.placed("p", "first")
    assert reason(world.decision("q", "second")) == NOT_ALL
    world.write(first)
    assert reason(world.decision("q", "second")) == NOT_ALL


def test_a_card_that_a_pod_has_by_name_is_not_given_when_its_device_is_gone() -> None:
    world = World()
    world.put_claim()
    _take_by_name(world)
    world.cluster.node_cache.remove_device("node")
    assert got(world.placed()) == [["gpu-1"]]
    world.put_claim(name="second")
    assert reason(world.decision("q", "second")) == NOT_ALL
    world.cluster.placements.remove_bound("uid-n")
    assert got(world.placed("q", "second")) == [["gpu-0"]]


def test_an_unhealthy_card_is_not_given() -> None:
    world = World()
    world.cluster.node_cache.put_device(device("node", {**entry(0), "health": False}, entry(1), generation=2))
    world.put_claim()
    assert got(world.placed()) == [["gpu-1"]]


@pytest.mark.parametrize("source", ["slice", "rule"])
def test_tainted_devices_need_a_toleration(source: str) -> None:
    world = World(gpus=1)
    if source == "slice":
        world.to.put_slice(resource_slice(gpu(0, taints=[taint()])))
    else:
        world.to.put_rule(taint_rule(selector={"driver": NVIDIA_DRIVER}, tainted=taint()))
    world.put_claim()
    assert reason(world.decision()) == NOT_ALL
    world.put_claim(request(tolerations=[{"operator": "Exists"}]), name="d")
    assert got(world.placed("q", "d")) == [["gpu-0"]]


def test_a_rule_that_is_gone_taints_no_longer() -> None:
    world = World(gpus=1)
    world.to.put_rule(taint_rule(selector={}, tainted=taint()))
    world.put_claim()
    assert reason(world.decision()) == NOT_ALL
    world.to.remove_rule("r")
    assert got(world.placed()) == [["gpu-0"]]


def test_admin_access_takes_no_device_from_others() -> None:
    world = World(gpus=1)
    world.put_claim()
    world.placed()
    world.put_claim(request(adminAccess=True), name="d")
    placement = world.placed("q", "d")
    assert (got(placement), placement.claims.grants) == ([["gpu-0"]], ())


def test_the_first_subrequest_that_is_possible_is_taken() -> None:
    world = World()
    world.put_claim(first_available("gpu", exactly(3), exactly(2), exactly(1)))
    placement = world.placed()
    assert got(placement) == [["gpu-0", "gpu-1"]]
    assert {result.request.full_name for result in placement.claims.allocations[0].results} == {"gpu/sub-1"}


@pytest.mark.parametrize(("lists", "expected"), [(["cb"], "c"), (["abc", "bca"], "b")], ids=["one claim", "two claims"])
def test_the_node_with_the_best_subrequests_over_all_claims_is_taken(lists: list[str], expected: str) -> None:
    """As in upstream's PrioritizedListScoring: 8 points for a first subrequest, 7 for a second, 6 for a third."""
    world = World("a", "b", "c")
    for name in "abc":
        on_node = {f"{NVIDIA_DRIVER}/node": name}
        world.to.put_slice(resource_slice(*(listed(each, on_node) for each in ("x", "y")), node=name))
    for number, nodes in enumerate(lists):
        wheres = (f'device.attributes["{NVIDIA_DRIVER}"].node == "{name}"' for name in nodes)
        world.put_claim(first_available("gpu", *(exactly(where=where) for where in wheres)), name=f"c{number}")
    assert world.placed("p", *(f"c{number}" for number in range(len(lists)))).node == expected


@pytest.mark.parametrize("count", [1, 7, 8])
def test_a_node_whose_claims_get_less_than_expected_is_compared_again(count: int) -> None:
    """The first choice is tainted on all nodes but the last, which counts of devices do not show."""
    names = [f"n{number}" for number in range(count + 1)]
    world = World(*names)
    for name in names:
        tainted = {"taints": [taint()]} if name != names[-1] else {}
        choices = [listed(which, {f"{NVIDIA_DRIVER}/kind": which}) for which in ("good", "fair")]
        world.to.put_slice(resource_slice({**choices[0], **tainted}, choices[1], node=name))
    wheres = (f'device.attributes["{NVIDIA_DRIVER}"].kind == "{which}"' for which in ("good", "fair"))
    world.put_claim(first_available("gpu", *(exactly(where=where) for where in wheres)))
    # The bound: eight nodes are searched.
    assert world.placed().node == (names[-1] if count < MAX_COMPARED else names[0])


# --- which node and which device: what is left for others ---------------------------------------------------------


OTHERS = OwnPools(drivers=frozenset({objects.DRIVER}))


def divided(**nodes: list[Raw]) -> World:
    """Return nodes with these slices of another driver."""
    world = World(*nodes, own=OTHERS)
    for name, slices in nodes.items():
        for raw in slices:
            raw["metadata"]["name"] += f"-{name}"
            raw["spec"] |= {"nodeName": name, "pool": {**raw["spec"]["pool"], "name": name}}
            world.to.put_slice(raw)
    return world


def mig_slices(gpus: int = 1) -> list[Raw]:
    made = [objects.mig_gpu(f"gpu-{number}") for number in range(gpus)]
    devices = [device_ for instances, _ in made for device_ in instances]
    counters = objects.slice_of(name="counters", count=2, sharedCounters=[of_gpu for _, of_gpu in made])
    return [objects.slice_of(*devices, count=2), counters]


def shared_slices() -> list[Raw]:
    return [objects.slice_of(*(objects.device(each, memory="8Gi", allowMultipleAllocations=True) for each in "ab"))]


def model(name: str) -> Raw:
    return request(where=f'device.attributes["gpu.io"].model == "{name}"')


def part(memory: str) -> Raw:
    return request(capacity={"requests": {"memory": memory}})


def places(world: World, *requests: Raw, policy: Policy | None = None) -> list[str]:
    """Return the node and the device that one pod after the other gets with a claim; empty if it gets none."""
    got_ = []
    for number, each in enumerate(requests, start=len(world.cluster.fleet.claims.claims)):
        world.put_claim(each, name=f"c-{number}")
        outcome = decide(world.cluster.fleet, world.pending(f"p-{number}", f"c-{number}"), policy or Policy())
        if isinstance(outcome, Placement):
            world.cluster.placements.assume(outcome)
        got_.append(f"{outcome.node}/{got(outcome)[0][0]}" if isinstance(outcome, Placement) else "")
    return got_


FIRST_FIT = Policy(weights=(), claim_strategy="FirstFit")


def test_pods_gather_where_few_devices_are_free() -> None:
    world = World("a", "b")
    world.cluster.node_cache.put_node(node("a", unschedulable=True))
    world.put_claim(name="first")
    assert world.placed("first", "first").node == "b"
    world.cluster.node_cache.put_node(node("a"))
    assert places(world, request(), request()) == ["b/gpu-1", "a/gpu-0"]


def test_divided_gpus_are_filled_before_whole_ones_are_broken() -> None:
    requests = [model("3g"), model("whole"), model("2g"), model("1g"), model("1g"), model("whole")]
    world = divided(a=mig_slices(), b=mig_slices(), c=mig_slices())
    chosen = places(world, *requests)
    assert [device.partition("/")[0] for device in chosen] == ["a", "b", "a", "a", "a", "c"]


def test_the_first_devices_that_fit_are_kube_schedulers_choice() -> None:
    world = divided(a=mig_slices(2))
    assert places(world, model("1g"), model("1g"), policy=FIRST_FIT) == ["a/gpu-0-1g-0", "a/gpu-0-1g-1"]
    world = divided(a=mig_slices(2))
    assert places(world, model("1g"), model("1g")) == ["a/gpu-0-1g-6", "a/gpu-0-1g-4"]


def test_shares_go_to_the_node_with_the_fullest_device_on_which_they_fit() -> None:
    world = divided(a=shared_slices(), b=shared_slices())
    requests = [part("7Gi"), part("5Gi"), part("3Gi"), part("1Gi"), part("8Gi"), part("8Gi"), part("1Gi")]
    assert places(world, *requests) == ["a/a", "a/b", "a/b", "a/a", "b/a", "b/b", ""]


def test_devices_that_others_exclude_are_not_counted() -> None:
    world = divided(a=mig_slices())
    assert places(world, model("whole"), model("1g")) == ["a/gpu-0", ""]
    # No search has refused the node: its count is 0.
    assert not any(each.by_node for _, each in world.supply._answers._refusals.newest(9))
    world.cluster.placements.forget("uid-p-0")
    assert places(world, model("1g")) == ["a/gpu-0-1g-6"]


def test_the_pods_own_preference_comes_before_what_is_left_for_others() -> None:
    world = divided(a=mig_slices(), b=mig_slices())
    assert places(world, model("1g")) == ["a/gpu-0-1g-6"]
    world.put_claim(first_available("one", exactly(where=WHOLE), exactly(where=ONE)), name="list")
    placement = world.placed("list", "list")
    assert (placement.node, got(placement)) == ("b", [["gpu-0"]])


WHOLE = 'device.attributes["gpu.io"].model == "whole"'
ONE = 'device.attributes["gpu.io"].model == "1g"'


def test_nodes_with_an_invalid_pool_have_kubernetes_reason() -> None:
    world = World("a", "b")
    twice = listed("x", {"uuid": "x"})
    world.to.put_slice(resource_slice(twice, twice, node="a"))
    world.put_claim(request(count=3))
    outcome = world.decision()
    assert isinstance(outcome, Failure)
    expected = "0/2 nodes are available: 1 cannot allocate all claims, 1 invalid resource pools were encountered."
    assert outcome.message == expected


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        pytest.param({"memory": "20"}, "memory: 20 is in bytes; did you mean 20Gi?", id="Gi"),
        pytest.param({"gpu.berth.dev/memory": "1500m"}, "memory: 1.5 is in bytes; did you mean 1.5Gi?", id="half"),
        pytest.param({"memory": "24k"}, "memory: 24000 is in bytes; did you mean 24000Mi?", id="Mi"),
        pytest.param({"memory": "20Ki"}, "", id="a unit"),
        pytest.param({"memory": "1Mi"}, "", id="enough"),
        pytest.param({"memory": "0"}, "", id="none"),
        pytest.param({"cores": "20"}, "", id="no memory"),
    ],
)
def test_memory_without_a_unit_is_asked_about_in_the_message(capacity: Raw, expected: str) -> None:
    world = World("a")
    world.put_claim(request(count=3, capacity={"requests": capacity}))
    outcome = world.decision()
    assert isinstance(outcome, Failure)
    assert "1 cannot allocate all claims" in outcome.message
    if expected:
        prefix = next(iter(capacity)).removesuffix("memory")
        assert outcome.message.endswith(f"ResourceClaim ns/c: request gpu: capacity {prefix}{expected}")
    else:
        assert "did you mean" not in outcome.message


def test_a_node_that_a_pod_does_not_select_counts_as_such_whatever_its_claims_find() -> None:
    world = World("a", "b", "c")
    world.cluster.node_cache.put_node(node("a", labels={"host": "a"}))
    world.put_claim(request(count=9))
    outcome = decide(world.cluster.fleet, world.pending("p", nodeSelector={"host": "a"}), Policy())
    assert isinstance(outcome, Failure)
    assert "1 cannot allocate all claims, 2 node(s) didn't match Pod's node affinity/selector" in outcome.message


def test_a_node_that_a_pod_does_not_select_counts_as_such_before_its_devices_are_compared() -> None:
    world = World(*(f"n{number}" for number in range(60)))
    for number in range(20):
        world.cluster.node_cache.put_node(node(f"n{number}", labels={"pool": "a"}))
    world.put_claim(request(where='device.attributes["gpu.nvidia.com"].uuid in ["GPU-7"]'))
    pod_ = world.pending("p", nodeSelector={"pool": "a"})
    work, messages = world.cluster.fleet.claims.supply.work, list[str]()
    while not messages or work.goes_on:
        work.refill(300)
        outcome = decide(world.cluster.fleet, pod_, Policy())
        assert isinstance(outcome, Failure)
        messages.append(outcome.message)
        assert len(messages) < 20
    excluded = "node(s) didn't match Pod's node affinity/selector"
    assert all(f"40 {excluded}" in message for message in messages)
    assert len(messages) > 1


def test_an_invalid_pool_does_not_matter_where_the_claims_are_met() -> None:
    world = World("a")
    twice = listed("x", {"uuid": "x"})
    world.to.put_slice(resource_slice(twice, twice, node="a", pool="other", name="other"))
    world.put_claim()
    assert got(world.placed()) == [["gpu-0"]]


def test_the_next_row_is_tried_if_the_search_finds_nothing() -> None:
    world = World("a", "b")
    distinct = {"constraints": [{"matchAttribute": f"{NVIDIA_DRIVER}/uuid"}]}
    world.to.put_slice(resource_slice(*(listed(f"x{each}", {"uuid": "same"}) for each in range(2)), node="b"))
    world.put_claim(request(count=2), devices=distinct)
    assert world.placed().node == "b"


def test_two_claims_of_a_pod_get_two_devices() -> None:
    world = World("a", "b")
    for name in ("c", "d", "e"):
        world.put_claim(name=name)
    assert got(world.placed("p", "c", "d")) == [["gpu-0"], ["gpu-1"]]
    world.put_claim(name="f")
    assert reason(world.decision("q", "e", "f", "c")) == "resource claim ns/c is in the process of being allocated"


# --- hostile claims ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("device.", "CEL compile error", id="does not compile"),
        pytest.param('device.attributes["x"].missing == "a"', "CEL runtime error", id="fails"),
    ],
)
def test_a_wrong_selector_is_told(expression: str, expected: str) -> None:
    world = World()
    world.put_claim(request(where=expression))
    assert expected in reason(world.decision())
    world.put_claim(name="d")
    assert isinstance(world.decision("q", "d"), Placement)


def _put_too_much(world: World) -> None:
    """Have 8 devices for one of 9 requests each, of which all have to be tried with all."""
    shared = [
        {
            **listed(f"x{each}", {"uuid": f"u{each}"}),
            "capacity": {"m": {"value": "10"}},
            "allowMultipleAllocations": True,
        }
        for each in range(8)
    ]
    world.to.put_slice(resource_slice(*shared, node="b"))
    world.put_claim(*({**request(capacity={"requests": {"m": "6"}}), "name": f"r{each}"} for each in range(9)))


def test_a_search_that_takes_too_long_is_refused_on_its_node() -> None:
    world = World("a", "b")
    _put_too_much(world)
    outcome = world.decision()
    assert isinstance(outcome, Failure)
    assert dict(outcome.reasons) == {NOT_ALL: 1, "no devices were found within 5000 steps": 1}


def test_a_search_that_ended_at_its_bound_goes_on_while_there_is_nothing_else_to_do_until_it_was_doubled_twice() -> (
    None
):
    world = World("a", "b")
    _put_too_much(world)
    _park(world)

    def decided() -> Failure:
        outcome = decide(world.cluster.fleet, world.cluster.pending["uid-p"], Policy())
        assert isinstance(outcome, Failure)
        return outcome

    for steps in (4000, 8000):
        assert world.cluster.search_on()
        assert woken(world) == ["p"]
        outcome = decided()
        assert f"no devices were found within {steps} steps" in dict(outcome.reasons)
        world.cluster.queue.park(world.cluster.pending["uid-p"], outcome)
    assert not world.cluster.search_on()
    assert not woken(world)
    # A change on the node begins again.
    _put_too_much(world)
    assert "no devices were found within 5000 steps" in dict(decided().reasons)


def test_what_is_not_counted_yet_is_counted_in_the_next_turn() -> None:
    world = World(*(f"n{each}" for each in range(60)))
    world.put_claim(request(where='device.attributes["gpu.nvidia.com"].uuid in ["GPU-1"]'))
    world.pending("p")
    work, turns = world.cluster.fleet.claims.supply.work, 0
    work.refill(200)
    while isinstance(outcome := decide(world.cluster.fleet, world.cluster.pending["uid-p"], Policy()), Failure):
        assert reason(outcome) == "node(s) have devices that are not compared with the ResourceClaims yet"
        assert work.goes_on
        work.refill(200)
        turns += 1
        assert turns < 20
    assert turns > 1


# --- waking -----------------------------------------------------------------------------------------------------


def _park(world: World) -> None:
    pending = world.pending("p")
    woken(world)
    outcome = decide(world.cluster.fleet, pending, Policy())
    assert isinstance(outcome, Failure)
    world.cluster.queue.park(pending, outcome)
    assert not woken(world)


def _take_by_name(world: World) -> None:
    first = decide(world.cluster.fleet, _by_name(world, "n"), Policy())
    assert isinstance(first, Placement)
    world.cluster.placements.assume(first)


RULE = taint_rule(selector={"driver": NVIDIA_DRIVER}, tainted=taint())
EVENTS: dict[str, tuple[Event, Event]] = {
    "slice": (
        lambda world: world.to.remove_slice(f"node-{NVIDIA_DRIVER}"),
        lambda world: world.to.put_slice(resource_slice(gpu(0))),
    ),
    "deallocated": (
        lambda world: world.to.put_claim(allocated("held", "gpu-0")),
        lambda world: world.put_claim(name="held"),
    ),
    "deleted": (
        lambda world: world.to.put_claim(allocated("held", "gpu-0")),
        lambda world: world.to.remove_claim("ns/held"),
    ),
    "by name": (_take_by_name, lambda world: world.cluster.placements.remove_bound("uid-n")),
    "unhealthy": (
        lambda world: world.cluster.node_cache.put_device(device("node", entry(0, health=False), generation=2)),
        lambda world: world.cluster.node_cache.remove_device("node"),
    ),
    "unknown": (
        lambda world: world.cluster.put_bound(pod("n", {"nvidia.com/gpu": "1"}, on="node")),
        lambda world: world.cluster.remove_bound("uid-n"),
    ),
    "rule": (lambda world: world.to.put_rule(RULE), lambda world: world.to.remove_rule("r")),
    "node": (
        lambda world: world.cluster.node_cache.remove_node("node"),
        lambda world: world.cluster.node_cache.put_node(node()),
    ),
}


@pytest.mark.parametrize("event", EVENTS)
def test_pods_wake_when_devices_may_be_free(event: str) -> None:
    world = World(gpus=1)
    world.put_claim()
    take, free = EVENTS[event]
    take(world)
    _park(world)
    free(world)
    assert woken(world) == ["p"]
    assert isinstance(world.decision(), Placement)


def _many(*devices: Raw, node: str = "", **fields: Any) -> Raw:
    """Return a slice of the pool `many`, which has devices of several nodes; without a name of a node for all nodes."""
    made = resource_slice(*devices, node=node, pool="many", name=f"many-{node}", **fields)
    return made if node else {**made, "spec": {**made["spec"], "nodeName": None, "allNodes": True}}


def _parked_for(world: World, node: str, *names: str) -> PendingPod:
    """Park a pod that can only go to a node."""
    pending = world.pending("p", *names, nodeSelector={"host": node})
    woken(world)
    outcome = decide(world.cluster.fleet, pending, Policy())
    assert isinstance(outcome, Failure)
    world.cluster.queue.park(pending, outcome)
    return pending


def _hosts() -> World:
    world = World(gpus=0)
    for name in ("a", "b"):
        world.cluster.node_cache.put_node(node(name, labels={"host": name}))
    world.put_claim()
    return world


WITHHELD: dict[str, Event] = {
    "a pod holds it by name": lambda world: world.pods.apply(
        "ADDED", pod("by-name", {NVIDIA: "1"}, on="node", allocated=whole(0))
    ),
    "it has failed": lambda world: world.cluster.node_cache.put_device(
        device("node", entry(0, health=False), entry(1), generation=2)
    ),
}


@pytest.mark.parametrize("withhold", WITHHELD.values(), ids=WITHHELD)
def test_a_card_that_claims_do_not_get_takes_nothing_of_the_counters_of_other_cards(withhold: Event) -> None:
    """All devices of a divided card take more than the card has, and a pool that is exceeded gives nothing."""
    world = World()
    counters = {"slices": {"value": "2"}}
    divided = [
        listed(
            f"gpu-{minor}-{name}",
            {"type": "mig", "parentUUID": f"GPU-{minor}"} if name else {"type": "gpu", "uuid": f"GPU-{minor}"},
            consumesCounters=[{"counterSet": f"gpu-{minor}", "counters": {"slices": {"value": amount}}}],
        )
        for minor in (0, 1)
        for name, amount in (("", "2"), ("first", "1"), ("second", "1"))
    ]
    of_cards = resource_slice(name="counters", count=2, generation=2)
    sets = [{"name": f"gpu-{minor}", "counters": counters} for minor in (0, 1)]
    of_cards["spec"] |= {"devices": None, "sharedCounters": sets}
    for raw in (of_cards, resource_slice(*divided, count=2, generation=2)):
        world.to.put_slice(raw)
    withhold(world)
    of_instances = request(where=f'device.attributes["{NVIDIA_DRIVER}"].type == "mig"')
    assert places(world, *(of_instances,) * 3) == ["node/gpu-1-first", "node/gpu-1-second", ""]


def test_parts_that_do_not_name_their_card_are_not_given_while_a_pod_holds_it_by_name() -> None:
    """A driver that is not known may name the card of the whole device alone; the counters say what excludes what."""
    driver = "gpu.example.com"
    world = World(own=OwnPools(drivers=frozenset({driver})))
    card = entry(0, topology={"nodeID": 0, "socketID": 0, "pcieID": "p", "busID": "0000:3b:00.0"})
    world.cluster.node_cache.put_device(device("node", card, entry(1), generation=2))
    address = {"resource.kubernetes.io/pciBusID": "0000:3b:00.0"}
    used = [{"counterSet": "card", "counters": {"slices": {"value": "2"}}}]
    devices = [listed(name, address if name == "whole" else {}, consumesCounters=used) for name in ("whole", "part")]
    counters = resource_slice(name="counters", driver=driver, count=2)
    sets = [{"name": "card", "counters": {"slices": {"value": "2"}}}]
    counters["spec"] |= {"devices": None, "sharedCounters": sets}
    for raw in (counters, resource_slice(*devices, driver=driver, count=2)):
        world.to.put_slice(raw)
    world.pods.apply("ADDED", pod("by-name", {NVIDIA: "1"}, on="node", allocated=whole(0)))
    assert places(world, request(where='device.driver == "gpu.example.com"')) == [""]


def test_a_device_is_given_when_a_device_of_another_node_gives_back_their_counters() -> None:
    world = _hosts()
    counters = {"x": {"value": "1"}}
    consumed = [{"counterSet": "s", "counters": counters}]
    pool = _many(count=2)["spec"]
    devices = [listed(f"of-{each}", nodeName=each, consumesCounters=consumed) for each in ("a", "b")]
    by_device = {**pool, "allNodes": None, "perDeviceNodeSelection": True, "devices": devices}
    of_all = {**pool, "devices": None, "sharedCounters": [{"name": "s", "counters": counters}]}
    for name, spec in {"devices": by_device, "counters": of_all}.items():
        world.to.put_slice({"metadata": {"name": name}, "spec": spec})
    world.to.put_claim(allocated("held", "of-a", node="many"))
    pending = _parked_for(world, "b")
    world.put_claim(name="held")
    assert woken(world) == ["p"]
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Placement)


def test_pods_of_all_nodes_wake_when_the_slices_of_their_pool_are_complete() -> None:
    world = _hosts()
    world.to.put_slice(_many(listed("first"), node="a", count=2))
    pending = _parked_for(world, "a")
    world.to.put_slice(_many(listed("second"), node="b", count=2))
    assert woken(world) == ["p"]
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Placement)


def test_pods_of_all_nodes_wake_when_a_slice_too_many_is_gone() -> None:
    world = _hosts()
    for each in ("a", "b", "too-many"):
        world.to.put_slice(_many(listed(f"of-{each}"), node=each, count=2))
    pending = _parked_for(world, "b")
    world.to.remove_slice("many-too-many")
    assert woken(world) == ["p"]
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Placement)


@pytest.mark.parametrize("state", ["allocated", "assumed"])
def test_a_device_that_was_bound_to_a_node_wakes_the_pods_of_other_nodes_when_it_is_free(state: str) -> None:
    world = _hosts()
    world.to.put_slice(_many(listed("n", bindsToNode=True)))
    world.put_claim(name="held")
    placement = decide(world.cluster.fleet, world.pending("first", "held", nodeSelector={"host": "a"}), Policy())
    assert isinstance(placement, Placement)
    world.cluster.placements.assume(placement)
    if state == "allocated":
        world.write(placement)
    pending = _parked_for(world, "b")
    world.cluster.remove_pending("uid-first")
    world.cluster.placements.forget("uid-first")
    if state == "allocated":
        assert not woken(world)
        world.put_claim(name="held")
    assert woken(world) == ["p"]
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Placement)


def test_a_pod_wakes_when_the_pod_is_gone_that_was_to_allocate_their_claim() -> None:
    world = World()
    world.put_claim()
    world.placed("other")
    _park(world)
    world.cluster.remove_pending("uid-other")
    world.cluster.placements.forget("uid-other")
    assert woken(world) == ["p"]
    assert isinstance(world.decision(), Placement)


def test_a_pod_of_a_namespace_with_limits_wakes_when_a_device_plugin_offers_what_a_class_provides() -> None:
    world = World()
    world.cluster.fleet.set_namespace_limits({"ns": {"gpu": 100}})
    world.to.put_class({"metadata": {"name": "x"}, "spec": {"extendedResourceName": "example.com/x"}})
    pending = world.pending("p", requests={"example.com/x": "1"}, resourceClaims=[])
    woken(world)
    outcome = decide(world.cluster.fleet, pending, Policy())
    assert "what DeviceClasses provide of example.com/x is not counted before" in reason(outcome)
    assert isinstance(outcome, Failure)
    world.cluster.queue.park(pending, outcome)
    world.cluster.node_cache.put_node(node(allocatable={"example.com/x": "1"}))
    assert woken(world) == ["p"]
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Placement)


def _with_cards(world: World) -> None:
    world.cluster.node_cache.put_device(device("node", entry(0)))
    world.cluster.node_cache.put_lease(lease("node"))


OFFERS = {"offered": {"nvidia.com/gpu": 1}}
BY_CLASS: dict[str, tuple[Raw, Event, Raw, str]] = {
    "plug-in gone": (OFFERS, lambda _: None, {"offered": {}}, "node(s) have no Device"),
    "labelled": (
        {"offered": {}},
        _with_cards,
        {"offered": {}, "labels": {"berth.dev/cards": "claims"}},
        "Insufficient nvidia.com/gpu",
    ),
}


@pytest.mark.parametrize(("before", "more", "after", "expected"), BY_CLASS.values(), ids=BY_CLASS)
def test_a_pod_wakes_where_a_class_provides_now_what_a_device_plugin_did(
    before: Raw, more: Event, after: Raw, expected: str
) -> None:
    world = World(gpus=1)
    world.cluster.node_cache.remove_device("node")
    world.cluster.node_cache.remove_lease("node")
    world.cluster.node_cache.put_node(node(**before))
    more(world)
    world.to.put_class({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}})
    pending = world.pending("p", requests={"nvidia.com/gpu": "1"}, resourceClaims=[])
    woken(world)
    outcome = decide(world.cluster.fleet, pending, Policy())
    assert isinstance(outcome, Failure)
    assert expected in outcome.message
    world.cluster.queue.park(pending, outcome)
    world.cluster.node_cache.put_node(node(**after))
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Placement)
    assert woken(world) == ["p"]
