"""The condition of Kubernetes' PodGroups."""

from typing import Any

import pytest

from berth_api.words import KUBERNETES_GROUPS
from berth_operator.controllers.reconcile import kubernetes_groups
from berth_operator.core.decision.messages import NODE_STARTING, SCHEDULER_ERROR, UNSCHEDULABLE
from berth_operator.core.queue.gang_tracker import Group
from berth_operator.state.cache.views import GroupView
from tests.objects.builders import Raw, kubernetes_group
from tests.unit.reconcile.test_groups import counts

SCHEDULED = {"status": "True", "reason": "Scheduled", "message": "", "observedGeneration": 1}
UNSCHEDULED = {"status": "False", "reason": UNSCHEDULABLE, "message": "no", "observedGeneration": 1}


def view(*conditions: Raw, formed: bool = False, **fields: Any) -> GroupView:
    raw = kubernetes_group(conditions=list(conditions))
    return GroupView(
        kind=KUBERNETES_GROUPS,
        group=Group(name="ns/g", uid="u", minimum=1),
        metadata=raw["metadata"],
        status=raw["status"],
        counts=counts(formed=formed),
        **fields,
    )


def shown(condition: Raw, since: str = "then") -> Raw:
    return {"type": "PodGroupInitiallyScheduled", **condition, "lastTransitionTime": since}


CONDITION = {
    "not decided": (view(), {}),
    "formed": (view(formed=True, unscheduled=(UNSCHEDULABLE, "no")), SCHEDULED),
    "unschedulable": (view(unscheduled=(UNSCHEDULABLE, "no")), UNSCHEDULED),
    "a reason of Berth": (view(unscheduled=(NODE_STARTING, "no")), UNSCHEDULED),
    "an error": (view(unscheduled=(SCHEDULER_ERROR, "no")), {**UNSCHEDULED, "reason": "SchedulerError"}),
    "a contradiction": (
        view(problem="bad", unscheduled=(UNSCHEDULABLE, "no")),
        {**UNSCHEDULED, "reason": "SchedulerError", "message": "bad"},
    ),
}


@pytest.mark.parametrize(("seen", "condition"), CONDITION.values(), ids=CONDITION)
def test_the_condition(seen: GroupView, condition: Raw) -> None:
    assert kubernetes_groups.wanted(seen) == condition


@pytest.mark.parametrize(
    ("seen", "condition", "shows"),
    [
        pytest.param(view(), {}, True, id="nothing to show"),
        pytest.param(view(), UNSCHEDULED, False, id="nothing shown"),
        pytest.param(view(shown(UNSCHEDULED)), UNSCHEDULED, True, id="the same"),
        pytest.param(view(shown({**UNSCHEDULED, "message": "x"})), UNSCHEDULED, False, id="another message"),
        pytest.param(view(shown({**UNSCHEDULED, "observedGeneration": 0})), UNSCHEDULED, False, id="another version"),
        pytest.param(view(shown(SCHEDULED)), UNSCHEDULED, True, id="it was scheduled once"),
        pytest.param(view(shown(UNSCHEDULED)), SCHEDULED, False, id="it is scheduled now"),
    ],
)
def test_whether_it_shows(seen: GroupView, condition: Raw, *, shows: bool) -> None:
    assert kubernetes_groups.shows(seen, condition) == shows


def test_the_patch_keeps_other_conditions_and_the_time_of_the_last_transition() -> None:
    other = {"type": "DisruptionTarget", "status": "True"}
    seen = view(other, shown({**UNSCHEDULED, "message": "x"}))
    assert kubernetes_groups.patch(seen, UNSCHEDULED, lambda: "now") == {
        "metadata": {"uid": "u", "resourceVersion": "7"},
        "status": {"conditions": [other, shown(UNSCHEDULED)]},
    }
    patched = kubernetes_groups.patch(seen, SCHEDULED, lambda: "now")
    assert patched["status"]["conditions"] == [other, shown(SCHEDULED, "now")]


def test_the_path() -> None:
    path = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups/g/status"
    assert kubernetes_groups.path(view()) == path
