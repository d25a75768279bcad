"""Optional components, by policies or by the webhook: limits by HAMi-core, and a RuntimeClass."""

import base64
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jsonpatch
import orjson
import pytest

from berth_api.admission import injection
from berth_operator.apis.webhook import review
from berth_operator.apis.webhook.mutations import Mutations
from berth_operator.core.values import limits
from devcluster import Arena, waiting
from devcluster.control_plane.api import Manifest
from tests.builders import GPU, MEMORY, NVIDIA, SHARED

HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
LIBRARY = "/usr/local/vgpu/libvgpu.so"
LOCK = "/tmp/vgpulock"  # noqa: S108 - of the library
PLAIN = {"name": "PLAIN", "value": "1"}
Admit = Callable[[Manifest], Manifest]
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce: Callable[[str, Callable[[], bool]], None]) -> Iterator[None]:
    arena.cluster.api.post(RUNTIMES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    half = arena.pod(requests={GPU: "50"}, limits={GPU: "50"}, labels=HAMI)
    enforce("injection.yaml", lambda: "env" in main(admitted(arena, half)))
    enforce("../components/hami-core/policy.yaml", lambda: "volumes" in admitted(arena, half)["spec"])
    enforce("../components/runtime-class/policy.yaml", lambda: "runtimeClassName" in admitted(arena, half)["spec"])
    yield
    arena.cluster.api.delete(f"{RUNTIMES}/nvidia")


def admitted(arena: Arena, manifest: Manifest) -> Manifest:
    path = f"/api/v1/namespaces/{arena.namespace}/pods"
    return arena.cluster.api.request("POST", path, body=manifest, query={"dryRun": "All"})


def answered(arena: Arena, manifest: Manifest) -> Manifest:
    """Return the pod from the webhook, which gets what the API server sends: a pod with defaults."""
    spec = manifest["spec"] | {"schedulerName": "volcano"}
    sent = admitted(arena, manifest | {"spec": spec})
    document = orjson.dumps({"request": {"uid": "u", "object": sent}})
    response = review.answer(document, Mutations(hami_core=True, runtime_class="nvidia"))["response"]
    pod: Manifest = jsonpatch.apply_patch(sent, base64.b64decode(response.get("patch", b"W10=")).decode())
    return pod


@pytest.fixture(params=[admitted, answered], ids=["policy", "webhook"])
def admit(arena: Arena, request: pytest.FixtureRequest) -> Admit:
    """Admit a pod in one of the two ways."""
    return functools.partial(request.param, arena)


def asks(
    arena: Arena, admit: Admit, requests: dict[str, str], labels: dict[str, str] | None = None, **fields: Any
) -> Manifest:
    """Return the pod as it is admitted."""
    container = {"name": "main", "image": "none", "resources": {"limits": requests}, **fields}
    return admit(arena.pod(labels=labels, containers=[container, {"name": "side", "image": "none"}]))


def main(pod: Manifest) -> Manifest:
    container: Manifest = pod["spec"]["containers"][0]
    return container


def read(name: str, key: str) -> Manifest:
    path = f"metadata.annotations['main.devices.berth.dev/{key}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def test_a_container_that_asks_gets_library_and_limits(arena: Arena, admit: Admit) -> None:
    pod = asks(arena, admit, {GPU: "50"}, HAMI, env=[PLAIN, {"name": "LD_PRELOAD", "value": "mine.so"}])
    container, side = pod["spec"]["containers"]
    assert container["env"] == [
        read(injection.VARIABLE, "visible"),
        PLAIN,
        read("CUDA_DEVICE_MEMORY_LIMIT_0", "memory-limit-0"),
        read("CUDA_DEVICE_SM_LIMIT", "sm-limit-0"),
        {"name": "LD_PRELOAD", "value": LIBRARY},
    ]
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert mounts.items() >= {LIBRARY: True, LOCK: False}.items()
    assert [each["name"] for each in side["env"]] == [injection.VARIABLE]
    assert pod["spec"]["nodeSelector"] == HAMI
    assert {each["hostPath"]["path"] for each in pod["spec"]["volumes"] if "hostPath" in each} == {
        LIBRARY,
        LOCK,
    }


def test_one_limit_for_each_card_that_it_may_see(arena: Arena, admit: Admit) -> None:
    env = main(asks(arena, admit, {SHARED: "3", MEMORY: "24Gi"}, HAMI))["env"]
    assert [each["name"] for each in env if limits.is_limit(each)] == [
        f"CUDA_DEVICE_MEMORY_LIMIT_{number}" for number in range(3)
    ]


def test_by_label_all_containers_are_limited(arena: Arena, admit: Admit) -> None:
    pod = asks(arena, admit, {}, {**HAMI, "genius/gpu-number": "2", "genius/gpu-memory-each": "8192"})
    for container in pod["spec"]["containers"]:
        assert sum(map(limits.is_limit, container["env"])) == 2


@pytest.mark.parametrize(
    ("requests", "labels"),
    [
        pytest.param({GPU: "50"}, None, id="no label"),
        pytest.param({GPU: "50"}, {"koordinator.sh/gpu-isolation-provider": "other"}, id="another provider"),
        pytest.param({NVIDIA: "1"}, HAMI, id="kubelet's"),
        pytest.param({}, HAMI, id="no GPUs"),
    ],
)
def test_others_get_no_library(
    arena: Arena, admit: Admit, requests: dict[str, str], labels: dict[str, str] | None
) -> None:
    pod = asks(arena, admit, requests, labels)
    assert not any(limits.is_limit(each) for each in main(pod).get("env", ()))
    assert "nodeSelector" not in pod["spec"]


def test_pods_that_are_yet_to_be_routed_get_the_same(arena: Arena) -> None:
    requests = {GPU: "50"}
    named = arena.pod(labels=HAMI, limits=requests, requests=requests, automountServiceAccountToken=False)
    unnamed = arena.pod(
        labels=HAMI, limits=requests, requests=requests, automountServiceAccountToken=False, schedulerName=""
    )
    expected = admitted(arena, named)["spec"]
    assert expected["runtimeClassName"] == "nvidia"
    assert {**admitted(arena, unnamed)["spec"], "schedulerName": arena.scheduler_name} == expected


def test_pods_that_opted_out_of_routing_are_left_alone(arena: Arena) -> None:
    """A webhook may name another scheduler for them, which knows nothing of the variable."""
    unnamed = arena.pod(labels=HAMI, limits={GPU: "50"}, requests={GPU: "50"}, schedulerName="")
    label: Manifest = {"metadata": {"labels": {"berth.dev/routing": "disabled"}}}
    arena.merge("namespaces", arena.namespace, label)
    try:
        waiting.until(lambda: "env" not in main(admitted(arena, unnamed)), what="the namespace to have opted out")
        spec = admitted(arena, unnamed)["spec"]
        named = asks(arena, functools.partial(admitted, arena), {GPU: "50"}, HAMI)
    finally:
        label["metadata"]["labels"] = {"berth.dev/routing": None}
        arena.merge("namespaces", arena.namespace, label)
        waiting.until(lambda: "env" in main(admitted(arena, unnamed)), what="the namespace to be routed again")
    assert spec.keys().isdisjoint({"runtimeClassName", "nodeSelector"})
    assert named["spec"]["runtimeClassName"] == "nvidia"
    assert "env" in main(named)


def test_what_a_pod_says_of_nodes_and_volumes_stays(arena: Arena, admit: Admit) -> None:
    own = {"name": "own", "emptyDir": {}}
    mount = {"name": "own", "mountPath": "/own"}
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "50"}}, "volumeMounts": [mount]}
    manifest = arena.pod(labels=HAMI, containers=[container], volumes=[own], nodeSelector={"zone": "a"})
    pod = admit(manifest)
    assert pod["spec"]["nodeSelector"] == {"zone": "a", **HAMI}
    assert "own" in [each["name"] for each in pod["spec"]["volumes"]]
    assert mount in main(pod)["volumeMounts"]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param({GPU: "50"}, "nvidia", id="a share"),
        pytest.param({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "1Gi"}, "nvidia", id="koordinator"),
        pytest.param({NVIDIA: "1"}, "nvidia", id="kubelet's"),
        pytest.param({"nvidia.com/mig-1g.10gb": "1"}, "nvidia", id="an instance"),
        pytest.param({"cpu": "1"}, None, id="no GPUs"),
    ],
)
def test_pods_that_request_gpus_get_the_runtime(
    arena: Arena, admit: Admit, requests: dict[str, str], expected: str | None
) -> None:
    assert asks(arena, admit, requests)["spec"].get("runtimeClassName") == expected


def test_a_runtime_that_a_pod_names_stays(arena: Arena, admit: Admit) -> None:
    arena.cluster.api.post(RUNTIMES, {"metadata": {"name": f"other-{arena.id}"}, "handler": "other"})
    pod = arena.pod(limits={GPU: "50"}, requests={GPU: "50"}, runtimeClassName=f"other-{arena.id}")
    runtime_class = admit(pod)["spec"]["runtimeClassName"]
    arena.cluster.api.delete(f"{RUNTIMES}/other-{arena.id}")
    assert runtime_class == f"other-{arena.id}"


@pytest.mark.parametrize("labels", [{}, HAMI, {**HAMI, "genius/gpu-number": "2"}], ids=["plain", "HAMi", "by label"])
@pytest.mark.parametrize("requests", [{GPU: "50"}, {SHARED: "3", MEMORY: "24Gi"}, {NVIDIA: "1"}, {"cpu": "1"}], ids=str)
def test_the_webhook_makes_of_a_pod_what_the_policies_make(
    arena: Arena, requests: dict[str, str], labels: dict[str, str]
) -> None:
    mine = {"name": "berth-vgpu-of-mine"}
    main = {
        "name": "main",
        "image": "none",
        "resources": {"limits": requests},
        "env": [PLAIN, {"name": "CUDA_DEVICE_MEMORY_LIMIT_1", "value": "0"}],
        "volumeMounts": [{**mine, "mountPath": "/mine"}],
    }
    more: dict[str, Any] = {
        "initContainers": [{"name": "side", "image": "none"}],
        "volumes": [{**mine, "emptyDir": {}}],
    }
    # The volume of a token has another name in each pod.
    pod = arena.pod(labels=labels, containers=[main], automountServiceAccountToken=False, **more)
    by_policies, by_webhook = admitted(arena, pod)["spec"], answered(arena, pod)["spec"]
    assert {**by_webhook, "schedulerName": arena.scheduler_name} == by_policies
