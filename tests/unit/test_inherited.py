"""Which record a leader inherits: the typed record, or what an operator of the previous version wrote."""

from typing import Any

import pytest

from berth_api import names
from berth_api.objects.leader_lease import LeaderLeaseStatus, LostPlace
from berth_operator.process import inherited
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import NVIDIA, pod

RESERVED = {"namespace": "ns", "pod": "p", "uid": "uid-p", "node": "n1", "free": 1, "since": "2026-01-01T00:00:00Z"}
STATUS = {"version": 1, "nodeReservations": [RESERVED], "lostPlaces": []}


@pytest.mark.parametrize(
    ("lease", "node", "knows"),
    [
        pytest.param({"status": STATUS}, "n1", True, id="record"),
        pytest.param({}, "n2", False, id="sentences alone"),
        pytest.param({"annotation": "{}"}, "n2", True, id="version before"),
        pytest.param({"status": STATUS, "annotation": "{}"}, "n2", True, id="version before, after a later one"),
        pytest.param({"status": {**STATUS, "version": 2}}, "n2", False, id="record of another version"),
        pytest.param({"status": {**STATUS, "nodeReservations": [{}]}}, "n2", False, id="record of another form"),
    ],
)
def test_what_is_inherited(lease: dict[str, Any], node: str, *, knows: bool) -> None:
    cluster = Cluster(grace=1.0)
    said = {"reason": "Unschedulable", "message": "x. reserved on n2: 1 of 2 GPUs are free."}
    cluster.put_pending(
        pod("p", {NVIDIA: "2"}, status={"conditions": [{"type": "PodScheduled", "status": "False", **said}]})
    )
    annotations = {names.LOST_PLACES: lease["annotation"]} if "annotation" in lease else {}
    found = inherited.read(
        {"spec": {"term": 1}, "metadata": {"annotations": annotations}, "status": lease.get("status")}, cluster
    )
    assert [each.node for each in found.node_reservations] == [node]
    assert (found.lost_places is not None) is knows


def test_the_first_leader_knows_that_nothing_is_lost() -> None:
    lease: dict[str, Any] = {"spec": {"term": 0}, "metadata": {}}
    assert inherited.read(lease, Cluster(grace=1.0)) == LeaderLeaseStatus(version=1, lost_places=[])


def test_all_that_is_recorded_is_read_again() -> None:
    record = LeaderLeaseStatus(version=1, lost_places=[LostPlace(preemptor="p", count=2, until=7)])
    status = record.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert inherited.read({"spec": {"term": 1}, "metadata": {}, "status": status}, Cluster(grace=1.0)) == record
