"""What is remembered of gangs whose succeeded members are gone, and the bounds of the memory."""

import pytest

from berth_api.objects.leader_lease import MAX_CONTROLLERS, MAX_SUCCEEDED_GANGS, LeaderLeaseStatus
from berth_operator.core.queue.gang_tracker import GangTracker
from berth_operator.core.queue.gone_members import MAX_GANGS, MAX_KNOWN, GoneMembers, is_final
from berth_operator.core.values.owner import Owner
from berth_operator.core.values.request import Membership
from tests.objects.builders import waiting


def job(uid: str = "uid-job") -> Owner:
    return Owner(kind="Job", name="job", api_version="batch/v1", uid=uid)


def gang(name: str = "g") -> Membership:
    return Membership(group=f"ns/{name}", minimum=2)


def succeed_and_go(tracker: GangTracker, name: str, owner: Owner, of: Membership, *, is_followed: bool = True) -> None:
    tracker.end(name, of, succeeded=True, owner=owner)
    tracker.remove_ended(name, is_followed=is_followed)


def wait(tracker: GangTracker, name: str, owner: Owner, of: Membership) -> None:
    tracker.wait(waiting(name, gang=of, owner=owner), of)


@pytest.mark.parametrize(
    ("kind", "version", "expected"),
    [("Job", "batch/v1", True), ("Job", "batch.volcano.sh/v1alpha1", False), ("ReplicaSet", "apps/v1", False)],
)
def test_only_jobs_of_kubernetes_never_run_again_what_has_succeeded(kind: str, version: str, expected: bool) -> None:
    assert is_final(Owner(kind=kind, name="n", api_version=version, uid="u")) is expected


def test_the_memory_and_the_record_have_bounds() -> None:
    tracker = GangTracker(timeout=60.0)
    for number in range(MAX_GANGS + 10):
        succeed_and_go(tracker, f"p{number}", job(), gang(f"g{number}"))
    recorded = tracker.record()
    assert len(recorded) == MAX_SUCCEEDED_GANGS
    assert LeaderLeaseStatus(version=1, succeeded_members=recorded)
    wait(tracker, "first", job(), gang("g0"))
    wait(tracker, "last", job(), gang(f"g{MAX_GANGS + 9}"))
    assert tracker.size(gang("g0")) == (1, 2), "forgotten"
    assert tracker.size(gang(f"g{MAX_GANGS + 9}")) == (2, 2)


def test_a_gang_knows_so_many_controllers() -> None:
    gone = GoneMembers()
    for number in range(MAX_KNOWN + 1):
        gone.meet(job(f"{number}"))
    assert len(gone.controllers) == MAX_KNOWN


def test_a_gang_of_very_many_controllers_is_not_recorded() -> None:
    tracker = GangTracker(timeout=60.0)
    for number in range(MAX_CONTROLLERS + 1):
        wait(tracker, f"w{number}", job(f"uid-{number}"), gang())
    succeed_and_go(tracker, "p", job("uid-0"), gang())
    assert tracker.size(gang())[0] == MAX_CONTROLLERS + 2
    assert tracker.record() == []


def test_pods_that_are_not_followed_any_more_have_not_gone() -> None:
    tracker = GangTracker(timeout=60.0)
    wait(tracker, "w", job(), gang())
    succeed_and_go(tracker, "p", job(), gang(), is_followed=False)
    assert tracker.size(gang()) == (1, 2)


@pytest.mark.parametrize(("uid", "expected"), [("uid-job", 2), ("uid-another", 1)])
def test_a_new_leader_counts_them_for_members_of_the_same_controllers(uid: str, expected: int) -> None:
    before, after = GangTracker(timeout=60.0), GangTracker(timeout=60.0)
    succeed_and_go(before, "p", job(), gang())
    wait(after, "w", job(uid), gang())
    assert after.restore(before.record()) == ([gang()] if expected > 1 else [])
    assert after.size(gang()) == (expected, 2)
