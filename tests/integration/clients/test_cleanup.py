"""Berth is installed, used and removed on one API server: the server is as before, and pods keep their capacity.

The pods keep it until they have ended. The test has its own cluster, because the names of the manifests belong to the
whole cluster.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Cluster, waiting
from devcluster.additions import installation
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.objects import kueue_objects
from tests.programs.processes import LEADING, Process
from tests.stand_ins import kueue_by_hand

ROOT: Final = Path(__file__).parents[3]
NODES: Final = ["node-0", "node-1"]
PODS: Final = "/api/v1/namespaces/default/pods"
SHARE: Final = "kubernetes.io/gpu"
TEAM: Final = "/api/v1/namespaces/team-a"
COMPONENTS: Final = ("webhook", "webhook-isolation", "list-watch-api", "mps", "hami-core-library")
"""For some the API server calls servers, which do not run here: as after a removal in the wrong order."""
TIMES: Final = {"resourceVersion", "managedFields", "lastHeartbeatTime", "lastTransitionTime", "generation"}
TRANSIENT: Final = {"Event", "Lease"}


class Site:
    """The cluster, and Berth in it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.api, self.folder = cluster, cluster.api, folder
        self.programs: list[Process] = []
        self.overlay = folder / "overlay"

    def install(self) -> None:
        """Install the definitions and the manifests, and start an operator and an agent as processes."""
        self.cluster.install_crds(ROOT / "crds")
        installation.create_namespaces(self.cluster)
        fleet = self.folder / "fleet.yaml"
        fleet.write_text(yaml.safe_dump({"nodes": [{"names": name, "profile": "a100", "gpus": 8} for name in NODES]}))
        self._start("berth_agent", "--inventory=simulated", f"--fleet={fleet}")
        quiet = ("--health=", "--metrics-port=0", "--debug-port=0", "--no-require-injection")
        # It leads before the fence is there, which takes an API server up to half a minute to load.
        self._start("berth_operator", *quiet, "--namespace=default").logged(LEADING)

    def install_kueue(self) -> None:
        """Install the definitions of Kueue, and a queue with Berth's AdmissionCheck."""
        kueue_by_hand.install(self.cluster, self.folder / "kueue")
        strategy = {"admissionChecks": [{"name": "fits"}]}
        for kind, plural, name, spec in (
            ("AdmissionCheck", "admissionchecks", "fits", {"controllerName": "berth.dev/fits-devices"}),
            ("ClusterQueue", "clusterqueues", "teams", {"admissionChecksStrategy": strategy}),
        ):
            raw = {"apiVersion": kueue_objects.API, "kind": kind, "metadata": {"name": name}, "spec": spec}
            self.api.post(f"{kueue_by_hand.PATH}/{plural}", raw)

    def apply(self) -> None:
        """Apply the manifests with components."""
        self.overlay.mkdir()
        manifests = os.path.relpath(ROOT / "manifests", self.overlay)
        kustomization = {
            "resources": [f"{manifests}/base"],
            "components": [f"{manifests}/components/{name}" for name in COMPONENTS],
        }
        (self.overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        self.cluster.kubectl("apply", "--server-side", "-k", str(self.overlay))
        self.cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "manifests/cleanup/rbac.yaml"))

    def remove(self) -> None:
        """Delete the manifests, as after a cleanup."""
        self.cluster.kubectl("delete", "-f", str(ROOT / "manifests/cleanup/rbac.yaml"), "--wait=false")
        self.cluster.kubectl("delete", "-k", str(self.overlay), "--ignore-not-found", "--wait=false")

    def _start(self, module: str, *flags: str) -> Process:
        command = [sys.executable, "-m", module, f"--kubeconfig={self.cluster.kubeconfig}", *flags]
        environment = {"BERTH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"}
        process = Process(name=module, command=command, folder=self.folder, environment=environment)
        self.programs.append(process)
        return process

    def stop(self) -> None:
        """Kill the processes, as if their pods had ended."""
        while self.programs:
            self.programs.pop().kill()

    def account(self) -> Path:
        """Return a kubeconfig with the rights of the Job."""
        path = "/api/v1/namespaces/berth-system/serviceaccounts/berth-cleanup/token"
        token = self.api.post(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        file = self.folder / "cleanup.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(self.cluster.kubeconfig_for(token))
        return file

    def cleanup(self, *flags: str, kubeconfig: Path | None = None) -> tuple[int, str]:
        """Run the command; return its exit status and what it printed."""
        login = f"--kubeconfig={kubeconfig or self.cluster.kubeconfig}"
        command = [sys.executable, "-m", "berth_operator", "cleanup", login, *flags]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        return completed.returncode, completed.stdout + completed.stderr

    def pod(self, name: str, amount: str, *, node: str) -> None:
        """Create a pod that Berth binds to a node."""
        resources = {"requests": {SHARE: amount}, "limits": {SHARE: amount}}
        container = {"name": "main", "image": "none", "resources": resources}
        selector = {"kubernetes.io/hostname": node}
        spec = {"schedulerName": "berth-scheduler", "nodeSelector": selector, "containers": [container]}
        self.api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def is_bound(self, pod: str) -> bool:
        return "nodeName" in self.api.get(f"{PODS}/{pod}")["spec"]

    def end(self, pod: str) -> None:
        self.api.delete(f"{PODS}/{pod}", grace_seconds=0)

    def written(self, node: str) -> dict[str, Any]:
        """Return what a Node has of Berth: labels and sums by key, and the field managers of Berth."""
        raw = self.api.get(f"/api/v1/nodes/{node}")
        keys = {**raw["metadata"]["labels"], **raw["status"]["capacity"], **raw["status"]["allocatable"]}
        managers = {entry["manager"] for entry in raw["metadata"]["managedFields"]}
        ours = {key: value for key, value in keys.items() if key.startswith(("kubernetes.io/gpu", "koordinator.sh/"))}
        ours |= {key: value for key, value in keys.items() if "berth.dev" in key or "gpu-" in key}
        return ours | {manager: "" for manager in managers if manager.startswith("berth")}


def dump(api: Api) -> dict[str, Any]:
    """Return all objects of the cluster by kind and name, without what changes by itself."""
    objects: dict[str, Any] = {}
    for resource in api.resources():
        if resource.kind in TRANSIENT:
            continue
        try:
            items = api.get(resource.path())["items"]
        except ApiError as error:
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
                raise
            continue  # a kind that cannot be listed, such as TokenReview
        for item in items:
            metadata = item["metadata"]
            name = f"{resource.prefix} {resource.kind} {metadata.get('namespace', '')}/{metadata['name']}"
            objects[name] = _steady(item)
    return objects


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(inner) for key, inner in value.items() if key not in TIMES}
    return sorted(map(_steady, value), key=str) if isinstance(value, list) else value


def differences(before: Manifest, after: Manifest) -> list[str]:
    return [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Cluster() as cluster:
        cluster.create_nodes(NODES, labels={"theirs": "kept"}, capacity={"example.com/theirs": "3"})
        own = Site(cluster, tmp_path)
        yield own
        for process in own.programs:
            sys.stdout.write(f"--- {process.name}\n{process.tail()}\n")
        own.stop()


def test_a_cluster_is_left_as_it_was_found(site: Site) -> None:
    site.install_kueue()
    before = dump(site.api)
    site.install()
    site.pod("half", "50", node="node-0")
    site.pod("most", "70", node="node-1")
    waiting.until(lambda: site.is_bound("half") and site.is_bound("most"), what="the pods to be bound")
    waiting.until(lambda: all("model.berth.dev" in str(site.written(name)) for name in NODES), what="labels on Nodes")
    site.apply()
    site.stop()
    # Its deletion needs the discovery of all APIServices, whose servers no longer run.
    site.api.post("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    site.api.delete(TEAM)

    # Pods run: their nodes keep what they request, and the Job's rights suffice.
    status, output = site.cleanup(kubeconfig=site.account())
    assert status == 0, output
    assert site.written("node-0") == {SHARE: "50", "berth-operator": ""}
    assert site.written("node-1") == {SHARE: "70", "berth-operator": ""}
    for line in (
        f"node node-0 keeps {SHARE}: 50 for pods default/half",
        f"node node-1 keeps {SHARE}: 70 for pods default/most",
        "stays: AdmissionCheck fits, which nothing answers now, so that the ClusterQueues teams admit nothing: ",
        "stays: the definitions devices.berth.dev gpupods.berth.dev leaderleases.berth.dev",
    ):
        assert line in output

    # Their end is waited for, and one that does not end is reported. Meanwhile namespaces can be deleted.
    site.end("half")
    status, output = site.cleanup("--drain", "--timeout=0.5")
    assert status == 1, output
    waiting.until(lambda: not site.api.exists(TEAM), what="the namespace to be gone")
    assert f"node node-1 keeps {SHARE}: 70 for pods default/most" in output
    assert "nodes still keep capacity for the pods above" in output
    assert site.written("node-0") == {}

    site.end("most")
    status, output = site.cleanup("--delete-crds")
    assert status == 0, output
    assert site.written("node-1") == {}
    site.remove()
    waiting.until(lambda: not differences(before, dump(site.api)), what="the cluster as it was before")
