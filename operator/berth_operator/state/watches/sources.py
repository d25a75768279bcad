"""The objects that the operator watches in addition to pods, and the tables for them."""

from berth_api import names
from berth_api.words import OWN_GROUPS, TABLE, PodGroupKind
from berth_client.reflector import Source
from berth_operator.state.objects import nodes
from berth_operator.state.watches import claims, sinks, storage
from berth_operator.state.watches.claims import ResourceClaims
from berth_operator.state.watches.sinks import Table

Sources = dict[str, tuple[Source, Table]]


def except_pods(to: storage.Storage, *, node_selector: str, agent_namespace: str) -> Sources:
    """Return {name of the kind: (source, table)} for all that decisions read, except pods."""
    cluster = to.cluster
    selected = {"labelSelector": node_selector} if node_selector else {}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{agent_namespace}/leases"
    return {
        "nodes": (Source(path="/api/v1/nodes", params=selected, transform=nodes.transform), sinks.nodes(cluster)),
        # With their managed fields, which show whether all values are their agents'.
        "devices": (
            Source(path=f"/apis/{names.API_VERSION}/{names.DEVICES}", transform=lambda device: device),
            sinks.devices(cluster),
        ),
        "gpu pods": (Source(path=f"/apis/{names.API_VERSION}/{names.GPUPODS}"), sinks.gpu_pods(cluster)),
        "leases": (Source(path=leases), sinks.leases(cluster)),
        "namespaces": (Source(path="/api/v1/namespaces"), sinks.namespaces(cluster)),
        "services": (Source(path="/api/v1/services"), sinks.services(cluster)),
        "budgets": (Source(path="/apis/policy/v1/poddisruptionbudgets"), sinks.disruption_budgets(cluster)),
        **storage.sources(to),
        **{
            name_of(kind): (Source(path=kind.path, optional=True), sinks.pod_groups(cluster, kind))
            for kind in TABLE.pod_groups
        },
        **claims.sources(ResourceClaims(cluster)),
    }


def name_of(kind: PodGroupKind) -> str:
    """Return the name of a kind of PodGroups."""
    return "pod groups" if kind == OWN_GROUPS else f"pod groups of {kind.group}"
