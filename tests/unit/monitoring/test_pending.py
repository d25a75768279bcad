"""Pending pods are counted by queue, plugin, namespace and reason, and no label grows without bound."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from berth_operator.core.decision.cycle import Failure, decide, failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import ORDER
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.core.values.verdict import ANY, Change
from berth_operator.metrics import gauges
from berth_operator.metrics.monitoring.bounds import MOST, OTHER, frequent
from berth_operator.metrics.monitoring.pending import PendingCount, reason_of
from tests.objects.builders import GPU, asks, card, fleet, waiting

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def pod(name: str, **fields: Any) -> PendingPod:
    return waiting(name, asks({GPU: 100}), **{"created": OLD, **fields})


def counted(
    queue: Queue[PendingPod | Gang], pending: Mapping[str, PendingPod] | None = None, *, gated: int = 0
) -> Mapping[gauges.Family, gauges.Values]:
    count = PendingCount()
    for _ in count.count(queue, pending or {}):
        pass
    return count.values(gated=gated)


def parked(queue: Queue[PendingPod | Gang], unit: PendingPod | Gang, *filters: str) -> None:
    rejected_by = tuple(each for each in ORDER if each.NAME in filters)
    queue.put(unit)
    assert queue.pop(0.0) is not None
    queue.park(unit, Failure(message="no", wakes_on=Change.DEVICE, condition="Refused", rejected_by=rejected_by))


def test_queues_hold_what_kube_scheduler_counts_in_them() -> None:
    queue: Queue[PendingPod | Gang] = Queue()
    parked(queue, pod("full", namespace="a"), "taints", "devices")
    parked(queue, pod("tainted", namespace="b", scheduler="other"), "taints")
    members = tuple(pod(f"m{number}", namespace="a", created=NEW) for number in range(3))
    parked(queue, Gang(membership=Membership(group="a/g"), minimum=3, members=members), "devices")
    in_flight = pod("in flight")
    queue.put(in_flight)
    assert queue.pop(0.0) == in_flight
    queue.back_off(pod("refused"), 0.0)
    queue.put(pod("new"))
    lonely = pod("lonely", gang=Membership(group="ns/too-few"))

    values = counted(queue, {lonely.uid: lonely}, gated=2)

    assert values[gauges.QUEUED] == {("active",): 1, ("backoff",): 1, ("unschedulable",): 5, ("gated",): 3}
    assert values[gauges.UNSCHEDULABLE] == {
        ("TaintToleration", "berth-scheduler"): 1,
        ("TaintToleration", "other"): 1,
        ("devices", "berth-scheduler"): 4,
    }
    assert values[gauges.PENDING] == {
        ("ns", "Queued"): 1,
        ("ns", "BackingOff"): 1,
        ("ns", "PodGroupNotReady"): 1,
        ("a", "devices"): 4,
        ("b", "taints"): 1,
    }
    oldest = values[gauges.OLDEST]
    assert oldest["a", "devices"] == oldest["b", "taints"] == datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def test_without_a_filter_the_condition_is_the_reason() -> None:
    invalid = decide(fleet(), replace(pod("p"), error="wrong"), Policy())
    assert isinstance(invalid, Failure)
    assert reason_of(invalid) == "InvalidRequest"


def test_the_last_filter_is_the_reason() -> None:
    cluster = fleet({"small": (card(),), "none": ()})
    why = failure(cluster, asks({GPU: 100, "cpu": 10**9}), ORDER)
    assert reason_of(why) == why.rejected_by[-1].NAME


def test_namespaces_are_bounded() -> None:
    queue: Queue[PendingPod | Gang] = Queue()
    for number in range(10_000):
        parked(queue, pod(f"p{number}", namespace=f"ns-{number}", created=NEW), "devices")
    parked(queue, pod("old", namespace="ns-9999"), "devices")
    parked(queue, pod("second", namespace="ns-0", created=OLD), "taints")

    values = counted(queue)

    pods, oldest = values[gauges.PENDING], values[gauges.OLDEST]
    assert len({namespace for namespace, _ in pods}) == MOST + 1
    assert pods.keys() == oldest.keys()
    assert sum(pods.values()) == 10_002
    assert pods["ns-9999", "devices"] == 2
    assert pods[OTHER, "devices"] == 10_000 - MOST


@pytest.mark.parametrize(
    ("amounts", "most", "kept"),
    [
        pytest.param({}, 2, set(), id="none"),
        pytest.param({"a": 1, "b": 2}, 2, {"a", "b"}, id="few"),
        pytest.param({"a": 1, "b": 2, "c": 3}, 2, {"b", "c"}, id="highest"),
        pytest.param({"c": 1, "b": 1, "a": 1, "d": 2}, 2, {"a", "d"}, id="equal ones by name"),
    ],
)
def test_frequent_values(amounts: Mapping[str, float], most: int, kept: set[str]) -> None:
    assert set(frequent(amounts, most)) == kept


@pytest.mark.parametrize("change", [*Change, Change.POD_DELETED | Change.CAPACITY_FREED | Change.VOLUME, ANY], ids=str)
def test_every_change_has_a_label(change: Change) -> None:
    assert event_labels.of(change).isascii()


def test_moves_between_queues_are_counted() -> None:
    queue: Queue[PendingPod | Gang] = Queue()
    members = tuple(pod(f"m{number}") for number in range(3))
    parked(queue, Gang(membership=Membership(group="ns/g"), minimum=3, members=members), "devices")
    queue.wake(Change.DEVICE)
    queue.back_off(pod("refused"), 0.0)
    queue.pop(100.0)

    assert queue.incoming == {
        ("active", "UnschedulablePodAdd"): 3,
        ("unschedulable", "ScheduleAttemptFailure"): 3,
        ("active", "DeviceUpdate"): 3,
        ("backoff", "ScheduleAttemptFailure"): 1,
        ("active", "BackoffComplete"): 1,
    }
