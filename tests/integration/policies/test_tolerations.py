"""Tolerations that admission adds, next to the API server's optional plug-ins that read or add tolerations."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from devcluster import Arena, Cluster
from devcluster.control_plane.api import Manifest
from tests.objects.builders import GPU, NVIDIA

PLUGINS: Final = "--enable-admission-plugins=PodTolerationRestriction,ExtendedResourceToleration"
WHITELIST: Final = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
ADDED: Final = {"key": NVIDIA, "operator": "Exists", "effect": "NoSchedule"}
OF_KUBERNETES: Final = (
    {"operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
)
"""Covers the tolerations that the API server adds to each pod."""
SHARE: Final = {GPU: "50"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a control plane with both plug-ins."""
    arguments = {"kube-apiserver": [PLUGINS]}
    with Cluster(folder=tmp_path_factory.mktemp("plugins") / "cluster", extra_args=arguments) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce: Callable[..., None]) -> None:
    enforce("injection.yaml", lambda: ADDED in tolerations(arena, SHARE), tolerated=json.dumps([NVIDIA]))


def pod(arena: Arena, requests: dict[str, str], **spec: Any) -> Manifest:
    return arena.pod(requests=requests, limits=requests, **spec)


def tolerations(arena: Arena, requests: dict[str, str], **spec: Any) -> list[Manifest]:
    """Return the tolerations of an admitted pod, without those for taints of Kubernetes."""
    admitted = arena.admitted(pod(arena, requests, **spec))["spec"]
    return [each for each in admitted["tolerations"] if not each["key"].startswith("node.kubernetes.io/")]


def test_pods_of_berth_with_any_device_tolerate_the_taint_once(arena: Arena) -> None:
    assert tolerations(arena, SHARE) == [ADDED]
    # ExtendedResourceToleration has added it before.
    assert tolerations(arena, {NVIDIA: "1"}) == [ADDED]
    assert tolerations(arena, {"cpu": "1"}) == []
    assert tolerations(arena, SHARE, schedulerName="volcano") == []


def test_a_namespace_that_lists_tolerations_must_list_the_added_ones(arena: Arena) -> None:
    def allow(*listed: Manifest) -> None:
        annotations = {WHITELIST: json.dumps(listed)}
        path = f"/api/v1/namespaces/{arena.namespace}"
        arena.cluster.api.merge(path, {"metadata": {"annotations": annotations}})

    allow(*OF_KUBERNETES)
    arena.wait(lambda: "tolerations" in arena.refusal(pod(arena, SHARE)), what="the plug-in to read the namespace")
    assert arena.refusal(pod(arena, {"cpu": "1"})) == ""
    allow(*OF_KUBERNETES, ADDED)
    arena.wait(lambda: arena.refusal(pod(arena, SHARE)) == "", what="the plug-in to read the namespace")
    assert tolerations(arena, SHARE) == [ADDED]
