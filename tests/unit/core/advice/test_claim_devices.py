"""The devices that requests of ResourceClaims find agree with the decision. The reasons for other devices are named."""

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from berth_api.names import CARDS_KEY, DRA_DRIVER, HELD_BY_NAME
from berth_api.objects.visibility import ClaimDevices, LeftOut, RequestedDevices
from berth_operator.core.advice import claim_devices, empty_nodes, outlook
from berth_operator.core.advice.explanation import explain
from berth_operator.core.advice.remedies import is_in_vain
from berth_operator.core.advice.waits import Wait, Waits
from berth_operator.core.claims.objects.status import with_writers
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.request import PendingPod
from tests.claims.objects import exactly, first_available, request
from tests.objects.builders import NVIDIA, device, entry, lease, node
from tests.objects.resource_claims import NVIDIA_DRIVER, allocated, gpu, listed, resource_slice, taint
from tests.unit.core.advice.test_explanation import assert_agrees
from tests.unit.state.test_pods_with_claims import World

Raw = dict[str, Any]
T = TypeVar("T")
POLICY = Policy()
FOREIGN_DRIVER = "other.example.com"


def returned(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def answer_of(world: World, pod: PendingPod) -> ClaimDevices | None:
    return returned(claim_devices.of_pod(world.cluster.fleet.copy(), pod, POLICY))


def asked(world: World, pod: PendingPod) -> ClaimDevices:
    answer = answer_of(world, pod)
    assert answer is not None
    return answer


def left_out(of: RequestedDevices) -> dict[str, int]:
    return {cause["why"]: cause["devices"] for cause in of["leftOut"]}


def where(name: str, value: str) -> str:
    return f'device.attributes["{NVIDIA_DRIVER}"].{name} == "{value}"'


def model(name: str, value: str, **fields: Any) -> Raw:
    return listed(name, {f"{NVIDIA_DRIVER}/model": value, f"{NVIDIA_DRIVER}/rack": name[-1]}, **fields)


# --- one answer -------------------------------------------------------------------------------------------------


def test_each_device_is_left_out_for_one_reason_and_the_selector_with_the_most_is_named() -> None:
    world = World("a")
    world.to.put_class(
        {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": where("model", "x")}}]}}
    )
    devices = [model(f"w{each}", "y") for each in range(4)] + [model(f"x{each}", "x") for each in range(4)]
    world.to.put_slice(resource_slice(*devices, model("x4", "x", taints=[taint()]), node="a"))
    world.to.put_claim(allocated("held", "x3", node="a"))
    world.put_claim(request(count=2, where=where("rack", "0")))
    [only] = asked(world, world.pending("p"))["requests"]
    assert (only["claim"], only["request"], only["needed"]) == ("ns/c", "gpu", 2)
    assert (only["devices"], only["found"], only["most"], only["nodes"], only["matching"]) == (9, 1, 1, ["a"], 1)
    assert only["leftOut"][:2] == [
        LeftOut(
            devices=4,
            why=f"that do not match selector #0 of DeviceClass gpu: {where('model', 'x')}",
            selector=True,
        ),
        LeftOut(
            devices=4,
            why=f"that do not match selector #0 of the request: {where('rack', '0')}",
            selector=True,
        ),
    ]


@pytest.mark.parametrize(
    ("devices", "held", "expected"),
    [
        pytest.param([gpu(0, taints=[taint()])], [], claim_devices.TAINTED, id="taint"),
        pytest.param([gpu(0)], ["gpu-0"], claim_devices.ALLOCATED, id="allocated"),
        pytest.param([gpu(0, allowMultipleAllocations=True, capacity={"m": {"value": "1"}})], [], None, id="shared"),
    ],
)
def test_why_a_device_that_matches_is_not_found(devices: list[Raw], held: list[str], expected: Any) -> None:
    world = World("a")
    world.to.put_slice(resource_slice(*devices, node="a"))
    if held:
        world.to.put_claim(allocated("held", *held, node="a"))
    world.put_claim(request(count=2))
    [only] = asked(world, world.pending("p"))["requests"]
    assert left_out(only) == ({} if expected is None else {expected.text: 1})
    assert only["matching"] == 1


def test_a_card_that_a_pod_holds_by_name_is_withheld() -> None:
    world = World("a", gpus=1)
    placed = decide(world.cluster.fleet, world.pending("n", requests={NVIDIA: "1"}, resourceClaims=[]), POLICY)
    assert isinstance(placed, Placement)
    world.cluster.placements.assume(placed)
    world.put_claim()
    [only] = asked(world, world.pending("p"))["requests"]
    assert left_out(only) == {claim_devices.WITHHELD.text: 1}


def own(*minors: int, name: str, **fields: Any) -> Raw:
    """Return a slice with these cards of Berth's own driver."""
    devices = [listed(f"gpu-{minor}", {f"{DRA_DRIVER}/uuid": f"GPU-{minor}"}, **fields) for minor in minors]
    return resource_slice(*devices, node=name, driver=DRA_DRIVER, name=f"{name}-{DRA_DRIVER}")


@pytest.mark.parametrize(
    ("label", "devices", "expected"),
    [
        pytest.param("name", None, {claim_devices.BY_NAME.text: 2}, id="mode name"),
        pytest.param("claims", None, {claim_devices.UNLISTED.text: 2}, id="the driver is not registered"),
        pytest.param("shares", None, {claim_devices.UNLISTED.text: 2}, id="mode shares: the driver is not registered"),
        pytest.param("claims", [1], {claim_devices.UNLISTED.text: 1}, id="mode claims: a card that a pod has by name"),
        pytest.param("both", [0, 1], {claim_devices.WITHHELD.text: 1}, id="mode both: a card that a pod has by name"),
        pytest.param("claims", [], {claim_devices.TAINTED.text: 2}, id="faults"),
    ],
)
def test_why_no_card_of_berths_own_driver_is_found(
    label: str, devices: Sequence[int] | None, expected: Mapping[str, int]
) -> None:
    world = World("other", own=OwnPools(drivers=frozenset({DRA_DRIVER})), gpus=0)
    world.cluster.node_cache.put_node(node("a", labels={CARDS_KEY: label}))
    world.cluster.node_cache.put_device(device("a", entry(0), entry(1)))
    world.cluster.node_cache.put_lease(lease("a"))
    if label == "both" or devices == [1]:
        placed = decide(world.cluster.fleet, world.pending("n", requests={NVIDIA: "1"}, resourceClaims=[]), POLICY)
        assert isinstance(placed, Placement)
        world.cluster.placements.assume(placed)
    if devices is not None:
        taints = (
            {} if devices == [1] else {"taints": [taint(key=HELD_BY_NAME if devices else f"{DRA_DRIVER}/unhealthy")]}
        )
        world.to.put_slice(own(*(devices or (0, 1)), name="a", **taints))
    world.to.put_class({"metadata": {"name": DRA_DRIVER}, "spec": {}})
    world.put_claim(request(deviceClassName=DRA_DRIVER, count=2))
    [only] = asked(world, world.pending("p"))["requests"]
    assert left_out(only) == expected


def test_capacity_that_shares_have_used_up() -> None:
    world = World("a")
    shared = {"allowMultipleAllocations": True, "capacity": {"m": {"value": "10"}}}
    world.to.put_slice(resource_slice(listed("s", {}, **shared), node="a"))
    held = allocated("held", "s", node="a", shareID="share", consumedCapacity={"m": "5"})
    world.to.put_claim(held)
    world.put_claim(request(where='device.attributes["gpu.nvidia.com"].?uuid.orValue("") == ""',
                            capacity={"requests": {"m": "6"}}))  # fmt: skip
    [only] = asked(world, world.pending("p"))["requests"]
    [(why, number)] = [item for item in left_out(only).items() if "selector" not in item[0]]
    assert (why.partition(",")[0], number, only["matching"]) == (claim_devices.USED_UP.text, 1, 1)


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        pytest.param(
            {"memory": "200Gi"},
            "with less than the requested 200Gi of capacity memory (the largest has 80Gi)",
            id="too large",
        ),
        pytest.param({"mem": "20Gi"}, "without a capacity mem (did you mean memory?)", id="a near name"),
        pytest.param({"tensor": "1"}, "without a capacity tensor (they have cores, memory)", id="another name"),
        pytest.param(
            {"cores": "250"}, "with less than the requested 250 of capacity cores (the largest has 100)", id="cores"
        ),
        pytest.param(
            {"cores": "75"}, "whose capacity cores does not allow 75 (the largest has 100)", id="a value of no policy"
        ),
    ],
)
def test_a_capacity_that_no_device_can_give_is_named(requested: Mapping[str, str], expected: str) -> None:
    world = World("a", gpus=0)
    policy = {"default": "50", "validValues": ["50"]} if requested == {"cores": "75"} else {}
    cards = [
        listed(
            f"card-{size}",
            allowMultipleAllocations=True,
            capacity={"memory": {"value": size}, "cores": {"value": "100", **_policy(policy)}},
        )
        for size in ("40Gi", "80Gi")
    ]
    world.to.put_slice(resource_slice(*cards, node="a"))
    world.put_claim(request(capacity={"requests": dict(requested)}))
    pod = world.pending("p")
    [only] = asked(world, pod)["requests"]
    assert left_out(only) == {expected: 2}
    assert only["matching"] == 0
    [sentence] = needed(world, pod)
    assert sentence == (
        "needed first: 1 device on one node for request gpu of ns/c (none match there, free or not, and 2 of 2 are "
        f"those {expected})"
    )
    assert explain(world.cluster.fleet.copy(), pod, POLICY).fits_when_empty == 0


def _policy(policy: Mapping[str, Any]) -> Raw:
    return {"requestPolicy": dict(policy)} if policy else {}


@pytest.mark.parametrize(
    ("wanted", "users"),
    [
        pytest.param("left", ": mine", id="of the same namespace"),
        pytest.param("right", ": 1 of other namespaces", id="of another namespace"),
        pytest.param("whole", ": mine and 1 more", id="both"),
    ],
)
def test_claims_that_have_parts_of_a_device_are_named_but_not_those_of_other_namespaces(
    wanted: str, users: str
) -> None:
    world = World("a", gpus=0)

    def instance(name: str, *places: int) -> Raw:
        counters = {f"place-{number}": {"value": "1"} for number in places} | {"engines": {"value": str(len(places))}}
        kind = {f"{NVIDIA_DRIVER}/kind": name}
        return listed(name, kind, consumesCounters=[{"counterSet": "gpu", "counters": counters}])

    instances = [instance("whole", 0, 1, 2, 3), instance("left", 0, 1), instance("right", 2, 3)]
    instances += [instance(f"s{place}", place) for place in range(4)]
    world.to.put_slice(resource_slice(*instances, node="a", name="devices", pool="mig", count=2))
    of_counters = resource_slice(node="a", name="counters", pool="mig", count=2)
    # All take of the engines, which are not short.
    places = {f"place-{place}": {"value": "1"} for place in range(4)} | {"engines": {"value": "9"}}
    of_counters["spec"] |= {"devices": None, "sharedCounters": [{"name": "gpu", "counters": places}]}
    world.to.put_slice(of_counters)
    for name, device_name, namespace in (("mine", "s1", "ns"), ("stranger", "s3", "other")):
        held = allocated(name, device_name, node="a")
        held["metadata"] |= {"namespace": namespace}
        held["status"]["allocation"]["devices"]["results"][0]["pool"] = "mig"
        world.to.put_claim(held)
    world.put_claim(request(where=where("kind", wanted)))
    [only] = asked(world, world.pending("p"))["requests"]
    [(why, number)] = [item for item in left_out(only).items() if "selector" not in item[0]]
    parts = f"{claim_devices.USED_UP.text}, because other ResourceClaims have parts of them"
    assert (why, number) == (f"{parts}{users}", 1)


def test_pools_of_other_schedulers_and_selectors_that_fail() -> None:
    world = World("a")
    world.to.put_slice(resource_slice(listed("o"), driver=FOREIGN_DRIVER, node="a"))
    world.put_claim(request(count=3))
    [only] = asked(world, world.pending("p"))["requests"]
    assert left_out(only) == {claim_devices.FOREIGN.text: 1}
    world.put_claim(request(where=where("missing", "x")), name="d")
    [only] = asked(world, world.pending("q", "d"))["requests"]
    # Of other drivers' devices as well.
    assert left_out(only) == {"for which selector #0 fails: no such key: missing": 3}


def test_a_pool_from_which_another_scheduler_allocated_is_said_to_be_ours() -> None:
    world = World("a")
    world.cluster.fleet.claims.writer = "berth-operator/"
    stolen = allocated("stolen", "gpu-0", node="a")
    wrote = {"manager": "kube-scheduler", "fieldsV1": {"f:status": {"f:allocation": {}}}}
    stolen["metadata"]["managedFields"] = [wrote]
    world.to.put_claim(with_writers(stolen))
    world.put_claim()
    [only] = asked(world, world.pending("p"))["requests"]
    assert left_out(only) == {claim_devices.SHARED.text: 2}


def test_a_device_for_many_nodes_is_counted_once() -> None:
    world = World("a", "b")
    everywhere = resource_slice(listed("net"), node="x", name="net")
    everywhere["spec"] = {**everywhere["spec"], "allNodes": True}
    del everywhere["spec"]["nodeName"]
    world.to.put_slice(everywhere)
    world.put_claim(request(count=4))
    [only] = asked(world, world.pending("p"))["requests"]
    assert (only["devices"], only["found"], only["most"], only["nodes"]) == (5, 5, 3, ["a", "b"])


def test_only_nodes_that_lack_nothing_else_are_compared() -> None:
    world = World("a", "b", "c")
    world.cluster.node_cache.put_node(node("c", unschedulable=True))
    world.put_claim(request(count=3))
    answer = asked(world, world.pending("p"))
    assert (answer["nodes"], answer["complete"], answer["requests"][0]["devices"]) == (2, True, 4)
    for name in "ab":
        world.cluster.node_cache.put_node(node(name, unschedulable=True))
    assert asked(world, world.pending("p"))["nodes"] == 3


def test_an_extended_resource_by_a_class_is_named() -> None:
    world = World("a", gpus=1)
    world.to.put_class({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    pod = world.pending("p", requests={"example.com/gpu": "2"}, resourceClaims=[])
    [only] = asked(world, pod)["requests"]
    assert (only["claim"], only["request"], only["needed"], only["most"]) == (
        "example.com/gpu",
        "container-0-request-0",
        2,
        1,
    )


def test_what_devices_lack_together_is_told_from_constraints() -> None:
    world = World("a")
    world.to.put_slice(resource_slice(model("x0", "x"), model("y1", "y"), node="a"))
    same = [{"matchAttribute": f"{NVIDIA_DRIVER}/model"}]
    world.put_claim(request(count=2), devices={"constraints": same})
    assert asked(world, world.pending("p"))["together"] == (
        "a has enough devices for each request alone, but not under the constraints of ns/c"
    )
    world.put_claim(request("one"), request("two", count=2), name="d")
    assert asked(world, world.pending("q", "d"))["together"] == (
        "a has enough devices for each request alone, but not for all of them together"
    )


def test_a_search_that_ended_at_its_bound_does_not_show_that_the_devices_lack_together() -> None:
    world = World("a")
    shared = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10"}}}
    world.to.put_slice(resource_slice(*({**gpu(number), **shared} for number in range(8)), node="a"))
    world.put_claim(*(request(f"r{number}", capacity={"requests": {"memory": "6"}}) for number in range(9)))
    assert asked(world, world.pending("p"))["together"] == (
        "a has enough devices for each request alone, but the search for all of them together ended at its bound"
    )


def test_there_is_no_answer_where_claims_keep_the_pod_from_no_node() -> None:
    world = World("a")
    world.put_claim()
    assert answer_of(world, world.pending("p")) is None
    world.cluster.node_cache.put_node(node("a", unschedulable=True))
    assert answer_of(world, world.pending("p")) is None
    assert answer_of(world, world.pending("q", "missing")) is None


def test_an_answer_ends_after_a_number_of_devices_and_says_so() -> None:
    world = World(*(f"n{each:03}" for each in range(30)))
    many = [gpu(each) for each in range(128)]
    for each in range(30):
        world.to.put_slice(resource_slice(*many, node=f"n{each:03}"))
    requests = [request(f"r{each}", count=5, where=where("uuid", "none")) for each in range(8)]
    world.put_claim(*requests)
    answer = asked(world, world.pending("p"))
    assert not answer["complete"]
    assert 0 < answer["nodes"] < 30
    assert sum(each["devices"] for each in answer["requests"]) <= claim_devices.MAX_LOOKS
    assert not list(claim_devices.impossible(answer))


# --- claims that can never be allocated ----------------------------------------------------------------------------


DRIVER_ATTRIBUTES = f'device.attributes["{DRA_DRIVER}"]'


def with_cards(*, unschedulable: bool = False) -> World:
    """Return a node with two cards of two models, which Berth's own driver lists."""
    world = World(own=OwnPools(drivers=frozenset({DRA_DRIVER})), gpus=0)
    world.cluster.node_cache.put_node(node("node", labels={CARDS_KEY: "claims"}, unschedulable=unschedulable))
    amounts = {"memory": {"value": "80Gi"}, "cores": {"value": "100"}}
    cards = [
        listed(
            f"gpu-{minor}",
            {f"{DRA_DRIVER}/productName": model, f"{DRA_DRIVER}/linkGroup": "1"},
            allowMultipleAllocations=True,
            capacity=amounts,
        )
        for minor, model in enumerate(("A100", "H100"))
    ]
    world.to.put_slice(resource_slice(*cards, node="node", driver=DRA_DRIVER))
    world.to.put_class({"metadata": {"name": DRA_DRIVER}, "spec": {}})
    return world


NEVER = {
    "a near attribute": request(where=f'{DRIVER_ATTRIBUTES}.productname == "A100"'),
    "another domain": request(where='device.attributes["gpu.nvidia.com"].productName == "A100"'),
    "a uuid that no device has": request(where=f'{DRIVER_ATTRIBUTES}.?uuid.orValue("") == "MIG-0"'),
    "too much memory": request(capacity={"requests": {"memory": "200Gi"}}),
    "an unknown capacity": request(capacity={"requests": {"mem": "20Gi"}}),
    "too many cores": request(capacity={"requests": {"cores": "250"}}),
    "an unknown attribute of a constraint": f"{DRA_DRIVER}/linkgroup",
    "two models that are to be equal": f"{DRA_DRIVER}/productName",
}


@pytest.mark.parametrize("unschedulable", [False, True], ids=["in service", "cordoned"])
@pytest.mark.parametrize("never", [pytest.param(never, id=name) for name, never in NEVER.items()])
def test_a_claim_that_no_node_can_ever_meet_is_not_said_to_fit_an_empty_node(
    never: Raw | str, *, unschedulable: bool
) -> None:
    world = with_cards(unschedulable=unschedulable)
    if isinstance(never, str):
        world.put_claim(request(count=2), devices={"constraints": [{"matchAttribute": never}]})
    else:
        world.put_claim(never)
    explanation = explain(world.cluster.fleet.copy(), world.pending("p"), POLICY)
    assert (explanation.fits_when_empty, explanation.not_searched) == (0, 0)
    # The same node without the mistake.
    world.put_claim(request(), name="d")
    held = {"memory": "80Gi", "cores": "100"}
    for minor in range(2):
        claim = allocated(f"h{minor}", f"gpu-{minor}", driver=DRA_DRIVER, shareID="s", consumedCapacity=held)
        world.to.put_claim(claim)
    explanation = explain(world.cluster.fleet.copy(), world.pending("q", "d"), POLICY)
    assert explanation.fits_when_empty == 1


def test_an_attribute_that_no_device_has_is_named_with_a_near_one() -> None:
    world = with_cards()
    for number, (what, expected) in enumerate(
        {
            f'{DRIVER_ATTRIBUTES}.productname == "A100"': "productname (did you mean gpu.berth.dev/productName?)",
            f'{DRIVER_ATTRIBUTES}.productname.startsWith("A")': "productname (did you mean gpu.berth.dev/productName?)",
            'device.attributes["gpu.nvidia.com"].productName == "A100"': (
                "productName (did you mean gpu.berth.dev/productName?)"
            ),
            f'device.capacity["{DRA_DRIVER}"].Memory.isGreaterThan(quantity("1Gi"))': ("Memory (did you mean memory?)"),
            f'{DRIVER_ATTRIBUTES}.color == "red"': "color",
        }.items()
    ):
        world.put_claim(request(where=what), name=f"c{number}")
        pod = world.pending(f"p{number}", f"c{number}")
        outcome = decide(world.cluster.fleet, pod, POLICY)
        assert isinstance(outcome, Failure)
        assert outcome.message.endswith(f"CEL runtime error: no such key: {expected}."), outcome.message
        [only] = asked(world, pod)["requests"]
        assert left_out(only) == {f"for which selector #0 fails: no such key: {expected}": 2}


def test_an_instance_on_demand_has_no_uuid_before_it_is_made() -> None:
    world = World(own=OwnPools(drivers=frozenset({DRA_DRIVER})), gpus=0)
    counters = {"places": {"value": "1"}}
    made = listed("i", {}, consumesCounters=[{"counterSet": "card", "counters": counters}])
    world.to.put_slice(resource_slice(made, driver=DRA_DRIVER, count=2))
    of_counters = resource_slice(driver=DRA_DRIVER, name="counters", count=2)
    of_counters["spec"] |= {"devices": None, "sharedCounters": [{"name": "card", "counters": counters}]}
    world.to.put_slice(of_counters)
    world.put_claim(request(where=f'{DRIVER_ATTRIBUTES}.uuid == "MIG-0"'))
    outcome = decide(world.cluster.fleet, world.pending("p"), POLICY)
    assert isinstance(outcome, Failure)
    assert "no such key: uuid (an instance that is made on demand has no uuid before it is made)" in outcome.message


def test_an_attribute_of_a_constraint_that_no_device_has_is_named_with_a_near_one() -> None:
    world = with_cards()
    constraints = [{"matchAttribute": f"{DRA_DRIVER}/linkgroup"}]
    world.put_claim(request(count=2), devices={"constraints": constraints})
    assert asked(world, world.pending("p"))["together"] == (
        "node has enough devices for each request alone, but not under the constraints of ns/c: no device there has "
        "an attribute gpu.berth.dev/linkgroup (did you mean gpu.berth.dev/linkGroup?)"
    )


def test_devices_of_a_node_that_something_else_keeps_the_pod_from_are_not_needed_first() -> None:
    world = World("a", "b")
    world.cluster.node_cache.put_node(node("b", taints=[{"key": "x", "effect": "NoSchedule"}]))
    world.to.put_slice(resource_slice(gpu(0), gpu(1), gpu(2), node="b"))
    world.put_claim(request(count=3))
    assert needed(world, world.pending("p")) == ["removing the taint x:NoSchedule from b would end the wait"]


def test_the_end_of_a_pod_frees_its_claims() -> None:
    world = World("a")
    world.put_claim(request(count=2), name="first")
    world.write(world.placed("first", "first"))
    world.put_claim()
    assert needed(world, world.pending("p")) == ["the end of pod first on a would end the wait"]


def test_what_a_pod_with_claims_needs_if_berth_has_no_pools() -> None:
    world = World(own=OwnPools())
    world.put_claim()
    waits, wait = Waits(world.cluster.fleet.copy(), POLICY, Budgets()), Wait(pod=world.pending("p"))
    why = waits.why(wait)
    remedies = [remedy for remedy in waits.remedies(wait, why) if remedy is not None]
    [sentence] = [remedy.sentence for remedy in remedies]
    assert sentence == (
        "needed first: the pools of its ResourceClaims in claims.drivers or claims.pools of Berth's configuration (for "
        "the DeviceClass gpu.berth.dev: the chart's dra.enabled, gpu.berth.dev in claims.drivers, and a node with the "
        "label berth.dev/cards=claims)"
    )
    assert not is_in_vain(remedies)


def test_a_limit_that_is_smaller_than_one_pod_is_needed_first() -> None:
    world = World("a")
    world.cluster.fleet.set_namespace_limits({"ns": {"gpu": 50}})
    pod = world.pending("p", requests={NVIDIA: "1"}, resourceClaims=[])
    assert explain(world.cluster.fleet.copy(), pod, POLICY).fits_when_empty == 0
    [sentence] = needed(world, pod)
    assert sentence == (
        "needed first: other namespaceLimits in Berth's configuration (namespace ns is at its limit of gpu: 0 of 50 "
        "used, 100 requested)"
    )


def test_nodes_beyond_the_bound_of_the_search_are_not_counted_as_known() -> None:
    names = [f"n{number:03}" for number in range(empty_nodes.MAX_NODES + 3)]
    world = World(*names, gpus=1)
    for name in names:
        world.to.put_claim(allocated(f"of-{name}", "gpu-0", node=name))
    world.put_claim()
    wait = Wait(pod=world.pending("p"))
    waits = Waits(world.cluster.fleet.copy(), POLICY, Budgets())
    why = waits.why(wait)
    assert (why.explanation.fits_when_empty, why.explanation.not_searched) == (32, 3)
    [fits, *_] = outlook.answers(wait, why, (), len(names))
    assert fits["message"] == (
        "not now; on at least 32 of 35 nodes if they were empty (the search for devices ended at its bound before 3 "
        "node(s) were known)"
    )


# --- what ends the wait -----------------------------------------------------------------------------------------


def needed(world: World, pod: PendingPod) -> list[str]:
    """Return what is said to end the wait of a pod."""
    waits, wait = Waits(world.cluster.fleet.copy(), POLICY, Budgets()), Wait(pod=pod)
    why = waits.why(wait)
    why = replace(why, claims=returned(waits.claims(wait, why)))
    return [each.sentence for each in waits.remedies(wait, why) if each is not None]


def test_devices_that_no_slice_lists_are_needed_first() -> None:
    world = World("a", "b")
    world.put_claim(request(count=2, where=where("uuid", "GPU-1")))
    selector = f"selector #0 of the request: {where('uuid', 'GPU-1')}"
    counts = f"at most 1 matches there, free or not, and 2 of 4 are those that do not match {selector}"
    [sentence] = needed(world, world.pending("p"))
    assert sentence == f"needed first: 2 devices on one node for request gpu of ns/c ({counts})"


def test_of_alternatives_one_that_is_possible_suffices() -> None:
    world = World("a")
    world.to.put_claim(allocated("held", "gpu-0", node="a"))
    world.put_claim(first_available("gpu", exactly(3), exactly(2)))
    assert not [each for each in needed(world, world.pending("p")) if each.startswith("needed first")]


@pytest.mark.parametrize("name", ["missing", ""])
def test_a_claim_that_is_missing_is_needed_first(name: str) -> None:
    world = World("a")
    template = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    pod = world.pending("p", name) if name else world.pending("p", resourceClaims=template)
    reason = (
        'could not find ResourceClaim "ns/missing"'
        if name
        else 'pod "ns/p": ResourceClaim not created yet; check that ResourceClaimTemplate t exists'
    )
    assert needed(world, pod) == [
        f"needed first: ResourceClaims that can be used ({reason})",
        "a new node, whatever it has, would not help",
    ]


# --- random fleets ----------------------------------------------------------------------------------------------


def random_world(rng: random.Random) -> World:
    """Return a world of four nodes with devices of two models, some tainted, held, shared or of another scheduler."""
    names = [f"n{number}" for number in range(4)]
    world = World(*names)
    for name in names:
        devices = [_random_device(rng, number) for number in range(rng.randint(1, 4))]
        world.to.put_slice(resource_slice(*devices, node=name))
        if rng.random() < 0.3:
            world.to.put_slice(
                resource_slice(_random_device(rng, 0), node=name, driver=FOREIGN_DRIVER, name=f"{name}-o")
            )
        if rng.random() < 0.4:
            world.to.put_claim(allocated(f"held-{name}", "d0", node=name))
    if rng.random() < 0.3:
        selectors = [{"cel": {"expression": where("model", rng.choice("xy"))}}]
        world.to.put_class({"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}})
    return world


def _random_device(rng: random.Random, number: int) -> Raw:
    fields: Raw = {"taints": [taint()]} if rng.random() < 0.2 else {}
    if rng.random() < 0.2:
        fields |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": rng.choice(("4", "8"))}}}
    return model(f"d{number}", rng.choice("xy"), **fields)


def _random_fields(rng: random.Random) -> Raw:
    fields: Raw = {"count": rng.choice((0, 1, 2, 3, 4))}
    if rng.random() < 0.5:
        fields["where"] = where(*rng.choice((("model", "x"), ("model", "y"), ("rack", "1"), ("missing", "z"))))
    if rng.random() < 0.3:
        fields["tolerations"] = [{"operator": "Exists"}]
    if rng.random() < 0.1:
        fields["adminAccess"] = True
    if rng.random() < 0.2:
        fields["capacity"] = {"requests": {"memory": rng.choice(("2", "6"))}}
    return fields


def random_requests(rng: random.Random) -> list[Raw]:
    if rng.random() < 0.2:
        return [first_available("gpu", *(exactly(**_random_fields(rng)) for _ in range(2)))]
    return [request(f"r{number}", **_random_fields(rng)) for number in range(rng.choice((1, 1, 1, 2)))]


def on_node(world: World, pod: PendingPod, name: str) -> Placement | Failure:
    """Return the decision if no other node may be taken."""
    fleet = world.cluster.fleet
    bias = np.full(len(fleet.names), -np.inf)
    bias[fleet.rows[name]] = 0.0
    return decide(fleet, pod, POLICY, bias)


def alone(world: World, fields: Raw, count: int) -> PendingPod:
    """Return a pod with one claim for some devices of a request."""
    name = f"alone-{count}"
    world.put_claim(request(**{**fields, "count": count}), name=name)
    return world.pending(f"p-{name}", name)


@pytest.mark.parametrize("seed", range(80))
def test_what_requests_find_in_random_fleets_agrees_with_decisions(seed: int) -> None:
    rng = random.Random(seed)
    world = random_world(rng)
    requests = random_requests(rng)
    constraints = [{"matchAttribute": f"{NVIDIA_DRIVER}/model"}] if rng.random() < 0.2 else []
    world.put_claim(*requests, devices={"constraints": constraints})
    pod = world.pending("p")
    explanation = explain(world.cluster.fleet, pod, POLICY)
    before = decide(world.cluster.fleet, pod, POLICY)
    assert explanation.result == before
    answer = answer_of(world, pod)
    if isinstance(before, Placement):
        assert answer is None
        return
    assert_agrees(world.cluster.fleet, explanation)
    if answer is None:
        filters = {name for group in explanation.groups for name in group["filters"]}
        assert "resource-claims" in filters or "dynamic-resources" not in filters
        return
    for each in answer["requests"]:
        assert each["devices"] == each["found"] + sum(cause["devices"] for cause in each["leftOut"])
        assert each["enough"] <= answer["nodes"]
    if len(requests) == 1 and len(answer["requests"]) == 1 and not constraints:
        [only] = answer["requests"]
        assert only["enough"] == 0
        _assert_found(world, requests[0]["exactly"], only)


def _assert_found(world: World, exact: Raw, only: RequestedDevices) -> None:
    """Check that a claim for what was found on a node is met there, and that one for one device more is not."""
    fields = {key: value for key, value in exact.items() if key not in ("deviceClassName", "allocationMode", "count")}
    for name in only["nodes"]:
        assert not isinstance(on_node(world, alone(world, fields, only["most"] + 1), name), Placement)
        assert isinstance(on_node(world, alone(world, fields, only["most"]), name), Placement)
