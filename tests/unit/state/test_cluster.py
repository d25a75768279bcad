"""The cluster state: the effect of events, decisions and answers, in any order."""

from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_api.allocation import Grant, render
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.values.charge import NOT_STARTED
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.unknown_allocations import KUBELET_SECONDS
from berth_operator.state.cache.views import StatusKind
from tests.objects.builders import (
    FPGA,
    GPU,
    NVIDIA,
    condition,
    decided,
    device,
    entry,
    every_pod,
    half,
    instance,
    lease,
    node,
    parked,
    pod,
    whole,
)
from tests.stand_ins.recorder import Recorder

Raw = dict[str, Any]


class World:
    """A cluster with a controlled clock and listeners: one node with two cards, and a live agent."""

    def __init__(self, *, confined: bool = False) -> None:
        self.now = 100.0
        self.recorder = Recorder()
        self.cluster = Cluster(grace=20.0, confined=confined, listener=self.recorder, clock=lambda: self.now)
        self.cluster.node_cache.put_node(node())
        self.cluster.node_cache.put_device(device("node", entry(0), entry(1)))
        self.recorder.clear()
        self.pods = every_pod(self.cluster)

    @property
    def dirty(self) -> list[str]:
        """Return the nodes whose status may have changed."""
        return self.recorder.names(StatusKind.NODE) or self.recorder.names(StatusKind.DEVICE)

    def decided(self) -> list[Placement | Failure]:
        return decided(self.cluster, self.now)

    def placed(self) -> Placement:
        (outcome,) = self.decided()
        assert isinstance(outcome, Placement), outcome
        return outcome

    def users(self) -> list[int]:
        """Return the number of pods on each card of the node."""
        row = self.cluster.fleet.rows["node"]
        cards = self.cluster.fleet.cards["gpu"]
        return [int(cards.users[row, slot]) for slot in cards.slots(row)]

    def reported(self) -> list[str]:
        """Return the pods whose devices are still unknown once kubelet has had its time to report."""
        self.now += KUBELET_SECONDS
        self.cluster.unknown_allocations.report()
        return [charge.pod for charge in self.recorder.unknown]


HALF = pod("a", {GPU: "50"})
BOUND = pod("a", {GPU: "50"}, on="node", allocated=half())


# --- assume, confirm, forget ------------------------------------------------------------------------------------


def test_a_confirmed_bind_of_several_types_is_the_same_as_decided() -> None:
    world = World()
    fpga = entry(0, type="fpga", id="F", resources={FPGA: "100"})
    world.cluster.node_cache.put_device(device("node", entry(0), fpga, generation=2))
    world.pods.apply("ADDED", pod("a", {NVIDIA: "1", FPGA: "100"}))
    world.placed()
    before = world.cluster.fleet.charges["uid-a"]
    # The annotation has the types in the order of their names.
    allocated = {"fpga": [{"minor": 0, "resources": {FPGA: "100"}, "id": "F"}], **whole(0)}
    world.pods.apply("ADDED", pod("a", {NVIDIA: "1", FPGA: "100"}, on="node", allocated=allocated))
    assert world.cluster.fleet.charges["uid-a"] is before


@pytest.mark.parametrize(
    ("confirmed", "same"),
    [
        pytest.param((instance(0, 0), instance(0, 1), instance(0, 9, "2g.20gb")), True, id="the same"),
        pytest.param((instance(0, 9, "2g.20gb"), instance(0, 1), instance(0, 0)), True, id="in another order"),
        pytest.param((instance(0, 0), instance(0, 3), instance(0, 9, "2g.20gb")), False, id="another instance"),
        pytest.param((instance(0, 0), instance(0, 1)), False, id="one less"),
    ],
)
def test_a_confirmed_bind_of_instances_is_the_same_as_decided_if_they_are(
    confirmed: tuple[Grant, ...], *, same: bool
) -> None:
    world = World()
    raw = {"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-2g.20gb": "1"}
    decided = (instance(0, 0), instance(0, 1), instance(0, 9, "2g.20gb"))
    world.pods.apply("ADDED", pod("a", raw, on="node", allocated=render(decided)))
    before = world.cluster.fleet.charges["uid-a"]
    world.pods.apply("MODIFIED", pod("a", raw, on="node", allocated=render(confirmed)))
    assert (world.cluster.fleet.charges["uid-a"] is before) is same


def test_the_label_of_a_bind_makes_no_other_pod_of_it() -> None:
    world = World()
    world.pods.apply("ADDED", pod("a", {NVIDIA: "1"}, labels={"app": "x"}))
    world.placed()
    before = world.cluster.fleet.charges["uid-a"]
    labels = {"app": "x", names.FENCED_BY: "berth"}
    world.pods.apply("ADDED", pod("a", {NVIDIA: "1"}, labels=labels, on="node", allocated=whole(0)))
    assert world.cluster.fleet.charges["uid-a"] is before


def test_a_pod_that_begins_to_terminate_wakes_no_pod_that_lacks_capacity() -> None:
    world = World()
    world.pods.apply("ADDED", HOLDER)
    world.pods.apply("ADDED", pod("a", {NVIDIA: "1"}))
    assert [type(each) for each in world.decided()] == [Failure]
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.pods.apply("MODIFIED", pod("h", {NVIDIA: "2"}, metadata=leaving, on="node", allocated=whole(0, 1)))
    assert world.decided() == []
    assert world.cluster.fleet.charges["uid-h"].terminating
    world.pods.apply("DELETED", HOLDER)
    world.placed()


# --- repeated lists ---------------------------------------------------------------------------------------------


def test_a_pod_made_again_under_its_name_holds_its_own() -> None:
    world = World()
    world.pods.apply("ADDED", BOUND)
    world.pods.apply("ADDED", pod("a", {NVIDIA: "1"}, uid="new"))
    placement = world.placed()
    assert [grant.minor for grant in placement.grants] == [1]
    world.pods.apply("DELETED", BOUND)
    assert world.users() == [0, 1]


def test_a_bound_pod_may_ask_for_what_no_node_has_yet() -> None:
    cluster = Cluster(grace=20.0, clock=lambda: 0.0)
    cluster.put_bound(pod("a", {"ephemeral-storage": "1Gi", "cpu": "1"}, on="node"))
    cluster.node_cache.put_node(node(allocatable={"ephemeral-storage": "1Gi"}))
    outcome = parked(cluster, pod("b", {"ephemeral-storage": "1"}))
    assert outcome.message == "0/1 nodes are available: 1 Insufficient ephemeral-storage."


# --- pods that wait ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param({"schedulingGates": [{"name": "x"}]}, id="gated"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, id="being deleted"),
    ],
)
def test_a_pod_that_is_not_to_be_scheduled_does_not_wait(gate: Raw) -> None:
    world = World()
    world.pods.apply("ADDED", HALF)
    world.pods.apply("MODIFIED", pod("a", {GPU: "50"}, **gate))
    assert world.decided() == []
    assert world.recorder.settled == ["uid-a"]


def test_a_pod_that_means_nothing_is_decided_once_and_again_when_it_is_changed() -> None:
    world = World()
    world.pods.apply("ADDED", pod("a", labels={"genius/priority": "high"}))
    (outcome,) = world.decided()
    assert isinstance(outcome, Failure)
    world.cluster.waker.changed(Change.NODE_ADDED)
    assert world.decided() == []
    world.pods.apply("MODIFIED", pod("a", labels={"genius/priority": "1"}))
    world.placed()


# --- released capacity wakes ------------------------------------------------------------------------------------


def _three_cards(generation: int) -> Raw:
    return device("node", entry(0), entry(1), entry(2), generation=generation)


HOLDER = pod("h", {NVIDIA: "2"}, on="node", allocated=whole(0, 1))


def test_a_device_is_read_again_when_its_generation_moves_and_not_before() -> None:
    cluster = World().cluster
    read = cluster.node_cache.devices["node"].inventory
    cluster.node_cache.put_device(_three_cards(generation=1))
    assert cluster.node_cache.devices["node"].inventory == read
    cluster.node_cache.put_device(_three_cards(generation=2))
    assert len(cluster.node_cache.devices["node"].inventory.cards) == 3
    cluster.node_cache.put_device(device("node", entry(0), generation=2, uid="new"))
    assert len(cluster.node_cache.devices["node"].inventory.cards) == 1


def test_pods_of_one_second_are_decided_in_the_order_in_which_the_watch_showed_them() -> None:
    world = World()
    shown = [pod(name, {"cpu": str(number)}) for number, name in enumerate("cab", start=1)]
    for raw in (*shown, *reversed(shown)):  # listed again, as after a lost watch, they keep their place in the queue
        world.pods.apply("ADDED", raw)
    assert [each.pod.name for each in world.decided() if isinstance(each, Placement)] == ["c", "a", "b"]


# --- unknown allocations ----------------------------------------------------------------------------------------

LOST = pod("lost", {NVIDIA: "1"}, on="node")


def test_a_bound_pod_without_annotation_blocks_its_nodes_cards() -> None:
    world = World()
    world.pods.apply("ADDED", LOST)
    world.pods.apply("ADDED", HALF)
    (outcome,) = world.decided()
    assert isinstance(outcome, Failure)
    assert outcome.message.endswith("1 node(s) have pods whose GPU allocation is unknown.")
    world.pods.apply("DELETED", LOST)
    world.placed()


def test_a_pod_of_another_program_is_reported_and_blocks_no_card() -> None:
    world = World()
    world.pods.apply("ADDED", pod("blind", {GPU: "50"}, on="node"))
    assert world.reported() == ["ns/blind"]
    world.pods.apply("ADDED", HALF)
    world.placed()


def test_it_is_reported_when_node_and_device_are_known_too() -> None:
    world = World()
    other = pod("lost", {NVIDIA: "1"}, on="other")
    world.pods.apply("ADDED", other)
    assert world.reported() == []
    world.cluster.node_cache.put_node(node("other"))
    assert world.reported() == []
    world.cluster.node_cache.put_device(device("other"))
    assert world.reported() == ["ns/lost"]


# --- nodes and Devices ------------------------------------------------------------------------------------------


def test_a_node_without_device_takes_pods_without_devices() -> None:
    cluster = Cluster(grace=20.0, clock=lambda: 0.0)
    cluster.node_cache.put_node(node())
    for name, requests in (("a", {}), ("b", {NVIDIA: "1"})):
        cluster.put_pending(pod(name, requests))
    placed, waits = decided(cluster)
    assert isinstance(placed, Placement)
    assert isinstance(waits, Failure)
    assert waits.message == "0/1 nodes are available: 1 node(s) have no Device."


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        pytest.param(lambda world: world.cluster.node_cache.put_node(node(labels={"a": "b"})), ["node"], id="node"),
        pytest.param(lambda world: world.cluster.node_cache.put_node(node()), ["node"], id="node, edited sums perhaps"),
        pytest.param(lambda world: world.cluster.node_cache.remove_node("node"), ["node"], id="node gone"),
        pytest.param(lambda world: world.cluster.node_cache.put_device(device("node")), ["node"], id="device"),
        pytest.param(lambda world: world.cluster.node_cache.remove_device("node"), ["node"], id="device gone"),
        pytest.param(lambda world: world.pods.apply("ADDED", BOUND), ["node"], id="pod bound"),
        pytest.param(lambda world: world.pods.apply("DELETED", BOUND), [], id="unknown pod gone"),
        pytest.param(lambda world: world.pods.apply("ADDED", HALF), [], id="pod waits"),
    ],
)
def test_a_change_marks_its_node(change: Any, dirty: list[str]) -> None:
    world = World()
    change(world)
    assert world.dirty == dirty


# --- agents -----------------------------------------------------------------------------------------------------


def fresh(world: World) -> bool:
    return bool(world.cluster.fleet.fresh[world.cluster.fleet.rows["node"]])


def test_a_stale_agents_cards_are_not_handed_out_until_it_is_heard_again() -> None:
    world = World()
    world.cluster.node_cache.put_lease(lease(renewed="1"))
    world.now += 100.0
    world.cluster.node_cache.check_alive("node")
    assert not fresh(world)
    assert world.dirty == ["node"]
    world.pods.apply("ADDED", HALF)
    assert isinstance(world.decided()[0], Failure)
    world.cluster.node_cache.put_lease(lease(renewed="2"))
    assert fresh(world)
    world.placed()


def test_since_when_an_agent_is_silent_is_the_time_in_its_lease_and_does_not_change_by_itself() -> None:
    world = World()
    world.cluster.node_cache.put_lease(lease(renewed="2026-01-02T03:04:05.678901Z"))
    world.now += 100.0
    world.cluster.node_cache.check_alive("node")
    world.pods.apply("ADDED", HALF)
    failure = world.decided()[0]
    assert isinstance(failure, Failure)
    assert "not ready (agent silent since 2026-01-02T03:04:05Z)." in failure.message
    version, marked = world.cluster.waker.version, len(world.dirty)
    for _ in range(100):
        world.now += 1.0
        world.cluster.node_cache.check_alive("node")
    assert (world.cluster.waker.version, len(world.dirty)) == (version, marked)


def test_a_lease_of_before_the_start_shows_since_when_the_agent_is_silent() -> None:
    world = World()
    world.cluster.node_cache.remove_device("node")
    world.cluster.node_cache.put_device(device("node", entry(0), conditions=[condition("Ready", "Unknown")]))
    marked = len(world.dirty)
    world.cluster.node_cache.put_lease(lease(renewed="2026-01-02T03:04:05.678901Z"))
    assert not fresh(world)
    assert len(world.dirty) == marked + 1
    assert world.cluster.node_cache.view("node").last_renewal == "2026-01-02T03:04:05.678901Z"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param("Unknown", False, id="Unknown stays Unknown"),
        pytest.param("True", True, id="True is believed"),
        pytest.param("False", True, id="False is believed of the agent"),
    ],
)
def test_after_a_restart_the_devices_own_report_counts(status: str, *, expected: bool) -> None:
    cluster = Cluster(grace=20.0, clock=lambda: 0.0)
    cluster.node_cache.put_node(node())
    cluster.node_cache.put_lease(lease())
    cluster.node_cache.put_device(device("node", entry(0), conditions=[condition("Ready", status)]))
    assert bool(cluster.fleet.fresh[cluster.fleet.rows["node"]]) is expected
    assert cluster.node_cache.view("node").alive is expected


def test_a_lease_that_is_gone_makes_its_device_stale_in_time() -> None:
    world = World()
    world.cluster.node_cache.put_lease(lease())
    world.cluster.node_cache.remove_lease("node")
    world.now += 20.1
    world.cluster.node_cache.check_alive("node")
    assert not fresh(world)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"metadata": {"name": "node"}}, id="no spec"),
        pytest.param({"metadata": {"name": "node"}, "spec": None}, id="null spec"),
        pytest.param(lease(renewed="", duration=None), id="empty spec"),
        pytest.param(lease("stranger"), id="of no Device"),
    ],
)
def test_a_lease_that_says_nothing_changes_nothing(raw: Raw) -> None:
    world = World()
    world.cluster.node_cache.put_lease(raw)
    assert fresh(world)
    assert world.dirty == []


# --- snapshots for readers --------------------------------------------------------------------------------------


def test_a_view_of_an_unknown_object_is_empty() -> None:
    view = World().cluster.node_cache.view("stranger")
    assert (view.node, view.device, view.alive, view.charges) == (None, None, False, ())


@pytest.mark.parametrize(
    ("confined", "ours"), [pytest.param(False, True, id="alone"), pytest.param(True, False, id="one of several")]
)
def test_a_device_without_a_node_may_be_anothers(*, confined: bool, ours: bool) -> None:
    world = World(confined=confined)
    world.cluster.node_cache.remove_node("node")
    assert world.cluster.node_cache.view("node").ours is ours


# --- nominees and their victims ---------------------------------------------------------------------------------


def park(world: World, *, wakes_on: Change, **fields: Any) -> None:
    """Park a pod."""
    world.cluster.put_pending(pod("waits", {GPU: "100"}, **fields))
    pending = world.cluster.queue.pop(world.now)
    assert pending is not None
    world.cluster.queue.park(pending, Failure(message="no", wakes_on=wakes_on))


def is_awake(world: World) -> bool:
    pending = world.cluster.queue.pop(world.now)
    return pending is not None and pending.uid == "uid-waits"


def nominate(world: World, on: str = "node") -> None:
    world.cluster.put_pending(HALF)
    pending = world.cluster.queue.pop(world.now)
    assert isinstance(pending, PendingPod)
    placement = decide(world.cluster.fleet, pending, Policy())
    assert isinstance(placement, Placement)
    world.cluster.nominator.nominate(pending, replace(placement.charge, node=on))


def test_a_start_is_recorded_and_wakes_no_pod() -> None:
    world = World()
    world.pods.apply("ADDED", BOUND)
    park(world, wakes_on=Change.CAPACITY_FREED)
    before = world.cluster.fleet.charges["uid-a"]
    world.pods.apply("MODIFIED", {**BOUND, "status": {"startTime": "1970-01-01T00:00:09Z"}})
    after = world.cluster.fleet.charges["uid-a"]
    assert (before.started, after.started, after) == (NOT_STARTED, 9, before)
    assert list(world.cluster.fleet.on_node("node")) == [after]
    assert not is_awake(world)


def test_the_watch_does_not_undo_what_was_decided() -> None:
    world = World()
    nominate(world)
    for stale in ("", "elsewhere"):
        world.cluster.put_pending({**HALF, "status": {"nominatedNodeName": stale}})
        assert world.cluster.pending["uid-a"].nominated_node == "node"
    world.cluster.nominator.withdraw(world.cluster.pending["uid-a"])
    world.cluster.put_pending({**HALF, "status": {"nominatedNodeName": "node"}})
    assert world.cluster.pending["uid-a"].nominated_node == ""
    assert not world.cluster.fleet.nominees


def test_what_is_kept_for_a_pod_that_goes_is_free() -> None:
    world = World()
    nominate(world)
    park(world, wakes_on=Change.CAPACITY_FREED)
    world.pods.apply("DELETED", HALF)
    assert world.users() == [0, 0]
    assert is_awake(world)


@pytest.mark.parametrize(("on", "wakes"), [("node", False), ("other", True)])
def test_a_nominee_that_is_placed_elsewhere_leaves_its_place_to_others(on: str, *, wakes: bool) -> None:
    world = World()
    world.cluster.node_cache.put_node(node("other", allocatable={"pods": "0"}))
    nominate(world, on)
    park(world, wakes_on=Change.CAPACITY_FREED)
    world.cluster.queue.put(replace(world.cluster.pending["uid-a"], weight=1))
    placed = [each.pod.name for each in world.decided() if isinstance(each, Placement)]
    assert placed == (["a", "waits"] if wakes else ["a"])
    assert not world.cluster.fleet.nominees


# --- the typical mix --------------------------------------------------------------------------------------------


def test_each_pod_is_counted_once_however_often_it_is_seen() -> None:
    world = World()
    workload = world.cluster.fleet.pod_mix
    for name in ("a", "b"):
        world.cluster.put_pending(pod(name, {"cpu": "8", NVIDIA: "1"}))
    first = workload.typical
    assert first.cpu_per_card == pytest.approx(8000)
    world.cluster.put_pending(pod("a", {"cpu": "8", NVIDIA: "1"}))
    world.decided()
    world.cluster.put_bound(pod("a", {"cpu": "8", NVIDIA: "1"}, on="node", allocated=whole(0)))
    assert workload.typical is first


def test_pods_that_are_there_at_the_start_count_with_what_they_asked_for() -> None:
    world = World()
    requests = {"cpu": "4", NVIDIA: "1"}
    bound = pod("a", requests, on="node", allocated=whole(0), annotations={"berth.dev/gpu-model": "*A100*"})
    world.cluster.put_bound(bound)
    world.cluster.put_bound(bound)
    typical = world.cluster.fleet.pod_mix.typical
    assert typical.cpu_per_card == pytest.approx(4000)
    assert [constraint.globs for constraint in typical.constraints] == [("*A100*",)]


def test_where_other_instances_have_nodes_only_pods_of_our_schedulers_count() -> None:
    world = World(confined=True)
    world.cluster.gangs.set_schedulers(["ours"])
    theirs = pod("a", {"cpu": "4", NVIDIA: "1"}, on="node", allocated=whole(0), schedulerName="theirs")
    world.cluster.put_bound(theirs)
    assert world.cluster.fleet.pod_mix.typical.cpu_per_card == 0
    ours = pod("b", {"cpu": "8", NVIDIA: "1"}, on="node", allocated=whole(1), schedulerName="ours")
    world.cluster.put_bound(ours)
    assert world.cluster.fleet.pod_mix.typical.cpu_per_card == pytest.approx(8000)
