"""An installation gives rights to people and programs. Programs report missing or old definitions in one line.

The test has its own cluster, because definitions and the roles `view`, `edit` and `admin` belong to the whole cluster.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import Cluster, waiting
from devcluster.control_plane.api import ApiError
from tests.programs.processes import Process

ROOT = Path(__file__).parents[3]
CRDS = ROOT / "crds"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NODE = "node-0"
NAMESPACE = "team-a"
DISCOVERY = "/apis/berth.dev/v1alpha1"
DEVICE = f"{DISCOVERY}/devices/{NODE}"

Start = Callable[..., Process]


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_nodes([NODE])
        yield running


@pytest.fixture
def start(own_cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Start a program with the administrator's rights."""
    started: list[Process] = []

    def begin(module: str, *options: str) -> Process:
        process = Process(
            name=f"{module}-{len(started)}",
            command=[sys.executable, "-m", module, f"--kubeconfig={own_cluster.kubeconfig}", *options],
            folder=tmp_path,
            environment={"BERTH_LOG_FORMAT": "json", "BERTH_AGENT_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.exit_code is None:
            process.kill()
        sys.stdout.write(f"--- {process.name}\n{process.tail()}\n")


@pytest.fixture
def agent(start: Start, tmp_path: Path) -> Callable[[], Process]:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(yaml.safe_dump({"nodes": [{"names": NODE, "profile": "a100", "gpus": 8}]}))
    options = ("--inventory=simulated", f"--fleet={fleet}", "--poll-interval=0.2", "--resync-interval=0.5")
    return lambda: start("berth_agent", *options)


def operator(start: Start) -> Process:
    return start("berth_operator", "--health=", "--metrics-port=0", "--debug-port=0")


# --- definitions ----------------------------------------------------------------------------------------------------


def delete_definitions(cluster: Cluster) -> None:
    for crd in definitions():
        cluster.api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}")

    def is_gone() -> bool:
        try:
            return not cluster.api.get(DISCOVERY)["resources"]
        except ApiError:
            return True

    waiting.until(is_gone, what="the definitions to be gone")


def definitions() -> list[dict[str, Any]]:
    return [yaml.safe_load(file.read_text()) for file in sorted(CRDS.glob("*.yaml"))]


def install_older(cluster: Cluster, folder: Path) -> None:
    """Install definitions as if some fields of a Device were new."""
    (folder / "older").mkdir()
    for crd in definitions():
        properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        if crd["spec"]["names"]["kind"] == "Device":
            del properties["spec"]["properties"]["driverVersion"]
            del properties["spec"]["properties"]["devices"]["items"]["properties"]["topology"]
            del properties["status"]["properties"]["conditions"]
        (folder / "older" / f"{crd['metadata']['name']}.yaml").write_text(yaml.safe_dump(crd))
    cluster.install_crds(folder / "older")
    waiting.until(lambda: "driverVersion" not in published(cluster), what="the older schema to be published")


def published(cluster: Cluster) -> str:
    """Return the published schema of a Device as text."""
    path = f"/openapi/v3{DISCOVERY}"
    if not cluster.api.exists(path):
        return "no schema, so any field is possible: driverVersion"
    return str(cluster.api.get(path)["components"]["schemas"]["dev.berth.v1alpha1.Device"])


def test_programs_without_definitions_end_with_one_line(
    own_cluster: Cluster, start: Start, agent: Callable[[], Process]
) -> None:
    delete_definitions(own_cluster)
    programs = {"berth-operator": operator(start), "berth-agent": agent()}
    missing = {"berth-operator": "Devices, GpuPods, LeaderLeases", "berth-agent": "Devices, GpuPods"}
    for name, process in programs.items():
        assert process.ended() == 2
        message = f"{name}: the API server does not serve berth.dev/v1alpha1 {missing[name]}: apply crds/ first"
        # The variables by which the suite is configured begin like settings.
        started, *more = [line for line in process.text().splitlines() if "variable without effect" not in line]
        assert '"event": "started"' in started
        assert more == [message]


def test_fields_that_older_definitions_lack_are_left_out_with_one_warning(
    own_cluster: Cluster, agent: Callable[[], Process], tmp_path: Path
) -> None:
    delete_definitions(own_cluster)
    install_older(own_cluster, tmp_path)
    api = own_cluster.api

    older = agent()
    older.logged('"Device published"')
    older.logged('["status.conditions"]')
    assert '"nodes": 1, "devices": {"gpu": 8}, "event": "inventory read"' in older.text()

    device = api.get(DEVICE)
    assert len(device["spec"]["devices"]) == 8
    assert all("topology" not in card and card["health"] for card in device["spec"]["devices"])
    warnings = [line for line in older.text().splitlines() if "apply crds/" in line]
    # The Device and its status are two requests.
    assert ['"fields": ["spec.devices[].topology", "spec.driverVersion"]' in line for line in warnings] == [True, False]
    assert "Device not published" not in older.text()
    older.stop()

    own_cluster.install_crds(CRDS)
    agent()
    waiting.until(lambda: "driverVersion" in api.get(DEVICE)["spec"], what="the whole Device")
    assert all("topology" in card for card in api.get(DEVICE)["spec"]["devices"])


# --- rights ---------------------------------------------------------------------------------------------------------


READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
POD_GROUPS = ("scheduling.x-k8s.io", "podgroups")
OTHERS = (
    ("scheduling.x-k8s.io", "podgroups/status"),
    *(("berth.dev", kind) for kind in ("gpupods", "gpupods/status", "leaderleases", "devices", "devices/status")),
)


def bind(cluster: Cluster, user: str, role: str, namespace: str = "") -> None:
    kind, scope = ("RoleBinding", f"/namespaces/{namespace}") if namespace else ("ClusterRoleBinding", "")
    body = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    cluster.api.post(f"{RBAC}{scope}/{kind.lower()}s", body)


def may(cluster: Cluster, user: str, verb: str, group: str, resource: str, *, namespace: str = NAMESPACE) -> bool:
    plural, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
    if plural != "devices":
        attributes["namespace"] = namespace
    body = {"spec": {"user": user, "groups": ["team-a"] if user == "member" else [], "resourceAttributes": attributes}}
    allowed: bool = cluster.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)["status"]["allowed"]
    return allowed


def test_people_read_our_kinds_and_write_only_pod_groups(own_cluster: Cluster) -> None:
    own_cluster.install_crds(CRDS)
    own_cluster.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests/base"))
    own_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for role in ("view", "edit", "admin"):
        bind(own_cluster, f"{role}er", role, NAMESPACE)
        bind(own_cluster, f"{role}er-everywhere", role)
    command = "create clusterrolebinding team-a-devices --clusterrole=berth-devices-view --group=team-a"
    assert f"$ kubectl {command}\n" in (ROOT / "docs/operations.md").read_text()
    own_cluster.kubectl(*command.split())
    asked = partial(may, own_cluster)
    waiting.until(
        lambda: asked("adminer", "create", *POD_GROUPS) and asked("adminer", "get", "berth.dev", "gpupods"),
        what="the API server's roles to have our rules",
    )
    for user in ("viewer", "editer", "adminer", "viewer-everywhere", "editer-everywhere", "adminer-everywhere"):
        writes = not user.startswith("viewer")
        assert all(asked(user, verb, *POD_GROUPS) for verb in READ)
        assert {asked(user, verb, *POD_GROUPS) for verb in WRITE} == {writes}
        assert all(asked(user, verb, "berth.dev", kind) for verb in READ for kind in ("gpupods", "leaderleases"))
        assert not any(asked(user, verb, *each) for verb in WRITE for each in OTHERS)
        # Devices are in no namespace, so that a RoleBinding gives no access to them.
        everywhere = user.endswith("-everywhere")
        assert {asked(user, verb, "berth.dev", "devices") for verb in READ} == {everywhere}
        assert asked(user, "get", *POD_GROUPS, namespace="team-b") is everywhere
    assert asked("member", "list", "berth.dev", "devices")
    assert not asked("member", "list", "berth.dev", "gpupods")
