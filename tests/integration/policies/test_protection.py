"""Which accounts may write the fields that decide over devices, by subresource, on the real API server."""

import itertools
import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api.objects import gpupod
from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.programs import policies

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
EPOCH = "berth.dev/epoch"
VISIBLE = "main.devices.berth.dev/visible"
LIMIT = "main.devices.berth.dev/memory-limit-0"
GUARDED = {ALLOCATED: "{}", EPOCH: "1", VISIBLE: "GPU-1", LIMIT: "1"}
KEYS = pytest.mark.parametrize("key", GUARDED)
REFUSED = HTTPStatus.FORBIDDEN

numbers = itertools.count()


def user(arena: Arena, kubeconfig: Path) -> Api:
    """Return a client that acts as the user of a kubeconfig."""
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    return Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())


@pytest.fixture(scope="module")
def node(arena: Arena) -> str:
    return arena.nodes(1)[0]


@pytest.fixture(scope="module")
def operator_of() -> Iterator[Callable[[Arena], Api]]:
    clients: list[Api] = []

    def make(arena: Arena) -> Api:
        clients.append(user(arena, arena.service_account("berth-operator", "cluster-admin")))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def operator(arena: Arena, operator_of: Callable[[Arena], Api]) -> Api:
    return operator_of(arena)


@pytest.fixture(scope="module")
def early(arena: Arena) -> str:
    """Return a pod that had the annotations before the policy was in force."""
    return create(arena, GUARDED, scheduler_name="default-scheduler")


@pytest.fixture(scope="module", autouse=True)
def _in_force(
    arena: Arena,
    node: str,
    early: str,  # noqa: ARG001 - created before
    enforce: Callable[[str, Callable[[], bool]], None],
) -> None:
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
    """Return the HTTP status of a write: 200 if it is accepted."""
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
    """Return a pod that the scheduler has bound; it does not run, because kwok's nodes cannot resize running pods."""
    return bind(arena, operator, GUARDED, node, pod=create(arena, {"pod-ready.stage.kwok.x-k8s.io/delay": "1h"}))


def annotate(by: Api, path: str, annotations: dict[str, str | None]) -> Manifest:
    return by.merge(path, {"metadata": {"annotations": annotations}})


def written(arena: Arena, pod: str) -> dict[str, str]:
    annotations: dict[str, str] = arena.get("pods", pod)["metadata"].get("annotations", {})
    return {key: value for key, value in annotations.items() if key in GUARDED}


# --- pods -------------------------------------------------------------------------------------------------------


SCHEDULERS = pytest.mark.parametrize("scheduler", ["", "default-scheduler", "koord-scheduler"])


@KEYS
@SCHEDULERS
def test_a_pod_is_not_created_with_an_allocation(arena: Arena, key: str, scheduler: str) -> None:
    spec = f"only Berth's scheduler says .* may not set, .* the annotation {key}; remove it from new pods and templates"
    with pytest.raises(ApiError, match=spec):
        create(arena, {key: GUARDED[key], "example.com/other": "1"}, scheduler_name=scheduler)


MANY = {f"a{number}": "" for number in range(20_000)}
"""Many annotations; searched one by one, they took the API server seconds."""
NAMED_IN_VALUES = {"example.com/note": " ".join(f"a{number}.devices.berth.dev/visible" for number in range(990))}
"""Nearly as many names in values as a pod may have in all."""


@pytest.mark.parametrize("others", [MANY, NAMED_IN_VALUES], ids=["many", "named in values"])
def test_others_neither_hide_an_allocation_nor_keep_a_pod_away(arena: Arena, others: dict[str, str]) -> None:
    key = "main.devices.berth.dev/visible"
    name = create(arena, others)
    annotate(arena.cluster.api, pods(arena, name), {"example.com/other": "2"})

    with pytest.raises(ApiError, match=rf"may not set, change or remove the annotation {key};"):
        annotate(arena.cluster.api, pods(arena, name), {key: "0"})
    with pytest.raises(ApiError, match=rf"may not set, change or remove the annotation {key};"):
        create(arena, {**others, key: "0"})


def test_more_names_in_values_than_can_be_compared_are_refused(arena: Arena) -> None:
    value = NAMED_IN_VALUES["example.com/note"] + " x.devices.berth.dev/visible" * 10
    with pytest.raises(
        ApiError, match=r"more than 1,000 names that end in \.devices\.berth\.dev/.*; allowed are 1,000"
    ):
        create(arena, {"example.com/note": f"{value} one.devices.berth.dev/more"})


def test_an_allocation_among_many_annotations_stays(arena: Arena, bound: str) -> None:
    annotate(arena.cluster.api, pods(arena, bound), {**MANY, **NAMED_IN_VALUES, "example.com/other": "1"})

    for key in GUARDED:
        with pytest.raises(ApiError, match=rf"may not set, change or remove the annotation {key};"):
            annotate(arena.cluster.api, pods(arena, bound), {key: None})
    assert written(arena, bound) == GUARDED


@SCHEDULERS
def test_pods_without_are_created(arena: Arena, scheduler: str) -> None:
    assert create(arena, {"example.com/other": "1"}, scheduler_name=scheduler)


def test_a_controller_whose_template_has_an_allocation_gets_a_condition(arena: Arena) -> None:
    template = arena.pod(annotations=GUARDED, scheduler_name="default-scheduler")
    labels = {"app": "copied"}
    metadata = {"annotations": GUARDED, "labels": labels}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": metadata, "spec": template["spec"]}}
    arena.create([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "copied"}, "spec": spec}])

    def is_reported() -> bool:
        conditions = arena.get("replicasets", "copied").get("status", {}).get("conditions", [])
        return any("only Berth's scheduler says" in each.get("message", "") for each in conditions)

    arena.wait(is_reported, deadline=60.0, what="the ReplicaSet to report the refusal")


def test_a_pod_of_a_file_of_kubelet_is_shown_unless_it_has_an_allocation(arena: Arena, node: str) -> None:
    mirror = {"kubernetes.io/config.mirror": "0", "kubernetes.io/config.source": "file"}
    assert create(arena, mirror, nodeName=node)
    assert status(lambda: create(arena, {**mirror, EPOCH: "1"}, nodeName=node)) == REFUSED


@pytest.mark.parametrize("subresource", ["", "status"], ids=["pods", "pods-status"])
def test_a_pod_that_had_an_allocation_before_changes_in_all_else(arena: Arena, early: str, subresource: str) -> None:
    path = pods(arena, early, *filter(None, [subresource]))
    assert (
        status(lambda: annotate(arena.cluster.api, path, {"example.com/other": subresource or "pod"})) == HTTPStatus.OK
    )
    assert status(lambda: annotate(arena.cluster.api, path, {ALLOCATED: "forged"})) == REFUSED
    assert written(arena, early) == GUARDED


def test_a_saved_pod_is_applied_over_itself_and_not_as_a_new_one(arena: Arena, bound: str) -> None:
    saved = arena.get("pods", bound)
    path, body = pods(arena, bound), {**saved, "metadata": {**saved["metadata"], "labels": {"edited": "yes"}}}
    assert status(lambda: arena.cluster.api.request("PUT", path, body=body)) == HTTPStatus.OK
    metadata = {"name": f"copy-of-{bound}", "annotations": saved["metadata"]["annotations"]}
    with pytest.raises(ApiError, match="a Pod saved from a cluster has it"):
        arena.cluster.api.post(pods(arena), {**saved, "metadata": metadata})


@pytest.mark.parametrize("subresource", ["", "status"], ids=["pods", "pods-status"])
def test_a_pod_with_very_many_annotations_is_no_matter(arena: Arena, subresource: str) -> None:
    """A policy's search has a limit: beyond it the API server would refuse pods that are not Berth's."""
    many = {f"{number:x}": "" for number in range(10_000)}
    name = create(arena, many)
    path = pods(arena, name, *filter(None, [subresource]))
    by = arena.cluster.api
    assert status(lambda: by.merge(path, {"metadata": {"labels": {"example.com/other": "1"}}})) == HTTPStatus.OK
    assert status(lambda: annotate(by, path, {"example.com/other": "1"})) == HTTPStatus.OK
    assert status(lambda: annotate(by, path, {EPOCH: "1"})) == REFUSED


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
    # Of such a request the API server reads only the fields of the subresource.
    assert status(lambda: by.request("PATCH", path, body=forged, content_type=strategic)) == HTTPStatus.OK
    pod = arena.get("pods", bound)
    assert written(arena, bound) == GUARDED
    assert changed(pod["spec"])


# --- accounts in the list ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def koordinator(arena: Arena) -> Iterator[Api]:
    """Return another scheduler, whose account a second policy in another namespace lists."""
    client = user(arena, arena.service_account("koord-scheduler", "cluster-admin"))
    yield client
    client.close()


@pytest.fixture(scope="module")
def migration(arena: Arena, koordinator: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Return an arena whose policy lists that account, by the patch of docs/admission.md."""
    own = Arena(cluster=arena.cluster, folder=tmp_path_factory.mktemp("migration"))
    own.open()
    listed = f'["system:serviceaccount:{arena.namespace}:koord-scheduler"]'
    applied = own.apply(policies.policies("protection.yaml", own, {"trusted": listed}))

    def in_force() -> bool:
        return status(lambda: create(own, {EPOCH: "1"})) == REFUSED

    own.wait(in_force, deadline=30.0, what="the policy to be in force")
    assert status(lambda: annotate(koordinator, pods(own, create(own)), {ALLOCATED: "{}"})) == HTTPStatus.OK
    yield own
    for document in applied:
        own.cluster.api.delete(own.cluster.api.path_of(document))
    own.close()


def test_an_account_that_is_not_listed_writes_no_allocation(arena: Arena, koordinator: Api) -> None:
    assert status(lambda: annotate(koordinator, pods(arena, create(arena)), {ALLOCATED: "{}"})) == REFUSED


@KEYS
def test_a_listed_account_writes_allocations_and_nothing_else(migration: Arena, koordinator: Api, key: str) -> None:
    expected = HTTPStatus.OK if key == ALLOCATED else REFUSED
    path = pods(migration, create(migration, scheduler_name="koord-scheduler"))
    assert status(lambda: annotate(koordinator, path, {key: GUARDED[key]})) == expected
    assert status(lambda: annotate(migration.cluster.api, path, {key: "forged"})) == REFUSED


def test_a_listed_account_leaves_pods_of_berth_alone(
    migration: Arena, koordinator: Api, operator_of: Callable[[Arena], Api], node: str
) -> None:
    ours = bind(migration, operator_of(migration), GUARDED, node)
    assert status(lambda: annotate(koordinator, pods(migration, ours), {ALLOCATED: "forged"})) == REFUSED
    assert written(migration, ours) == GUARDED


# --- a policy that fails ----------------------------------------------------------------------------------------


@pytest.fixture
def broken(arena: Arena, tmp_path: Path) -> Iterator[Arena]:
    """Return an arena whose policy has a list that cannot be evaluated."""
    own = Arena(cluster=arena.cluster, folder=tmp_path)
    own.open()
    applied = own.apply(policies.policies("protection.yaml", own, {"trusted": 'dyn("no list").of.accounts'}))
    own.wait(lambda: status(lambda: create(own, {EPOCH: "1"})) != HTTPStatus.OK, deadline=30.0, what="the policy")
    yield own
    for document in applied:
        own.cluster.api.delete(own.cluster.api.path_of(document))
    own.close()


def test_a_broken_list_stops_no_other_pod(broken: Arena) -> None:
    by, other = broken.cluster.api, {"example.com/other": "1"}
    pod = pods(broken, create(broken))
    assert status(lambda: annotate(by, pod, dict(other))) == HTTPStatus.OK
    assert status(lambda: annotate(by, f"{pod}/status", {"example.com/other": "2"})) == HTTPStatus.OK
    [node] = broken.nodes()
    assert bind(broken, by, other, node)
    assert status(lambda: annotate(by, pod, {ALLOCATED: "{}"})) != HTTPStatus.OK


# --- bindings ---------------------------------------------------------------------------------------------------


@KEYS
@pytest.mark.parametrize("old_way", [False, True], ids=["pods-binding", "bindings"])
def test_only_the_scheduler_binds_with_an_allocation(
    arena: Arena, operator: Api, node: str, key: str, *, old_way: bool
) -> None:
    changed = {key: GUARDED[key]}
    assert status(lambda: bind(arena, arena.cluster.api, changed, node, old_way=old_way)) == REFUSED
    assert written(arena, bind(arena, operator, changed, node, old_way=old_way)) == changed


@pytest.mark.parametrize("old_way", [False, True], ids=["pods-binding", "bindings"])
def test_others_bind_what_is_theirs(arena: Arena, node: str, *, old_way: bool) -> None:
    assert bind(arena, arena.cluster.api, {"example.com/other": "1"}, node, old_way=old_way)


# --- writes of agents -------------------------------------------------------------------------------------------


def at(arena: Arena, node: str | None) -> Api:
    """Return a client with the token of the agent's pod on a node; without a node, of a pod that is not bound."""
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
    """Return the agent of the first node."""
    client = at(arena, nodes[0])
    yield client
    client.close()


def device(node: str) -> tuple[str, Manifest]:
    return "/apis/berth.dev/v1alpha1/devices", {"metadata": {"name": node}, "spec": {"driverVersion": "1"}}


def lease(arena: Arena, node: str) -> tuple[str, Manifest]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{arena.namespace}/leases"
    return path, {"metadata": {"name": node}, "spec": {"holderIdentity": node}}


def gpu_pod(arena: Arena, node: str) -> tuple[str, Manifest]:
    """Return the GpuPod of a new pod: without one, the garbage collector would delete it."""
    path = f"/apis/berth.dev/v1alpha1/namespaces/{arena.namespace}/gpupods"
    pod = arena.get("pods", create(arena, nodeName=node))["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    metadata = {"name": gpupod.name_of(pod["name"], node), "ownerReferences": [owner]}
    return path, {"metadata": metadata, "spec": {"nodeName": node, "podUID": pod["uid"]}}


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


def test_nor_does_it_write_anothers_status(arena: Arena, nodes: list[str], agent: Api) -> None:
    base = arena.cluster.api.resource("devices").path()
    for node in nodes:
        arena.cluster.api.post(*device_of(node))
    change: Manifest = {"status": {"conditions": []}}
    answers = [status(lambda node=node: agent.merge(f"{base}/{node}/status", change)) for node in nodes]  # type: ignore[misc]
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


@pytest.mark.parametrize("form", ["{}.a", "{}.a-b.c", "{}--a", "{}---a", "{}----a.b--c"])
def test_the_policy_names_gpupods_as_the_agent_does(arena: Arena, form: str) -> None:
    node = form.format(arena.id)
    agent = at(arena, node)
    path, body = thing(arena, "gpupods", node)
    agent.request("POST", path, body=body, query={"dryRun": "All"})
    pod = body["metadata"]["ownerReferences"][0]["name"]
    plain = f"{pod}.{node.replace('.', '--')}" if "--" in node else f"{pod}.{node}"
    with pytest.raises(ApiError, match=f"may not create the GpuPod {plain}: its name has to be the name of a pod and "):
        agent.request("POST", path, body={**body, "metadata": {**body["metadata"], "name": plain}})
    agent.close()


def test_a_token_of_no_node_writes_nothing(arena: Arena, nodes: list[str]) -> None:
    unbound = at(arena, None)
    with pytest.raises(ApiError, match="the token of this agent names no node, so it may write nothing"):
        unbound.post(*device_of(nodes[0]))
    unbound.close()


def test_others_write_as_they_may(arena: Arena, nodes: list[str]) -> None:
    path, body = device_of(nodes[0])
    created = arena.cluster.api.post(path, body)
    annotated = annotate(arena.cluster.api, f"{path}/{nodes[0]}", {"berth.dev/cordoned-devices": json.dumps([0])})
    arena.delete("devices", nodes[0])
    assert created["metadata"]["uid"] == annotated["metadata"]["uid"]
