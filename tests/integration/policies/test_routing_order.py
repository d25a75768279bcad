"""Routing or rewriting, and injection, with another order of policies after each restart of the API server.

The test has its own cluster, with the policies as shipped, for all namespaces.
"""

import contextlib
import functools
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from berth_api.admission import injection
from berth_operator.core.values import limits
from devcluster import Cluster, DevclusterError, waiting
from devcluster.control_plane import components
from devcluster.control_plane.api import ApiError, Manifest
from devcluster.processes import state
from tests import manifests_of_others as manifests
from tests.objects.builders import GPU
from tests.programs import policies

MANIFESTS = Path(__file__).parents[3] / "manifests"
FILES = (
    "base/injection.yaml",
    "base/routing.yaml",
    "components/isolation/policy.yaml",
    "components/runtime-class/policy.yaml",
    "base/words.yaml",
)
RESTARTS = int(os.environ.get("BERTH_RESTARTS", "3"))
"""How often the API server is restarted; `BERTH_RESTARTS=20` for a thorough run."""
PODS = 20
SERVER = "kube-apiserver"
OF_HALF = {"koordinator.sh/gpu": "50", "berth.dev/hami-core": "1"}
REWRITTEN = {"limits": OF_HALF, "requests": OF_HALF}
EXTENDED = "-extended"
KUBE_SCHEDULER = "kube-scheduler"
"""Stands for the default scheduler, whose pods are routed on this cluster."""
ROUTES = ("words", "devices")
"""Values of the namespaces' label, and the names of namespaces that have them. Both route pods with words of other
systems."""
LABELS = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(folder=tmp_path_factory.mktemp("cluster")) as running:
        running.api.post("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        for file in FILES:
            for document in yaml.safe_load_all((MANIFESTS / file).read_text()):
                running.api.apply(document)
        for route in ROUTES:
            running.api.post(
                "/api/v1/namespaces", {"metadata": {"name": route, "labels": {"berth.dev/routing": route}}}
            )
        for document in of_extender(tmp_path_factory.mktemp("built")):
            running.api.apply(document)
        yield running


def of_extender(folder: Path) -> Iterator[Manifest]:
    """Yield the mutating policies of the component `extender` for the pods of another scheduler."""
    for document in policies.built(folder, "isolation", "runtime-class", "extender"):
        if document["kind"].startswith("MutatingAdmissionPolicy"):
            document["metadata"]["name"] += EXTENDED
            if "policyName" in document["spec"]:
                document["spec"]["policyName"] += EXTENDED
            text = (
                json.dumps(document).replace("default-scheduler", KUBE_SCHEDULER).replace("berth-scheduler", "no-one")
            )
            yield json.loads(text)


def restart(cluster: Cluster) -> None:
    """Restart the API server with the same command line, and wait until it serves the policies."""
    saved = state.read(cluster.folder)
    assert saved is not None
    pid = saved.processes[SERVER]
    command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    os.kill(pid, signal.SIGKILL)

    def runs_again() -> bool:
        with contextlib.suppress(DevclusterError):  # it has not ended yet
            return bool(cluster.run(SERVER, command, environment=components.ENVIRONMENT))
        return False

    waiting.until(runs_again, what="the API server to end and to be started again")
    cluster.api.close()
    waiting.until(functools.partial(is_routed, cluster), what="the policies to be in force", deadline=60)


def is_routed(cluster: Cluster) -> bool:
    with contextlib.suppress(OSError, ApiError):
        rewritten = admitted(cluster, 0, KUBE_SCHEDULER)["spec"]["containers"][0]["resources"] == REWRITTEN
        return rewritten and bool(admitted(cluster, 0)["spec"]["schedulerName"] == "berth-scheduler")
    return False


def admitted(cluster: Cluster, number: int, scheduler: str = "") -> Manifest:
    resources = {"limits": {GPU: "50"}}
    containers = [{"name": "main", "image": "none", "resources": resources}, {"name": "side", "image": "none"}]
    metadata = {"name": f"p{number}", "labels": LABELS}
    pod = {"metadata": metadata, "spec": {"containers": containers, "schedulerName": scheduler}}
    return cluster.api.request("POST", "/api/v1/namespaces/default/pods", body=pod, query={"dryRun": "All"})


def by_words(cluster: Cluster, namespace: str) -> Manifest:
    """Return a pod that names no scheduler and requests by words of another system."""
    spec = manifests.pod(manifests.FOLDER / "hami/two-cards.yaml")["spec"]
    return in_namespace(cluster, namespace, {"metadata": {"name": "a", "labels": LABELS}, "spec": spec})


def by_device_plugin(cluster: Cluster, namespace: str) -> Manifest:
    """Return a pod that names no scheduler and requests a card of the device plugin."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return in_namespace(cluster, namespace, {"metadata": {"name": "a"}, "spec": {"containers": [container]}})


def in_namespace(cluster: Cluster, namespace: str, pod: Manifest) -> Manifest:
    return cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body=pod, query={"dryRun": "All"})


@pytest.mark.timeout(120 + 60 * RESTARTS)
def test_all_pods_that_are_routed_or_rewritten_are_injected_after_any_restart(own_cluster: Cluster) -> None:
    port = int(own_cluster.server.rpartition(":")[2])
    with socket.socket() as holder:
        # So that the kernel gives the port to no other process between two servers.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((components.LOOPBACK, port))
        for _ in range(RESTARTS):
            restart(own_cluster)
            for number in range(PODS):
                routed = admitted(own_cluster, number)["spec"]
                assert routed["schedulerName"] == "berth-scheduler"
                rewritten = admitted(own_cluster, number, KUBE_SCHEDULER)["spec"]
                assert rewritten["containers"][0]["resources"] == REWRITTEN
                for namespace in ROUTES:
                    worded = by_words(own_cluster, namespace)["spec"]
                    assert worded["schedulerName"] == "berth-scheduler"
                    assert worded["containers"][0]["resources"]["requests"]["kubernetes.io/gpu.shared"] == "2"
                    assert "nvidia.com/gpu" not in worded["containers"][0]["resources"]["requests"]
                    assert worded["runtimeClassName"] == "nvidia"
                    assert injection.is_variable(worded["containers"][0]["env"][0])
                    assert [limits.is_limit(each) for each in worded["containers"][0]["env"]].count(True) == 2
                of_plugin = by_device_plugin(own_cluster, "devices")["spec"]
                assert (of_plugin["schedulerName"], of_plugin["runtimeClassName"]) == ("berth-scheduler", "nvidia")
                assert by_device_plugin(own_cluster, "words")["spec"]["schedulerName"] == "default-scheduler"
                for spec in (routed, rewritten):
                    assert injection.lacking(spec, {}) == ()
                    assert spec["runtimeClassName"] == "nvidia"
                    assert [limits.is_limit(each) for each in spec["containers"][0]["env"]].count(True) == 1
