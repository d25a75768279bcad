"""A cluster with the list and watch API as shipped: two replicas behind the API server's real aggregator.

The tests have their own cluster, because an APIService belongs to the whole cluster.
"""

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api.objects import gpupod
from devcluster import waiting
from devcluster.control_plane.api import Manifest
from tests.conftest import CRDS
from tests.integration.operator.world import World, free_ports
from tests.programs.aggregated import NAMESPACE, SERVICE, ask, is_served, own_world, tls_of
from tests.programs.processes import Process

COMPONENT = Path(__file__).parents[3] / "manifests/components/list-watch-api"
API = "/apis/nvidia-gpu-scheduler/v1"
NODE = "n1.example"
"""Of GpuPods that tests write; no operator has it."""
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1.nvidia-gpu-scheduler"


class Replica:
    """One replica, as others on its network see it."""

    def __init__(self, port: int, process: Process, tls: ssl.SSLContext) -> None:
        self.port, self.process = port, process
        self._tls = tls

    def get(self, path: str, headers: Mapping[str, str], *, lines: int = 1) -> tuple[int, list[Any]]:
        """Return status and JSON lines of a request that does not come from the API server."""
        return ask(f"https://127.0.0.1:{self.port}{path}", headers, self._tls, lines=lines)


class Installation:
    """The component, its replicas and the world whose devices it shows."""

    def __init__(self, world: World) -> None:
        self.world, self.arena, self.api = world, world.arena, world.arena.cluster.api
        self.replicas: list[Replica] = []
        # They start together with the replicas.
        self.operator, self.agent = world.operator(wait=False), world.agent()

    def apply(self) -> None:
        """Apply what is shipped, start all programs, and wait until the API server passes requests on."""
        self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
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
        tls = tls_of(self.api, NAMESPACE, "berth-api")
        self.replicas = [Replica(port, process, tls) for port, process in zip(ports, processes, strict=True)]
        waiting.until(self.is_available, what="the APIService to be available")

    def start(self, port: int) -> Process:
        """Start a replica with the rights that it has where it is installed."""
        return self.world.processes.api(kubeconfig=self._account(), port=port, address="127.0.0.1", period=0.3)

    def is_available(self) -> bool:
        """Return whether the API server passes on requests."""
        return is_served(self.api, f"{API}/gpunodes")

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
                "metadata": {"name": gpupod.name_of(name, NODE), "namespace": self.arena.namespace},
                "spec": {"nodeName": NODE, "podUID": name, "containers": containers, "cards": cards},
            }
        )

    def delete_gpu_pod(self, name: str) -> None:
        """Delete the GpuPod of a pod."""
        self.arena.delete("gpupods", gpupod.name_of(name, NODE))

    def _account(self) -> Path:
        path = self.arena.folder / "berth-api.kubeconfig"
        if not path.exists():
            account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/berth-api/token"
            token = self.api.post(account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
            path.touch(mode=0o600)
            path.write_text(self.arena.cluster.kubeconfig_for(token))
        return path


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install the component in a cluster of its own."""
    with own_world(tmp_path_factory.mktemp("list-watch"), lambda cluster: cluster.install_crds(CRDS)) as world:
        installed = Installation(world)
        installed.apply()
        yield installed
