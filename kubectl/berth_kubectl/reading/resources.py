"""The kinds that are read, where they are served, and which role may read them."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from berth_api import names
from berth_api.objects import visibility
from berth_kubectl.errors import ReadError, Right
from berth_kubectl.transport.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of objects on the API server."""

    group: str = ""
    version: str = "v1"
    plural: str
    namespaced: bool = False
    role: str = ""
    """The ClusterRole that may read it."""

    @property
    def full_name(self) -> str:
        """Return the name with its group, as in RBAC rules and `kubectl get`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of one object or of its subresource."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        parts = [base + place, self.plural, *(quote(part, safe="") for part in (name, subresource) if part)]
        return "/".join(parts)

    def request(self, namespace: str = "", name: str = "", subresource: str = "", **query: str) -> Request:
        """Return a request; empty values of the query are left out."""
        listed = tuple((key, value) for key, value in query.items() if value)
        return Request(path=self.path(namespace, name, subresource), query=listed)

    def right(self, verb: str, namespace: str = "", subresource: str = "") -> Right:
        """Return the right that a request needs."""
        suffix = f"/{subresource}" if subresource else ""
        resource = f"{self.plural}{suffix}.{self.group}" if self.group else f"{self.plural}{suffix}"
        return Right(verb=verb, resource=resource, namespace=namespace if self.namespaced else "", role=self.role)


PODS: Final = Resource(plural="pods", namespaced=True, role="view")
NAMESPACES: Final = Resource(plural="namespaces", role="view")
NODES: Final = Resource(plural="nodes")
RESOURCE_QUOTAS: Final = Resource(plural="resourcequotas", namespaced=True, role="view")
EVENTS: Final = Resource(plural="events", namespaced=True, role="view")
DEPLOYMENTS: Final = Resource(group="apps", plural="deployments", namespaced=True, role="view")
DAEMON_SETS: Final = Resource(group="apps", plural="daemonsets", namespaced=True, role="view")
REPLICA_SETS: Final = Resource(group="apps", plural="replicasets", namespaced=True, role="view")
STATEFUL_SETS: Final = Resource(group="apps", plural="statefulsets", namespaced=True, role="view")
JOBS: Final = Resource(group="batch", plural="jobs", namespaced=True, role="view")
LEASES: Final = Resource(group="coordination.k8s.io", plural="leases", namespaced=True)
DEVICES: Final = Resource(group=names.GROUP, version=names.VERSION, plural=names.DEVICES, role="berth-devices-view")
GPU_PODS: Final = Resource(group=names.GROUP, version=names.VERSION, plural=names.GPUPODS, namespaced=True, role="view")
LEADER_LEASES: Final = Resource(
    group=names.GROUP, version=names.VERSION, plural=names.LEADER_LEASES, namespaced=True, role="view"
)
POD_GROUPS: Final = Resource(
    group=names.POD_GROUP_GROUP, version=names.VERSION, plural=names.POD_GROUPS, namespaced=True, role="view"
)
DEFINITIONS: Final = Resource(group="apiextensions.k8s.io", plural="customresourcedefinitions")
API_SERVICES: Final = Resource(group="apiregistration.k8s.io", plural="apiservices")
SERVICES: Final = Resource(plural="services", namespaced=True, role="view")
ENDPOINT_SLICES: Final = Resource(group="discovery.k8s.io", plural="endpointslices", namespaced=True, role="view")
RESOURCE_CLAIMS: Final = Resource(group="resource.k8s.io", plural="resourceclaims", namespaced=True)
RESOURCE_SLICES: Final = Resource(group="resource.k8s.io", plural="resourceslices")
CLUSTER_ROLES: Final = Resource(group="rbac.authorization.k8s.io", plural="clusterroles")
CLUSTER_ROLE_BINDINGS: Final = Resource(group="rbac.authorization.k8s.io", plural="clusterrolebindings")
_KUEUE: Final = "kueue.x-k8s.io"
QUOTA_WORKLOADS: Final = Resource(
    group=_KUEUE, version="v1beta2", plural="workloads", namespaced=True, role="kueue-workload-viewer-role"
)
LOCAL_QUEUES: Final = Resource(
    group=_KUEUE, version="v1beta2", plural="localqueues", namespaced=True, role="kueue-localqueue-viewer-role"
)
CLUSTER_QUEUES: Final = Resource(
    group=_KUEUE, version="v1beta2", plural="clusterqueues", role="kueue-clusterqueue-viewer-role"
)
ADMISSION_CHECKS: Final = Resource(group=_KUEUE, version="v1beta2", plural="admissionchecks")
PENDING_WORKLOADS: Final = "pendingworkloads"
PENDING_OF_QUEUE: Final = Resource(
    group=f"visibility.{_KUEUE}",
    version="v1beta2",
    plural="localqueues",
    namespaced=True,
    role="kueue-pending-workloads-lq-viewer-role",
)
ADMISSION: Final = {
    plural: Resource(group="admissionregistration.k8s.io", plural=plural)
    for plural in (
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
    )
}

FLEET: Final = Resource(
    group=visibility.GROUP, version=visibility.VERSION, plural="fleet", role="berth-visibility-fleet-view"
)
HOLDERS: Final = Resource(
    group=visibility.GROUP, version=visibility.VERSION, plural="holders", namespaced=True, role="view"
)
QUEUE: Final = Resource(
    group=visibility.GROUP, version=visibility.VERSION, plural="queue", namespaced=True, role="view"
)
EXPLAINED_PODS: Final = Resource(
    group=visibility.GROUP, version=visibility.VERSION, plural="pods", namespaced=True, role="view"
)
EXPLANATION: Final = "explanation"


def named(error: ReadError, right: Right) -> ReadError:
    """Return an error that names the right that is missing, if that is its cause."""
    if not error.is_forbidden:
        return error
    return ReadError(f"{error}; this needs {right}", status=error.status, reason=error.reason)
