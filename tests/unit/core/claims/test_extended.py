"""The claim for a pod's extended resources, by the rows of kube-scheduler's tests of createRequestsAndMappings."""

from typing import Any

import pytest

from berth_api import resources
from berth_operator.core.claims.objects import extended
from berth_operator.state.objects import extended_claims

GPU = "example.com/gpu"
NIC = "example.com/nic"
IMPLICIT = f"{extended.CLASS_PREFIX}fast"
CLASSES = {GPU: "gpu-class", NIC: "nic-class", IMPLICIT: "fast"}

Raw = dict[str, Any]
Sidecar = {"restartPolicy": "Always"}


def container(name: str, requests: Raw, **fields: Any) -> Raw:
    return {"name": name, "resources": {"requests": requests}, **fields}


def made(spec: Raw) -> tuple[list[tuple[str, str, int]], list[tuple[str, str, str]]]:
    """Return the requests as (name, class, count) and the mappings as (container, resource, request)."""
    containers = resources.containers(spec)
    found, mappings = extended.requests(tuple(extended_claims.requested(containers, CLASSES.keys())), CLASSES)
    requests = [choice for each in found for choice in each.choices]
    return [(each.name, each.device_class, each.count) for each in requests], [
        (each.container, each.resource, each.request) for each in mappings
    ]


def test_each_container_and_resource_has_a_request_named_by_its_places() -> None:
    spec = {
        "containers": [
            container("a", {"cpu": "1", GPU: 2, NIC: 1, "memory": "1Gi"}),
            container("b", {"cpu": "1"}),
            container("c", {IMPLICIT: 3}),
        ]
    }
    requests, mappings = made(spec)
    assert requests == [
        ("container-0-request-1", "gpu-class", 2),
        ("container-0-request-2", "nic-class", 1),
        ("container-2-request-0", "fast", 3),
    ]
    assert mappings == [
        ("c", IMPLICIT, "container-2-request-0"),
        ("a", GPU, "container-0-request-1"),
        ("a", NIC, "container-0-request-2"),
    ]


def gpus(name: str, count: int, **fields: Any) -> Raw:
    return container(name, {GPU: count}, **fields)


SIDECAR = gpus("s", 1, **Sidecar)
WITHOUT = container("a", {"cpu": "1"})


@pytest.mark.parametrize(
    ("init", "main", "requests", "mappings"),
    [
        pytest.param([gpus("i", 1)], [gpus("a", 2)], {1: 2}, "a1 i1", id="an init container uses what a container has"),
        pytest.param([gpus("i", 3)], [gpus("a", 2)], {0: 1, 1: 2}, "a1 i1 i0", id="and requests more if it needs more"),
        pytest.param(
            [gpus("i", 3), gpus("j", 5), gpus("k", 5)],
            [gpus("a", 2)],
            {1: 3, 3: 2},
            "a3 i3 i1 j3 j1 k3 k1",
            id="which is there once, for the one that needs the most",
        ),
        pytest.param(
            [SIDECAR, gpus("i", 1)], [WITHOUT], {0: 1, 1: 1}, "s0 i1", id="a sidecar that runs already keeps its own"
        ),
        pytest.param(
            [gpus("i", 2), SIDECAR],
            [gpus("a", 1), gpus("b", 1)],
            {1: 1, 2: 1, 3: 1},
            "s1 a2 b3 i1 i2",
            id="one that starts later lends its own",
        ),
    ],
)
def test_init_containers(init: list[Raw], main: list[Raw], requests: dict[int, int], mappings: str) -> None:
    """`requests` are counts by the container's place; `mappings` name a container and the place of a request."""
    of_class, shown = made({"initContainers": init, "containers": main})
    assert [(name, count) for name, _, count in of_class] == [
        (f"container-{place}-request-0", count) for place, count in requests.items()
    ]
    assert [(name, request) for name, _, request in shown] == [
        (mapping[0], f"container-{mapping[1]}-request-0") for mapping in mappings.split()
    ]


def test_requests_are_ordered_by_name_as_text() -> None:
    spec = {"containers": [container(f"c{each}", {GPU: 1}) for each in range(11)]}
    names = [name for name, _, _ in made(spec)[0]]
    assert names[:3] == ["container-0-request-0", "container-1-request-0", "container-10-request-0"]


def test_the_newest_class_provides_a_resource_then_the_first_by_name() -> None:
    classes = {
        "old": (GPU, "2026-01-01T00:00:00Z"),
        "new": (GPU, "2026-01-02T00:00:00Z"),
        "newer": (GPU, "2026-01-02T00:00:00Z"),
        "other": ("", "2026-01-03T00:00:00Z"),
    }
    found = extended.providers(classes)
    assert found.pop(GPU) == "new"
    assert found == {extended.CLASS_PREFIX + name: name for name in classes}


@pytest.mark.parametrize(
    ("name", "is_extended"),
    [
        (GPU, True),
        ("nvidia.com/gpu", True),
        (IMPLICIT, True),
        ("cpu", False),
        ("kubernetes.io/gpu", False),
        ("requests.example.com/gpu", False),
        ("hugepages-2Mi", False),
    ],
)
def test_which_names_a_class_may_provide(name: str, *, is_extended: bool) -> None:
    assert extended_claims.is_extended(name) is is_extended
