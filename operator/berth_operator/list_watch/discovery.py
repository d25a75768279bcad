"""The discovery documents, by which clients learn what is served; pure."""

from typing import Any, Final

from berth_operator.list_watch.kinds import API_VERSION, GROUP, KINDS, VERSION

VERBS: Final = ("get", "list", "watch")
_VERSION: Final = {"groupVersion": API_VERSION, "version": VERSION}
_GROUP: Final[dict[str, Any]] = {"name": GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}

DOCUMENTS: Final[dict[str, dict[str, Any]]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    f"/apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    f"/apis/{API_VERSION}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": API_VERSION,
        "resources": [
            {
                "name": kind.plural,
                "singularName": kind.name.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.name,
                "verbs": list(VERBS),
            }
            for kind in KINDS
        ],
    },
}
"""Path -> document."""
