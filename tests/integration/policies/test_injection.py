"""The policy that injects the variable into pods on the real API server gives the same result as the Python code."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_api.admission import injection, nics, tolerating
from berth_operator.apis.webhook.mutations import patch
from devcluster import Arena
from devcluster.control_plane.api import Manifest
from tests.objects.builders import GPU, MEMORY, NVIDIA, RDMA, SHARED

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VARIABLE, "value": "void"}
PLAIN = {"name": "PLAIN", "value": "1"}
LITERAL = {"name": VARIABLE, "value": "all"}
TOLERATED = ["nvidia.com/gpu", "example.com/pool"]
MAKES = {"name": "MAKES", "value": f"$({VARIABLE})"}


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce: Callable[..., None]) -> None:
    arena.create([arena.pod("early", containers=[container("main", HALF)])])
    debugged(arena, "early", debugger("d0", "main", LITERAL))
    probe = pod(arena, container("main", HALF))
    variables = {"nics": "true", "tolerated": json.dumps(TOLERATED)}
    enforce("injection.yaml", lambda: envs(arena.admitted(probe)) == {"main": [seen("main")]}, **variables)


def container(name: str, requests: dict[str, str] | None = None, *env: Manifest, **fields: Any) -> Manifest:
    spec = {"name": name, "image": "none", "resources": {"limits": requests or {}}, **fields}
    return {**spec, "env": list(env)} if env else spec


def pod(arena: Arena, *containers: Manifest, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    return arena.pod(labels=labels, **{"containers": list(containers), **spec})


def envs(pod: Manifest) -> dict[str, list[Manifest]]:
    spec = pod["spec"]
    return {each["name"]: each.get("env", []) for each in (*spec.get("initContainers", ()), *spec["containers"])}


def amounts(pod: Mapping[str, Any]) -> dict[str, Manifest]:
    spec = pod["spec"]
    return {each["name"]: each.get("resources", {}) for each in (*spec.get("initContainers", ()), *spec["containers"])}


def seen(name: str) -> Manifest:
    path = f"metadata.annotations['{name}.devices.berth.dev/visible']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


HALF = {GPU: "50"}
REQUESTS = [
    pytest.param({GPU: "50"}, id="a share"),
    pytest.param({GPU: "200"}, id="whole cards"),
    pytest.param({"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}, id="core and ratio"),
    pytest.param({MEMORY: "8Gi"}, id="memory"),
    pytest.param({SHARED: "2", MEMORY: "8Gi"}, id="spread"),
    pytest.param({"koordinator.sh/gpu": "50"}, id="koordinator"),
    pytest.param({"koordinator.sh/gpu-memory-ratio": "50"}, id="koordinator, ratio"),
    pytest.param({GPU: "50", RDMA: "50"}, id="next to a NIC"),
]


@pytest.mark.parametrize("requests", REQUESTS)
def test_pods_that_request_devices_see_what_they_get(arena: Arena, requests: dict[str, str]) -> None:
    assert envs(arena.admitted(pod(arena, container("main", requests)))) == {"main": [seen("main")]}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param([container("main", {NVIDIA: "1"}, PLAIN)], {"main": [PLAIN]}, id="kubelet's"),
        pytest.param([container("main", {"nvidia.com/mig-1g.10gb": "1"}, LITERAL)], {"main": []}, id="an instance"),
        pytest.param(
            [container("main", {"nvidia.com/hostdev": "1"}, LITERAL)], {"main": [VOID]}, id="another plugin's"
        ),
        pytest.param([container("main", {"nvidia.com/gpus": "1"})], {"main": [VOID]}, id="nearly the name"),
        pytest.param(
            [container("main", {"nvidia.com/hostdev": "1", NVIDIA: "1"}, LITERAL)], {"main": []}, id="both plugins'"
        ),
        pytest.param([container("main", {NVIDIA: "1"})], {"main": []}, id="kubelet's, without variables"),
        pytest.param(
            [container("main", {NVIDIA: "1"}, LITERAL, PLAIN)], {"main": [PLAIN]}, id="kubelet's value counts"
        ),
        pytest.param(
            [container("main", {NVIDIA: "1"}), container("b")], {"main": [], "b": [VOID]}, id="next to kubelet's"
        ),
        pytest.param([container("main", {}, LITERAL)], {"main": [VOID]}, id="asks for nothing"),
        pytest.param([container("main")], {"main": [VOID]}, id="asks for nothing, without variables"),
        pytest.param([container("main", {GPU: "0"}, LITERAL)], {"main": [VOID]}, id="asks for none"),
        pytest.param([container("main", {NVIDIA: "0"}, LITERAL)], {"main": [VOID]}, id="asks for none of kubelet's"),
        pytest.param([container("main", {RDMA: "100"}, LITERAL)], {"main": [VOID]}, id="NICs alone"),
        pytest.param([container("main", HALF, LITERAL)], {"main": [seen("main")]}, id="a literal is replaced"),
        pytest.param([container("main", HALF, seen("main"))], {"main": [seen("main")]}, id="all well"),
        pytest.param([container("main", HALF, seen("other"))], {"main": [seen("main")]}, id="another's annotation"),
        pytest.param([container("main", HALF, PLAIN, LITERAL)], {"main": [seen("main"), PLAIN]}, id="others stay"),
        pytest.param([container("main", HALF, MAKES)], {"main": [seen("main"), MAKES]}, id="others are made of it"),
        pytest.param(
            [container("main", HALF, LITERAL, PLAIN, VOID)], {"main": [seen("main"), PLAIN]}, id="a literal twice"
        ),
        pytest.param(
            [container("a", HALF), container("b", None, LITERAL, PLAIN), container("c")],
            {"a": [seen("a")], "b": [VOID, PLAIN], "c": [VOID]},
            id="next to containers without requests",
        ),
    ],
)
def test_what_becomes_of_containers(arena: Arena, containers: list[Manifest], expected: Manifest) -> None:
    assert envs(arena.admitted(pod(arena, *containers))) == expected


def test_init_containers_and_sidecars_are_containers(arena: Arena) -> None:
    initial = [container("init", HALF), container("sidecar", None, LITERAL, restartPolicy="Always")]
    result = arena.admitted(pod(arena, container("main"), initContainers=initial))
    assert envs(result) == {"init": [seen("init")], "sidecar": [VOID], "main": [VOID]}


def test_by_label_all_containers_see_all(arena: Arena) -> None:
    labels = {"genius/gpu-memory-each": "8192"}
    result = arena.admitted(pod(arena, container("a"), initContainers=[container("b")], labels=labels))
    assert envs(result) == {"a": [seen("a")], "b": [seen("b")]}


def test_pods_of_other_schedulers_are_left_alone(arena: Arena) -> None:
    for requests, scheduler in ((HALF, "volcano"), ({}, "default-scheduler"), ({NVIDIA: "1"}, "default-scheduler")):
        result = arena.admitted(pod(arena, container("main", requests, LITERAL), schedulerName=scheduler))
        assert envs(result) == {"main": [LITERAL]}


def test_a_name_of_full_length_makes_a_key(arena: Arena) -> None:
    name = "x" * 63
    assert envs(arena.admitted(pod(arena, container(name, HALF)))) == {name: [seen(name)]}


def test_many_containers_are_within_the_budget(arena: Arena) -> None:
    variables = [{"name": f"VARIABLE_{number}", "value": "x" * 64} for number in range(100)]
    containers = [container(f"c{number}", HALF if number % 2 else None, *variables) for number in range(40)]
    injected = envs(arena.admitted(pod(arena, *containers)))
    for number in range(40):
        name = f"c{number}"
        assert injected[name] == [seen(name) if number % 2 else VOID, *variables]


# --- ephemeral containers ---------------------------------------------------------------------------------------


def debugger(name: str, target: str = "", *env: Manifest) -> Manifest:
    spec = {"name": name, "image": "none", "env": list(env)}
    return {**spec, "targetContainerName": target} if target else spec


def debugged(arena: Arena, name: str, *containers: Manifest) -> dict[str, list[Manifest]]:
    """Add ephemeral containers to a pod, and return the variables of all its containers."""
    pod = arena.cluster.api.request(
        "PATCH",
        f"/api/v1/namespaces/{arena.namespace}/pods/{name}/ephemeralcontainers",
        body={"spec": {"ephemeralContainers": list(containers)}},
        content_type="application/strategic-merge-patch+json",
    )
    return {each["name"]: each.get("env", []) for each in pod["spec"]["ephemeralContainers"]}


def test_an_ephemeral_container_sees_what_its_target_sees(arena: Arena) -> None:
    arena.create([arena.pod("debugged", containers=[container("main", HALF), container("side")])])
    assert debugged(arena, "debugged", debugger("d1", "main", LITERAL, PLAIN)) == {"d1": [seen("main"), PLAIN]}
    more = [debugger("d2", "side"), debugger("d3", "", LITERAL), debugger("d4", "main")]
    variables = debugged(arena, "debugged", *more)
    assert variables == {"d1": [seen("main"), PLAIN], "d2": [VOID], "d3": [VOID], "d4": [seen("main")]}
    assert envs(arena.get("pods", "debugged")) == {"main": [seen("main")], "side": [VOID]}


def test_by_label_an_ephemeral_container_sees_what_any_target_sees(arena: Arena) -> None:
    labels = {"genius/gpu-number": "1"}
    arena.create([arena.pod("labelled", labels=labels, containers=[container("a")])])
    assert debugged(arena, "labelled", debugger("d1", "a"), debugger("d2")) == {"d1": [seen("a")], "d2": [VOID]}


@pytest.mark.parametrize(("name", "requests"), [("kubelets", {NVIDIA: "1"}), ("nothing", {})])
def test_an_ephemeral_container_of_a_pod_without_shares_sees_nothing(
    arena: Arena, name: str, requests: dict[str, str]
) -> None:
    arena.create([arena.pod(name, containers=[container("main", requests)])])
    assert debugged(arena, name, debugger("d1", "main", LITERAL)) == {"d1": [VOID]}


def test_ephemeral_containers_of_other_pods_are_left_alone(arena: Arena) -> None:
    arena.create([arena.pod("others", containers=[container("main", HALF)], schedulerName="volcano")])
    # As if it had been created before pods were routed: requests for devices are in the old and the new pod.
    arena.create([arena.pod("default", containers=[container("main")], schedulerName="default-scheduler")])
    for name in ("others", "default"):
        assert debugged(arena, name, debugger("d1", "main", LITERAL)) == {"d1": [LITERAL]}


def test_an_ephemeral_container_that_was_there_before_the_policy_stays(arena: Arena) -> None:
    """An invalid patch would block all later ephemeral containers, because an ephemeral container cannot be changed."""
    assert debugged(arena, "early", debugger("d1", "main")) == {"d0": [LITERAL], "d1": [seen("main")]}


# --- compared with the Python code ------------------------------------------------------------------------------

ENTRIES = st.sampled_from([PLAIN, LITERAL, VOID, MAKES, seen("c0"), seen("c1")])
AMOUNTS = st.dictionaries(
    st.sampled_from(
        [
            *sorted(injection.RESOURCES),
            *[RDMA, "koordinator.sh/rdma"] * 3,
            *("amd.com/gpu", "dcu.com/gpu", "huawei.com/npu-core", "example.com/other"),
            "cpu",
            NVIDIA,
            "nvidia.com/nic",
            "nvidia.com/mig-1g.5gb",
        ]
    ),
    st.sampled_from(["0", "1", "50", "1Gi"]),
    max_size=2,
)
LABELS: st.SearchStrategy[dict[str, str]] = st.sampled_from(
    [{}, {}, {"genius/gpu-number": "1"}, {"genius/gpu-model": "A100"}]
)


TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(["nvidia.com/gpu", "example.com/other"]),
        "operator": st.sampled_from(["Exists", "Equal"]),
        "effect": st.sampled_from(["NoSchedule", "NoExecute"]),
    },
).filter(lambda drawn: "key" in drawn or drawn.get("operator") == "Exists")


@st.composite
def pods(draw: st.DrawFn) -> Manifest:
    count, initial = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    containers = []
    for number in range(count + initial):
        spec = container(f"c{number}", draw(AMOUNTS), *draw(st.lists(ENTRIES, max_size=3)))
        if number < initial and draw(st.booleans()):
            spec["restartPolicy"] = "Always"
        containers.append(spec)
    lists = {"initContainers": containers[:initial], "containers": containers[initial:]}
    return {"labels": draw(LABELS), **lists, "tolerations": draw(st.lists(TOLERATIONS, max_size=2))}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=pods())
def test_python_says_the_same(arena: Arena, drawn: Manifest) -> None:
    labels, spec = drawn["labels"], {kind: each for kind, each in drawn.items() if kind != "labels"}
    as_sent = arena.admitted(arena.pod(labels=labels, schedulerName="volcano", **spec))
    by_policy = arena.admitted(arena.pod(labels=labels, **spec))
    assert envs(injection.injected(as_sent)) == envs(by_policy)
    assert amounts(nics.with_device_files(as_sent)) == amounts(by_policy)
    expected = tolerating.tolerating(as_sent, TOLERATED)["spec"]["tolerations"]
    assert by_policy["spec"]["tolerations"] == expected
    assert patch(by_policy, nics.with_device_files(injection.injected(by_policy))) == []
    assert injection.lacking(by_policy["spec"], labels) == ()
