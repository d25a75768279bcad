"""The record in the status of the LeaderLease: its times, and its maximum size."""

import json

import pytest

from berth_api.objects import leader_lease
from berth_api.objects.leader_lease import (
    LeaderLeaseStatus,
    LostPlace,
    PromisedNode,
    PromisedPodSet,
    PromisedWorkload,
    ReservationBackoff,
    ReservedNode,
)

TIME = 1_767_225_600
NAME, SHORT, UID = "n" * 253, "n" * 63, "u" * leader_lease.MAX_UID


def test_the_largest_record_fits_into_an_object() -> None:
    reserved = ReservedNode(namespace=SHORT, pod=NAME, uid=UID, node=NAME, free=256, since=TIME)
    backoff = ReservationBackoff(namespace=SHORT, owner=UID, count=1000, until=TIME)
    places = [PromisedPodSet(name=SHORT, nodes=[PromisedNode(node=NAME, pods=1)])]
    preemptor, takers = "p" * leader_lease.MAX_PREEMPTOR, (SHORT,) * leader_lease.MAX_TAKERS
    lost = LostPlace(preemptor=preemptor, node=NAME, count=1000, until=TIME, last=TIME, takers=takers)
    record = LeaderLeaseStatus(
        version=leader_lease.VERSION,
        node_reservations=[reserved] * leader_lease.MAX_RESERVED_NODES,
        reservation_backoffs=[backoff] * leader_lease.MAX_BACKOFFS,
        promised_places=[PromisedWorkload(uid=UID, pod_sets=places)] * leader_lease.MAX_PLACES,
        lost_places=[lost] * leader_lease.MAX_LOST_PLACES,
    )
    document = record.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert len(json.dumps(document, separators=(",", ":"))) < 0.9 * 2**20
    assert LeaderLeaseStatus.model_validate(document) == record


def test_one_more_than_there_may_be_is_an_error() -> None:
    backoff = ReservationBackoff(namespace="ns", owner="u", count=1)
    with pytest.raises(ValueError, match="at most 512 items"):
        LeaderLeaseStatus(version=1, reservation_backoffs=[backoff] * (leader_lease.MAX_BACKOFFS + 1))
