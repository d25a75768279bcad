"""A cluster with the list and watch API as it is shipped: two replicas behind the API server's real aggregator.

It is of its own, because an APIService belongs to the whole cluster.
"""

import base64
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import Arena, Cluster, waiting
from devcluster.api import ApiError, Manifest
from tests.conftest import CRDS
from tests.integration.operator.world import World, free_ports
from tests.processes import Process

COMPONENT = Path(__file__).parents[3] / "manifests/components/list-watch-api"
API = "/apis/nvidia-gpu-scheduler/v1"
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1.nvidia-gpu-scheduler"
NAMESPACE = "berth-system"
SERVICE = {"type": "ExternalName", "externalName": "127.0.0.1"}
"""Services route nowhere in this cluster."""

Answer = tuple[int, Any]


class Replica:
    """One replica, as others on its network see it."""

    def __init__(self, port: int, process: Process, tls: ssl.SSLContext) -> None:
        self.port, self.process = port, process
        self._tls = tls

    def get(self, path: str, headers: Mapping[str, str], *, lines: int = 1) -> Answer:
        """Return status and JSON lines of a request that does not come from the API server."""
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._tls) as response:  # noqa: S310 - loopback
                return response.status, [json.loads(line) for line in islice(response, lines)]
        except urllib.error.HTTPError as error:
            return error.code, [json.loads(error.read())]


class Installation:
    """The component, its replicas and the world whose devices it shows."""

    def __init__(self, world: World) -> None:
        self.world, self.arena, self.api = world, world.arena, world.arena.cluster.api
        self.replicas: list[Replica] = []
        # They start together with the replicas.
        self.operator, self.agent = world.operator(wait=False), world.agent()

    def apply(self) -> None:
        """Apply what is shipped, start all programs, and wait until the API server passes requests on."""
        self.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for document in yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text()):
            self.api.apply(document)
        self.api.post(f"/api/v1/namespaces/{NAMESPACE}/services", {"metadata": {"name": "berth-api"}, "spec": SERVICE})
        ports = free_ports(2)
        processes = [self.start(port) for port in ports]
        for process in processes:
            process.logged("certificate not renewed")
        service = yaml.safe_load((COMPONENT / "api.yaml").read_text())
        service["spec"]["service"]["port"] = ports[0]
        self.api.apply(service)
        for process in processes:
            process.logged("API served")
        tls = self._tls()
        self.replicas = [Replica(port, process, tls) for port, process in zip(ports, processes, strict=True)]
        waiting.until(self.is_available, what="the APIService to be available")

    def start(self, port: int) -> Process:
        """Start a replica with the rights that it has where it is installed."""
        return self.world.processes.api(kubeconfig=self._account(), port=port, address="127.0.0.1", period=0.3)

    def is_available(self) -> bool:
        """Return whether the API server passes on requests."""
        try:
            self.api.get(f"{API}/gpunodes")
        except ApiError:
            return False
        return True

    def pass_on_to(self, replica: Replica) -> None:
        """Have the API server pass requests on to a replica."""
        self.api.merge(API_SERVICE, {"spec": {"service": {"port": replica.port}}})

    def gpu_pod(self, name: str, *devices: str) -> Manifest:
        """Write the GpuPod of a pod, as an agent would."""
        held = [{"type": "gpu", "minor": minor, "id": each} for minor, each in enumerate(devices)]
        cards = [{"minor": minor, "id": each, "model": "Tesla T4"} for minor, each in enumerate(devices)]
        containers = [{"name": "main", "devices": held}]
        return self.api.apply(
            {
                "apiVersion": "berth.dev/v1alpha1",
                "kind": "GpuPod",
                "metadata": {"name": name, "namespace": self.arena.namespace},
                "spec": {"nodeName": "n1", "podUID": name, "containers": containers, "cards": cards},
            }
        )

    def delete_gpu_pod(self, name: str) -> None:
        """Delete the GpuPod of a pod."""
        self.api.delete(f"/apis/berth.dev/v1alpha1/namespaces/{self.arena.namespace}/gpupods/{name}")

    def _account(self) -> Path:
        path = self.arena.folder / "berth-api.kubeconfig"
        if not path.exists():
            account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/berth-api/token"
            token = self.api.post(account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
            path.touch(mode=0o600)
            path.write_text(self.arena.cluster.kubeconfig_for(token))
        return path

    def _tls(self) -> ssl.SSLContext:
        secret = self.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/berth-api")
        tls = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["ca.crt"]).decode())
        # It is for the name by which the API server calls.
        tls.check_hostname = False
        return tls


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install the component in a cluster of its own."""
    folder = tmp_path_factory.mktemp("list-watch")
    with Cluster(folder=folder / "cluster") as own_cluster:
        own_cluster.install_crds(CRDS)
        arena = Arena(cluster=own_cluster, folder=folder)
        arena.open()
        world = World(arena=arena, folder=folder)
        installed = Installation(world)
        try:
            installed.apply()
            yield installed
        finally:
            world.close()
            sys.stdout.write(world.processes.tails())
