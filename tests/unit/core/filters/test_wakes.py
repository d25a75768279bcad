"""Each filter wakes a pod on every event that can make it fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from berth_operator.core.values.storage import READ_WRITE_ONCE_POD, StorageClass
from berth_operator.core.values.verdict import Change
from berth_operator.state.objects import nodes
from tests.objects.builders import (
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
from tests.objects.volumes import DRIVER, MADE, bound, capacity, claim, csi, mounts, put, volume, wants, zoned

Act = Callable[[Fleet], object]

NODE = node_info("node")
ZONE_X, FEATURES = {"zone": "x"}, Change.NODE_FEATURES
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
NOT_X = asks(affinity=[NodeTerm(labels=(label("zone", "NotIn", "x"),))])
UNKNOWN = both(node_is(), device_is(*cards(8)), holds(unknown=("gpu",)))
AMD = inventory(card(), vendor="amd")
X = "example.com/x"
CPU_IN_USE = both(node_is(), holds(resources=(("cpu", 64_000),)))
PODS_IN_USE = both(node_is(pods=1), holds(resources=(("pods", 1),)))
PORT_IN_USE = both(node_is(), holds(ports=(listens(),)))
OF_MPS = node_is(labels={names.ISOLATION_KEY: "mps"})
HELD_BY_MPS = both(node_is(), device_is(*cards(2)), holds(HALF, isolation="mps"))
A_CARD = both(node_is(), device_is(card()))
SMALL_CARD = both(node_is(), device_is(card(memory=GI)))
SILENT = both(node_is(), device_is(card(), fresh=False))
ONE_FAILED = both(node_is(), device_is(card(0), card(1, healthy=False)))
HALF_IN_USE = both(node_is(), device_is(card()), holds(HALF))
NOT_OFFERED = both(node_is(offered={}), device_is(card()))

CASES = {
    "node ready": ("node-ready", asks(), node_is(ready=False), node_is(), Change.NODE_TAINTS),
    "node heard of again": ("node-ready", asks(), node_is(unreachable=True), node_is(), Change.NODE_TAINTS),
    "uncordoned": ("cordon", asks(), node_is(cordoned=True), node_is(), Change.NODE_TAINTS),
    "taint gone": ("taints", asks(), node_is(taints=[Taint(key="a")]), node_is(), Change.NODE_TAINTS),
    "labelled": ("node-selector", asks(selector=ZONE_X), node_is(), node_is(labels=ZONE_X), Change.NODE_LABELS),
    "labelled as the affinity wants": (
        "node-affinity",
        NOT_X,
        node_is(labels=ZONE_X),
        node_is(labels={"zone": "y"}),
        Change.NODE_LABELS,
    ),
    "more allocatable": ("resources", asks({"cpu": 1000}), node_is(cpu=0), node_is(), Change.NODE_ALLOCATABLE),
    "a new resource": ("resources", asks({X: 1}), node_is(), node_is(more={X: 1}), Change.NODE_ALLOCATABLE),
    "a device plugin's offer": ("resources", asks({NVIDIA: 1}), NOT_OFFERED, node_is(), Change.NODE_ALLOCATABLE),
    "cpu released": ("resources", asks({"cpu": 1000}), CPU_IN_USE, leaves, Change.CAPACITY_FREED),
    "a pod's place released": ("resources", asks(), PODS_IN_USE, leaves, Change.CAPACITY_FREED),
    "a newer kubelet": ("declared-features", asks(features=["x"]), node_is(), node_is(features=["x"]), FEATURES),
    "a host port released": ("host-ports", asks(ports=[listens()]), PORT_IN_USE, leaves, Change.CAPACITY_FREED),
    "a node of MPS": ("isolation", asks({GPU: 50}, isolation="mps"), A_CARD, OF_MPS, Change.NODE_LABELS),
    "the last pod with MPS left": ("isolation", asks({GPU: 50}), HELD_BY_MPS, leaves, Change.CAPACITY_FREED),
    "a Device appears": ("devices", asks({NVIDIA: 1}), node_is(), device_is(card()), Change.DEVICE),
    "heard": ("devices", asks({NVIDIA: 1}), SILENT, heard, Change.DEVICE),
    "a card recovers": ("devices", asks({NVIDIA: 2}), ONE_FAILED, device_is(*cards(2)), Change.DEVICE),
    "a model": ("devices", T4_ONLY, A_CARD, device_is(card(model=T4)), Change.DEVICE),
    "a larger card": ("devices", asks({MEMORY: 20 * GI}), SMALL_CARD, device_is(card()), Change.DEVICE),
    "another vendor": (
        "devices",
        asks({"amd.com/gpu": 1}),
        A_CARD,
        lambda fleet: fleet.put_device("node", AMD),
        Change.DEVICE,
    ),
    "a share released": ("devices", asks({GPU: 60}), HALF_IN_USE, leaves, Change.CAPACITY_FREED),
    "a pod of unknown devices leaves": ("devices", asks({NVIDIA: 1}), UNKNOWN, leaves, Change.CAPACITY_FREED),
    "an unknown allocation becomes known": (
        "devices",
        asks({NVIDIA: 1}),
        UNKNOWN,
        holds(grant(3, core=100, ratio=100)),
        Change.CAPACITY_FREED,
    ),
    "a NIC appears": ("devices", asks({RDMA: 100}), A_CARD, device_is(card(), other_card("rdma")), Change.DEVICE),
}
"""The filter that rejects a pod, what the pod requests, a node, and the change after which it fits, with its event."""


# --- volumes ----------------------------------------------------------------------------------------------------


def then(*objects: object, **fields: Any) -> Act:
    return lambda fleet: put(fleet, *objects, **fields)


def given(*objects: object, **fields: Any) -> Act:
    """Make a node, and claims, classes and volumes."""
    return both(node_is(), then(*objects, **fields))


def tracked(fleet: Fleet) -> None:
    given(claim(storage_class="made"))(fleet)
    fleet.volumes.tracked.add(DRIVER)


CLAIM, ZONED, OF_X = wants("claim"), node_is(labels=ZONE_X), volume(on=["x"])
USER, OTHERS_USER = holds(mounts=mounts("claim")), holds(mounts=mounts("other"))
LATE = StorageClass(name="late", provisioner=DRIVER, delayed=True)
C3 = [bound(), volume(attachable=csi("h"), csi=True)]
OTHER = [bound("other", "w"), volume("w", attachable=csi("w"), csi=True)]
IN_Z = replace(MADE, topologies=zoned(["z"]))
SPACE = replace(capacity(10 * GI, "x"), nodes=(NodeTerm(labels=(label("zone", "DoesNotExist"),)),))
IN_USE = both(given(bound(modes=frozenset({READ_WRITE_ONCE_POD})), volume()), USER)
FULL = both(given(*C3, *OTHER, limits={"node": 1}), OTHERS_USER)
NOT_MADE = given(claim(storage_class="made"), IN_Z)
NO_LIMIT, A_LIMIT = given(*C3, limits={"node": 0}), then(limits={"node": 1})

OF_VOLUMES = {
    "the claim comes": ("volume-claims", CLAIM, given(), then(claim(), volume()), Change.VOLUME_CLAIM),
    "the claim is bound": (
        "volume-claims",
        CLAIM,
        given(claim(storage_class="")),
        then(bound(), volume()),
        Change.VOLUME_CLAIM,
    ),
    "its class comes": ("volume-claims", CLAIM, given(claim(storage_class="late")), then(LATE), Change.STORAGE_CLASS),
    "its volume comes": ("volume-affinity", CLAIM, given(bound()), then(volume()), Change.VOLUME),
    "labelled for a volume": ("volume-affinity", CLAIM, given(bound(), OF_X), ZONED, Change.NODE_LABELS),
    "a volume comes": ("volume-binding", CLAIM, given(claim()), then(volume()), Change.VOLUME),
    "a label comes": ("volume-binding", CLAIM, given(claim(), OF_X), ZONED, Change.NODE_LABELS),
    "made everywhere": ("volume-binding", CLAIM, NOT_MADE, then(MADE), Change.STORAGE_CLASS),
    "space": ("volume-binding", CLAIM, tracked, then(SPACE), Change.STORAGE_CAPACITY),
    "its user leaves": ("volume-in-use", CLAIM, IN_USE, leaves, Change.POD_DELETED),
    "a limit": ("volume-limits", CLAIM, NO_LIMIT, A_LIMIT, Change.VOLUME_LIMITS),
    "a volume leaves": ("volume-limits", CLAIM, FULL, leaves, Change.CAPACITY_FREED),
}
EVERY_CASE = {**CASES, **OF_VOLUMES}


def failed(fleet: Fleet, pod: PendingPod) -> Failure:
    outcome = decide(fleet, pod, Policy())
    assert isinstance(outcome, Failure)
    return outcome


@pytest.mark.parametrize(("name", "wanted", "before", "change", "event"), EVERY_CASE.values(), ids=EVERY_CASE)
def test_what_makes_a_pod_fit_wakes_it(name: str, wanted: PodRequest, before: Act, change: Act, event: Change) -> None:
    fleet, pod = Fleet(), waiting("pod", wanted)
    queue: Queue[PendingPod] = Queue()
    before(fleet)
    failure = failed(fleet, pod)
    module = next(each for each in filters.ORDER if name == each.NAME)
    assert failure.wakes_on == module.WAKES_ON | Change.NODE_ADDED
    assert module.WAKES_ON & event
    queue.put(pod)
    queue.pop(0.0)
    queue.park(pod, failure)
    change(fleet)
    queue.wake(event)
    assert queue.pop(0.0) == pod
    assert isinstance(decide(fleet, pod, Policy()), Placement)


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
