"""Berth in a cluster. Its programs run as processes of this checkout, not as pods.

The programs are started, never imported. Each has only the rights of its shipped ServiceAccount.
"""

import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import waiting
from devcluster.control_plane import manifests
from devcluster.control_plane.api import ApiError
from devcluster.control_plane.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.processes import state

ROOT: Final = Path(__file__).parents[2]
BASE: Final = ROOT / "manifests" / "base"
WORKLOADS: Final = {"Deployment", "DaemonSet"}
"""Kinds whose pods are processes here."""
NAMESPACE: Final = "berth-system"
AGENTS: Final = "berth-agent-system"
SCHEDULER: Final = "berth-scheduler"
OPERATOR: Final = "operator"
WITHOUT_SERVERS: Final = ("--health=", "--metrics-port=0", "--debug-port=0")
"""Several clusters may run on one machine, so no operator takes a fixed port."""
LOOPBACK: Final = "127.0.0.1"
OF_THIS_MACHINE: Final = {"type": "ExternalName", "externalName": LOOPBACK}
"""The spec of a Service whose pods are processes here."""
VISIBILITY: Final = "/apis/visibility.berth.dev/v1alpha1"
TOKEN_SECONDS: Final = 365 * 24 * 3600
"""A process cannot renew its token as kubelet does for a pod."""
LAST_LINES: Final = 15
LINE_LENGTH: Final = 400
"""A program prints all its settings in one line at its start, which is longer than a screen."""
DEADLINE: Final = 120.0

Manifest = dict[str, Any]

PROBE: Final[Manifest] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe"},
    "spec": {
        "containers": [
            {"name": "main", "image": "none", "resources": {"limits": {"kubernetes.io/gpu": "50"}}},
        ]
    },
}
"""A pod that has to be routed and injected; it is never created."""


def apply(cluster: Cluster) -> None:
    """Apply `crds/` and the files of `manifests/base`; no pods are created."""
    cluster.install_crds(ROOT / "crds")
    files = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    for file in (BASE / name for name in files):
        for document in documents(file):
            if document["kind"] == "Service":
                document["spec"] = OF_THIS_MACHINE
            if document["kind"] not in WORKLOADS:
                cluster.api.apply(document)


def create_namespaces(cluster: Cluster) -> None:
    """Create the namespaces of `manifests/base`: an agent needs that of the heartbeats."""
    for document in documents(BASE / "namespace.yaml"):
        cluster.api.apply(document)


def documents(file: Path) -> list[Manifest]:
    """Return the objects of a YAML file."""
    return manifests.documents(file.read_text())


def account(cluster: Cluster, name: str, *, namespace: str = NAMESPACE) -> Path:
    """Write a kubeconfig with a new token of a ServiceAccount of Berth's."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    answer = cluster.api.post(path, {"spec": {"expirationSeconds": TOKEN_SECONDS}})
    file = cluster.folder / f"{name}.kubeconfig"
    state.write_private(file, cluster.kubeconfig_for(answer["status"]["token"]))
    return file


def operator(kubeconfig: Path, *flags: str) -> list[str]:
    """Return the command of an operator that needs the fence and serves the visibility API, as the shipped one does."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
    ports = (f"--visibility-port={port}", f"--visibility-service-port={port}")
    own = (
        "--require-fence",
        *WITHOUT_SERVERS,
        *(*ports, f"--visibility-address={LOOPBACK}", f"--pod-ip={LOOPBACK}"),
        "--log-format=text",
        f"--kubeconfig={kubeconfig}",
    )
    return [sys.executable, "-m", "berth_operator", *own, *flags]


def start(cluster: Cluster, *flags: str) -> int:
    """Start the operator, and return its process id."""
    return cluster.run(OPERATOR, operator(account(cluster, "berth-operator"), *flags))


def wait(cluster: Cluster, pid: int, *, nodes: Iterable[str], is_visible: bool = True) -> None:
    """Return when the operator leads, its policies are in force, and the Devices of the nodes have its conditions.

    With `is_visible` the visibility API answers, too.

    Raises:
        DevclusterError: the operator ended.
    """
    names = set(nodes)

    def serves() -> bool:
        if not state.is_alive(pid):
            raise DevclusterError("\n".join([f"the {OPERATOR} ended; its last lines:", *last_lines(cluster, OPERATOR)]))
        decides = _leads(cluster) and names <= _judged(cluster) and routes(cluster, PROBE)
        return decides and (answers(cluster) or not is_visible)

    waiting.until(serves, deadline=DEADLINE, what="the operator and its policies", poll=0.2)


def last_lines(cluster: Cluster, program: str) -> list[str]:
    """Return the end of a program's log; long lines are cut."""
    lines = (cluster.folder / f"{program}.log").read_text(errors="replace").splitlines()[-LAST_LINES:]
    return [line if len(line) <= LINE_LENGTH else f"{line[:LINE_LENGTH]} ..." for line in lines]


def routes(cluster: Cluster, pod: Mapping[str, Any]) -> bool:
    """Return whether the API server would route a pod to Berth and inject a variable into it."""
    path = cluster.api.resource("pods").path(namespace="default")
    try:
        spec = cluster.api.request("POST", path, body=pod, query={"dryRun": "All"})["spec"]
    except ApiError:  # The policy that refuses pods is in force before the one that routes them.
        return False
    return spec["schedulerName"] == SCHEDULER and "env" in spec["containers"][0]


def answers(cluster: Cluster) -> bool:
    """Return whether the visibility API answers with the state of a leader."""
    try:
        cluster.api.get(f"{VISIBILITY}/fleet")
    except ApiError:
        return False
    return True


def _leads(cluster: Cluster) -> bool:
    path = cluster.api.resource("leaderleases").path(namespace=NAMESPACE)
    return any(lease["spec"].get("holderIdentity") for lease in cluster.api.get(path)["items"])


def _judged(cluster: Cluster) -> set[str]:
    """Return the Devices to which a leader has given conditions."""
    devices = cluster.api.get(cluster.api.resource("devices").path())["items"]
    return {
        device["metadata"]["name"]
        for device in devices
        if any(condition["type"] == "Ready" for condition in device.get("status", {}).get("conditions", ()))
    }
