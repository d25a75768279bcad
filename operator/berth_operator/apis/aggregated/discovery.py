"""The discovery documents, which list for clients what is served. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from berth_operator.apis.aggregated.kinds import Kind

Document = Mapping[str, Any]


def resource(kind: Kind) -> Document:
    """Return the discovery document's entry for a kind."""
    return {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(kind.verbs),
    }


def documents(group: str, version: str, resources: Sequence[Document]) -> dict[str, Document]:
    """Return path -> document of a group with one version."""
    api_version = f"{group}/{version}"
    of_version = {"groupVersion": api_version, "version": version}
    of_group: Document = {"name": group, "versions": [of_version], "preferredVersion": of_version}
    return {
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [of_group]},
        f"/apis/{group}": {"kind": "APIGroup", "apiVersion": "v1", **of_group},
        f"/apis/{api_version}": {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": api_version,
            "resources": list(resources),
        },
    }
