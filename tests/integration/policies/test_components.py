"""An optional component, by policies or by the webhook: a RuntimeClass, also for pods that are routed."""

import base64
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jsonpatch
import orjson
import pytest

from berth_api import names
from berth_operator.apis.webhook import review
from berth_operator.apis.webhook.mutations import Mutations
from devcluster import Arena, waiting
from devcluster.control_plane.api import Manifest
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.objects.builders import GPU, NVIDIA
from tests.programs import policies

HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
HAMI_CORE = names.HAMI_CORE_RESOURCE
Admit = Callable[[Manifest], Manifest]
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce: Callable[[str, Callable[[], bool]], None]) -> Iterator[None]:
    arena.cluster.api.post(RUNTIMES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    half = arena.pod(requests={GPU: "50"}, limits={GPU: "50"}, labels=HAMI)
    enforce("injection.yaml", lambda: "env" in main(arena.admitted(half)))
    enforce("../components/isolation/policy.yaml", lambda: HAMI_CORE in requested(arena.admitted(half)))
    enforce("../components/runtime-class/policy.yaml", lambda: "runtimeClassName" in arena.admitted(half)["spec"])
    routing = arena.apply(policies.policies("routing.yaml", arena)[:2])  # without what refuses
    unnamed = arena.pod(requests={GPU: "50"}, limits={GPU: "50"}, schedulerName="")
    waiting.until(
        lambda: arena.admitted(unnamed)["spec"]["schedulerName"] == arena.scheduler_name,
        deadline=ACTIVE_SECONDS,
        what="routing to be in force",
    )
    yield
    for path in (f"{RUNTIMES}/nvidia", *map(arena.cluster.api.path_of, routing)):
        arena.cluster.api.delete(path)


def answered(arena: Arena, manifest: Manifest) -> Manifest:
    """Return the pod from the webhook, which gets what the API server sends: a pod with defaults."""
    spec = manifest["spec"] | {"schedulerName": "volcano"}
    sent = arena.admitted(manifest | {"spec": spec})
    document = orjson.dumps({"request": {"uid": "u", "object": sent}})
    response = review.answer(document, Mutations(runtime_class="nvidia"))["response"]
    pod: Manifest = jsonpatch.apply_patch(sent, base64.b64decode(response.get("patch", b"W10=")).decode())
    return pod


@pytest.fixture(params=[Arena.admitted, answered], ids=["policy", "webhook"])
def admit(arena: Arena, request: pytest.FixtureRequest) -> Admit:
    """Admit a pod in one of the two ways."""
    return functools.partial(request.param, arena)


def asks(
    arena: Arena, admit: Admit, requests: dict[str, str], labels: dict[str, str] | None = None, **fields: Any
) -> Manifest:
    """Return the pod as it is admitted."""
    container = {"name": "main", "image": "none", "resources": {"limits": requests}, **fields}
    return admit(arena.pod(labels=labels, containers=[container, {"name": "side", "image": "none"}]))


def requested(pod: Manifest) -> Manifest:
    requests: Manifest = main(pod)["resources"]["requests"]
    return requests


def main(pod: Manifest) -> Manifest:
    container: Manifest = pod["spec"]["containers"][0]
    return container


def test_pods_that_are_yet_to_be_routed_get_the_same(arena: Arena) -> None:
    requests = {GPU: "50"}
    named = arena.pod(labels=HAMI, limits=requests, requests=requests, automountServiceAccountToken=False)
    unnamed = arena.pod(
        labels=HAMI, limits=requests, requests=requests, automountServiceAccountToken=False, schedulerName=""
    )
    expected = arena.admitted(named)["spec"]
    assert expected["runtimeClassName"] == "nvidia"
    assert {**arena.admitted(unnamed)["spec"], "schedulerName": arena.scheduler_name} == expected


def test_pods_that_opted_out_of_routing_are_left_alone(arena: Arena) -> None:
    """A webhook may name another scheduler for them, which knows nothing of the variable."""
    unnamed = arena.pod(labels=HAMI, limits={GPU: "50"}, requests={GPU: "50"}, schedulerName="")
    label: Manifest = {"metadata": {"labels": {"berth.dev/routing": "disabled"}}}
    arena.merge("namespaces", arena.namespace, label)

    def is_injected() -> bool | None:
        # Until the API server knows of the label, one policy may read it, and the next one refuse what that one did.
        made = arena.admitted_or_none(unnamed)
        return None if made is None else "env" in main(made)

    try:
        waiting.until(lambda: is_injected() is False, what="the namespace to have opted out")
        spec = arena.admitted(unnamed)["spec"]
        named = asks(arena, arena.admitted, {GPU: "50"}, HAMI)
    finally:
        label["metadata"]["labels"] = {"berth.dev/routing": None}
        arena.merge("namespaces", arena.namespace, label)
        waiting.until(is_injected, what="the namespace to be routed again")
    assert "runtimeClassName" not in spec
    assert HAMI_CORE not in requested({"spec": spec})
    assert named["spec"]["runtimeClassName"] == "nvidia"
    assert "env" in main(named)


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
