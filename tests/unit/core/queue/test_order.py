"""The order of the queue as shown: the order in which pods are taken, then the end of back-offs, then the rest."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.order import CHUNK, Place, places
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.core.values.verdict import ANY, Change
from tests.objects.builders import GPU, asks, gang, waiting

Units = Queue[PendingPod | Gang]
NO_PODS: dict[str, PendingPod] = {}


def shown(queue: Units, pending: Iterable[PendingPod] = (), placed: Iterable[str] = ()) -> list[Place]:
    by_uid = {pod.uid: pod for pod in pending}
    return [place for place in places(queue, by_uid, set(placed)) if place is not None]


def test_active_pods_come_first_then_those_that_back_off_then_those_that_wait_for_an_event() -> None:
    queue: Units = Queue()
    for pod in (waiting("b", created="2"), waiting("a", created="1"), waiting("urgent", priority=9, created="3")):
        queue.put(pod)
    for end, pod in ((5.0, waiting("soon")), (3.0, waiting("sooner"))):
        queue.put(pod)
        queue.back_off(pod, now=end)
    for name, request in (("fits-nowhere", {GPU: 800}), ("neither", {GPU: 900})):
        pod = waiting(name, asks(request), created=name)
        queue.put(pod)
        queue.park(pod, Failure(message=f"no place for {name}", wakes_on=Change.CAPACITY_FREED | Change.NODE_ADDED))
    # A pod that is parked is no longer among the active ones, which `pop` would have taken it from.
    queue._is_active.pop("uid-fits-nowhere")
    queue._is_active.pop("uid-neither")
    expected = [
        ("urgent", event_labels.ACTIVE, 0.0, ""),
        ("a", event_labels.ACTIVE, 0.0, ""),
        ("b", event_labels.ACTIVE, 0.0, ""),
        ("sooner", event_labels.BACKOFF, 4.0, ""),
        ("soon", event_labels.BACKOFF, 6.0, ""),
        ("fits-nowhere", event_labels.UNSCHEDULABLE, 0.0, "no place for fits-nowhere"),
        ("neither", event_labels.UNSCHEDULABLE, 0.0, "no place for neither"),
    ]
    found = shown(queue)
    assert [(place.pod.name, place.state, place.until, place.message) for place in found] == expected
    assert [place.position for place in found] == list(range(1, 8))
    assert [event_labels.awaited(place.wakes_on) for place in found[-2:]] == [["AssignedPodDelete", "NodeAdd"]] * 2


def test_an_invalid_pod_has_no_position() -> None:
    queue: Units = Queue()
    for pod in (replace(waiting("a", created="1"), error="x"), waiting("b", created="2")):
        queue.put(pod)
    assert [(place.pod.name, place.position) for place in shown(queue)] == [("a", 0), ("b", 1)]


def test_members_of_a_gang_have_consecutive_places() -> None:
    members = [waiting(f"m{number}", gang=Membership(group="ns/g"), created="2") for number in range(3)]
    queue: Units = Queue()
    for unit in (gang(*members, created="2"), waiting("first", created="1"), waiting("last", created="3")):
        queue.put(unit)
    found = shown(queue, members)
    assert [place.pod.name for place in found] == ["first", "m0", "m1", "m2", "last"]
    assert [place.position for place in found] == [1, 2, 3, 4, 5]


def test_members_of_an_incomplete_gang_come_last_unless_they_have_a_node() -> None:
    alone, placed = (waiting(name, gang=Membership(group="ns/g")) for name in ("alone", "placed"))
    queue: Units = Queue()
    queue.put(waiting("single", created="9"))
    found = shown(queue, [alone, placed], [placed.uid])
    assert [(place.pod.name, place.state) for place in found] == [
        ("single", event_labels.ACTIVE),
        ("alone", event_labels.UNSCHEDULABLE),
    ]


PODS = st.lists(
    st.builds(
        lambda number, priority, weight, created: waiting(
            f"p{number}", priority=priority, weight=weight, created=str(created), arrived=number
        ),
        st.integers(0, 10_000),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 4),
    ),
    max_size=30,
    unique_by=lambda pod: pod.uid,
)


@given(PODS)
def test_the_order_is_the_one_in_which_pods_are_taken(pods: list[PendingPod]) -> None:
    queue: Units = Queue()
    for pod in pods:
        queue.put(pod)
    found = [place.pod.uid for place in shown(queue)]
    taken = []
    while (unit := queue.pop(0.0)) is not None:
        taken.append(unit.uid)
    assert found == taken


def test_a_long_queue_is_sorted_in_steps() -> None:
    queue: Units = Queue()
    for number in range(3 * CHUNK):
        queue.put(waiting(f"p{number}", created=f"{-number % 1000:04}", arrived=number))
    steps = list(places(queue, NO_PODS, ()))
    assert steps.count(None) == 3
    assert [place.position for place in steps if place is not None] == list(range(1, 3 * CHUNK + 1))


def test_every_event_has_a_name() -> None:
    assert len(event_labels.awaited(ANY)) == len(event_labels._OF_CHANGES)
    assert event_labels.awaited(Change(0)) == []
