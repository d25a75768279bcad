"""Sinks of the reflectors: one table for each kind, with its key and its consumer."""

from collections.abc import Callable, Mapping
from typing import Any

from berth_api.values import keys
from berth_api.words import PodGroupKind
from berth_client.objects import READING_ERRORS
from berth_client.reflector import EventType
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.unreadable import UnreadableObjects
from berth_operator.state.objects import affinity, budgets

Object = dict[str, Any]


class Table:
    """Remembers which keys exist, so that a complete list also shows which objects were deleted.

    An object that cannot be read must not end the process, because any tenant may write it, and it would end each
    replica again after its start. Its last known value stays, and without one it is left out. This is the safe side:
    nothing is placed on a node that is left out, and pods wait for a claim, a volume, a capacity or a group. If what
    kubelet gave to a pod is left out, the pod keeps the charge of its allocation. (`PodTable` has bound pods.) Nothing
    in namespaces, Services and PodDisruptionBudgets can be unreadable.
    """

    def __init__(
        self,
        *,
        kind: str,
        key: Callable[[Mapping[str, Any]], str],
        put: Callable[[Object], None],
        remove: Callable[[str], None],
    ) -> None:
        """Create an empty table; `kind` names the objects in logs."""
        self._key, self._put, self._remove = key, put, remove
        self._known: set[str] = set()
        self._unreadable = UnreadableObjects(kind)

    def listing(self, *, requested_at: float) -> "Listing":  # noqa: ARG002 - only pods need it
        """Begin a complete list."""
        return Listing(self.put, self.listed)

    def put(self, obj: Object) -> str:
        """Add or update an object; return its key."""
        key = self._key(obj)
        try:
            self._put(obj)
        except READING_ERRORS as error:
            self._unreadable.put(key, obj, error)
        else:
            self._known.add(key)
            self._unreadable.discard(key)
        return key

    def listed(self, listed_keys: set[str]) -> None:
        """Remove the objects that a complete list has not shown."""
        for key in self._known - listed_keys:
            self._known.discard(key)
            self._remove(key)
        self._unreadable.keep(listed_keys)

    def apply(self, event_type: EventType, obj: Object) -> None:
        """Apply one change."""
        if event_type == "DELETED":
            key = self._key(obj)
            if key in self._known or key not in self._unreadable:
                self._known.discard(key)
                self._remove(key)
            self._unreadable.discard(key)
        else:
            self.put(obj)


class Listing:
    """One list on its way into a table: its objects are put at once, and all others are removed at its end."""

    def __init__(self, put: Callable[[Object], str], listed: Callable[[set[str]], None]) -> None:
        self._put, self._listed = put, listed
        self._listed_keys: set[str] = set()

    def put(self, objects: list[Object]) -> None:
        """Put the objects of a page."""
        self._listed_keys.update(map(self._put, objects))

    def end(self, _version: str, /) -> None:
        """End the list: remove the objects that it has not shown."""
        self._listed(self._listed_keys)


class Once:
    """Passes on the objects of a single list, for a reflector that does not watch."""

    def __init__(self, put: Callable[[Object], None]) -> None:
        self._put = put

    def listing(self, *, requested_at: float) -> "Once":  # noqa: ARG002 - there is but one list
        """Begin the list."""
        return self

    def put(self, objects: list[Object]) -> None:
        """Put the objects of a page."""
        for obj in objects:
            self._put(obj)

    def end(self, _version: str, /) -> None:
        """Do nothing."""

    def apply(self, event_type: EventType, obj: Object) -> None:
        """Raise an error: there is no watch."""
        raise AssertionError(f"nothing is watched: {event_type} {obj['metadata']['name']}")


def ended_pods(cluster: Cluster) -> Table:
    """Return the table for pods that have ended."""
    return Table(
        kind="pods that have ended",
        key=lambda obj: str(obj["metadata"]["uid"]),
        put=cluster.put_ended,
        remove=cluster.gangs.remove_ended,
    )


def pod_groups(cluster: Cluster, kind: PodGroupKind) -> Table:
    """Return the table for PodGroups of a kind."""
    return Table(
        kind=f"pod groups of {kind.group}",
        key=keys.of,
        put=lambda obj: cluster.gangs.put_group(obj, kind),
        remove=lambda name: cluster.gangs.remove_group(name, kind),
    )


def nodes(cluster: Cluster) -> Table:
    """Return the table for Nodes."""
    return Table(
        kind="nodes",
        key=keys.name_of,
        put=cluster.node_cache.put_node,
        remove=cluster.node_cache.remove_node,
    )


def devices(cluster: Cluster) -> Table:
    """Return the table for Devices."""
    return Table(
        kind="devices", key=keys.name_of, put=cluster.node_cache.put_device, remove=cluster.node_cache.remove_device
    )


def gpu_pods(cluster: Cluster) -> Table:
    """Return the table for GpuPods."""
    return Table(
        kind="gpu pods", key=keys.of, put=cluster.allocations.put_gpu_pod, remove=cluster.allocations.remove_gpu_pod
    )


def leases(cluster: Cluster) -> Table:
    """Return the table for the agents' Leases."""
    return Table(
        kind="leases", key=keys.name_of, put=cluster.node_cache.put_lease, remove=cluster.node_cache.remove_lease
    )


def namespaces(cluster: Cluster) -> Table:
    """Return the table for the labels of namespaces."""
    return Table(
        kind="namespaces",
        key=keys.name_of,
        put=lambda obj: cluster.put_namespace(
            keys.name_of(obj), obj["metadata"].get("labels") or {}, obj["metadata"].get("annotations") or {}
        ),
        remove=cluster.remove_namespace,
    )


def services(cluster: Cluster) -> Table:
    """Return the table for the selectors of Services."""
    known = cluster.fleet.affinity_index.services
    return Table(
        kind="services",
        key=keys.of,
        put=lambda obj: known.put(keys.of(obj), affinity.selected(obj)),
        remove=lambda key: known.put(key, ()),
    )


def disruption_budgets(cluster: Cluster) -> Table:
    """Return the table for PodDisruptionBudgets."""
    return Table(
        kind="budgets",
        key=keys.of,
        put=lambda obj: cluster.budgets.put(keys.of(obj), budgets.budget(obj)),
        remove=cluster.budgets.remove,
    )
