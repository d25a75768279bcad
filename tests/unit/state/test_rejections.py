"""Which pods that have ended count as rejected by kubelet, what follows for waiting pods, and how much work it is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from berth_api import names
from berth_api.objects.leader_lease import MAX_PREEMPTOR
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import MAX_FAILED, Cluster
from berth_operator.state.cache.pending_pods import AT_ONCE
from berth_operator.state.cache.rejected_pods import FIRST, LONGEST, MAX_BOUND, MAX_PAUSES, REMEMBERED
from berth_operator.state.objects import groups
from berth_operator.state.watches import sinks
from tests.attacks.work import counted
from tests.objects.builders import Raw, node, owner, pod, relist

WHY = "Pod was rejected: Predicate NodeAffinity failed"
MANY = 10_000
"""Waiting pods."""
ONE_CHANGE = 500
"""Calls of one rejection, or of one end of a pause, however many pods wait."""


class World:
    """A node, and pods of ReplicaSets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cluster = Cluster(grace=20.0, clock=lambda: self.now)
        self.cluster.node_cache.put_node(node())
        self.ended = sinks.ended_pods(self.cluster)

    def waiting(self, replica_set: str = "web", name: str = "", **metadata: Any) -> PendingPod:
        """Return a waiting pod of a ReplicaSet, as decisions see it."""
        raw = of(replica_set, name or f"{replica_set}-waits", metadata)
        self.cluster.put_pending(raw)
        return self.cluster.pending[raw["metadata"]["uid"]]

    def fits(self, replica_set: str = "web", **metadata: Any) -> bool:
        """Return whether the node takes a waiting pod of a ReplicaSet."""
        return not isinstance(decide(self.cluster.fleet, self.waiting(replica_set, **metadata), Policy()), Failure)

    def bind(self, name: str, replica_set: str = "web", on: str = "node", **metadata: Any) -> None:
        """Bind a pod as Berth does; it no longer waits."""
        placed = self.waiting(replica_set, name, **metadata)
        self.cluster.rejected_pods.assumed(Placement(pod=placed, node=on))
        self.cluster.remove_pending(placed.uid)

    def reject(self, name: str, replica_set: str = "web", on: str = "node", **metadata: Any) -> None:
        """Bind a pod as Berth does, and reject it as kubelet does."""
        self.bind(name, replica_set, on, **metadata)
        self.ended.apply("ADDED", failed(name, replica_set, metadata=metadata))

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.cluster.rejected_pods.expire()

    def cost(self, change: Callable[[], None]) -> int:
        """Return the calls of a change, with what the queue does before it is next read."""

        def both() -> None:
            change()
            len(self.cluster.queue)

        return counted(both, 10**7)[1]

    def park(self) -> None:
        """Decide the active pods, and park those that do not fit. A parked class is decided once."""
        queue = self.cluster.queue
        while (unit := queue.pop(self.now)) is not None:
            assert isinstance(unit, PendingPod)
            outcome = queue.parked_failure(unit) or decide(self.cluster.fleet, unit, Policy())
            assert isinstance(outcome, Failure)
            queue.park(unit, outcome)


def of(replica_set: str, name: str, metadata: Raw, **fields: Any) -> Raw:
    return pod(name, metadata={"ownerReferences": [owner(replica_set)], **metadata}, **fields)


def failed(name: str, replica_set: str = "web", **fields: Any) -> Raw:
    """Return a pod that kubelet rejected, as the watch keeps it."""
    status = {"phase": "Failed", "reason": "NodeAffinity", "message": WHY, **fields.pop("status", {})}
    metadata = {"resourceVersion": "1", "annotations": {names.EPOCH: "1"}, **fields.pop("metadata", {})}
    return groups.transform_ended(of(replica_set, name, metadata, on="node", status=status))


def test_a_rejection_pauses_its_controller_and_no_other() -> None:
    world = World()
    assert world.fits()
    world.reject("a")
    assert not world.fits()
    assert world.fits("other")
    # Anyone may name this controller, but only in the own namespace.
    assert world.fits(namespace="elsewhere", uid="uid-elsewhere")


def test_pods_without_a_controller_are_paused_by_their_names() -> None:
    world = World()
    world.reject("a", ownerReferences=[])
    assert not world.fits(name="a", uid="uid-a-again", ownerReferences=[])
    assert world.fits(name="b", ownerReferences=[])


def test_a_rejected_pod_counts_once_however_often_it_is_listed() -> None:
    world = World()
    everything = [failed(f"p-{number}") for number in range(3)]
    everything += [failed(f"old-{number}", "old") for number in range(MAX_FAILED)]
    for number in range(3):
        world.bind(f"p-{number}")
    world.now += 1
    for _ in range(3):
        relist(world.ended, everything)
        relist(world.ended, [])
        world.later(FIRST)
        assert world.fits()


def test_pods_that_this_operator_has_not_bound_do_not_count() -> None:
    world = World()
    relist(world.ended, [failed(f"p-{number}") for number in range(50)])
    assert world.fits()
    assert not world.cluster.fleet.rejecting
    assert len(world.cluster.failed) == 50


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"message": "The node was low on resource: memory."}, id="evicted by kubelet"),
        pytest.param({"message": "", "reason": ""}, id="its container failed"),
        pytest.param({"phase": "Succeeded"}, id="succeeded"),
    ],
)
def test_other_pods_that_have_ended_do_not_count_and_end_the_pauses(status: Raw) -> None:
    world = World()
    world.reject("first")
    world.later(FIRST)
    world.bind("a")
    assert not world.fits()
    world.ended.apply("ADDED", failed("a", status=status))
    assert world.fits()
    assert len(world.cluster.failed) == (status.get("phase") != "Succeeded")


@pytest.mark.parametrize(("times", "seconds"), [(1, FIRST), (2, 2 * FIRST), (9, 256 * FIRST), (10, LONGEST)])
def test_pauses_grow_up_to_a_bound(times: int, seconds: float) -> None:
    world = World()
    for number in range(times):
        world.later(LONGEST)
        world.reject(f"p-{number}")
    world.later(seconds - 0.1)
    assert not world.fits()
    world.later(0.1)
    assert world.fits()


def test_pods_that_were_bound_before_a_rejection_neither_make_the_pause_longer_nor_end_it() -> None:
    world = World()
    for number in range(50):
        world.bind(f"p-{number}")
    world.now += 1
    for number in range(40):
        world.ended.apply("ADDED", failed(f"p-{number}"))
    for number in range(40, 50):
        running = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        world.cluster.put_bound(of("web", f"p-{number}", {}, on="node", status=running))
    assert not world.fits()
    world.later(FIRST)
    assert world.fits()


def test_pods_keep_their_class_unless_kubelets_have_rejected_others_of_their_controller() -> None:
    world = World()
    other, same = world.waiting("other"), world.waiting("web")
    world.reject("a")
    assert world.cluster.pending[other.uid].request is other.request
    assert world.waiting("third").request.rejected_controller == ""
    named = world.cluster.pending[same.uid].request
    assert named.rejected_controller == "uid-web/ns/ReplicaSet/web"
    # Its pods still share one class.
    assert world.waiting("web", "next").request is named
    assert world.waiting("web", "next").class_key == world.cluster.pending[same.uid].class_key


def test_pods_that_change_their_controller_wait_for_the_pauses_of_the_new_one() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.waiting("web", name)
    world.waiting("other", "a")
    world.waiting("web", "b", ownerReferences=[])
    world.cluster.remove_pending("uid-b")
    world.reject("d")
    named = {pod.name: pod.request.rejected_controller for pod in world.cluster.pending.values()}
    assert named == {"a": "", "c": "uid-web/ns/ReplicaSet/web"}
    world.reject("e", "other")
    assert world.cluster.pending["uid-a"].request.rejected_controller == "uid-other/ns/ReplicaSet/other"


def test_the_oldest_pause_is_forgotten_if_there_are_too_many() -> None:
    world = World()
    world.reject("a")
    assert not world.fits()
    for number in range(MAX_PAUSES):
        assert not world.fits()
        world.reject(f"p-{number}", f"many-{number}")
    assert len(world.cluster.fleet.rejecting) == MAX_PAUSES
    assert world.fits()


def test_the_pods_that_were_bound_last_are_remembered() -> None:
    world = World()
    for number in range(MAX_BOUND + 1):
        world.bind(f"p-{number}")
    world.ended.apply("ADDED", failed("p-0"))
    assert world.fits()
    world.ended.apply("ADDED", failed("p-1"))
    assert not world.fits()


def test_what_names_a_controller_is_bounded() -> None:
    world = World()
    long: Raw = {"ownerReferences": [owner("web", uid="u" * 2**20)]}
    world.reject("a", **long)
    assert not world.fits(**long)
    assert [len(controller) for controller in world.cluster.fleet.rejecting] == [MAX_PREEMPTOR]


def test_old_rejections_are_forgotten() -> None:
    world = World()
    world.reject("a")
    world.later(FIRST + REMEMBERED)
    assert not world.cluster.fleet.rejecting
    assert world.fits()


@pytest.mark.parametrize("replica_set", ["web", "other"])
def test_a_change_of_a_pause_costs_no_work_for_each_waiting_pod(replica_set: str) -> None:
    world = World()
    world.reject("first")
    for number in range(MANY):
        world.waiting(replica_set, f"waits-{number}")
    for number in range(5):
        world.now += LONGEST
        assert world.cost(world.cluster.rejected_pods.expire) < ONE_CHANGE
        world.bind(f"p-{number}")
        assert world.cost(partial(world.ended.apply, "ADDED", failed(f"p-{number}"))) < ONE_CHANGE


def test_the_first_rejection_costs_work_for_some_waiting_pods_of_its_controller_at_a_time() -> None:
    world = World()
    for number in range(MANY):
        world.waiting("web", f"waits-{number}")
    world.bind("a")
    world.bind("b", on="other")
    world.now += 1
    assert world.cost(partial(world.ended.apply, "ADDED", failed("a"))) < 20 * MANY
    for _ in range(MANY // AT_ONCE):
        assert world.cost(world.cluster.rejected_pods.expire) < 20 * MANY
    assert world.cost(partial(world.ended.apply, "ADDED", failed("b"))) < ONE_CHANGE


def test_pauses_on_a_thousand_nodes_that_end_in_one_second_wake_the_waiting_pods_once() -> None:
    world, nodes = World(), [f"node-{number}" for number in range(MAX_PAUSES)]
    for name in nodes:
        world.cluster.node_cache.put_node(node(name, unschedulable=True))
        world.bind(f"p-{name}", on=name)
    world.now += 1
    for name in nodes:
        world.ended.apply("ADDED", failed(f"p-{name}"))
    world.cluster.node_cache.put_node(node(unschedulable=True))
    for number in range(MANY):
        world.waiting("web", f"waits-{number}")
    world.park()
    woken = world.cluster.queue.incoming.copy()
    world.now += FIRST
    assert world.cost(world.cluster.rejected_pods.expire) < 20 * (MANY + len(nodes))
    assert sum(world.cluster.queue.incoming.values()) - sum(woken.values()) <= MANY
