"""A leader inherits all places, whatever the messages for people say."""

import asyncio

import pytest

from berth_api.objects.leader_lease import LostPlace, ReservationBackoff
from berth_operator.core.values.quota_workload import CheckState
from berth_operator.process import inherited
from tests.component.evictions.test_node_reservations import AFTER, REVIEW, Crowded, big, held, small
from tests.component.gangs.test_promised_places import promised, workload
from tests.component.world import EPOCH, NOTHING

pytestmark = pytest.mark.looptime


async def test_all_places_stay_when_the_messages_are_overwritten_between_two_leaders() -> None:
    first = Crowded()
    first.nodes("a", "b")
    first.hold(held("x", 0), held("y", 0, on="b"))
    backoff = ReservationBackoff(namespace="other", owner="uid-vain", count=2, until=EPOCH + 900)
    lost = LostPlace(preemptor="ns/high", count=4, until=EPOCH + 900, last=EPOCH, takers=("default-scheduler",))
    first.inherited = NOTHING.model_copy(update={"reservation_backoffs": [backoff], "lost_places": [lost]})
    first.submit(big(), big("vain", metadata={"namespace": "other"}))
    async with first.running():
        await asyncio.sleep(AFTER + REVIEW)
        first.cluster.workloads.put(workload("train", 1))
        await asyncio.sleep(REVIEW)
        assert promised(first, "train") == ["b"]
    left = first.left()
    assert [(each.pod, each.node) for each in left.node_reservations] == [("big", "a")]
    assert left.reservation_backoffs == [backoff]
    assert left.lost_places == [lost]

    second = Crowded(api=first.conditions)
    second.nodes("b", "a")
    status = left.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    second.inherited = inherited.read({"metadata": {}, "spec": {"term": 1}, "status": status}, second.cluster)
    for raw in second.api.pods.values():
        for condition in raw.get("status", {}).get("conditions", ()):
            condition["message"] = "x"
    second.submit(*second.api.pods.values(), small())
    second.cluster.workloads.put(workload("train", 1, state=CheckState.READY, message="x"))
    async with second.running() as api:
        await asyncio.sleep(REVIEW)
        assert second.left() == left
        assert "small" not in api.bound()
