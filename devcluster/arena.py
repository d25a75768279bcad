"""One test's part of a shared cluster.

Everything that an arena creates carries its id: a namespace, a prefix of node names, the label
`devcluster.berth.dev/arena`, a scheduler name and a lease name. An operator confined to these sees nothing of other
tests.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from devcluster import waiting
from devcluster.control_plane.api import ApiError, Manifest
from devcluster.control_plane.cluster import Cluster
from devcluster.control_plane.manifests import documents
from devcluster.control_plane.nodes import Strings

T = TypeVar("T")
Manifests = list[Manifest]
Names = list[str]

LABEL: Final = "devcluster.berth.dev/arena"
RBAC: Final = "rbac.authorization.k8s.io"
TOKEN_SECONDS: Final = 3600
DEFAULT_SCHEDULER: Final = "default-scheduler"


class Arena:
    """A namespace, names and helpers that belong to one test.

    Attributes:
        cluster: the shared cluster.
        folder: where the kubeconfigs of ServiceAccounts are written.
        id: what makes every name below unique.
        labels: the label that marks this arena's nodes, as a mapping.
        selector: the same as a selector's text.
        scheduler_name: the `schedulerName` of this arena's pods.
        lease_name: the leader lease of this arena's operators.
    """

    def __init__(self, *, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.id = f"a{secrets.token_hex(4)}"
        self.namespace = f"arena-{self.id}"
        self.labels = {LABEL: self.id}
        self.selector = f"{LABEL}={self.id}"
        self.scheduler_name = f"berth-{self.id}"
        self.lease_name = f"berth-{self.id}"
        self.logs: list[Callable[[], str]] = []
        """What returns the ends of the logs of its programs."""
        self._node_names: Names = []

    def open(self) -> None:
        """Create the namespace and wait until pods can be created in it."""
        metadata = {"name": self.namespace, "labels": self.labels}
        self.cluster.api.post("/api/v1/namespaces", {"metadata": metadata})
        account = f"{self._in_namespace('serviceaccounts')}/default"
        self.wait(lambda: self.cluster.api.exists(account), what="the namespace's default ServiceAccount")

    def close(self) -> None:
        """Remove everything; only the namespace's own end is not waited for."""
        api = self.cluster.api
        api.delete(f"/api/v1/namespaces/{self.namespace}")
        api.delete(self._in_namespace("pods"), grace_seconds=0)
        for path in ("/api/v1/nodes", f"/apis/{RBAC}/v1/clusterrolebindings"):
            api.delete(path, labelSelector=self.selector)
        # The Devices of our nodes are named like these and carry no label of ours.
        try:
            self.cluster.api.resource("devices")
        except LookupError:
            return
        for name in {device["metadata"]["name"] for device in self.list("devices")} & set(self._node_names):
            self.delete("devices", name)

    def nodes(
        self,
        count: int = 1,
        *,
        labels: Strings | None = None,
        annotations: Strings | None = None,
        capacity: Strings | None = None,
        allocatable: Strings | None = None,
        taints: Sequence[Strings] = (),
    ) -> Names:
        """Create ready nodes of this arena and return their names; see `Cluster.create_nodes`."""
        first = len(self._node_names)
        names = [f"{self.id}-{number}" for number in range(first, first + count)]
        self._node_names += names
        return self.cluster.create_nodes(
            names,
            labels={**self.labels, **(labels or {})},
            annotations=annotations,
            capacity=capacity,
            allocatable=allocatable,
            taints=taints,
        )

    def pod(
        self,
        name: str = "pod",
        *,
        requests: Strings | None = None,
        limits: Strings | None = None,
        labels: Strings | None = None,
        annotations: Strings | None = None,
        scheduler_name: str | None = None,
        **spec: object,
    ) -> Manifest:
        """Return the manifest of a pod with one container; `spec` overrides fields of the pod's spec.

        The cluster's kube-scheduler knows no arenas, so a pod of its own selects our nodes.
        """
        container = {
            "name": "main",
            "image": "none",
            "resources": {"requests": dict(requests or {}), "limits": dict(limits or {})},
        }
        fields = {"schedulerName": scheduler_name or self.scheduler_name, "containers": [container], **spec}
        if fields["schedulerName"] == DEFAULT_SCHEDULER:
            fields.setdefault("nodeSelector", self.labels)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
            },
            "spec": fields,
        }

    def apply(self, manifests: str | Manifest | Iterable[Manifest]) -> Manifests:
        """Apply YAML text, one manifest or several; a namespaced one without a namespace goes into ours."""
        return [self.cluster.api.apply(manifest, namespace=self.namespace) for manifest in _listed(manifests)]

    def create(self, manifests: Iterable[Manifest]) -> Manifests:
        """Create many objects of one kind in our namespace, several at a time."""
        listed = list(manifests)
        resource = self.cluster.api.resource(listed[0]["kind"], api_version=listed[0]["apiVersion"])
        return self.cluster.api.create_all(resource.path(namespace=self.namespace), listed)

    def admitted(self, pod: Manifest) -> Manifest:
        """Return a pod as the API server would create it in our namespace: in a dry run."""
        return self.cluster.api.request("POST", self._path("pods"), body=pod, query={"dryRun": "All"})

    def admitted_or_none(self, pod: Manifest) -> Manifest | None:
        """Return the same; None if the API server would refuse the pod."""
        try:
            return self.admitted(pod)
        except ApiError:
            return None

    def refusal(self, pod: Manifest) -> str:
        """Return why the API server would not create a pod in our namespace; empty if it would."""
        try:
            self.admitted(pod)
        except ApiError as error:
            return str(error)
        return ""

    def get(self, resource: str, name: str) -> Manifest:
        """Read one object by its resource (`pods`, `devices`) and name."""
        return self.cluster.api.get(self._path(resource, name))

    def list(self, resource: str, **query: str) -> Manifests:
        """List objects of our namespace, or cluster-wide ones; `labelSelector=…` narrows."""
        items: Manifests = self.cluster.api.get(self._path(resource), **query)["items"]
        return items

    def merge(self, resource: str, name: str, change: Mapping[str, Any], *, subresource: str = "") -> Manifest:
        """Change one object with a JSON merge patch, or its `status` as subresource."""
        path = self._path(resource, name)
        return self.cluster.api.merge(f"{path}/{subresource}" if subresource else path, change)

    def delete(self, resource: str, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete one object; a missing object is no error."""
        self.cluster.api.delete(self._path(resource, name), grace_seconds=grace_seconds)

    def wait(
        self,
        predicate: Callable[[], T],
        *,
        deadline: float = waiting.PATIENCE,
        what: str = "a condition",
        poll: float = waiting.POLL_SECONDS,
        details: Callable[[], str] | None = None,
    ) -> T:
        """Return the predicate's first truthy answer; fail after `deadline` seconds, and show our pods and all logs."""

        def shown() -> str:
            return "\n".join([details() if details else "", *self._pods_shown(), *(log() for log in self.logs)])

        return waiting.until(predicate, deadline=deadline, what=what, poll=poll, details=shown)

    def service_account(self, name: str, cluster_role: str) -> Path:
        """Create a ServiceAccount bound to a ClusterRole and return a kubeconfig that acts as it."""
        accounts = self._in_namespace("serviceaccounts")
        self.cluster.api.post(accounts, {"metadata": {"name": name}})
        binding = {
            "metadata": {"name": f"{self.id}-{name}", "labels": self.labels},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": cluster_role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}],
        }
        self.cluster.api.post(f"/apis/{RBAC}/v1/clusterrolebindings", binding)
        request = {"spec": {"expirationSeconds": TOKEN_SECONDS}}
        answer = self.cluster.api.post(f"{accounts}/{name}/token", request)
        kubeconfig = self.folder / f"{self.id}-{name}.kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(self.cluster.kubeconfig_for(answer["status"]["token"]))
        return kubeconfig

    def _pods_shown(self) -> Iterable[str]:
        """Yield for each pod its node, or why it waits: the queue, as the API server shows it."""
        for pod in self.list("pods"):
            shown = {
                condition["type"]: condition.get("message", "")
                for condition in pod.get("status", {}).get("conditions", ())
            }
            place = pod["spec"].get("nodeName") or f"waits: {shown.get('PodScheduled', 'not reported')}"
            yield f"{pod['metadata']['name']}: {place}"

    def _path(self, resource: str, name: str | None = None) -> str:
        return self.cluster.api.resource(resource).path(namespace=self.namespace, name=name)

    def _in_namespace(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}"


def _listed(manifests: str | Manifest | Iterable[Manifest]) -> Iterable[Manifest]:
    if isinstance(manifests, str):
        return documents(manifests)
    return [manifests] if isinstance(manifests, dict) else manifests
