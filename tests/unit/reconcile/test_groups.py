"""The status of a PodGroup."""

from dataclasses import replace
from typing import Any

import pytest

from berth_operator.controllers.reconcile import groups
from berth_operator.core.queue.gang_tracker import Counts, Group
from berth_operator.state.cache.views import GroupView

NO_IDENTITY = Counts(waiting=0, bound=0, running=0, succeeded=0, failed=0, formed=False)


def counts(**fields: Any) -> Counts:
    return replace(NO_IDENTITY, **fields)


def view(status: dict[str, Any] | None = None, minimum: int = 3, **fields: Any) -> GroupView:
    return GroupView(group=Group(name="ns/g", uid="u", minimum=minimum), status=status or {}, counts=counts(**fields))


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        pytest.param({}, "Pending", id="no members"),
        pytest.param({"waiting": 2}, "Pending", id="too few"),
        pytest.param({"waiting": 3}, "PreScheduling", id="enough"),
        pytest.param({"waiting": 1, "bound": 2}, "Scheduling", id="some bound"),
        pytest.param({"bound": 3, "formed": True}, "Scheduled", id="all bound"),
        pytest.param({"bound": 3, "running": 3, "formed": True}, "Running", id="all running"),
        pytest.param({"bound": 2, "running": 2, "succeeded": 1, "formed": True}, "Running", id="one done"),
        pytest.param({"bound": 2, "running": 2, "formed": True}, "Scheduled", id="one lost"),
        pytest.param({"bound": 2, "running": 2, "failed": 1, "formed": True}, "Failed", id="one failed"),
        pytest.param({"bound": 2, "running": 2, "failed": 1}, "Scheduling", id="one failed before all were bound"),
        pytest.param({"bound": 3, "running": 3, "failed": 1, "formed": True}, "Running", id="one failed and replaced"),
        pytest.param({"succeeded": 3}, "Finished", id="all done"),
    ],
)
def test_the_phase(fields: dict[str, Any], phase: str) -> None:
    assert groups.phase(counts(**fields), 3) == phase


def test_a_group_that_needs_no_member_is_not_finished() -> None:
    assert groups.phase(counts(waiting=1), 0) == "Pending"


def test_the_patch_is_for_this_very_object_and_notes_the_start_once() -> None:
    shown = view(waiting=3)
    status = groups.wanted(shown)
    assert groups.patch(shown, status, lambda: "now") == {
        "metadata": {"uid": "u"},
        "status": {
            "phase": "PreScheduling",
            "scheduled": 0,
            "running": 0,
            "succeeded": 0,
            "failed": 0,
            "scheduleStartTime": "now",
        },
    }
    started = view({"scheduleStartTime": "before"}, waiting=3)
    assert "scheduleStartTime" not in groups.patch(started, status, lambda: "now")["status"]
    waits = view(waiting=1)
    assert "scheduleStartTime" not in groups.patch(waits, groups.wanted(waits), lambda: "now")["status"]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"phase": "Scheduling", "scheduled": 2, "occupiedBy": "x"}, True, id="all of it"),
        pytest.param({"phase": "Scheduling", "scheduled": 1}, False, id="another count"),
        pytest.param({"phase": "Pending", "scheduled": 2}, False, id="another phase"),
        pytest.param({"phase": "Scheduling", "scheduled": 2, "failed": 1}, False, id="a count that is 0 now"),
    ],
)
def test_what_is_shown_already(status: dict[str, Any], *, expected: bool) -> None:
    shown = view(status, bound=2)
    assert groups.shows(shown, groups.wanted(shown)) == expected


def test_the_path() -> None:
    assert groups.path("ns/g") == "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g/status"


@pytest.mark.parametrize("kind", ["waiting", "bound", "succeeded", "failed"])
def test_a_group_with_members_of_ours_concerns_us(kind: str) -> None:
    assert groups.concerns_us(replace(view(), counts=counts(**{kind: 1})))
    assert not groups.concerns_us(view())
