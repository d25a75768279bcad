"""Measurements reach the cards of their own node, and wake pods that may then fit."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.filters import measured_memory
from berth_operator.core.values.gpu_metrics import UNKNOWN, CardSample, Quantity
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.gpu_metrics import OTHER_NODE, UNKNOWN_CARD, Freshness
from berth_operator.state.objects import pods
from tests.objects import builders
from tests.objects.builders import GI, NVIDIA, card, charge, device, entry, grant, node, pod, popped

MEMORY = 80 * GI
STALE_AFTER = 60.0
REASON = "node(s) have too few GPUs with enough measured free memory (1 requested with gpu-memory 40Gi)"


class World:
    """Two nodes with two cards each, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cluster = Cluster(grace=1e9, clock=lambda: self.now)
        for name in "ab":
            cards = [entry(minor, memory=str(MEMORY), id=f"GPU-{name}{minor}") for minor in range(2)]
            self.cluster.node_cache.put_node(node(name))
            self.cluster.node_cache.put_device(device(name, *cards))

    def measure(self, *samples: CardSample) -> Mapping[str, int]:
        self.cluster.gpu_metrics.begin()
        dropped = self.cluster.gpu_metrics.put(samples)
        self.cluster.gpu_metrics.apply(STALE_AFTER)
        return dropped

    def free(self) -> dict[str, float]:
        """Return the measured free memory in GiB of each card that was measured."""
        gpus, fleet = self.cluster.fleet.cards["gpu"], self.cluster.fleet
        return {
            gpus.ids[row][minor]: float(gpus.measured[Quantity.FREE_MEMORY, row, slot]) / GI
            for row in fleet.rows.values()
            for slot, minor in enumerate(gpus.minor[row].tolist())
            if gpus.measured_at[row, slot] > 0
        }

    def put_waiting(self, **labels: str) -> None:
        named = {f"genius/{name.replace('_', '-')}": value for name, value in labels.items()}
        self.cluster.put_pending(pod(labels=named))

    def decide(self) -> Placement | Failure | None:
        """Decide the next active pod, and park it if it does not fit; None if there is none."""
        pending = popped(self.cluster.queue)
        if pending is None:
            return None
        outcome = decide(self.cluster.fleet, pending, Policy())
        if isinstance(outcome, Failure):
            self.cluster.queue.park(pending, outcome)
        return outcome


def sample(uuid: str, free: float = 80.0, node: str = "", age: float = 0.0) -> CardSample:
    values = (free * GI, 0.0, 0.0, 0.0, 50.0, 400.0, UNKNOWN)
    return CardSample(uuid=uuid, node=node, age=age, values=values)


def all_cards(free: float, age: float = 0.0) -> list[CardSample]:
    return [sample(f"GPU-{name}{minor}", free, age=age) for name in "ab" for minor in range(2)]


# --- whose card it is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "known", "dropped"),
    [
        pytest.param(sample("GPU-a0", node="a"), {"GPU-a0": 80}, {}, id="of its own node"),
        pytest.param(sample("GPU-a0"), {"GPU-a0": 80}, {}, id="without a node"),
        pytest.param(sample("GPU-a0", node="dcgm-exporter-x7k2"), {"GPU-a0": 80}, {}, id="a host that is no node"),
        pytest.param(sample("GPU-a0", node="b"), {}, {OTHER_NODE: 1}, id="another node's card"),
        pytest.param(sample("GPU-c0", node="b"), {}, {OTHER_NODE: 1}, id="a card that the node does not have"),
        pytest.param(sample("GPU-c0"), {}, {UNKNOWN_CARD: 1}, id="a card that no Device lists"),
        pytest.param(sample(""), {}, {UNKNOWN_CARD: 1}, id="no card"),
    ],
)
def test_a_sample_counts_for_a_card_of_its_own_node(
    measured: CardSample, known: dict[str, float], dropped: dict[str, int]
) -> None:
    world = World()
    assert world.measure(measured) == dropped
    assert world.free() == known


def test_a_card_that_two_devices_list_counts_only_with_the_name_of_its_node() -> None:
    world = World()
    world.cluster.node_cache.put_device(device("b", entry(0, memory=str(MEMORY), id="GPU-a0"), generation=2))
    assert world.measure(sample("GPU-a0", 7)) == {UNKNOWN_CARD: 1}
    assert world.free() == {}
    assert world.measure(sample("GPU-a0", 9, node="a")) == {}
    assert world.free() == {"GPU-a0": 9}


def test_of_several_samples_of_a_card_the_first_that_is_its_own_counts() -> None:
    world = World()
    for _ in range(2):
        before = world.cluster.waker.version
        dropped = world.measure(sample("GPU-a0", 10, node="b"), sample("GPU-a0", 20, node="a"), sample("GPU-a0", 30))
        assert (dropped, world.free(), world.cluster.waker.version) == ({OTHER_NODE: 1}, {"GPU-a0": 20}, before)


def test_a_device_that_changes_during_a_refresh_is_not_mixed_up() -> None:
    world = World()
    world.cluster.gpu_metrics.begin()
    world.cluster.node_cache.put_device(device("a", entry(0, memory=str(MEMORY), id="GPU-new"), generation=2))
    assert world.cluster.gpu_metrics.put([sample("GPU-a0"), sample("GPU-a1"), sample("GPU-b0")]) == {UNKNOWN_CARD: 2}


# --- how old it is ----------------------------------------------------------------------------------------------


def test_what_is_too_old_is_forgotten() -> None:
    world = World()
    state = world.cluster.gpu_metrics
    assert state.freshness() == Freshness(fresh=0, stale=4, newest=None)
    world.measure(*all_cards(80, age=10.0))
    world.measure(sample("GPU-a0", 70, age=0.0))
    assert state.freshness() == Freshness(fresh=4, stale=0, newest=100.0)
    world.now += 50.0
    state.apply(STALE_AFTER)
    assert state.freshness() == Freshness(fresh=4, stale=0, newest=100.0)
    world.now += 1.0
    state.apply(STALE_AFTER)
    assert (state.freshness(), world.free()) == (Freshness(fresh=1, stale=3, newest=100.0), {"GPU-a0": 70})
    world.now += 10.0
    state.apply(STALE_AFTER)
    assert state.freshness() == Freshness(fresh=0, stale=4, newest=100.0)


# --- memory that Genius' labels request -------------------------------------------------------------------------


def test_a_pod_by_labels_waits_for_measured_memory_and_wakes_with_it() -> None:
    world = World()
    world.measure(*all_cards(30))
    world.put_waiting(gpu_memory_each=str(40 * 1024))
    outcome = world.decide()
    assert isinstance(outcome, Failure)
    assert dict(outcome.reasons) == {REASON: 2}
    assert outcome.wakes_on & Change.GPU_METRICS
    # A refresh in which no more is free does nothing, and one in which it is not enough wakes nothing.
    before = world.cluster.waker.version
    world.measure(*all_cards(30))
    world.measure(*all_cards(29))
    assert (world.decide(), world.cluster.waker.version) == (None, before)
    world.measure(*all_cards(35))
    assert world.decide() is None
    world.measure(sample("GPU-b1", 50))
    placement = world.decide()
    assert isinstance(placement, Placement)
    assert (placement.node, [grant.id for grant in placement.grants]) == ("b", ["GPU-b1"])


@pytest.mark.parametrize("stale", [False, True])
def test_what_is_stale_or_never_measured_does_not_keep_a_pod_waiting(*, stale: bool) -> None:
    world = World()
    if stale:
        world.measure(*all_cards(30))
    world.put_waiting(gpu_memory_each=str(40 * 1024))
    assert isinstance(world.decide(), Failure if stale else Placement)
    if stale:
        world.now += STALE_AFTER + 1
        world.cluster.gpu_metrics.apply(STALE_AFTER)
        assert isinstance(world.decide(), Placement)


def test_of_nodes_that_fill_up_alike_only_the_one_with_measured_memory_is_taken() -> None:
    world = World()
    world.measure(*all_cards(80))
    request = pods.pending(pod(labels={"genius/gpu-memory-each": str(20 * 1024)})).request
    rows = world.cluster.fleet.rows
    for free in (80, 25):
        world.measure(sample("GPU-a0", free), sample("GPU-a1", free), *all_cards(80))
        assert measured_memory.passes(world.cluster.fleet, request)[[rows["a"], rows["b"]]].tolist() == [True, True]
    for number, name in enumerate("ab"):
        for minor in range(2):
            share = grant(minor, core=10, ratio=10, memory=8 * GI)
            share = replace(share, id=f"GPU-{name}{minor}")
            world.cluster.fleet.charge(charge(f"{number}-{minor}", share, node=name))
        passing = measured_memory.passes(world.cluster.fleet, request)
    assert passing[[rows["a"], rows["b"]]].tolist() == [False, True]


@pytest.mark.parametrize(("foreign", "victims"), [(40, ["ns/low"]), (50, [])])
def test_a_pod_is_preempted_if_its_memory_is_what_is_missing(foreign: int, victims: list[str]) -> None:
    """Of 80 GiB the pod of lower priority has 30; processes outside Kubernetes use the rest of what is not free."""
    fleet = builders.fleet({"node": (card(memory=MEMORY),)})
    fleet.charge(charge("low", grant(core=30, ratio=37, memory=30 * GI), priority=1))
    row = fleet.rows["node"]
    fleet.measure(row, 0, (float(50 - foreign) * GI, *[UNKNOWN] * (len(Quantity) - 1)), 1.0)
    fleet.measured()
    pending = pods.pending(pod(labels={"genius/gpu-memory-each": str(40 * 1024)}, priority=10))
    outcome = decide(fleet, pending, Policy())
    assert isinstance(outcome, Failure)
    assert dict(outcome.reasons) == {REASON: 1}
    assert measured_memory.could_pass(fleet, pending.request)[row] == bool(victims)
    found = preempt(fleet, pending, Policy(), Budgets())
    assert ([victim.pod for victim in found.victims] if found else []) == victims


@pytest.mark.parametrize(
    ("requests", "labels"),
    [
        pytest.param({NVIDIA: "1"}, {}, id="a whole card"),
        pytest.param({"kubernetes.io/gpu-memory": "40Gi"}, {}, id="memory by a resource"),
        pytest.param({}, {"genius/gpu-number": "1"}, id="a number by a label"),
    ],
)
def test_no_other_request_is_compared_with_measured_memory(requests: dict[str, str], labels: dict[str, str]) -> None:
    world = World()
    world.measure(*all_cards(0))
    world.cluster.put_pending(pod(requests=requests, labels=labels))
    assert isinstance(world.decide(), Placement)
