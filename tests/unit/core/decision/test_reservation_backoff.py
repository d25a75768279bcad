"""When a node reservation that is in vain ends, when the next may begin, and what the condition records."""

from dataclasses import replace
from typing import Any

import pytest

from berth_api.objects.leader_lease import ReservedNode
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.reservation import HORIZON, FreeDevices, NodeReservation
from berth_operator.core.decision.reservation_backoff import (
    FIRST_PAUSE,
    MAX_KEPT,
    MAX_PAUSE,
    PATIENCE,
    Backoff,
    Backoffs,
    begun,
    ends_at,
    key_of,
    renewed,
    resumed,
)
from berth_operator.core.values import ending
from berth_operator.core.values.owner import Owner
from berth_operator.core.values.verdict import Change
from tests.objects.builders import NVIDIA, charge, waiting

NOW = 1_800_000_000
POD = waiting("big", {NVIDIA: 2})
OLD = charge("old")
FAILURE = Failure(message="0/1 nodes are available: 1 x.", wakes_on=Change(0))


def free(number: int) -> tuple[FreeDevices, ...]:
    """Return that of two GPUs a number are free."""
    return (FreeDevices(type="gpu", free=number, requested=2),)


def kept(**fields: Any) -> NodeReservation:
    """Return a reservation of a node with one free GPU of two."""
    return NodeReservation(
        **{
            "nominee": charge("big", node="a"),
            "request": POD.request,
            "awaited": (OLD,),
            "ends": ending.UNKNOWN,
            "placed": (OLD,),
            "devices": free(1),
            "since": NOW,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        pytest.param(ending.UNKNOWN, NOW + PATIENCE, id="not known"),
        pytest.param(ending.UNTIL_DELETED, NOW + PATIENCE, id="when it is deleted"),
        pytest.param(NOW + 1000, NOW + 1000 + PATIENCE, id="known"),
        pytest.param(NOW + HORIZON + 1, NOW + PATIENCE, id="known, but distant"),
        pytest.param(0, NOW + PATIENCE, id="waits for no pod"),
    ],
)
def test_when_a_reservation_ends(ends: int, expected: float) -> None:
    assert ends_at(kept(ends=ends), NOW) == expected


HIGH = charge("high")


@pytest.mark.parametrize(
    ("after", "since", "least"),
    [
        pytest.param(kept(), NOW, (1, 1), id="nothing"),
        pytest.param(kept(awaited=()), NOW + 60, (1, 0), id="a pod has left"),
        pytest.param(kept(devices=free(2)), NOW + 60, (0, 1), id="a card is back"),
        pytest.param(kept(awaited=(OLD, HIGH), devices=free(0)), NOW, (1, 1), id="a pod of higher priority came"),
        pytest.param(kept(nominee=charge("big", node="b"), awaited=()), NOW, (1, 0), id="another node"),
    ],
)
def test_when_something_was_freed_last(after: NodeReservation, since: int, least: tuple[int, int]) -> None:
    new = renewed(begun(kept(), NOW), after, NOW + 60)
    assert (new.since, new.least) == (since, least)


def test_a_pod_that_came_and_went_has_freed_nothing() -> None:
    reservation = begun(kept(), NOW)
    for after in (kept(awaited=(OLD, HIGH), devices=free(0)), kept()):
        reservation = renewed(reservation, after, NOW + 60)
    assert reservation.since == NOW


def test_the_pauses_double_for_all_pods_of_a_controller() -> None:
    backoffs, owner = Backoffs[tuple[str, str]](), Owner(kind="Job", name="j", uid="j")
    first, second = (replace(POD, uid=name, owner=owner) for name in "ab")
    pauses = []
    for _ in range(6):
        backoffs.add(key_of(first), NOW)
        backoff = backoffs.of(key_of(second))
        assert backoff is not None
        pauses.append(backoff.until - NOW)
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE, MAX_PAUSE, MAX_PAUSE]
    assert backoffs.in_vain(NOW + MAX_PAUSE - 1) == {key_of(second)}
    assert not backoffs.in_vain(NOW + MAX_PAUSE)
    assert backoffs.of(key_of(replace(second, namespace="other"))) is None


@pytest.mark.parametrize(
    ("recorded", "since"),
    [
        pytest.param({}, NOW, id="the same"),
        pytest.param({"free": 2}, NOW, id="less is free"),
        pytest.param({"free": 0}, NOW + 60, id="something was freed meanwhile"),
        pytest.param({"node": "b"}, NOW + 60, id="on another node"),
        pytest.param({"since": NOW + 9000}, NOW + 60, id="by a clock that is wrong"),
    ],
)
def test_since_when_a_restored_reservation_counts(recorded: Any, since: int) -> None:
    record = {"namespace": "ns", "pod": "big", "uid": POD.uid, "node": "a", "free": 1, "since": NOW, **recorded}
    assert resumed(kept(), ReservedNode(**record), NOW + 60).since == since


def test_a_restored_pause_is_bounded() -> None:
    backoffs = Backoffs[str]()
    backoffs.restore("key", Backoff(count=9999, until=NOW + 10 * MAX_PAUSE), NOW)
    assert not backoffs.in_vain(NOW + MAX_PAUSE)


def test_what_is_kept_and_recorded_is_bounded() -> None:
    backoffs = Backoffs[int]()
    for number in range(MAX_KEPT + 1):
        backoffs.add(number, NOW + number)
    assert 0 not in dict(backoffs.last_to_end())
    assert len(backoffs.last_to_end()) == MAX_KEPT
    backoffs.keep(lambda: [0])
    assert backoffs.in_vain(NOW) == {0}
