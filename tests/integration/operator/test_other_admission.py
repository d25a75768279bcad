"""Other admission adds labels and annotations to what Berth writes: a plug-in of the API server, and a policy."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth_api.names import HINDRANCE
from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.integration.operator.world import World
from tests.nvml.fixture import NvmlFixture, a100
from tests.programs import policies

ZONE: Final = {"topology.kubernetes.io/zone": "zone-a", "topology.kubernetes.io/region": "region-a"}
KEY: Final = "example.com/version"
STARTING: Final = {"key": "berth.dev/agent-not-ready", "effect": "NoSchedule"}
HALF: Final = {"kubernetes.io/gpu": "50"}
GROUP: Final = "admissionregistration.k8s.io/v1"

MERGE: Final = "application/merge-patch+json"

Apply = Callable[[Iterable[Manifest]], None]
Clients = Callable[[Path], Api]


@pytest.fixture
def apply(world: World) -> Iterator[Apply]:
    """Return what applies policies for the duration of a test."""
    paths: set[str] = set()

    def applied(documents: Iterable[Manifest]) -> None:
        paths.update(world.api.path_of(document) for document in world.arena.apply(documents))

    yield applied
    for path in paths:
        world.api.delete(path)


@pytest.fixture
def clients(arena: Arena) -> Iterator[Clients]:
    """Return what makes a client of a kubeconfig's user."""
    made: dict[Path, Api] = {}

    def client(kubeconfig: Path) -> Api:
        if kubeconfig not in made:
            token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
            made[kubeconfig] = Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())
        return made[kubeconfig]

    yield client
    for each in made.values():
        each.close()


def limits(arena: Arena, **added: list[str]) -> list[Manifest]:
    """Return the policies that limit Berth's accounts, with the keys that other admission adds."""
    variables = {"added": json.dumps(added)}
    return [each for file in ("limits.yaml", "protection.yaml") for each in policies.policies(file, arena, variables)]


def adding(arena: Arena) -> list[Manifest]:
    """Return a policy that writes an annotation into each Binding and Node of the arena's accounts."""
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": [verb], "resources": resources, "scope": "*"}
        for verb, resources in (("CREATE", ["pods/binding"]), ("UPDATE", ["nodes", "nodes/status"]))
    ]
    account = f'request.userInfo.username.startsWith("system:serviceaccount:{arena.namespace}:")'
    value = 'object.metadata.?resourceVersion.orValue("none")'
    patch = f'Object{{metadata: Object.metadata{{annotations: {{"{KEY}": {value}}}}}}}'
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "by-an-account-of-the-arena", "expression": account}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": patch}}],
    }
    name = f"adding-{arena.id}"
    return [
        {"apiVersion": GROUP, "kind": f"MutatingAdmissionPolicy{kind}", "metadata": {"name": name}, "spec": body}
        for kind, body in (("", spec), ("Binding", {"policyName": name}))
    ]


def agent_of(arena: Arena, node: str) -> Path:
    """Return a kubeconfig with the token of the agent's pod on a node."""
    arena.service_account("berth-agent", "cluster-admin")
    [pod] = arena.create([arena.pod("agent", nodeName=node, serviceAccountName="berth-agent")])
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": pod["metadata"]["uid"]}
    path = f"/api/v1/namespaces/{arena.namespace}/serviceaccounts/berth-agent/token"
    answer = arena.cluster.api.post(path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}})
    file = arena.folder / "agent.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(arena.cluster.kubeconfig_for(answer["status"]["token"]))
    return file


def dry_run(client: Api, path: str, body: Manifest) -> str:
    """Return what the API server answers to a write of a client in a dry run, as text."""
    method, kind = ("POST", "application/json") if path.endswith("/binding") else ("PATCH", MERGE)
    try:
        return str(client.request(method, path, body=body, query={"dryRun": "All"}, content_type=kind))
    except ApiError as error:
        return str(error)


def test_a_key_that_is_not_listed_is_named_in_the_leader_lease(world: World, apply: Apply, clients: Clients) -> None:
    arena = world.arena
    operator = arena.service_account("berth-operator", "cluster-admin")
    binding = {"metadata": {"name": "none"}, "target": {"kind": "Node", "name": "none"}}
    path = f"/api/v1/namespaces/{arena.namespace}/pods/none/binding"
    apply(adding(arena))
    apply(limits(arena))
    advice = "list them in admission.addedKeys.bindings"
    arena.wait(lambda: advice in dry_run(clients(operator), path, binding), what="both policies")
    world.operator(kubeconfig=operator, wait=False)

    def hindrance() -> str:
        [lease] = arena.list("leaderleases") or [{"metadata": {}}]
        return str(lease["metadata"].get("annotations", {}).get(HINDRANCE, ""))

    arena.wait(lambda: KEY in hindrance() and advice in hindrance(), what="what keeps the operator from binding")


def test_listed_keys_that_other_admission_adds_stop_neither_bindings_nor_nodes(
    world: World, apply: Apply, clients: Clients, tmp_path: Path
) -> None:
    arena = world.arena
    [node] = arena.nodes(labels=ZONE, taints=[STARTING])
    operator, agent = arena.service_account("berth-operator", "cluster-admin"), agent_of(arena, node)
    machine = NvmlFixture(folder=tmp_path, gpus=[a100(0)])
    machine.write()
    path, label = f"/api/v1/nodes/{node}", {"metadata": {"labels": {"example.com/a": "b"}}}
    apply(adding(arena))
    arena.wait(lambda: KEY in dry_run(clients(operator), path, label), what="the policy that adds the key")
    apply(limits(arena, nodes=[KEY], bindings=[KEY]))
    for account in (operator, agent):
        arena.wait(partial(is_refused, clients(account), path, label), what="the policies that limit accounts")

    world.processes.node_agent(node, machine, kubeconfig=agent, poll_interval=0.2)
    world.operator(kubeconfig=operator, node_startup_timeout=600)
    world.pod("half", HALF)
    pod = world.bound("half")["metadata"]
    assert ZONE.items() <= pod["labels"].items()
    assert pod["annotations"][KEY] == "none"
    # The operator has removed its taint from the Node, and the agent has written its labels.
    written = arena.get("nodes", node)
    assert "taints" not in written["spec"]
    assert written["metadata"]["labels"]["nvidia.com/gpu.count"] == "1"
    assert written["metadata"]["annotations"][KEY]

    # A stolen token does not move a pod to another zone than its Node's.
    pods = f"/api/v1/namespaces/{arena.namespace}/pods"
    world.pods(("moved", "other"), {"cpu": "1"}, schedulerName="none")
    target = {"kind": "Node", "name": node}
    stolen = {"metadata": {"name": "moved", "labels": dict.fromkeys(ZONE, "stolen")}, "target": target}
    clients(operator).post(f"{pods}/moved/binding", stolen)
    assert ZONE.items() <= arena.get("pods", "moved")["metadata"]["labels"].items()

    apply(limits(arena, nodes=[KEY]))
    path, binding = f"{pods}/other/binding", {"metadata": {"name": "other"}, "target": target}
    arena.wait(partial(is_refused, clients(operator), path, binding), what="the policy without the key of Bindings")
    world.pod("refused", HALF)
    [event, *_] = world.wait(lambda: world.events("refused", "FailedBinding"), what="the Binding to be refused")
    assert f"may not change annotations of pods/binding that are not Berth's: {KEY}; " in event["message"]
    assert "list them in admission.addedKeys.bindings (docs/write-protection.md)" in event["message"]


def is_refused(client: Api, path: str, body: Manifest) -> bool:
    """Return whether a policy refuses a write of a client."""
    return "ValidatingAdmissionPolicy" in dry_run(client, path, body)
