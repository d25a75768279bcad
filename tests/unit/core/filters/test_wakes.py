"""Each filter wakes a pod on every event that can make it fit."""

from collections.abc import Callable

import pytest

from berth_api import names
from berth_api.request.model import of_pod
from berth_operator.core import filters
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import NodeTerm, PendingPod, PodRequest, Taint
from berth_operator.core.values.verdict import Change
from berth_operator.state.objects import nodes
from tests.builders import (
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RDMA,
    T4,
    add,
    asks,
    card,
    cards,
    charge,
    grant,
    inventory,
    label,
    listens,
    node_info,
    other_card,
    waiting,
)

Act = Callable[[Fleet], object]

NODE = node_info("node")
T4_ONLY = asks({GPU: 50}, model=of_pod({names.MODEL_GLOBS: "*T4*"}, {}))


def node_is(**fields: object) -> Act:
    return lambda fleet: fleet.put_node(node_info("node", **fields))  # type: ignore[arg-type]


def device_is(*cards_: object, fresh: bool = True) -> Act:
    def act(fleet: Fleet) -> None:
        fleet.put_device("node", inventory(*cards_))  # type: ignore[arg-type]
        fleet.set_fresh("node", fresh=fresh)

    return act


def holds(*grants: object, **fields: object) -> Act:
    return lambda fleet: fleet.charge(charge("holder", *grants, **fields))  # type: ignore[arg-type]


def both(*acts: Act) -> Act:
    def act(fleet: Fleet) -> None:
        for each in acts:
            each(fleet)

    return act


def leaves(fleet: Fleet) -> None:
    fleet.release("uid-holder")


def heard(fleet: Fleet) -> None:
    fleet.set_fresh("node", fresh=True)


HALF = grant(0, core=50, ratio=50)

CASES = [
    pytest.param("node-ready", asks(), node_is(ready=False), node_is(), Change.NODE_TAINTS, id="node ready"),
    pytest.param(
        "node-ready", asks(), node_is(unreachable=True), node_is(), Change.NODE_TAINTS, id="node heard of again"
    ),
    pytest.param("cordon", asks(), node_is(cordoned=True), node_is(), Change.NODE_TAINTS, id="uncordoned"),
    pytest.param("taints", asks(), node_is(taints=[Taint(key="a")]), node_is(), Change.NODE_TAINTS, id="taint gone"),
    pytest.param(
        "node-selector",
        asks(selector={"zone": "x"}),
        node_is(),
        node_is(labels={"zone": "x"}),
        Change.NODE_LABELS,
        id="labelled",
    ),
    pytest.param(
        "node-affinity",
        asks(affinity=[NodeTerm(labels=(label("zone", "NotIn", "x"),))]),
        node_is(labels={"zone": "x"}),
        node_is(labels={"zone": "y"}),
        Change.NODE_LABELS,
        id="labelled as the affinity wants",
    ),
    pytest.param(
        "resources", asks({"cpu": 1000}), node_is(cpu=0), node_is(), Change.NODE_ALLOCATABLE, id="more allocatable"
    ),
    pytest.param(
        "resources",
        asks({"example.com/x": 1}),
        node_is(),
        node_is(more={"example.com/x": 1}),
        Change.NODE_ALLOCATABLE,
        id="a new resource",
    ),
    pytest.param(
        "resources",
        asks({NVIDIA: 1}),
        both(node_is(offered={}), device_is(card())),
        node_is(),
        Change.NODE_ALLOCATABLE,
        id="a device plugin's offer",
    ),
    pytest.param(
        "resources",
        asks({"cpu": 1000}),
        both(node_is(), holds(resources=(("cpu", 64_000),))),
        leaves,
        Change.CAPACITY_FREED,
        id="cpu released",
    ),
    pytest.param(
        "resources",
        asks(),
        both(node_is(pods=1), holds(resources=(("pods", 1),))),
        leaves,
        Change.CAPACITY_FREED,
        id="a pod's place released",
    ),
    pytest.param(
        "declared-features",
        asks(features=["x"]),
        node_is(),
        node_is(features=["x"]),
        Change.NODE_FEATURES,
        id="a newer kubelet",
    ),
    pytest.param(
        "host-ports",
        asks(ports=[listens()]),
        both(node_is(), holds(ports=(listens(),))),
        leaves,
        Change.CAPACITY_FREED,
        id="a host port released",
    ),
    pytest.param(
        "isolation",
        asks({GPU: 50}, isolation="mps"),
        both(node_is(), device_is(card())),
        node_is(labels={names.ISOLATION_KEY: "mps"}),
        Change.NODE_LABELS,
        id="a node of MPS",
    ),
    pytest.param(
        "isolation",
        asks({GPU: 50}),
        both(node_is(), device_is(*cards(2)), holds(HALF, isolation="mps")),
        leaves,
        Change.CAPACITY_FREED,
        id="the last pod with MPS left",
    ),
    pytest.param("devices", asks({NVIDIA: 1}), node_is(), device_is(card()), Change.DEVICE, id="a Device appears"),
    pytest.param(
        "devices", asks({NVIDIA: 1}), both(node_is(), device_is(card(), fresh=False)), heard, Change.DEVICE, id="heard"
    ),
    pytest.param(
        "devices",
        asks({NVIDIA: 2}),
        both(node_is(), device_is(card(0), card(1, healthy=False))),
        device_is(*cards(2)),
        Change.DEVICE,
        id="a card recovers",
    ),
    pytest.param(
        "devices", T4_ONLY, both(node_is(), device_is(card())), device_is(card(model=T4)), Change.DEVICE, id="a model"
    ),
    pytest.param(
        "devices",
        asks({MEMORY: 20 * GI}),
        both(node_is(), device_is(card(memory=GI))),
        device_is(card()),
        Change.DEVICE,
        id="a larger card",
    ),
    pytest.param(
        "devices",
        asks({"amd.com/gpu": 1}),
        both(node_is(), device_is(card())),
        lambda fleet: fleet.put_device("node", inventory(card(), vendor="amd")),
        Change.DEVICE,
        id="another vendor",
    ),
    pytest.param(
        "devices",
        asks({GPU: 60}),
        both(node_is(), device_is(card()), holds(HALF)),
        leaves,
        Change.CAPACITY_FREED,
        id="a share released",
    ),
    pytest.param(
        "devices",
        asks({NVIDIA: 1}),
        both(node_is(), device_is(*cards(8)), holds(unknown=("gpu",))),
        leaves,
        Change.CAPACITY_FREED,
        id="a pod of unknown devices leaves",
    ),
    pytest.param(
        "devices",
        asks({NVIDIA: 1}),
        both(node_is(), device_is(*cards(8)), holds(unknown=("gpu",))),
        holds(grant(3, core=100, ratio=100)),
        Change.CAPACITY_FREED,
        id="an unknown allocation becomes known",
    ),
    pytest.param(
        "devices",
        asks({RDMA: 100}),
        both(node_is(), device_is(card())),
        device_is(card(), other_card("rdma")),
        Change.DEVICE,
        id="a NIC appears",
    ),
]


def failed(fleet: Fleet, pod: PendingPod) -> Failure:
    outcome = decide(fleet, pod, Policy())
    assert isinstance(outcome, Failure)
    return outcome


@pytest.mark.parametrize(("name", "wanted", "before", "change", "event"), CASES)
def test_what_makes_a_pod_fit_wakes_it(name: str, wanted: PodRequest, before: Act, change: Act, event: Change) -> None:
    fleet, pod = Fleet(), waiting("pod", wanted)
    queue: Queue[PendingPod] = Queue()
    before(fleet)
    failure = failed(fleet, pod)
    assert next(each for each in filters.ORDER if name == each.NAME).WAKES_ON & event
    queue.put(pod)
    queue.pop(0.0)
    queue.park(pod, failure)
    change(fleet)
    queue.wake(event)
    assert queue.pop(0.0) == pod
    assert isinstance(decide(fleet, pod, Policy()), Placement)


FAILING = [pytest.param(*case.values[:3], id=str(case.id)) for case in CASES]


@pytest.mark.parametrize(("name", "wanted", "before"), FAILING)
def test_a_pod_waits_for_its_filters_changes_and_no_others(name: str, wanted: PodRequest, before: Act) -> None:
    fleet = Fleet()
    before(fleet)
    module = next(each for each in filters.ORDER if name == each.NAME)
    assert failed(fleet, waiting("pod", wanted)).wakes_on == module.WAKES_ON | Change.NODE_ADDED


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(asks(), id="plain"),
        pytest.param(asks({NVIDIA: 1}), id="a card"),
        pytest.param(asks(selector={"zone": "x"}), id="a selector"),
    ],
)
def test_a_new_node_wakes_whatever_the_others_lack(wanted: PodRequest) -> None:
    fleet = Fleet()
    add(fleet, node_info("node", cordoned=True, ready=False, cpu=0, taints=[Taint(key="a")]))
    assert failed(fleet, waiting("pod", wanted)).wakes_on & Change.NODE_ADDED


def test_a_pod_that_asks_for_what_we_cannot_honour_is_only_woken_by_new_nodes() -> None:
    fleet = Fleet()
    add(fleet, NODE)
    assert failed(fleet, waiting("pod", asks(unsupported=["hostPort"]))).wakes_on == Change.NODE_ADDED


def test_nodes_that_fail_for_different_reasons_add_up_their_changes() -> None:
    fleet = Fleet()
    add(fleet, node_info("a", cordoned=True))
    add(fleet, node_info("b", cpu=0))
    wakes_on = failed(fleet, waiting("pod", asks({"cpu": 1}))).wakes_on
    assert wakes_on == Change.NODE_TAINTS | resources.WAKES_ON


def test_the_filters_that_read_nodes_wake_on_what_a_node_can_change() -> None:
    """Every change of a NodeInfo is reported by `nodes.change`, and some filter waits for it."""
    heard_of = Change(0)
    for each in filters.ORDER:
        heard_of |= each.WAKES_ON
    assert nodes.change(NODE, node_info("node", labels={"a": "b"})) & heard_of
    assert nodes.change(NODE, node_info("node", cordoned=True)) & heard_of
    assert nodes.change(NODE, node_info("node", ready=False)) & heard_of
    assert nodes.change(NODE, node_info("node", taints=[Taint(key="a")])) & heard_of
    assert nodes.change(NODE, node_info("node", cpu=1)) & heard_of
    assert nodes.change(NODE, NODE) == Change(0)
