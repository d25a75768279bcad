"""Who may write what decides over devices, one subresource after the other, on the real API server."""

import itertools
import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import Arena
from devcluster.api import Api, ApiError, Manifest

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
EPOCH = "berth.dev/epoch"
VISIBLE = "main.devices.berth.dev/visible"
LIMIT = "main.devices.berth.dev/memory-limit-0"
GUARDED = {ALLOCATED: "{}", EPOCH: "1", VISIBLE: "GPU-1", LIMIT: "1"}
KEYS = pytest.mark.parametrize("key", GUARDED)
REFUSED = HTTPStatus.FORBIDDEN

numbers = itertools.count()


def user(arena: Arena, kubeconfig: Path) -> Api:
    """A client that acts as whom a kubeconfig names."""
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    return Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())


@pytest.fixture(scope="module")
def node(arena: Arena) -> str:
    return arena.nodes(1)[0]


@pytest.fixture(scope="module")
def operator(arena: Arena) -> Iterator[Api]:
    client = user(arena, arena.service_account("berth-operator", "cluster-admin"))
    yield client
    client.close()


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, node: str, enforce: Callable[[str, Callable[[], bool]], None]) -> None:
    arena.service_account("berth-agent", "cluster-admin")
    agent = at(arena, None)

    def probe() -> bool:
        refused = [
            status(lambda: create(arena, {EPOCH: "1"})),
            status(lambda: bind(arena, arena.cluster.api, {EPOCH: "1"}, node)),
            status(lambda: agent.merge(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"a": "b"}}})),
        ]
        return refused == [REFUSED] * 3

    enforce("protection.yaml", probe)
    agent.close()


def status(write: Callable[[], object]) -> int:
    """The status of a write: 200 where it was let through."""
    try:
        write()
    except ApiError as error:
        return error.status
    return 200


def pods(arena: Arena, *path: str) -> str:
    return "/".join((f"/api/v1/namespaces/{arena.namespace}/pods", *path))


def create(arena: Arena, annotations: dict[str, str] | None = None, **spec: Any) -> str:
    name = f"p{next(numbers)}"
    manifest = arena.pod(name, requests={"cpu": "1"}, annotations=annotations, **spec)
    arena.cluster.api.post(pods(arena), manifest)
    return name


def bind(arena: Arena, by: Api, annotations: dict[str, str], node: str, *, pod: str = "", old_way: bool = False) -> str:
    name = pod or create(arena)
    body = {"metadata": {"name": name, "annotations": annotations}, "target": {"kind": "Node", "name": node}}
    path = f"/api/v1/namespaces/{arena.namespace}/bindings" if old_way else pods(arena, name, "binding")
    by.post(path, body)
    return name


@pytest.fixture
def bound(arena: Arena, operator: Api, node: str) -> str:
    """A pod that the scheduler has bound; it does not run yet, for kwok's nodes cannot resize what runs."""
    return bind(arena, operator, GUARDED, node, pod=create(arena, {"pod-ready.stage.kwok.x-k8s.io/delay": "1h"}))


def annotate(by: Api, path: str, annotations: dict[str, str | None]) -> Manifest:
    return by.merge(path, {"metadata": {"annotations": annotations}})


def written(arena: Arena, pod: str) -> dict[str, str]:
    found: dict[str, str] = arena.get("pods", pod)["metadata"].get("annotations", {})
    return {key: value for key, value in found.items() if key in GUARDED}


# --- pods -------------------------------------------------------------------------------------------------------


@KEYS
def test_a_pod_is_not_created_with_an_allocation(arena: Arena, key: str) -> None:
    with pytest.raises(ApiError, match=f"only Berth's scheduler says .* may not set, .* the annotation {key}"):
        create(arena, {key: GUARDED[key], "example.com/other": "1"})


def test_pods_without_and_those_of_other_schedulers_are_created(arena: Arena) -> None:
    assert create(arena, {"example.com/other": "1"})
    assert create(arena, GUARDED, schedulerName="koord-scheduler")


@KEYS
@pytest.mark.parametrize("value", ["forged", None], ids=["changed", "removed"])
@pytest.mark.parametrize("subresource", ["", "status"], ids=["pods", "pods-status"])
def test_an_allocation_stays_as_it_was_bound(
    arena: Arena, bound: str, key: str, value: str | None, subresource: str
) -> None:
    path = pods(arena, bound, *filter(None, [subresource]))
    assert status(lambda: annotate(arena.cluster.api, path, {key: value})) == REFUSED
    assert status(lambda: annotate(arena.cluster.api, path, {"example.com/other": "1"})) == HTTPStatus.OK
    assert written(arena, bound) == GUARDED


@KEYS
@pytest.mark.parametrize("subresource", ["", "status"], ids=["pods", "pods-status"])
def test_a_pod_that_waits_gets_no_allocation(arena: Arena, key: str, subresource: str) -> None:
    pod = create(arena)
    path = pods(arena, pod, *filter(None, [subresource]))
    assert status(lambda: annotate(arena.cluster.api, path, {key: "forged"})) == REFUSED
    assert written(arena, pod) == {}


@pytest.mark.parametrize("subresource", ["", "status"], ids=["pods", "pods-status"])
def test_the_operator_corrects_an_allocation_and_nothing_else(
    arena: Arena, bound: str, operator: Api, subresource: str
) -> None:
    path = pods(arena, bound, *filter(None, [subresource]))
    assert status(lambda: annotate(operator, path, {EPOCH: "2"})) == REFUSED
    assert status(lambda: annotate(operator, path, {LIMIT: "2"})) == REFUSED
    correct = {ALLOCATED: '{"gpu":[]}', VISIBLE: "GPU-2"}
    assert status(lambda: annotate(operator, path, dict(correct))) == HTTPStatus.OK
    assert written(arena, bound) == {**GUARDED, **correct}


def test_what_a_container_reads_stays_for_the_operator_too(arena: Arena, operator: Api, node: str) -> None:
    path = f"metadata.annotations['{VISIBLE}']"
    entry = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    reads = create(arena, containers=[{"name": "main", "image": "none", "env": [entry]}])
    bind(arena, operator, GUARDED, node, pod=reads)
    assert status(lambda: annotate(operator, pods(arena, reads), {VISIBLE: "GPU-2"})) == REFUSED
    assert status(lambda: annotate(operator, pods(arena, reads), {ALLOCATED: '{"gpu":[]}'})) == HTTPStatus.OK
    assert written(arena, reads) == {**GUARDED, ALLOCATED: '{"gpu":[]}'}


DEBUGGER = {"name": "debugger", "image": "none"}
RESIZED = {"name": "main", "resources": {"requests": {"cpu": "500m"}}}


@pytest.mark.parametrize(
    ("subresource", "spec", "changed"),
    [
        pytest.param(
            "ephemeralcontainers",
            {"ephemeralContainers": [DEBUGGER]},
            lambda spec: spec["ephemeralContainers"][0]["name"] == "debugger",
            id="ephemeralcontainers",
        ),
        pytest.param(
            "resize",
            {"containers": [RESIZED]},
            lambda spec: spec["containers"][0]["resources"]["requests"]["cpu"] == "500m",
            id="resize",
        ),
    ],
)
def test_other_subresources_change_no_allocation(
    arena: Arena, bound: str, subresource: str, spec: Manifest, changed: Callable[[Manifest], bool]
) -> None:
    path, by = pods(arena, bound, subresource), arena.cluster.api
    strategic = "application/strategic-merge-patch+json"
    forged = {"metadata": {"annotations": dict.fromkeys(GUARDED, "forged")}, "spec": spec}
    # The API server itself takes of such a request what the subresource is about, and no more.
    assert status(lambda: by.request("PATCH", path, body=forged, content_type=strategic)) == HTTPStatus.OK
    found = arena.get("pods", bound)
    assert written(arena, bound) == GUARDED
    assert changed(found["spec"])


# --- bindings ---------------------------------------------------------------------------------------------------


@KEYS
@pytest.mark.parametrize("old_way", [False, True], ids=["pods-binding", "bindings"])
def test_only_the_scheduler_binds_with_an_allocation(
    arena: Arena, operator: Api, node: str, key: str, *, old_way: bool
) -> None:
    told = {key: GUARDED[key]}
    assert status(lambda: bind(arena, arena.cluster.api, told, node, old_way=old_way)) == REFUSED
    assert written(arena, bind(arena, operator, told, node, old_way=old_way)) == told


@pytest.mark.parametrize("old_way", [False, True], ids=["pods-binding", "bindings"])
def test_others_bind_what_is_theirs(arena: Arena, node: str, *, old_way: bool) -> None:
    assert bind(arena, arena.cluster.api, {"example.com/other": "1"}, node, old_way=old_way)


# --- what agents write ------------------------------------------------------------------------------------------


def at(arena: Arena, node: str | None) -> Api:
    """A client with the token that the agent's pod gets on a node; without one, of a pod nowhere."""
    accounts = f"/api/v1/namespaces/{arena.namespace}/serviceaccounts"
    spec: Manifest = {"expirationSeconds": 3600}
    if node is not None:
        name = create(arena, nodeName=node, serviceAccountName="berth-agent")
        uid = arena.get("pods", name)["metadata"]["uid"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    answer = arena.cluster.api.post(f"{accounts}/berth-agent/token", {"spec": spec})
    token = answer["status"]["token"]
    return Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())


@pytest.fixture(scope="module")
def nodes(arena: Arena) -> list[str]:
    return arena.nodes(2)


@pytest.fixture(scope="module")
def agent(arena: Arena, nodes: list[str]) -> Iterator[Api]:
    """The agent of the first node."""
    client = at(arena, nodes[0])
    yield client
    client.close()


def device(node: str) -> tuple[str, Manifest]:
    return "/apis/berth.dev/v1alpha1/devices", {"metadata": {"name": node}, "spec": {"driverVersion": "1"}}


def lease(arena: Arena, node: str) -> tuple[str, Manifest]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{arena.namespace}/leases"
    return path, {"metadata": {"name": node}, "spec": {"holderIdentity": node}}


def gpu_pod(arena: Arena, node: str) -> tuple[str, Manifest]:
    path = f"/apis/berth.dev/v1alpha1/namespaces/{arena.namespace}/gpupods"
    return path, {"metadata": {"name": f"of-{node}"}, "spec": {"nodeName": node, "podUID": "u"}}


KINDS = ("devices", "leases", "gpupods")


def thing(arena: Arena, kind: str, node: str) -> tuple[str, Manifest]:
    path, body = device(node) if kind == "devices" else (lease if kind == "leases" else gpu_pod)(arena, node)
    versions = {"leases": "coordination.k8s.io/v1"}
    words = {"devices": "Device", "leases": "Lease", "gpupods": "GpuPod"}
    return path, {"apiVersion": versions.get(kind, "berth.dev/v1alpha1"), "kind": words[kind], **body}


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_writes_of_its_own_node_alone(arena: Arena, nodes: list[str], agent: Api, kind: str) -> None:
    mine, other = nodes
    path, body = thing(arena, kind, mine)
    _, foreign = thing(arena, kind, other)
    with pytest.raises(ApiError, match=f"the agent of node {mine} may not write the {kind} of node {other}"):
        agent.post(path, foreign)
    agent.post(path, body)
    arena.cluster.api.post(path, foreign)
    touch = {"metadata": {"labels": {"example.com/touched": "yes"}}}
    answers = [
        status(lambda: agent.merge(f"{path}/{body['metadata']['name']}", touch)),
        status(lambda: agent.merge(f"{path}/{foreign['metadata']['name']}", touch)),
        status(lambda: agent.delete(f"{path}/{foreign['metadata']['name']}")),
        status(lambda: agent.delete(f"{path}/{body['metadata']['name']}")),
    ]
    arena.cluster.api.delete(f"{path}/{foreign['metadata']['name']}")
    assert answers == [HTTPStatus.OK, REFUSED, REFUSED, HTTPStatus.OK]


@pytest.mark.parametrize("kind", ["devices", "nodes"])
def test_nor_does_it_write_anothers_status(arena: Arena, nodes: list[str], agent: Api, kind: str) -> None:
    base = f"{arena.cluster.api.resource(kind).path()}"
    if kind == "devices":
        for node in nodes:
            arena.cluster.api.post(*device_of(node))
    change: Manifest = {"status": {"conditions": []}}
    answers = [status(lambda node=node: agent.merge(f"{base}/{node}/status", change)) for node in nodes]  # type: ignore[misc]
    if kind == "devices":
        for node in nodes:
            arena.delete("devices", node)
    assert answers == [HTTPStatus.OK, REFUSED]


def device_of(node: str) -> tuple[str, Manifest]:
    path, body = device(node)
    return path, {"apiVersion": "berth.dev/v1alpha1", "kind": "Device", **body}


def test_a_gpupod_is_not_taken_over(arena: Arena, nodes: list[str], agent: Api) -> None:
    path, foreign = thing(arena, "gpupods", nodes[1])
    arena.cluster.api.post(path, foreign)
    change = {"spec": {"nodeName": nodes[0]}}
    assert status(lambda: agent.merge(f"{path}/{foreign['metadata']['name']}", change)) == REFUSED


def test_a_token_of_no_node_writes_nothing(arena: Arena, nodes: list[str]) -> None:
    nobody = at(arena, None)
    with pytest.raises(ApiError, match="the agent of node unknown to its token may not write the devices"):
        nobody.post(*device_of(nodes[0]))
    nobody.close()


def test_others_write_as_they_may(arena: Arena, nodes: list[str]) -> None:
    path, body = device_of(nodes[0])
    created = arena.cluster.api.post(path, body)
    annotated = annotate(arena.cluster.api, f"{path}/{nodes[0]}", {"berth.dev/cordoned-devices": json.dumps([0])})
    arena.delete("devices", nodes[0])
    assert created["metadata"]["uid"] == annotated["metadata"]["uid"]
