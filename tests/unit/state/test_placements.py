"""The states of a placement, and the effect of each event on each of them, including late and impossible ones."""

from collections.abc import Callable
from typing import Any

import pytest

from berth_api.names import POD_GROUP_LABEL
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.views import StatusKind
from tests.objects.builders import GPU, NVIDIA, container, device, entry, half, node, pod, pod_group, popped, whole
from tests.stand_ins.recorder import Recorder

Raw = dict[str, Any]
Step = Callable[["World"], object]

WAITING = pod("a", {GPU: "50"})
BOUND = pod("a", {GPU: "50"}, on="node", allocated=half())
ELSEWHERE = pod("a", {GPU: "50"}, on="other", allocated=half())
UID = "uid-a"


class World:
    """Two nodes of one card each, and one pod that waits."""

    def __init__(self) -> None:
        self.now = 100.0
        self.recorder = Recorder()
        self.cluster = Cluster(grace=20.0, listener=self.recorder, clock=lambda: self.now)
        self.placements = self.cluster.placements
        for name in ("node", "other"):
            self.cluster.node_cache.put_node(node(name, unschedulable=name == "other"))
            self.cluster.node_cache.put_device(device(name, entry(0)))
        self.cluster.put_pending(WAITING)
        self.recorder.clear()

    def assume(self) -> None:
        unit = popped(self.cluster.queue, self.now)
        assert unit is not None
        outcome = decide(self.cluster.fleet, unit, Policy())
        assert isinstance(outcome, Placement)
        self.placements.assume(outcome)

    @property
    def state(self) -> str:
        """Return the state of the pod, by the cluster's public queries."""
        if UID not in self.cluster.fleet.charges:
            assert not self.placements.is_assumed(UID)
            return "no node"
        if UID in self.placements.in_flight():
            assert self.placements.is_assumed(UID)
            return "assumed"
        return "bound" if self.placements.is_assumed(UID) else "confirmed"

    @property
    def is_queued(self) -> bool:
        return UID in self.cluster.queue

    @property
    def users(self) -> list[int]:
        """Return the number of pods on each node's card."""
        rows, cards = self.cluster.fleet.rows, self.cluster.fleet.cards["gpu"]
        return [int(cards.users[rows[name], 0]) for name in ("node", "other")]


def assume(world: World) -> None:
    world.assume()


def finish(world: World) -> None:
    world.placements.finish_binding(UID)


def forget(world: World) -> None:
    world.placements.forget(UID)


def seen_bound(world: World) -> None:
    world.cluster.put_bound(BOUND)


def seen_elsewhere(world: World) -> None:
    world.cluster.put_bound(ELSEWHERE)


def seen_waiting(world: World) -> None:
    world.cluster.put_pending(WAITING)


def deleted(world: World) -> None:
    world.cluster.remove_pending(UID)
    world.cluster.remove_bound(UID)


TO: dict[str, tuple[Step, ...]] = {
    "no node": (),
    "assumed": (assume,),
    "bound": (assume, finish),
    "confirmed": (assume, seen_bound),
    "bound, then confirmed": (assume, finish, seen_bound),
    "found bound": (seen_bound,),
    "forgotten": (assume, forget),
    "gone": (assume, seen_bound, deleted),
}
"""The events that lead to each state."""


@pytest.mark.parametrize(
    ("before", "event", "after", "users"),
    [
        ("no node", assume, "assumed", [1, 0]),
        ("no node", finish, "no node", [0, 0]),
        ("no node", forget, "no node", [0, 0]),
        ("no node", seen_bound, "confirmed", [1, 0]),
        ("no node", seen_waiting, "no node", [0, 0]),
        ("no node", deleted, "no node", [0, 0]),
        ("assumed", finish, "bound", [1, 0]),
        ("assumed", forget, "no node", [0, 0]),
        ("assumed", seen_bound, "confirmed", [1, 0]),
        ("assumed", seen_elsewhere, "confirmed", [0, 1]),
        ("assumed", seen_waiting, "assumed", [1, 0]),
        ("assumed", deleted, "no node", [0, 0]),
        ("bound", finish, "bound", [1, 0]),
        ("bound", forget, "no node", [0, 0]),
        ("bound", seen_bound, "confirmed", [1, 0]),
        ("bound", seen_elsewhere, "confirmed", [0, 1]),
        ("bound", seen_waiting, "bound", [1, 0]),
        ("bound", deleted, "no node", [0, 0]),
        *(
            (before, event, after, users)
            for before in ("confirmed", "bound, then confirmed", "found bound")
            for event, after, users in [
                (finish, "confirmed", [1, 0]),
                (forget, "confirmed", [1, 0]),
                (seen_bound, "confirmed", [1, 0]),
                (seen_elsewhere, "confirmed", [0, 1]),
                (seen_waiting, "confirmed", [1, 0]),
                (deleted, "no node", [0, 0]),
            ]
        ),
        *(
            (before, event, after, users)
            for before in ("forgotten", "gone")
            for event, after, users in [
                (finish, "no node", [0, 0]),
                (forget, "no node", [0, 0]),
                (seen_bound, "confirmed", [1, 0]),
                (deleted, "no node", [0, 0]),
            ]
        ),
    ],
)
def test_transitions(before: str, event: Step, after: str, users: list[int]) -> None:
    world = World()
    for step in TO[before]:
        step(world)
    event(world)
    assert (world.state, world.users) == (after, users)


@pytest.mark.parametrize("before", ["assumed", "bound", "confirmed", "bound, then confirmed", "found bound"])
def test_a_charged_pod_is_never_handed_out_to_be_assumed_again(before: str) -> None:
    world = World()
    for step in (*TO[before], seen_waiting):
        step(world)
    assert popped(world.cluster.queue, world.now) is None


# --- the queue after an answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["assumed", "bound"])
def test_a_forgotten_pod_backs_off_once(before: str) -> None:
    world = World()
    for step in (*TO[before], forget, forget):
        step(world)
    assert world.cluster.queue.next_due() == 101.0
    assert popped(world.cluster.queue, world.now) is None
    world.now = 101.0
    world.assume()
    assert world.state == "assumed"


def test_a_pod_deleted_while_assumed_is_not_decided_again_when_its_binding_is_refused() -> None:
    world = World()
    for step in (assume, deleted, forget):
        step(world)
    assert not world.is_queued
    assert UID not in world.cluster.pending


# --- listeners --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "nodes"),
    [
        pytest.param((finish,), ["node"], id="bound"),
        pytest.param((seen_bound,), ["node"], id="confirmed"),
        pytest.param((finish, seen_bound), ["node", "node"], id="bound, then confirmed"),
        pytest.param((finish, finish), ["node", "node"], id="bound twice"),
        pytest.param((seen_bound, finish), ["node"], id="an answer after the watch is not news"),
        pytest.param((forget,), ["node"], id="forgotten"),
        pytest.param((forget, forget), ["node"], id="forgotten twice"),
    ],
)
def test_nodes_whose_status_changed(steps: tuple[Step, ...], nodes: list[str]) -> None:
    world = World()
    for step in (assume, *steps):
        step(world)
    assert world.recorder.names(StatusKind.DEVICE) == nodes


@pytest.mark.parametrize(
    ("bound", "nodes"),
    [
        pytest.param(pod("a", {"cpu": "1"}, on="node"), [], id="no device"),
        pytest.param(pod("a", {NVIDIA: "1"}, on="node", allocated=whole(0)), ["node", "node"], id="a card"),
        pytest.param(pod("a", {f"{GPU}.shared": "1"}, on="node"), ["node", "node"], id="only what it requests"),
        pytest.param(pod("a", on="node", allocated=whole(0)), ["node", "node"], id="what only its annotation names"),
        pytest.param(pod("a", on="node", allocated="{"), ["node", "node"], id="an annotation that is not read"),
    ],
)
def test_a_pod_changes_the_device_of_its_node_if_it_may_use_something_of_it(bound: Raw, nodes: list[str]) -> None:
    world = World()
    world.cluster.put_bound(bound)
    world.cluster.remove_bound(UID)
    assert world.recorder.names(StatusKind.DEVICE) == nodes


# --- pods that the watch does not show --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "unseen"),
    [("no node", []), ("assumed", []), ("bound", [UID]), ("confirmed", []), ("forgotten", []), ("gone", [])],
)
def test_only_a_bound_pod_is_missed(before: str, unseen: list[str]) -> None:
    world = World()
    for step in TO[before]:
        step(world)
    assert world.placements.unseen(1.0) == []
    world.now += 1.0
    assert [charge.uid for charge in world.placements.unseen(1.0)] == unseen


@pytest.mark.parametrize(
    ("before", "requested_at", "may_be"),
    [
        ("no node", 100.0, False),
        ("assumed", 200.0, True),
        ("bound", 100.0, True),
        ("bound", 100.5, False),
        ("confirmed", 100.0, False),
    ],
)
def test_which_pods_a_list_need_not_show(before: str, requested_at: float, *, may_be: bool) -> None:
    world = World()
    for step in TO[before]:
        step(world)
    assert world.placements.may_be_bound_since(UID, requested_at) is may_be


# --- with gangs, kubelet's reports and unknown allocations ------------------------------------------------------


def member(name: str, **fields: Any) -> Raw:
    return pod(name, {GPU: "50"}, labels={POD_GROUP_LABEL: "g"}, **fields)


def counts(cluster: Cluster) -> tuple[int, int]:
    """Return how many members of the gang wait, and how many are bound."""
    view = cluster.gangs.view("ns/g")
    assert view is not None
    return view.counts.waiting, view.counts.bound


def test_a_member_counts_as_waiting_or_bound_through_all_states() -> None:
    world = World()
    deleted(world)
    world.cluster.gangs.put_group(pod_group(minimum=1))
    world.cluster.put_pending(member("a"))
    assert counts(world.cluster) == (1, 0)
    unit = world.cluster.queue.pop(world.now)
    assert unit is not None
    placement = decide(world.cluster.fleet, world.cluster.pending[UID], Policy())
    assert isinstance(placement, Placement)
    world.placements.assume_all([placement])
    assert (world.state, counts(world.cluster)) == ("assumed", (0, 0))
    finish(world)
    assert (world.state, counts(world.cluster)) == ("bound", (0, 1))
    world.cluster.put_bound(member("a", on="node", allocated=half()))
    assert (world.state, counts(world.cluster)) == ("confirmed", (0, 1))
    forget(world)
    assert (world.state, counts(world.cluster)) == ("confirmed", (0, 1))
    deleted(world)
    assert counts(world.cluster) == (0, 0)


@pytest.mark.parametrize(
    ("steps", "reported"),
    [
        pytest.param((), ["ns/a"], id="still there"),
        pytest.param((deleted,), [], id="gone"),
        pytest.param((seen_bound,), [], id="known by now"),
    ],
)
def test_an_unknown_allocation_is_reported_once_unless_it_ends(steps: tuple[Step, ...], reported: list[str]) -> None:
    world = World()
    world.cluster.put_bound(pod("a", {GPU: "50"}, on="node", bare=True))
    for step in steps:
        step(world)
    world.cluster.unknown_allocations.report()
    world.cluster.unknown_allocations.report()
    assert [charge.pod for charge in world.recorder.unknown] == reported


@pytest.mark.parametrize(("kubernetes", "cpu"), [(36, 6000), (37, 4000)])
def test_a_pod_that_is_resized_counts_as_the_api_servers_version_has_it(kubernetes: int, cpu: int) -> None:
    world = World()
    world.cluster.fleet.set_kubernetes(kubernetes)
    resized = {"main": ("1", "3"), "second": ("3", "1")}
    containers = [container(name, {"cpu": requested}) for name, (requested, _) in resized.items()]
    statuses = [{"name": name, "resources": {"requests": {"cpu": real}}} for name, (_, real) in resized.items()]
    raw = pod("resized", on="node", status={"phase": "Running", "containerStatuses": statuses})
    world.placements.put_bound({**raw, "spec": {**raw["spec"], "containers": containers}})
    assert dict(world.cluster.fleet.charges["uid-resized"].resources)["cpu"] == cpu
