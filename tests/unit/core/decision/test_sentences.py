"""The upgrade step: the record that the previous version left in messages and in an annotation is read once."""

from typing import Any

import pytest

from berth_api.objects.leader_lease import (
    LeaderLeaseStatus,
    LostPlace,
    PromisedNode,
    PromisedPodSet,
    ReservationBackoff,
    ReservedNode,
)
from berth_operator.core.decision import promise_note, sentences
from berth_operator.core.decision.messages import UNSCHEDULABLE
from berth_operator.core.values.owner import Owner
from berth_operator.core.values.quota_workload import CheckState, PodSet, QuotaWorkload
from tests.objects.builders import waiting

NOW = 1_767_225_900
"""2026-01-01T00:05:00Z."""
NOTHING_FREED = "nothing has been freed since 2026-01-01T00:00:00Z"
SIX_FREE = "reserved on a: 6 of 8 GPUs are free, the rest is held by pod x."
NEXT = "the next one may begin at 2026-01-01T00:50:00Z."
SAID = "0/1 nodes are available: 1 Insufficient cpu. "


def pod_says(text: str, **fields: Any) -> LeaderLeaseStatus:
    pod = waiting("big", last_message=SAID + text, **{"last_reason": UNSCHEDULABLE, **fields})
    return sentences.read([pod], [], None, NOW + 0.5)


@pytest.mark.parametrize(
    ("text", "node", "free", "since"),
    [
        (" reserved on a.b-c: 1 of 2 GPUs are free.", "a.b-c", 1, NOW),
        (f"1 node reservation was in vain; {NOTHING_FREED}; {SIX_FREE}", "a", 6, NOW - 300),
        ("nothing has been freed since 2026-99-01T00:00:00Z; reserved on a: 0 of 8 GPUs are free.", "a", 0, 0),
    ],
)
def test_a_node_reservation(text: str, node: str, free: int, since: int) -> None:
    expected = ReservedNode(namespace="ns", pod="big", uid="uid-big", node=node, free=free, since=since)
    assert pod_says(text).node_reservations == [expected]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("reserved on : 1 of 2 GPUs are free.", {}),
        ("reserved on a: 1 of 2 GPUs are free.", {"last_reason": "SchedulerError"}),
    ],
)
def test_no_node_reservation(text: str, fields: dict[str, str]) -> None:
    assert pod_says(text, **fields).node_reservations == []


@pytest.mark.parametrize(
    ("text", "count", "until"),
    [
        (f"1 node reservation was in vain: nothing was freed for 15 minutes; {NEXT}", 1, NOW + 2700),
        ("2 node reservations were in vain; nothing has been freed since 2026-01-01T00:05:00Z; reserved on", 2, 0),
        ("9999 node reservations were in vain: x; the next one may begin at 9999-12-31T23:59:59Z.", 9999, 253402300799),
    ],
)
def test_reservations_in_vain(text: str, count: int, until: int) -> None:
    expected = ReservationBackoff(namespace="ns", owner="r", count=count, until=until)
    assert pod_says(text, owner=Owner(uid="r")).reservation_backoffs == [expected]


def test_promised_places() -> None:
    def says(message: str, state: CheckState = CheckState.READY, *names: str) -> LeaderLeaseStatus:
        pod_sets = tuple(PodSet(name=name, pods=()) for name in names or ("main",))
        workload = QuotaWorkload(key="ns/w", uid="w", check="c", state=state, message=message, pod_sets=pod_sets)
        return sentences.read([], [workload], None, NOW)

    text = promise_note.note({"driver": ["n1"], "worker": ["n3", "n2", "n3"]})
    [found] = says(text, CheckState.READY, "driver", "worker").promised_places
    assert found.pod_sets == [
        PromisedPodSet(name="driver", nodes=[PromisedNode(node="n1", pods=1)]),
        PromisedPodSet(name="worker", nodes=[PromisedNode(node="n2", pods=1), PromisedNode(node="n3", pods=2)]),
    ]
    [found] = says("places on n1, n2 (999999 pods)").promised_places
    assert [(each.node, each.pods) for each in found.pod_sets[0].nodes] == [("n1", 1), ("n2", 1000)]
    for message in ("", "x", "places for other on n1", "no places are promised: x"):
        assert says(message).promised_places == []
    assert says("places on n1", CheckState.PENDING).promised_places == []


def test_lost_places() -> None:
    text = '{"u/ns/Job/j": {"n": [3, 1767226200, 1767225900, "default-scheduler"], "": [4, 0, 1767225900]}}'
    assert sentences.read([], [], text, NOW).lost_places == [
        LostPlace(preemptor="u/ns/Job/j", node="n", count=3, until=NOW + 300, last=NOW, takers=("default-scheduler",)),
        LostPlace(preemptor="u/ns/Job/j", count=4, last=NOW),
    ]


@pytest.mark.parametrize(
    "text", [None, "", "[]", "nonsense", '{"p": []}', '{"p": {"n": [1]}}', '{"p": {"n": ["x", 0, 0]}}']
)
def test_lost_places_that_are_not_known(text: str | None) -> None:
    assert sentences.read([], [], text, NOW).lost_places is None
