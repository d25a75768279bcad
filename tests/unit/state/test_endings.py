"""When pods end: by their deletion, their deadline, or another estimate."""

import pytest

from berth_operator.core.values import ending
from berth_operator.core.values.charge import NOT_STARTED
from berth_operator.state.objects import pods
from berth_operator.state.objects.endings import LATEST, MAX_LIFETIME
from tests.objects.builders import Raw, condition, owner, pod

BOUND_AT = 1_767_225_600
"""2026-01-01T00:00:00Z."""
STARTED = {"startTime": "2026-01-01T00:01:00Z"}
BOUND = {"conditions": [condition("PodScheduled", "True")]}
ENDLESS = {"activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 2**63 - 1}
DELETED = {"deletionTimestamp": "2026-01-01T00:02:00Z"}


def owned(kind: str) -> Raw:
    return {"ownerReferences": [owner("o", kind)]}


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        pytest.param({}, ending.UNTIL_DELETED, id="restarted by default"),
        pytest.param({"restartPolicy": "Always"}, ending.UNTIL_DELETED, id="restarted"),
        pytest.param({"restartPolicy": "OnFailure"}, ending.UNKNOWN, id="may complete"),
        pytest.param({"restartPolicy": "Never"}, ending.UNKNOWN, id="completes"),
        pytest.param({"metadata": owned("DaemonSet")}, ending.NEVER, id="of a DaemonSet"),
        pytest.param({"metadata": owned("Node"), "restartPolicy": "Never"}, ending.NEVER, id="static"),
        pytest.param({"metadata": owned("Job"), "restartPolicy": "Never"}, ending.UNKNOWN, id="of a Job"),
        pytest.param({"activeDeadlineSeconds": 600}, ending.UNTIL_DELETED, id="neither bound nor started"),
        pytest.param({"activeDeadlineSeconds": 600, "status": BOUND}, BOUND_AT + 10 + 600 + 30, id="bound"),
        pytest.param({"activeDeadlineSeconds": 600, "status": STARTED}, BOUND_AT + 60 + 600 + 30, id="started"),
        pytest.param(
            {"activeDeadlineSeconds": 600, "terminationGracePeriodSeconds": 0, "status": {**BOUND, **STARTED}},
            BOUND_AT + 60 + 600,
            id="no grace",
        ),
        pytest.param({"metadata": DELETED, "restartPolicy": "Always"}, BOUND_AT + 120, id="deleted"),
        pytest.param({**ENDLESS, "status": BOUND}, BOUND_AT + 10 + MAX_LIFETIME, id="endless grace"),
        pytest.param({**ENDLESS, "status": {"startTime": "9000-01-01T00:00:00Z"}}, LATEST, id="late and endless"),
    ],
)
def test_the_end_of_a_bound_pod(fields: Raw, ends: int) -> None:
    assert pods.charge(pod(on="node", **fields)).ends == ends


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "x"])
def test_a_time_that_python_cannot_hold_is_not_known(time: str) -> None:
    late = pods.charge(pod(on="node", metadata={"deletionTimestamp": time}))
    assert late.ends == LATEST
    limited: Raw = {"on": "node", "activeDeadlineSeconds": 600}
    started = pods.charge(pod(status={"startTime": time}, **limited))
    assert (started.started, started.ends) == (NOT_STARTED, ending.UNTIL_DELETED)
    assert pods.charge(pod(status={"startTime": time, **BOUND}, **limited)).ends == BOUND_AT + 10 + 600 + 30
    scheduled = {"conditions": [condition("PodScheduled", "True", since=time)]}
    assert pods.charge(pod(status=scheduled, **limited)).ends == ending.UNTIL_DELETED


@pytest.mark.parametrize(
    ("fields", "lifetime", "ends"),
    [
        pytest.param({}, 0, ending.UNTIL_DELETED, id="unlimited"),
        pytest.param({"activeDeadlineSeconds": 60, "restartPolicy": "Never"}, 90, ending.UNKNOWN, id="limited"),
        pytest.param(
            {"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}, 65, ending.UNTIL_DELETED, id="own grace"
        ),
        pytest.param(ENDLESS, MAX_LIFETIME, ending.UNTIL_DELETED, id="endless grace"),
    ],
)
def test_the_lifetime_of_a_waiting_pod(fields: Raw, lifetime: int, ends: int) -> None:
    waiting = pods.pending(pod(**fields))
    assert (waiting.lifetime, waiting.ends) == (lifetime, ends)
    assert (waiting.class_key == pods.pending(pod("other", **fields)).class_key) is True
    assert (waiting.class_key == pods.pending(pod("other")).class_key) is (lifetime == 0)


@pytest.mark.parametrize(
    ("conditions", "since"),
    [
        pytest.param([], "", id="new"),
        pytest.param([condition("PodScheduled", "False", reason="SchedulingGated")], "", id="gated"),
        pytest.param([condition("PodScheduled", "False", reason="Unschedulable")], "2026-01-01T00:00:00Z", id="waits"),
        pytest.param([condition("PodScheduled", "True")], "", id="bound"),
    ],
)
def test_since_when_a_pod_is_unschedulable(conditions: list[Raw], since: str) -> None:
    assert pods.pending(pod(status={"conditions": conditions})).unschedulable_since == since
