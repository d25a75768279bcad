"""The order of the queue, and the changes that wake parked pods."""

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from berth_operator.core.decision.cycle import Failure
from berth_operator.core.filters import devices
from berth_operator.core.queue.queue import NOT_CONCERNED, Queue
from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import ANY, Change
from tests.objects.builders import GPU, asks, waiting

STILL = (devices.BUILT_IN,)
"""The hint that a filter still rejects the changed node."""


def failure(wakes_on: Change = Change.CAPACITY_FREED, message: str = "no") -> Failure:
    return Failure(message=message, wakes_on=wakes_on)


def drained(queue: Queue[PendingPod], now: float = 0.0) -> list[str]:
    units = []
    while (pod := queue.pop(now)) is not None:
        units.append(pod.name)
    return units


def filled(*pods: PendingPod) -> Queue[PendingPod]:
    made: Queue[PendingPod] = Queue()
    for pod in pods:
        made.put(pod)
    return made


def parked(*pods: PendingPod, wakes_on: Change = Change.CAPACITY_FREED) -> Queue[PendingPod]:
    """Return a queue in which all these pods are parked."""
    made = filled(*pods)
    while (pod := made.pop(0.0)) is not None:
        made.park(pod, failure(wakes_on))
    return made


# --- order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"created": "2026-01-01T00:00:00Z"}, {"created": "2026-01-02T00:00:00Z"}, id="by age"),
        pytest.param({"arrived": 1, "created": "2"}, {"arrived": 2, "created": "2"}, id="by arrival, of equal age"),
        pytest.param({"created": "1", "arrived": 2}, {"created": "2", "arrived": 1}, id="age before arrival"),
        pytest.param({"weight": 1, "created": "2"}, {"weight": 0, "created": "1"}, id="weight before age"),
    ],
)
def test_pods_come_in_order(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert drained(filled(waiting("second", **second), waiting("first", **first))) == ["first", "second"]


def test_deferred_updates_are_done_once_before_the_queue_is_read() -> None:
    made, done = filled(waiting("a")), list[str]()

    def update(name: str) -> None:
        done.append(name)
        # An update may wake other units.
        made.wake_class("no class")
        made.put(waiting(name))

    for name in ("b", "c", "b", "b"):
        made.defer(f"uid-{name}", partial(update, name))
    made.defer("uid-a", lambda: made.remove("uid-a"))
    made.put(waiting("d"))
    made.remove("uid-d")
    assert done == []
    assert len(made) == 2
    assert done == ["b", "c"]
    assert drained(made) == ["b", "c"]


def test_a_claim_wakes_its_units_although_an_update_removes_one_of_them() -> None:
    use = ClaimUse(claim="ns/shared")
    pods = [
        replace(waiting(name), request=replace(asks({"cpu": cpu}), claims=(use,))) for name, cpu in (("a", 1), ("b", 2))
    ]
    made = parked(*pods, wakes_on=Change.RESOURCE_CLAIM)
    for pod in pods:
        made.defer(pod.uid, partial(made.remove, pod.uid))
    made.wake_claiming("ns/shared")
    assert drained(made) == []


def claiming(name: str, namespace: str = "heavy", **fields: Any) -> PendingPod:
    pod = waiting(name, **fields)
    use = ClaimUse(claim=f"{namespace}/{name}")
    return replace(pod, namespace=namespace, request=replace(pod.request, claims=(use,)))


def test_namespaces_take_turns_with_claims_after_priority() -> None:
    made = filled(claiming("a"), claiming("b"), claiming("c", "light"), claiming("d", priority=1))
    order = []
    while (pod := made.pop(0.0)) is not None:
        order.append(pod.name)
        made.turns.take(pod.namespace, 0.01, 0.0)
    assert order == ["d", "c", "a", "b"]


def test_pods_with_claims_can_be_passed_over_and_are_put_back_unfinished() -> None:
    made = filled(claiming("a"), waiting("b"), waiting("c"))
    assert (made.has_others(), made.has_costly()) == (True, True)
    assert [pod.name for _ in range(3) if (pod := made.pop(0.0, with_costly=False))] == ["b", "c"]
    unit = made.pop(0.0)
    assert unit is not None
    made.put_back(unit)
    assert (made.has_others(), made.has_costly(), drained(made)) == (False, True, ["a"])


@pytest.mark.parametrize(("priority", "is_first"), [(0, False), (1, True)])
def test_a_costly_unit_is_first_only_with_a_higher_priority(priority: int, *, is_first: bool) -> None:
    made = filled(claiming("a", priority=priority), waiting("b"))
    assert made.is_costly_first() == is_first
    assert not filled(claiming("a", priority=1)).is_costly_first(), "nothing waits for it"


# --- parking ----------------------------------------------------------------------------------------------------


def test_a_failure_is_outdated_for_a_pod_that_came_after_a_later_change() -> None:
    queue = parked(waiting("a"))
    queue.put(waiting("b"))
    queue.version += 1
    queue.put(waiting("c"))
    before, after = queue.pop(0.0), queue.pop(0.0)
    assert before is not None
    assert after is not None
    assert not queue.is_outdated(before)
    assert queue.is_outdated(after)
    queue.wake_class(after.class_key)
    assert not queue.is_outdated(after)
    queue.park(after, failure())
    assert not queue.is_outdated(after)


def test_pods_of_different_schedulers_share_no_failure() -> None:
    queue = filled(waiting("a"), waiting("b", scheduler="other"))
    first = queue.pop(0.0)
    assert first is not None
    queue.park(first, failure())
    second = queue.pop(0.0)
    assert second is not None
    assert queue.parked_failure(first) is not None
    assert queue.parked_failure(second) is None


def test_a_pod_with_an_error_is_of_a_class_of_its_own() -> None:
    queue = parked(waiting("a", PodRequest(), error="wrong"))
    assert queue.parked_failure(waiting("b", PodRequest())) is None
    assert queue.parked_failure(waiting("c", PodRequest(), error="wrong")) is not None


def test_a_change_wakes_only_the_classes_that_it_concerns() -> None:
    queue: Queue[PendingPod] = Queue()
    for name, cpu in (("a", 1), ("b", 2)):
        pod = waiting(name, {"cpu": cpu})
        queue.put(pod)
        queue.pop(0.0)
        queue.park(pod, failure(Change.POD_ASSIGNED))
    assert not queue.wake(Change.CAPACITY_FREED)
    assert not queue.wake(Change.POD_ASSIGNED, lambda _parked: STILL)
    assert queue.wake(
        Change.POD_ASSIGNED, lambda parked: None if ("cpu", 2) in parked.requests[0].resources else NOT_CONCERNED
    )
    assert [each and each.name for each in (queue.pop(0.0), queue.pop(0.0))] == ["b", None]
    assert queue.wake(Change.POD_ASSIGNED)
    assert not queue.wake(Change.POD_ASSIGNED)


def test_the_failure_of_one_parks_those_that_were_woken_with_it() -> None:
    queue = parked(waiting("a"), waiting("b"), waiting("c"), waiting("other", {GPU: 50}))
    queue.wake(Change.CAPACITY_FREED)
    placed, failed = queue.pop(0.0), queue.pop(0.0)
    assert placed is not None
    assert failed is not None
    queue.remove(placed.uid)
    assert [each.name for each in queue.park(failed, failure())] == ["c"]
    assert drained(queue) == ["other"]
    assert sum(queue.incoming.values()) == 4 + 4 + 4 + 2  # put, parked and woken; then two are parked again
    queue.wake(Change.CAPACITY_FREED)
    assert drained(queue) == ["b", "c"]


def test_a_parked_pod_that_keeps_its_class_stays_parked_with_its_newest_fields() -> None:
    queue = parked(waiting("a"))
    queue.put(waiting("a", last_message="news"))
    assert drained(queue) == []
    queue.wake(Change.CAPACITY_FREED)
    unit = queue.pop(0.0)
    assert unit is not None
    assert unit.last_message == "news"


def test_a_class_waits_for_the_filters_that_a_hint_names_too() -> None:
    queue = parked(waiting("a"), wakes_on=Change.NODE_TAINTS)
    assert not queue.wake(Change.NODE_TAINTS, lambda _parked: STILL)
    assert queue.wake(Change.DEVICE)
    assert drained(queue) == ["a"]


# --- backing off ------------------------------------------------------------------------------------------------


def test_a_pod_backs_off_longer_each_time_up_to_ten_seconds() -> None:
    queue = filled(waiting("a"))
    pauses = []
    now = 0.0
    for _ in range(12):
        queue.pop(now)
        queue.back_off(waiting("a"), now)
        due = queue.next_due()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert pauses == [1.0, 2.0, 4.0, 8.0, *[10.0] * 8]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"priority": 1}, id="another priority"),
        pytest.param({"preempts": False}, id="never preempts"),
        pytest.param({"nominated_node": "node"}, id="others leave a node for it"),
    ],
)
def test_the_pods_that_a_pod_may_preempt_are_part_of_its_class(other: dict[str, Any]) -> None:
    queue = filled(waiting("a"))
    queue.park(waiting("a"), failure(Change.CAPACITY_FREED))
    assert queue.parked_failure(waiting("b")) is not None
    assert queue.parked_failure(waiting("b", **other)) is None


def test_a_pod_is_parked_as_what_it_has_become() -> None:
    queue = filled(waiting("a"))
    queue.pop(0.0)
    queue.park(waiting("a", nominated_node="node"), failure(Change.CAPACITY_FREED))
    queue.put(waiting("a", nominated_node="node"))
    assert drained(queue) == []
    queue.put(waiting("a"))
    assert drained(queue) == ["a"]
    queue.wake(ANY)
    assert drained(queue) == []


def test_a_pod_backs_off_from_wherever_it_is() -> None:
    for is_active in (False, True):
        queue = parked(waiting("a"), waiting("b"))
        if is_active:
            queue.wake(ANY)
        queue.back_off(waiting("a"), 0.0)
        queue.wake(ANY)
        assert drained(queue) == ["b"]
        assert drained(queue, 1.0) == ["a"]


def test_a_pod_made_again_starts_with_the_shortest_back_off() -> None:
    queue = filled(waiting("a"))
    for now in (0.0, 1.0, 3.0):
        queue.pop(now)
        queue.back_off(waiting("a"), now)
    queue.remove("uid-a")
    queue.put(waiting("a"))
    queue.pop(10.0)
    queue.back_off(waiting("a"), 10.0)
    assert queue.next_due() == 11.0


# --- nothing is lost --------------------------------------------------------------------------------------------

CLASSES = (PodRequest(), asks({GPU: 50}), asks({GPU: 100}))
PODS = st.builds(
    lambda name, wanted, priority, weight: waiting(name, CLASSES[wanted], priority=priority, weight=weight),
    st.sampled_from("abcdef"),
    st.integers(0, 2),
    st.integers(0, 1),
    st.integers(0, 1),
)
SINGLE = [Change.NODE_ADDED, Change.CAPACITY_FREED, Change.DEVICE]


class QueueMachine(RuleBasedStateMachine):
    """Compare the queue with a minimal model."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: Queue[PendingPod] = Queue()
        self.now = 0.0
        self.pods: dict[str, PendingPod] = {}
        self.where: dict[str, str] = {}
        self.wakes: dict[Hashable, Change] = {}
        self.due: dict[str, float] = {}
        self.taken: str | None = None

    @precondition(lambda self: self.taken is None)
    @rule(pod=PODS)
    def put(self, pod: PendingPod) -> None:
        known = self.pods.get(pod.uid)
        place = (pod.request, pod.priority, pod.weight)
        if known is None or (known.request, known.priority, known.weight) != place:
            self.leave(pod.uid)
            self.where[pod.uid] = "active"
        self.pods[pod.uid] = pod
        self.queue.put(pod)

    @precondition(lambda self: self.taken is None)
    @rule(name=st.sampled_from("abcdef"))
    def remove(self, name: str) -> None:
        self.queue.remove(f"uid-{name}")
        self.leave(f"uid-{name}")

    @precondition(lambda self: self.taken is None)
    @rule()
    def pop(self) -> None:
        for uid, due in self.due.items():
            if self.where[uid] == "backing off" and due <= self.now:
                self.where[uid] = "active"
        active = [self.pods[uid] for uid, where in self.where.items() if where in {"active", "woken"}]
        active.sort(key=lambda pod: (-pod.priority, -pod.weight, pod.uid))
        unit = self.queue.pop(self.now)
        assert unit == (active[0] if active else None)
        if unit is not None:
            self.taken = unit.uid
            self.where[unit.uid] = "taken"

    @precondition(lambda self: self.taken is not None)
    @rule(change=st.sampled_from(SINGLE))
    def park(self, change: Change) -> None:
        pod = self.pods[str(self.taken)]
        parked_failure = self.queue.parked_failure(pod)
        siblings, followers = self.of_class(pod, "parked"), self.of_class(pod, "woken")
        assert (parked_failure is not None) == bool(siblings)
        with_it = self.queue.park(pod, parked_failure or failure(change))
        assert sorted(each.uid for each in with_it) == sorted(followers)
        assert with_it == [self.pods[each.uid] for each in with_it]
        self.wakes.update({} if siblings else {pod.class_key: change})
        self.where |= dict.fromkeys((pod.uid, *followers), "parked")
        self.taken = None

    @precondition(lambda self: self.taken is not None)
    @rule()
    def back_off(self) -> None:
        uid = str(self.taken)
        self.queue.back_off(self.pods[uid], self.now)
        due = self.queue.next_due()
        assert due is not None
        assert due <= self.now + 10.0
        self.due[uid] = self.queue._due[uid]
        self.where[uid], self.taken = "backing off", None

    @precondition(lambda self: self.taken is not None)
    @rule()
    def bind(self) -> None:
        uid, self.taken = str(self.taken), None
        self.queue.remove(uid)
        self.leave(uid)

    @rule(change=st.sampled_from(SINGLE))
    def wake(self, change: Change) -> None:
        self.queue.wake(change)
        for uid, where in self.where.items():
            if where == "parked" and self.wakes[self.pods[uid].class_key] & change:
                self.where[uid] = "woken"

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        """Advance the time, but less than the five minutes after which all parked pods are decided again."""
        self.now += seconds

    def of_class(self, pod: PendingPod, state: str) -> list[str]:
        states = self.where.items()
        return [uid for uid, where in states if where == state and self.pods[uid].class_key == pod.class_key]

    def leave(self, uid: str) -> None:
        for each in (self.pods, self.where, self.due):
            each.pop(uid, None)

    @invariant()
    def all_are_known(self) -> None:
        assert all(uid in self.queue for uid in self.pods)
        assert len(self.queue) == len(self.pods)
        due = {uid for uid, due in self.due.items() if self.where[uid] == "backing off" and uid not in self.queue._due}
        active = {uid for uid, where in self.where.items() if where in {"active", "woken"}}
        assert {each.uid for each in self.queue.active()} == active | due

    def teardown(self) -> None:
        """Check that each pod is returned exactly once after every change and enough time."""
        if self.taken is not None:
            self.queue.back_off(self.pods[self.taken], self.now)
        self.queue.wake(ANY)
        assert sorted(drained(self.queue, self.now + 100.0)) == sorted(pod.name for pod in self.pods.values())


TestNothingIsLost = QueueMachine.TestCase
TestNothingIsLost.settings = settings(max_examples=40, stateful_step_count=40)
