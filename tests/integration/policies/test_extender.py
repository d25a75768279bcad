"""Pods that kube-scheduler places with the extender, on the real API server: rewritten, injected or refused."""

import base64
from collections.abc import Callable
from typing import Any

import jsonpatch
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_api.admission import injection, rewriting
from berth_operator.apis.webhook import review
from berth_operator.apis.webhook.mutations import Mutations, Rewriting
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.objects.builders import FPGA, GPU, MEMORY, NVIDIA, RDMA, SHARED

DEFAULT = "default-scheduler"
HALF = {GPU: "50"}
NUMBER = "genius/gpu-number"
MODEL = "nvidia-gpu-scheduler/gpu.model"
OTHER_GPU = "koordinator.sh/gpu"
COMPONENTS = ("isolation", "extender")


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce_built: Callable[..., None]) -> None:
    enforce_built(*COMPONENTS)
    waiting.until(lambda: _is_in_force(arena), deadline=30.0, what="the policies to be in force")


def _is_in_force(arena: Arena) -> bool:
    try:
        [container] = arena.admitted(asking(arena, HALF))["spec"]["containers"]
    except ApiError:
        return False
    labelled = arena.pod(labels={NUMBER: "1"}, scheduler_name=DEFAULT)
    return "env" in container and requested(container) == {OTHER_GPU: "50"} and bool(arena.refusal(labelled))


def asking(arena: Arena, requests: dict[str, str], **fields: Any) -> Manifest:
    return arena.pod(requests=requests, limits=requests, **{"scheduler_name": DEFAULT, **fields})


def requested(container: Manifest) -> dict[str, str]:
    resources = container["resources"]
    assert resources.get("limits") == resources.get("requests")
    requests: dict[str, str] = resources.get("requests", {})
    return requests


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(HALF, {OTHER_GPU: "50"}, id="a share"),
        pytest.param(
            {SHARED: "2", MEMORY: "8Gi", "cpu": "1"},
            {"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-memory": "8Gi", "cpu": "1"},
            id="spread",
        ),
        pytest.param({RDMA: "50", FPGA: "50"}, {"koordinator.sh/rdma": "50", "koordinator.sh/fpga": "50"}, id="others"),
        pytest.param({OTHER_GPU: "50"}, {OTHER_GPU: "50"}, id="koordinator's"),
        pytest.param({NVIDIA: "1"}, {NVIDIA: "1"}, id="of the device plugin"),
        pytest.param({GPU: "0", "cpu": "1"}, {GPU: "0", "cpu": "1"}, id="an amount of zero"),
    ],
)
def test_names_are_rewritten(arena: Arena, sent: dict[str, str], expected: dict[str, str]) -> None:
    [container] = arena.admitted(asking(arena, sent))["spec"]["containers"]
    assert requested(container) == expected


@pytest.mark.parametrize("namespace_label", ["disabled", None])
def test_all_containers_are_rewritten_and_injected(arena: Arena, namespace_label: str | None) -> None:
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {"berth.dev/routing": namespace_label}}})
    init = {"name": "init", "image": "none", "resources": {"limits": {GPU: "25"}}}
    main = {"name": "main", "image": "none", "resources": {"requests": {GPU: "50"}, "limits": {GPU: "100", "cpu": "1"}}}
    bare = {"name": "bare", "image": "none", "resources": {"requests": {GPU: "10"}}}
    side = {"name": "side", "image": "none", "env": [{"name": injection.VARIABLE, "value": "all"}]}
    spec = arena.admitted(asking(arena, {}, containers=[main, bare, side], initContainers=[init]))["spec"]
    [init], [main, bare, side] = spec["initContainers"], spec["containers"]
    assert [requested(each) for each in (init, bare, side)] == [{OTHER_GPU: "25"}, {OTHER_GPU: "10"}, {}]
    assert main["resources"] == {"requests": {OTHER_GPU: "50", "cpu": "1"}, "limits": {OTHER_GPU: "50", "cpu": "1"}}
    assert injection.lacking(spec, {}) == ()
    assert side["env"] == [{"name": injection.VARIABLE, "value": "void"}]
    assert spec["schedulerName"] == DEFAULT


def test_the_other_containers_of_a_pod_of_the_device_plugin_see_no_card(arena: Arena) -> None:
    main = {"name": "main", "image": "none", "resources": {"limits": {NVIDIA: "1"}}}
    spec = arena.admitted(asking(arena, {}, containers=[main, {"name": "side", "image": "none"}]))["spec"]
    assert [each.get("env") for each in spec["containers"]] == [None, [{"name": injection.VARIABLE, "value": "void"}]]


def test_ephemeral_containers_see_what_their_target_sees(arena: Arena) -> None:
    # No node has the label, so that the cluster's kube-scheduler leaves the pod alone.
    arena.create([asking(arena, HALF, name="debugged", nodeSelector={"no-node": "has-it"})])
    debugger = {"name": "d", "image": "none", "targetContainerName": "main"}
    arena.merge("pods", "debugged", {"spec": {"ephemeralContainers": [debugger]}}, subresource="ephemeralcontainers")
    spec = arena.get("pods", "debugged")["spec"]
    assert spec["ephemeralContainers"][0]["env"] == spec["containers"][0]["env"]
    arena.delete("pods", "debugged", grace_seconds=0)


@pytest.mark.parametrize(
    ("requests", "fields", "scheduler"),
    [
        pytest.param(HALF, {}, "berth", id="Berth's"),
        pytest.param(HALF, {}, "volcano", id="of another scheduler"),
        pytest.param({"cpu": "1"}, {}, DEFAULT, id="no device"),
        pytest.param({"cpu": "1"}, {"nodeName": "n"}, DEFAULT, id="no device, on a node"),
        pytest.param({}, {"labels": {"genius/priority": "1"}}, DEFAULT, id="a priority"),
    ],
)
def test_other_pods_keep_what_they_request(
    arena: Arena, requests: dict[str, str], fields: dict[str, Any], scheduler: str
) -> None:
    name = arena.scheduler_name if scheduler == "berth" else scheduler
    spec = arena.admitted(asking(arena, requests, **{"scheduler_name": name, **fields}))["spec"]
    assert requested(spec["containers"][0]) == requests
    assert ("env" in spec["containers"][0]) is (scheduler == "berth")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"labels": {NUMBER: "1"}}, f"label {NUMBER}"),
        ({"labels": {NUMBER: "1", "genius/gpu-memory-each": "1000"}}, f"label {NUMBER}, label genius/gpu-memory-each"),
        ({"labels": {"genius/gpu-model": "a100"}}, "label genius/gpu-model"),
        ({"annotations": {MODEL: "a100"}}, f"annotation {MODEL}"),
        (
            {"annotations": {"berth.dev/gpu-model": "*A100*"}, "requests": {"cpu": "1"}},
            "annotation berth.dev/gpu-model",
        ),
    ],
)
def test_what_kube_scheduler_does_not_see_is_refused(arena: Arena, fields: dict[str, Any], named: str) -> None:
    requests = fields.pop("requests", {})
    message = arena.refusal(asking(arena, requests, **fields))
    assert f": {named} without a resource: kube-scheduler does not see what the pod asks for" in message
    assert message.endswith(f"use schedulerName: {arena.scheduler_name}")
    assert not arena.refusal(asking(arena, requests, scheduler_name=arena.scheduler_name, **fields))
    assert not arena.refusal(asking(arena, {**requests, NVIDIA: "1"}, **fields))


def test_a_resource_by_both_names_and_a_node_by_its_name_are_refused(arena: Arena) -> None:
    both = arena.refusal(asking(arena, {GPU: "50", OTHER_GPU: "50"}))
    assert f"{GPU} and {OTHER_GPU} are the same resource; request one of them" in both
    message = arena.refusal(asking(arena, HALF, nodeName="n"))
    assert 'spec.nodeName: "n" bypasses the scheduler, so no device would be allocated for kubernetes.io/gpu' in message


AMOUNTS = st.dictionaries(
    st.sampled_from([*sorted(injection.RESOURCES), RDMA, FPGA, "cpu", NVIDIA, "kubernetes.io/gpus"]),
    st.sampled_from(["0", "1", "50"]),
    max_size=3,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    amounts=st.lists(st.tuples(AMOUNTS, st.sampled_from(["limits", "requests"])), min_size=1, max_size=3),
    initial=st.integers(0, 2),
)
def test_the_webhook_does_the_same(arena: Arena, amounts: list[tuple[dict[str, str], str]], initial: int) -> None:
    listed = [{"name": f"c{n}", "image": "none", "resources": {kind: each}} for n, (each, kind) in enumerate(amounts)]
    initial = min(initial, len(listed) - 1)
    manifest = arena.pod(containers=listed[initial:], initContainers=listed[:initial], scheduler_name="volcano")
    if arena.refusal(manifest):
        return  # koordinator.sh/ without limits
    sent = arena.admitted(manifest)
    sent["spec"]["schedulerName"] = DEFAULT
    refused = arena.refusal({**manifest, "spec": {**manifest["spec"], "schedulerName": DEFAULT}})
    if refused:
        assert "are the same resource" in refused
        return
    by_policy = arena.admitted({**manifest, "spec": {**manifest["spec"], "schedulerName": DEFAULT}})
    assert resources_of(by_webhook(sent)) == resources_of(by_policy) == resources_of(rewriting.rewritten(sent))


def by_webhook(pod: Manifest) -> Manifest:
    """Return the pod after both entries of the webhook."""
    for mutator in (Rewriting(), Mutations()):
        response = review.answer(orjson.dumps({"request": {"uid": "u", "object": pod}}), mutator)["response"]
        pod = jsonpatch.apply_patch(pod, base64.b64decode(response.get("patch", b"W10=")).decode())
    return pod


def resources_of(pod: Any) -> list[Any]:
    spec = pod["spec"]
    return [each.get("resources") for each in [*spec.get("initContainers", ()), *spec["containers"]]]
