"""A cluster with the visibility API as shipped: two operators behind the API server's real aggregator.

The tests have their own cluster, because an APIService belongs to the whole cluster.
"""

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import waiting
from devcluster.control_plane.api import Manifest
from tests.conftest import prepare
from tests.integration.operator.world import World, free_ports
from tests.programs.aggregated import SERVICE, ask, is_served, own_world, tls_of
from tests.programs.processes import LEADING, QUICK_TERMS, Process

MANIFEST = Path(__file__).parents[3] / "manifests/base/visibility.yaml"
GROUP = "visibility.berth.dev"
API = f"/apis/{GROUP}/v1alpha1"
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.visibility.berth.dev"
RBAC = "rbac.authorization.k8s.io"
SERVED = "visibility API served"

Answer = tuple[int, Any]


class Replica:
    """One operator, as others on its network see it."""

    def __init__(self, port: int, process: Process) -> None:
        self.port, self.process = port, process


class Installation:
    """The API, its replicas, and the world that they schedule."""

    def __init__(self, world: World) -> None:
        self.world, self.arena, self.api = world, world.arena, world.arena.cluster.api
        self.agent = world.agent()

    def apply(self) -> None:
        """Apply what is shipped, start the operators, and wait until the API server passes requests on."""
        self.install()
        leading, standing_by = free_ports(2)
        self.leader = self.start(leading, **QUICK_TERMS)
        self.leader.process.logged(LEADING)
        self.standby = self.start(standing_by, **QUICK_TERMS)
        for replica in (self.leader, self.standby):
            replica.process.logged(SERVED)
        waiting.until(self.is_available, what="the APIService to be available")

    def install(self) -> None:
        """Apply what is shipped, with a Service that leads to processes of this machine."""
        for document in yaml.safe_load_all(MANIFEST.read_text()):
            self.api.apply(self.placed(document))

    def placed(self, document: Manifest) -> Manifest:
        """Return an object as this installation has it."""
        if document["kind"] == "Service":
            document["metadata"]["namespace"] = self.arena.namespace
            document["spec"] = SERVICE
        return document

    def start(self, port: int, **terms: object) -> Replica:
        """Start an operator; `terms` are the flags of its terms."""
        process = self.world.operator(
            wait=False,
            visibility_port=port,
            visibility_service_port=port,
            visibility_address="127.0.0.1",
            visibility_period=1,
            pod_ip="127.0.0.1",
            **terms,
        )
        return Replica(port, process)

    def is_available(self, resource: str = "/fleet") -> bool:
        """Return whether the API server passes on requests; discovery needs no leader."""
        return is_served(self.api, f"{API}{resource}")

    def pass_on_to(self, replica: Replica, *, is_answered: bool = True) -> None:
        """Have the API server pass requests on to a replica; `is_answered` if there is a leader."""
        waiting.until(self.service, what="a replica to register itself")
        self.api.merge(API_SERVICE, {"spec": {"service": {"port": replica.port}}})
        resource = "/fleet" if is_answered else ""
        waiting.until(lambda: self.is_available(resource), what="the replica to be used")

    def service(self) -> dict[str, Any]:
        """Return the Service of the APIService; empty if it has none."""
        service: dict[str, Any] = self.api.get(API_SERVICE)["spec"].get("service") or {}
        return service

    def names(self, resource: str) -> list[str]:
        """Return the names of a resource's rows."""
        return [row["metadata"]["name"] for row in self.api.get(f"{API}/{resource}")["items"]]

    def ask(self, path: str, headers: Mapping[str, str], *, replica: Replica | None = None) -> Answer:
        """Return status and JSON of a request to a replica, or else to the API server."""
        cluster = self.arena.cluster
        server, tls = cluster.server, ssl.create_default_context(cafile=str(cluster.ca_file))
        if replica is not None:
            server = f"https://127.0.0.1:{replica.port}"
            tls = tls_of(self.api, self.arena.namespace, "berth-visibility")
        status, [body] = ask(f"{server}{path}", headers, tls)
        return status, body

    def user(self, name: str, *roles: str) -> dict[str, str]:
        """Return the headers of a new user with roles in the arena's namespace; none if there are no roles."""
        token = yaml.safe_load(self.arena.service_account(name, "system:basic-user").read_text())
        subjects = [{"kind": "ServiceAccount", "name": name, "namespace": self.arena.namespace}]
        for role in roles:
            binding = {
                "metadata": {"name": f"{name}-{role}"},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                "subjects": subjects,
            }
            self.api.post(f"/apis/{RBAC}/v1/namespaces/{self.arena.namespace}/rolebindings", binding)
        return {"Authorization": f"Bearer {token['users'][0]['user']['token']}"}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install the component in a cluster of its own."""
    with own_world(tmp_path_factory.mktemp("visibility"), prepare) as world:
        installed = Installation(world)
        installed.apply()
        yield installed
