"""In namespaces that Kueue manages, requests that it cannot count are refused; Kueue itself runs in tests/kueue."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.policies.conftest import ACTIVE_SECONDS

POLICY: Final = Path(__file__).parents[3] / "manifests/components/kueue/policy.yaml"
LABELLED: Final = {"labels": {"genius/gpu-number": "1"}}
MEMORY: Final = "nvidia.com/gpumem"
NVIDIA: Final = "nvidia.com/gpu"
KINDS: Final = {"Job": "batch/v1", "CronJob": "batch/v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1"}


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena) -> Iterator[None]:
    api = arena.cluster.api
    api.merge(f"/api/v1/namespaces/{arena.namespace}", {"metadata": {"labels": {"kueue-managed": "true"}}})
    shipped = [each for each in yaml.safe_load_all(POLICY.read_text()) if each]
    for each in shipped:
        api.apply(each)
    waiting.until(lambda: refusal(arena, "Pod", {}, LABELLED), deadline=ACTIVE_SECONDS, what="the policy")
    yield
    for each in shipped:
        api.delete(api.path_of(each))


def workload(arena: Arena, kind: str, limits: dict[str, str], metadata: Manifest) -> Manifest:
    """Return a pod, or a workload with its template; `metadata` is that of the pod or template."""
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    pod: Manifest = arena.pod("kueue", containers=[container], scheduler_name=arena.scheduler_name)
    pod = {**pod, "metadata": {**pod["metadata"], **metadata, "namespace": arena.namespace}}
    if kind == "Pod":
        return pod
    labels = {**metadata.get("labels", {}), "app": "kueue"}
    template: Manifest = {"metadata": {**metadata, "labels": labels}, "spec": pod["spec"]}
    spec: Manifest = {"template": template}
    if kind in ("Job", "CronJob"):
        template["spec"] = {**pod["spec"], "restartPolicy": "Never"}
    else:
        spec["selector"] = {"matchLabels": {"app": "kueue"}}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    head = {"apiVersion": KINDS[kind], "kind": kind, "metadata": {"name": "kueue", "namespace": arena.namespace}}
    return {**head, "spec": spec}


def refusal(arena: Arena, kind: str, limits: dict[str, str], metadata: Manifest) -> str:
    """Return why the API server refuses such an object; empty if it does not."""
    made = workload(arena, kind, limits, metadata)
    path = arena.cluster.api.path_of(made).rpartition("/")[0]
    try:
        arena.cluster.api.request("POST", path, body=made, query={"dryRun": "All"})
    except ApiError as error:
        return str(error.body["message"])
    return ""


UNCOUNTED: Final[list[tuple[dict[str, str], dict[str, Any], str]]] = [
    ({}, LABELLED, "label genius/gpu-number requests GPUs that Kueue does not count"),
    ({}, {"annotations": {"gpu-fraction": "0.5"}}, "annotation gpu-fraction requests GPUs"),
    ({"nvidia.com/gpucores": "10"}, {}, "nvidia.com/gpucores alone requests all memory"),
    ({"nvidia.com/gpumem-percentage": "0"}, {}, "nvidia.com/gpumem-percentage: 0 requests a GPU"),
]


@pytest.mark.parametrize("kind", ["Pod", *KINDS])
def test_what_kueue_does_not_count_is_refused(arena: Arena, kind: str) -> None:
    for limits, metadata, message in UNCOUNTED:
        assert message in refusal(arena, kind, limits, metadata)


@pytest.mark.parametrize("kind", ["Pod", *KINDS])
def test_what_it_counts_and_what_requests_nothing_is_allowed(arena: Arena, kind: str) -> None:
    for limits in ({}, {NVIDIA: "0"}, {NVIDIA: "1"}, {MEMORY: "3000"}, {MEMORY: "3000", "nvidia.com/gpucores": "10"}):
        assert refusal(arena, kind, limits, {}) == ""


def test_a_label_that_requests_gpus_cannot_be_added_later_and_others_can(arena: Arena) -> None:
    arena.create([arena.pod("plain", scheduler_name=arena.scheduler_name)])
    with pytest.raises(ApiError, match="label genius/gpu-number requests GPUs"):
        arena.merge("pods", "plain", {"metadata": LABELLED})
    arena.merge("pods", "plain", {"metadata": {"labels": {"harmless": "1"}, "finalizers": ["berth.dev/test"]}})
    arena.merge("pods", "plain", {"metadata": {"finalizers": None}})


def test_a_renamed_pod_is_refused_where_kueue_counts_it_by_itself(arena: Arena) -> None:
    renamed = {"annotations": {"berth.dev/original-resources": "{}"}}
    managed = {"labels": {"kueue.x-k8s.io/managed": "true"}}
    assert refusal(arena, "Pod", {}, renamed) == refusal(arena, "Pod", {}, managed) == ""
    assert "Kueue counts the resources of this pod after" in refusal(arena, "Pod", {}, {**renamed, **managed})
