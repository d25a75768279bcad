"""The record in the status of the LeaderLease: its times, and its maximum size."""

import json
from typing import Any

import pytest

from berth_api.objects import leader_lease
from berth_api.objects.leader_lease import (
    JoinedGang,
    LeaderLeaseStatus,
    LostPlace,
    PromisedGang,
    PromisedNode,
    PromisedPodSet,
    PromisedWorkload,
    RefusedWrite,
    ReservationBackoff,
    ReservedNode,
    SucceededMembers,
)

TIME = 1_767_225_600
NAME, SHORT, UID = "n" * 253, "n" * 63, "u" * leader_lease.MAX_UID


JOINED = JoinedGang(name="n" * 127, nodes=[PromisedNode(node=NAME, pods=1)])
WORKLOADS = [
    PromisedWorkload(uid=UID, pod_sets=[PromisedPodSet(name=SHORT, nodes=[PromisedNode(node=NAME, pods=1)])])
] * leader_lease.MAX_PLACES
GANGS = [
    PromisedGang(
        kind=SHORT,
        namespace=SHORT,
        name="n" * 127,
        until=TIME,
        places=[JOINED] * (leader_lease.MAX_PLACES // leader_lease.MAX_PROMISED_GANGS),
    )
] * leader_lease.MAX_PROMISED_GANGS


@pytest.mark.parametrize(
    "promises", [{"promised_places": WORKLOADS}, {"promised_gangs": GANGS}], ids=["workloads", "gangs"]
)
def test_the_largest_record_fits_into_an_object(promises: dict[str, Any]) -> None:
    reserved = ReservedNode(namespace=SHORT, pod=NAME, uid=UID, node=NAME, free=256, since=TIME)
    backoff = ReservationBackoff(namespace=SHORT, owner=UID, count=1000, until=TIME)
    preemptor, takers = "p" * leader_lease.MAX_PREEMPTOR, (SHORT,) * leader_lease.MAX_TAKERS
    lost = LostPlace(preemptor=preemptor, node=NAME, count=1000, until=TIME, last=TIME, takers=takers)
    refused = RefusedWrite(
        verb="create",
        resource="n" * 256,
        code=403,
        refuser="n" * 256,
        object="n" * leader_lease.MAX_REFUSED_OBJECT,
        namespaces=[SHORT] * leader_lease.MAX_REFUSED_NAMESPACES,
        since=TIME,
        last=TIME,
        message="m" * leader_lease.MAX_REFUSED_MESSAGE,
    )
    succeeded = SucceededMembers(
        gang="g" * leader_lease.MAX_GANG,
        count=1000,
        controllers=["c" * leader_lease.MAX_ID] * leader_lease.MAX_CONTROLLERS,
    )
    record = LeaderLeaseStatus(
        version=leader_lease.VERSION,
        node_reservations=[reserved] * leader_lease.MAX_RESERVED_NODES,
        reservation_backoffs=[backoff] * leader_lease.MAX_BACKOFFS,
        **promises,
        lost_places=[lost] * leader_lease.MAX_LOST_PLACES,
        succeeded_members=[succeeded] * leader_lease.MAX_SUCCEEDED_GANGS,
        refused_writes=[refused] * leader_lease.MAX_REFUSED_WRITES,
    )
    document = record.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert len(json.dumps(document, separators=(",", ":"))) < 0.95 * 2**20
    assert LeaderLeaseStatus.model_validate(document) == record


def test_one_more_than_there_may_be_is_an_error() -> None:
    backoff = ReservationBackoff(namespace="ns", owner="u", count=1)
    with pytest.raises(ValueError, match="at most 512 items"):
        LeaderLeaseStatus(version=1, reservation_backoffs=[backoff] * (leader_lease.MAX_BACKOFFS + 1))
