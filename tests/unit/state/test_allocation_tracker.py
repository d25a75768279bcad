"""Agents' reports on kubelet's allocations, and their effect on charges, in any order."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from berth_api.names import EPOCH, GPU_CORE
from berth_operator.controllers.reconcile import status
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.kubelet_reports import KubeletReports
from berth_operator.state.cache.unknown_allocations import KUBELET_SECONDS
from berth_operator.state.cache.views import GpuPodView, NodeView, StatusKind
from berth_operator.state.objects import devices
from berth_operator.state.watches import sinks
from tests.objects.builders import (
    GPU,
    NVIDIA,
    RDMA,
    decided,
    device,
    entry,
    every_pod,
    gpu_pod,
    half,
    held,
    lease,
    node,
    pod,
    whole,
)
from tests.stand_ins.recorder import Recorder

Raw = dict[str, Any]
Event = Callable[["World"], object]


class World:
    """A node of four cards, with recording listeners."""

    def __init__(self, *, count: int = 4, charges_foreign: bool = True, charges_unheld: bool = False) -> None:
        self.now = 100.0
        self.count = count
        self.recorder = Recorder()
        self.cluster = Cluster(
            grace=20.0,
            charges_foreign=charges_foreign,
            charges_unheld=charges_unheld,
            listener=self.recorder,
            clock=lambda: self.now,
        )
        self.cluster.node_cache.put_node(node())
        self.status: Raw = {"bootID": "boot-1"}
        self.put_device()
        self.cluster.node_cache.put_lease(lease())
        self.recorder.clear()
        self.pods = every_pod(self.cluster)
        self.gpu_pods = sinks.gpu_pods(self.cluster)

    def put_device(self, **fields: Any) -> None:
        self.cluster.node_cache.put_device(device("node", *map(entry, range(self.count)), status=self.status, **fields))

    def report(self, **status: Any) -> None:
        """Change the agent's report; the Device's generation stays."""
        self.status = {**self.status, **status}
        self.put_device()

    def used(self) -> list[int]:
        """Return the hundredths of each card that are charged."""
        fleet = self.cluster.fleet
        row, columns = fleet.rows["node"], fleet.cards["gpu"]
        return [int(columns.used[columns.index[GPU_CORE], row, slot]) for slot in columns.slots(row)]

    def unknown(self) -> int:
        return int(self.cluster.fleet.cards["gpu"].unknown[self.cluster.fleet.rows["node"]])

    def decided(self) -> list[Placement | Failure]:
        return decided(self.cluster, self.now)

    def consistency(self, name: str) -> tuple[str, str]:
        """Return the status and reason of a GpuPod's condition."""
        view = self.cluster.view(StatusKind.GPU_POD, f"ns/{name}.node")
        assert isinstance(view, GpuPodView)
        return view.consistency[:2] if view.consistency else ("", "")


def bound(name: str, *minors: int, **fields: Any) -> Raw:
    """Return a pod that Berth bound and to which kubelet gave cards."""
    return pod(name, {NVIDIA: str(len(minors))}, on="node", allocated=whole(*minors), **fields)


def foreign_pod(name: str, count: int = 1) -> Raw:
    return pod(name, {NVIDIA: str(count)}, on="node", schedulerName="default-scheduler")


def forger(name: str, *minors: int, core: int = 100, requests: Raw | None = None, **fields: Any) -> Raw:
    """Return a pod bound by another scheduler, whose author claims cards and shares of them."""
    entries = [{"minor": minor, "id": f"GPU-{minor}", "resources": {GPU_CORE: str(core)}} for minor in minors]
    spec = {"on": "node", "schedulerName": "default-scheduler", **fields}
    return pod(name, {NVIDIA: "1"} if requests is None else requests, claims={"gpu": entries}, **spec)


def add(raw: Raw) -> Event:
    return lambda world: world.pods.apply("ADDED", raw)


def give(*args: Any, **fields: Any) -> Event:
    return lambda world: world.gpu_pods.apply("ADDED", gpu_pod(*args, **fields))


def hold(*held: Raw) -> Event:
    return lambda world: world.report(held=list(held))


def gone(raw: Raw) -> Event:
    return lambda world: world.pods.apply("DELETED", raw)


def test_a_pod_that_says_itself_what_it_has_takes_no_card_from_others() -> None:
    world = World(count=2)
    for event in (add(forger("p", 0, core=1)), give("p", "GPU-0"), add(forger("q", 0, 1, requests={RDMA: "1"}))):
        event(world)
    assert (world.used(), world.unknown()) == ([100, 0], 0)
    for name in ("a", "b", "c"):
        add(pod(name, {GPU: "50"}))(world)
    placed = [each for each in world.decided() if isinstance(each, Placement)]
    assert [each.grants[0].minor for each in placed] == [1, 1]


# --- charges ----------------------------------------------------------------------------------------------------


PODS_ARE_CHARGED_FOR_WHAT_THEY_HOLD = {
    "a promise alone": ([add(bound("p", 0))], [100, 0, 0, 0]),
    "kept": ([add(bound("p", 0)), give("p", "GPU-0")], [100, 0, 0, 0]),
    "given another, by GpuPod": ([add(bound("p", 0)), give("p", "GPU-2")], [0, 0, 100, 0]),
    "given another, by the Device": ([add(bound("p", 0)), hold(held("p", "GPU-2"))], [0, 0, 100, 0]),
    "its GpuPod counts": ([add(bound("p", 0)), hold(held("p", "GPU-1")), give("p", "GPU-2")], [0, 0, 100, 0]),
    "of another pod": ([add(bound("p.node", 0)), give("p", "GPU-2", of="uid-p.node")], [100, 0, 0, 0]),
    "of its predecessor": ([add(bound("p", 0)), give("p", "GPU-2", of="uid-old")], [100, 0, 0, 0]),
    "of another node": ([add(bound("p", 0)), give("p", "GPU-2", node="other")], [100, 0, 0, 0]),
    "of another's name": ([add(bound("p", 0)), give("q", "GPU-2", of="uid-p")], [100, 0, 0, 0]),
    "another scheduler's pod": ([add(foreign_pod("p")), give("p", "GPU-3")], [0, 0, 0, 100]),
    "it says less itself": ([add(forger("p", 0, core=1)), give("p", "GPU-0")], [100, 0, 0, 0]),
    "less than the Device says": ([add(forger("p", 0, core=1)), hold(held("p", "GPU-0"))], [100, 0, 0, 0]),
    "it says more itself": ([add(forger("p", 0, 1, 2)), give("p", "GPU-3")], [0, 0, 0, 100]),
    "it asks for a NIC alone": ([add(forger("p", 0, 1, requests={RDMA: "1"}))], [0, 0, 0, 0]),
    "it says less, and that we bound it": (
        [add(forger("p", 0, core=1, annotations={EPOCH: "1"})), give("p", "GPU-0")],
        [100, 0, 0, 0],
    ),
    "it asks for a NIC alone, and says that we bound it": (
        [add(forger("p", 0, 1, requests={RDMA: "1"}, annotations={EPOCH: "1"}))],
        [0, 0, 0, 0],
    ),
    "what it gave up stays while the other has nothing": (
        [add(bound("p", 0)), add(bound("q", 1)), give("p", "GPU-1")],
        [100, 200, 0, 0],
    ),
    "two exchanged": (
        [add(bound("p", 0)), add(bound("q", 1)), give("p", "GPU-1"), give("q", "GPU-0")],
        [100, 100, 0, 0],
    ),
}


@pytest.mark.parametrize(
    ("events", "used"), PODS_ARE_CHARGED_FOR_WHAT_THEY_HOLD.values(), ids=PODS_ARE_CHARGED_FOR_WHAT_THEY_HOLD
)
def test_pods_are_charged_for_what_they_hold(events: list[Event], used: list[int]) -> None:
    """The order of pods and reports makes no difference."""
    for order in itertools.permutations(events):
        world = World()
        for event in order:
            event(world)
        assert world.used() == used


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(lambda world: world.gpu_pods.apply("DELETED", gpu_pod("p")), id="its GpuPod goes"),
        pytest.param(give("p"), id="its GpuPod reports nothing"),
    ],
)
def test_without_a_report_the_promise_counts_again(last: Event) -> None:
    world = World()
    for event in (add(bound("p", 0)), give("p", "GPU-2"), last):
        event(world)
    assert world.used() == [100, 0, 0, 0]
    assert not world.cluster.allocations.drifted


def test_a_pod_of_another_scheduler_may_hold_any_card_until_it_is_reported() -> None:
    world = World()
    add(foreign_pod("p", 2))(world)
    assert world.unknown() == 1
    give("p", "GPU-1")(world)
    assert (world.unknown(), world.used()) == (1, [0, 100, 0, 0])
    give("p", "GPU-1", "GPU-3")(world)
    assert (world.unknown(), world.used()) == (0, [0, 100, 0, 100])


def test_a_pod_that_kubelet_may_still_report_is_not_reported_at_once() -> None:
    world = World()
    for name in ("slow", "soon"):
        add(foreign_pod(name))(world)
    add(pod("share", {GPU: "50"}, on="node", bare=True))(world)
    world.cluster.unknown_allocations.report()
    assert [charge.pod for charge in world.recorder.unknown] == ["ns/share"]
    give("soon", "GPU-1")(world)
    world.now += KUBELET_SECONDS
    world.cluster.unknown_allocations.report()
    assert [charge.pod for charge in world.recorder.unknown] == ["ns/share", "ns/slow"]


# --- what is left behind ----------------------------------------------------------------------------------------


def test_the_devices_of_a_pod_that_was_removed_by_force_stay_charged_while_they_are_held() -> None:
    world = World()
    for event in (add(bound("p", 0)), give("p", "GPU-0"), hold(held("p", "GPU-0")), gone(bound("p", 0))):
        event(world)
    assert world.used() == [100, 0, 0, 0]
    world.pods.apply("ADDED", pod("next", {NVIDIA: "4"}))
    assert isinstance(world.decided()[0], Failure)
    world.report(held=[])
    assert world.used() == [0, 0, 0, 0]
    assert isinstance(world.decided()[0], Placement)


SHARE = pod("p", {GPU: "50"}, on="node", allocated=half())
RUNS = {"podUID": "uid-p", "namespace": "ns", "pod": "p", "devices": [{"type": "gpu", "minor": 0, "id": "GPU-0"}]}


def test_a_share_stays_charged_while_its_pod_runs_on() -> None:
    world = World()
    add(SHARE)(world)
    world.report(running=[RUNS])
    assert world.used() == [50, 0, 0, 0]
    gone(SHARE)(world)
    assert world.used() == [50, 0, 0, 0]
    # A reading of the agent that is about other things.
    world.report(foreign=[])
    world.put_device(labels={"a": "b"})
    assert world.used() == [50, 0, 0, 0]
    world.report(running=[])
    assert world.used() == [0, 0, 0, 0]


def test_the_card_of_a_share_that_runs_on_is_charged_as_a_whole_by_a_new_operator() -> None:
    world = World()
    world.report(running=[RUNS])
    assert world.used() == [100, 0, 0, 0]
    # The list of pods comes after that of Devices.
    add(SHARE)(world)
    assert world.used() == [50, 0, 0, 0]
    gone(SHARE)(world)
    assert world.used() == [50, 0, 0, 0]
    world.cluster.node_cache.put_node(node(boot="boot-2"))
    assert world.used() == [0, 0, 0, 0]


def test_a_share_is_free_at_once_where_no_agent_lists_running_pods() -> None:
    world = World()
    add(SHARE)(world)
    gone(SHARE)(world)
    assert world.used() == [0, 0, 0, 0]


KEPT = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/stays"]}
STOPPED: dict[str, tuple[Raw, list[int], int]] = {
    "an unknown allocation": (pod("p", {NVIDIA: "1"}, on="node", metadata=KEPT), [0, 0, 0, 0], 1),
    "a card": (pod("p", {NVIDIA: "1"}, on="node", allocated=whole(0), metadata=KEPT), [100, 0, 0, 0], 0),
    "a share": (pod("p", {GPU: "50"}, on="node", allocated=half(), metadata=KEPT), [50, 0, 0, 0], 0),
}


@pytest.mark.parametrize("is_pod_first", [True, False], ids=["pod first", "report first"])
@pytest.mark.parametrize("case", STOPPED)
def test_a_deleted_pod_that_a_finalizer_keeps_has_no_device_after_its_end(case: str, *, is_pod_first: bool) -> None:
    world = World()
    raw, used, unknown = STOPPED[case]
    if is_pod_first:
        add(raw)(world)
        assert (world.used(), world.unknown()) == (used, unknown)
    world.report(stopped=["uid-p"])
    if not is_pod_first:
        add(raw)(world)
    assert (world.used(), world.unknown()) == ([0, 0, 0, 0], 0)
    # It has a process again, or the agent does not say so any more.
    world.report(stopped=[])
    assert (world.used(), world.unknown()) == (used, unknown)


def test_the_resources_of_a_node_are_free_after_the_end_of_a_deleted_pod() -> None:
    world = World(count=1)
    world.cluster.node_cache.put_node(node(allocatable={NVIDIA: "1", "cpu": "8", "memory": "8Gi", "pods": "9"}))
    add(pod("p", {NVIDIA: "1"}, on="node", metadata=KEPT))(world)
    add(pod("q", {NVIDIA: "1"}))(world)
    [failure] = world.decided()
    assert isinstance(failure, Failure)
    world.report(stopped=["uid-p"])
    [placement] = world.decided()
    assert isinstance(placement, Placement)


@pytest.mark.parametrize(
    ("raw", "report"),
    [
        (pod("p", {NVIDIA: "1"}, on="node"), {"stopped": ["uid-p"]}),
        (pod("p", {NVIDIA: "1"}, on="node", metadata=KEPT), {"stopped": ["uid-q"]}),
        (pod("p", {NVIDIA: "1"}, on="node", metadata=KEPT), {"stopped": ["uid-p"], "bootID": "boot-0"}),
    ],
    ids=["not being deleted", "another pod", "of an earlier boot"],
)
def test_a_pod_keeps_its_devices_unless_its_agent_reports_its_end(raw: Raw, report: Raw) -> None:
    world = World()
    world.cluster.node_cache.put_node(node(boot="boot-1"))
    add(raw)(world)
    world.report(**report)
    assert world.unknown() == 1


def test_a_pod_that_has_stopped_but_to_which_kubelet_gave_a_card_keeps_it() -> None:
    world = World()
    add(pod("p", {NVIDIA: "1"}, on="node", allocated=whole(0), metadata=KEPT))(world)
    world.report(stopped=["uid-p"], held=[held("p", "GPU-1")])
    assert world.used() == [0, 100, 0, 0]


def test_messages_name_the_finalizer_that_keeps_a_pod() -> None:
    world = World()
    add(pod("p", {NVIDIA: "1"}, on="node", metadata=KEPT))(world)
    view = world.cluster.view(StatusKind.NODE, "node")
    assert isinstance(view, NodeView)
    [message] = [shown.message for shown in status.wanted(view, str).conditions if shown.type == "Accounted"]
    assert message.endswith("ns/p (being deleted, kept by finalizer example.com/stays)")


@pytest.mark.parametrize(
    ("node_boot", "word_boot", "used"),
    [
        pytest.param("boot-1", "boot-1", [100, 0, 0, 0], id="the same boot"),
        pytest.param("boot-2", "boot-1", [0, 0, 0, 0], id="another boot"),
        pytest.param("", "boot-1", [100, 0, 0, 0], id="the Node does not report it"),
        pytest.param("boot-2", "", [100, 0, 0, 0], id="the agent does not report it"),
    ],
)
@pytest.mark.parametrize("node_first", [True, False])
def test_what_was_held_before_a_boot_is_free(
    node_boot: str, word_boot: str, used: list[int], *, node_first: bool
) -> None:
    world = World()
    acts: list[Callable[[], None]] = [
        lambda: world.cluster.node_cache.put_node(node(boot=node_boot)),
        lambda: world.report(bootID=word_boot, held=[held("p", "GPU-0")]),
    ]
    for act in acts if node_first else reversed(acts):
        act()
    assert world.used() == used


def test_what_is_left_behind_survives_its_device() -> None:
    world = World()
    hold(held("p", "GPU-0"))(world)
    world.cluster.node_cache.remove_device("node")
    # The agent restores the Device first, and then reports what pods hold.
    world.status = {}
    world.put_device(uid="again")
    assert world.used() == [100, 0, 0, 0]
    world.report(bootID="boot-1", held=[])
    assert world.used() == [0, 0, 0, 0]


def test_what_is_said_of_a_pod_that_waits_does_not_touch_it() -> None:
    world = World()
    world.report(held=[held("p", "GPU-0")])
    world.pods.apply("ADDED", pod("p", {NVIDIA: "1"}))
    [placed] = world.decided()
    assert isinstance(placed, Placement)
    assert [grant.minor for grant in placed.grants] == [1]


def test_a_holder_that_is_no_pod_is_never_a_victim_and_has_no_affinity() -> None:
    world = World(count=1)
    hold(held("p", "GPU-0"))(world)
    away = {"labelSelector": {}, "namespaceSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [away]}}
    world.cluster.node_cache.put_node(node(labels={"kubernetes.io/hostname": "node"}))
    world.pods.apply("ADDED", pod("alone", {"cpu": "1"}, affinity=affinity))
    assert isinstance(world.decided()[0], Placement)
    assert min(world.cluster.fleet.priorities) == 0


# --- foreign and withheld cards ---------------------------------------------------------------------------------

FOREIGN = [{"type": "gpu", "minor": 1, "processes": 2, "memory": "3Gi"}]


@pytest.mark.parametrize(("charges", "used"), [(True, [0, 100, 0, 0]), (False, [0, 0, 0, 0])])
def test_foreign_processes_take_their_cards_unless_that_is_switched_off(*, charges: bool, used: list[int]) -> None:
    world = World(charges_foreign=charges)
    world.report(foreign=FOREIGN)
    assert world.used() == used
    world.report(foreign=[])
    assert world.used() == [0, 0, 0, 0]


def unheld(minor: int, name: str = "p") -> Raw:
    pod_ = {"namespace": "ns", "pod": name, "podUID": f"uid-{name}"}
    return {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "memory": "60Gi", **pod_}


@pytest.mark.parametrize(
    ("switches", "used"),
    [
        pytest.param({}, [0, 100, 0, 0], id="by default"),
        pytest.param({"charges_unheld": True}, [100, 100, 0, 0], id="each card once"),
        pytest.param({"charges_unheld": True, "charges_foreign": False}, [100, 100, 0, 0], id="alone"),
    ],
)
def test_cards_that_pods_use_and_do_not_hold_are_kept_only_where_that_is_switched_on(
    switches: dict[str, bool], used: list[int]
) -> None:
    world = World(**switches)
    world.report(foreign=FOREIGN, unheld=[unheld(0), unheld(1), unheld(1, "q")])
    assert world.used() == used
    # The report names minors of the inventory that it came with; a card is its id.
    world.report(foreign=[], unheld=[{**unheld(3), "id": "GPU-2"}])
    assert world.used() == ([0, 0, 100, 0] if switches else [0, 0, 0, 0])
    world.report(unheld=[])
    assert world.used() == [0, 0, 0, 0]


@pytest.mark.parametrize("charges", [True, False])
def test_cards_that_containers_may_have_are_kept(*, charges: bool) -> None:
    world = World(charges_foreign=charges)
    world.report(uncertain=[0, 2])
    assert world.used() == [100, 0, 100, 0]
    world.report(uncertain=[])
    assert world.used() == [0, 0, 0, 0]


def test_a_card_that_is_no_longer_withheld_wakes_the_pods_that_wait_for_it() -> None:
    world = World(count=1)
    world.report(withheld=[0])
    world.pods.apply("ADDED", pod("p", {NVIDIA: "1"}))
    assert isinstance(world.decided()[0], Failure)
    world.report(withheld=[0], held=[])
    assert world.decided() == []
    world.report(withheld=[])
    [placed] = world.decided()
    assert isinstance(placed, Placement)


def test_the_agents_report_is_read_only_when_it_changes() -> None:
    first = devices.record(device("node", entry(0), status={"bootID": "b", "held": [held("p", "GPU-0")]}))
    same = devices.record(
        device("node", entry(0), status={"bootID": "b", "held": [held("p", "GPU-0")], "gpus": 1}), first
    )
    other = devices.record(device("node", entry(0), status={"bootID": "c"}), same)
    assert same.agent_report is first.agent_report
    assert (other.agent_report.boot_id, dict(other.agent_report.held)) == ("c", {})
    assert (
        devices.record(device("node", entry(0))).agent_report is devices.record(device("other", entry(0))).agent_report
    )


def test_a_report_that_cannot_be_parsed_is_reported() -> None:
    record = devices.record(device("node", entry(0), status={"withheld": ["one"]}))
    assert record.agent_report.withheld == ()
    [problem] = record.problems
    assert problem.startswith("status.withheld[0]: Input should be a valid integer")
    assert problem.endswith("; the agent's report about kubelet is ignored")
    assert devices.record(device("node", entry(0)), record).problems == ()


# --- reports ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([add(bound("p", 0)), give("p", "GPU-0")], ("True", "AsAllocated"), id="as allocated"),
        pytest.param([add(bound("p", 0)), give("p", "GPU-1")], ("False", "Drifted"), id="another"),
        pytest.param([add(foreign_pod("p")), give("p", "GPU-1")], ("True", "NothingAllocated"), id="nothing allocated"),
        pytest.param([add(pod("p", {GPU: "50"}, on="node", allocated=half(0))), give("p")], ("", ""), id="a share"),
        pytest.param([give("p", "GPU-1")], ("", ""), id="an unknown pod"),
        pytest.param([add(bound("p", 0)), give("p", "GPU-1", of="uid-old")], ("", ""), id="its predecessor"),
    ],
)
def test_a_gpu_pod_says_whether_it_is_consistent(events: list[Event], expected: tuple[str, str]) -> None:
    for order in itertools.permutations(events):
        world = World()
        for event in order:
            event(world)
        assert world.consistency("p") == expected
        assert "ns/p.node" in world.recorder.names(StatusKind.GPU_POD)


def test_a_gpu_pod_that_shows_an_allocation_is_no_report_of_kubelet() -> None:
    world = World()
    add(pod("p", {GPU: "50"}, on="node", allocated=half(0)))(world)
    shown = gpu_pod("p", containers={})
    shown["spec"] |= {"allocated": [{"type": "gpu", "minor": 1, "id": "GPU-1"}], "devices": "GPU 1"}
    world.gpu_pods.apply("ADDED", shown)
    assert world.used() == [50, 0, 0, 0]
    assert world.cluster.allocations.drifted == {}
    assert world.consistency("p") == ("", "")


def test_a_drift_begins_and_ends() -> None:
    world = World()
    for event in (add(bound("p", 0)), give("p", "GPU-0")):
        event(world)
    assert world.recorder.drifts == 0
    give("p", "GPU-1")(world)
    assert (world.recorder.drifts, list(world.cluster.allocations.drifted)) == (1, ["uid-p"])
    world.recorder.changed.clear()
    world.pods.apply("MODIFIED", bound("p", 1))
    assert (world.recorder.drifts, world.cluster.allocations.drifted) == (2, {})
    assert world.recorder.names(StatusKind.GPU_POD) == ["ns/p.node"]
    assert world.used() == [0, 100, 0, 0]


def test_a_pod_that_goes_drifts_no_more() -> None:
    world = World()
    for event in (add(bound("p", 0)), give("p", "GPU-1"), gone(bound("p", 0))):
        event(world)
    assert (world.recorder.drifts, world.cluster.allocations.drifted) == (2, {})


def test_a_gpu_pod_on_a_node_of_another_instance_is_left_to_it() -> None:
    confined = Cluster(grace=20.0, confined=True, clock=lambda: 0.0)
    confined.allocations.put_gpu_pod(gpu_pod("p", "GPU-0"))
    assert confined.names(StatusKind.GPU_POD) == ["ns/p.node"]
    assert confined.view(StatusKind.GPU_POD, "ns/p.node") is None
    assert confined.view(StatusKind.GPU_POD, "ns/q.node") is None
    # The pods of all nodes are watched.
    every_pod(confined).apply("ADDED", bound("p", 0))
    view = confined.view(StatusKind.GPU_POD, "ns/p.node")
    assert isinstance(view, GpuPodView)
    assert (view.consistency, view.is_of_known_pod) == (None, True)


def test_a_gpu_pod_that_cannot_be_parsed_reports_nothing() -> None:
    world = World()
    add(bound("p", 0))(world)
    world.gpu_pods.apply("ADDED", {**gpu_pod("p"), "spec": {"nodeName": "node"}})
    assert world.used() == [100, 0, 0, 0]
    assert world.consistency("p") == ("", "")


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(give("q", "GPU-3", of="uid-p"), id="another name"),
        pytest.param(give("q", "GPU-3", of="uid-p", node="other"), id="another name and node"),
        pytest.param(give("p", "GPU-3", node="other"), id="another node"),
        pytest.param(give("p", "GPU-3", of="uid-q"), id="another UID"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_gpu_pod_counts_for_the_pod_of_its_name_uid_and_node_alone(forged: Event, *, first: bool) -> None:
    world = World()
    truth = (add(bound("p", 0)), hold(held("p", "GPU-1")))
    for event in (forged, *truth) if first else (*truth, forged):
        event(world)
    assert world.used() == [0, 100, 0, 0]
    [name] = world.cluster.names(StatusKind.GPU_POD)
    view = world.cluster.view(StatusKind.GPU_POD, name)
    assert view is None or (isinstance(view, GpuPodView) and not view.is_of_known_pod)


def test_charges_and_bookkeeping_end_with_the_pods() -> None:
    world = World()
    for number in range(4):
        add(bound(f"p{number}", number))(world)
        give(f"p{number}", f"GPU-{(number + 1) % 4}")(world)
    assert world.used() == [100] * 4
    assert len(world.cluster.allocations.drifted) == 4
    for number in range(4):
        gone(bound(f"p{number}", number))(world)
        world.gpu_pods.apply("DELETED", gpu_pod(f"p{number}"))
    assert world.used() == [0] * 4
    tracker = vars(world.cluster.allocations)
    parts = [tracker, *(vars(part) for part in tracker.values() if isinstance(part, KubeletReports))]
    kept = [each for part in parts for each in part.values() if isinstance(each, dict)]
    # The agent's report and the boot id belong to the node, and stay.
    assert sorted(map(len, kept)) == [0, 0, 0, 1, 1]
