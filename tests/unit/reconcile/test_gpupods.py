"""The status of a GpuPod."""

from typing import Any

import pytest

from berth_operator.controllers.reconcile import gpupods
from berth_operator.state.cache.allocation_tracker import AS_ALLOCATED, DRIFTED
from berth_operator.state.cache.views import GpuPodView
from berth_operator.state.objects import kubelet
from berth_operator.state.objects.kubelet import Consistency
from tests.objects.builders import condition, gpu_pod

Raw = dict[str, Any]

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"
ANOTHER: Consistency = ("False", DRIFTED, "kubelet gave it gpu 1 (GPU-1); allocated was gpu 0 (GPU-0)")


def shown(verdict: Consistency, since: str = OLD) -> Raw:
    status, reason, message = verdict
    return condition("Consistent", status, since, reason=reason, message=message)


def patch(consistency: Consistency | None, *conditions: Raw) -> Raw | None:
    record = kubelet.gpu_pod(gpu_pod("p", "GPU-0", conditions=list(conditions)))
    return gpupods.patch(GpuPodView(record=record, consistency=consistency), lambda: NEW)


def test_the_path() -> None:
    assert gpupods.path("ns/p.node") == "/apis/berth.dev/v1alpha1/namespaces/ns/gpupods/p.node"


def test_the_path_of_its_pod() -> None:
    view = GpuPodView(record=kubelet.gpu_pod(gpu_pod("p")), consistency=None)
    assert gpupods.pod_path(view) == "/api/v1/namespaces/ns/pods/p"


def test_the_patch_is_for_this_very_object() -> None:
    assert patch(ANOTHER) == {"metadata": {"uid": "uid-gpupod-p"}, "status": {"conditions": [shown(ANOTHER, NEW)]}}


@pytest.mark.parametrize(
    ("verdict", "before", "since"),
    [
        pytest.param(ANOTHER, AS_ALLOCATED, NEW, id="it flips"),
        pytest.param(ANOTHER, ("False", DRIFTED, "of something else"), OLD, id="only its words change"),
    ],
)
def test_the_time_is_that_of_the_last_flip(verdict: Consistency, before: Consistency, since: str) -> None:
    change = patch(verdict, shown(before))
    assert change is not None
    assert change["status"]["conditions"] == [shown(verdict, since)]


def test_conditions_of_others_stay() -> None:
    other = condition("Other", "True")
    change = patch(ANOTHER, other, shown(AS_ALLOCATED))
    assert change is not None
    assert change["status"]["conditions"] == [other, shown(ANOTHER, NEW)]


@pytest.mark.parametrize(
    ("verdict", "conditions"),
    [
        pytest.param(ANOTHER, [shown(ANOTHER)], id="shown already"),
        pytest.param(None, [], id="a pod that is not known"),
        pytest.param(None, [shown(ANOTHER)], id="a pod that is gone"),
    ],
)
def test_nothing_is_written_for_nothing(verdict: Consistency | None, conditions: list[Raw]) -> None:
    assert patch(verdict, *conditions) is None
