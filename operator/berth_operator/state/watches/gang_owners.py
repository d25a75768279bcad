"""Apply API events of the objects that define gangs of controllers, if the operator may read them."""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from berth_api.values import keys
from berth_client.reflector import Source
from berth_operator.core.values import controller_gangs
from berth_operator.core.values.controller_gangs import OWNED, Owners
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.sinks import Table

Object = dict[str, Any]


def sources(cluster: Cluster, groups: Collection[str]) -> Iterator[tuple[str, tuple[Source, Table]]]:
    """Yield (name of the kind, (source, table)) for the kinds of some API groups, and let the state expect them."""
    watched = {kind: owners for kind, owners in OWNED.items() if owners.group in groups}
    cluster.gangs.set_owner_kinds(watched.keys())
    for kind, owners in watched.items():
        yield f"owners of kind {kind}", (Source(path=owners.path, optional=True), _table(cluster, kind, owners))


def _table(cluster: Cluster, kind: str, owners: Owners) -> Table:
    """Return the table for the owners of a kind."""
    return Table(
        kind=kind,
        key=keys.of,
        put=lambda raw: cluster.put_owner(kind, read(owners, raw)),
        remove=partial(cluster.remove_owner, kind),
    )


def read(owners: Owners, raw: Object) -> Object:
    """Return an owner with only what its gangs need: most pod templates are not needed, and may be large."""
    kept = {name: raw["metadata"].get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    kept["creationTimestamp"] = raw["metadata"].get("creationTimestamp") or ""
    return {
        "metadata": kept,
        "sizes": controller_gangs.sizes(owners, raw),
        "later": controller_gangs.later(owners, raw),
        "replicas": controller_gangs.replicas(owners, raw),
    }
