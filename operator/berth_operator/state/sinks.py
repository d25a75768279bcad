"""Where the reflectors put what they see: one small table a kind, all alike but for key and consumer."""

from collections.abc import Callable, Mapping
from typing import Any

from berth_api import keys
from berth_client.reflector import Kind
from berth_operator.state import affinity, budgets
from berth_operator.state.cluster import Cluster

Object = dict[str, Any]


class Table:
    """Remembers which keys exist, so that a full list also tells what is gone."""

    def __init__(
        self,
        *,
        key: Callable[[Mapping[str, Any]], str],
        put: Callable[[Object], None],
        remove: Callable[[str], None],
    ) -> None:
        self._key, self._put, self._remove = key, put, remove
        self._known: set[str] = set()

    def listing(self, *, requested_at: float) -> "Listing":  # noqa: ARG002 - others mind what may be newer
        """Begin to take the whole truth."""
        return Listing(self.put, self.listed)

    def put(self, obj: Object) -> str:
        """Take one object; give its key."""
        key = self._key(obj)
        self._known.add(key)
        self._put(obj)
        return key

    def listed(self, found: set[str]) -> None:
        """Know that there are no others."""
        for key in self._known - found:
            self._remove(key)
        self._known = found

    def apply(self, kind: Kind, obj: Object) -> None:
        """Take one change."""
        if kind == "DELETED":
            key = self._key(obj)
            self._known.discard(key)
            self._remove(key)
        else:
            self.put(obj)


class Listing:
    """One list on its way into a table: what it shows is put at once, and what it does not show goes at its end."""

    def __init__(self, put: Callable[[Object], str], listed: Callable[[set[str]], None]) -> None:
        self._put, self._listed = put, listed
        self._found: set[str] = set()

    def put(self, objects: list[Object]) -> None:
        """Take a page."""
        self._found.update(map(self._put, objects))

    def end(self, _version: str, /) -> None:
        """Know that it was the last."""
        self._listed(self._found)


class Once:
    """Passes the objects of one list on, for a reflector that only reads it."""

    def __init__(self, put: Callable[[Object], None]) -> None:
        self._put = put

    def listing(self, *, requested_at: float) -> "Once":  # noqa: ARG002 - there is but one list
        """Begin to take it."""
        return self

    def put(self, objects: list[Object]) -> None:
        """Take a page."""
        for each in objects:
            self._put(each)

    def end(self, _version: str, /) -> None:
        """Know that it was the last."""

    def apply(self, kind: Kind, obj: Object) -> None:
        """Take no change."""
        raise AssertionError(f"nothing is watched: {kind} {obj['metadata']['name']}")


def _uid(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["uid"])


def _name(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def _key(obj: Mapping[str, Any]) -> str:
    return keys.join(obj["metadata"]["namespace"], _name(obj))


def ended_pods(cluster: Cluster) -> Table:
    """Fold pods that have ended."""
    return Table(key=_uid, put=cluster.put_ended, remove=cluster.remove_ended)


def pod_groups(cluster: Cluster) -> Table:
    """Fold PodGroups."""
    return Table(
        key=_key,
        put=cluster.put_group,
        remove=cluster.remove_group,
    )


def nodes(cluster: Cluster) -> Table:
    """Fold Nodes."""
    return Table(key=_name, put=cluster.put_node, remove=cluster.remove_node)


def devices(cluster: Cluster) -> Table:
    """Fold Devices."""
    return Table(key=_name, put=cluster.put_device, remove=cluster.remove_device)


def gpu_pods(cluster: Cluster) -> Table:
    """Fold GpuPods."""
    return Table(key=_key, put=cluster.put_gpu_pod, remove=cluster.remove_gpu_pod)


def leases(cluster: Cluster) -> Table:
    """Fold the agents' Leases."""
    return Table(key=_name, put=cluster.put_lease, remove=cluster.remove_lease)


def namespaces(cluster: Cluster) -> Table:
    """Fold the labels of namespaces."""
    return Table(
        key=_name,
        put=lambda obj: cluster.put_namespace(_name(obj), obj["metadata"].get("labels") or {}),
        remove=lambda name: cluster.put_namespace(name, {}),
    )


def device_classes(cluster: Cluster) -> Table:
    """Fold DeviceClasses."""
    return Table(
        key=_name,
        put=lambda obj: cluster.put_device_class(_name(obj), obj["spec"].get("extendedResourceName") or ""),
        remove=lambda name: cluster.put_device_class(name, ""),
    )


def services(cluster: Cluster) -> Table:
    """Fold what Services select."""
    known = cluster.fleet.affinity_index.services
    return Table(
        key=_key,
        put=lambda obj: known.put(_key(obj), affinity.selected(obj)),
        remove=lambda key: known.put(key, ()),
    )


def disruption_budgets(cluster: Cluster) -> Table:
    """Fold PodDisruptionBudgets."""
    return Table(
        key=budgets.key,
        put=lambda obj: cluster.budgets.put(budgets.key(obj), budgets.budget(obj)),
        remove=cluster.budgets.remove,
    )
