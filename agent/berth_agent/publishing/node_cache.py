"""The UIDs and labels of Nodes. A Device or Lease has its Node as owner, and is deleted with it.

Only new objects get the owner reference. The admission plug-in OwnerReferencesPermissionEnforcement, which OpenShift
enables, allows a change of references only to clients that may delete the object, which agents may not. If the UID in
the reference is not the Node's any more, the garbage collector deletes the object, and the agent creates it again.
"""

from collections.abc import Collection, Mapping
from typing import Any

from berth_agent.cluster import NODES, list_metadata
from berth_client.client import ApiClient


class NodeCache:
    """What is known of Nodes; shared by the publisher, the heartbeat and the labeller."""

    def __init__(self, *, client: ApiClient) -> None:
        self._client = client
        self._uids: dict[str, str] = {}
        self._labels: dict[str, Mapping[str, str]] = {}

    async def refresh(self, names: Collection[str]) -> None:
        """List the Nodes again.

        Raises:
            CallError: the list could not be read; the old one stays.
        """
        listed = await list_metadata(self._client, NODES, only=only(names))
        self._uids = {name: listed[name]["uid"] for name in names if name in listed}
        self._labels = {name: listed[name].get("labels", {}) for name in self._uids}

    def missing(self, names: Collection[str]) -> list[str]:
        """Return the Nodes that are not known to exist."""
        return [name for name in names if name not in self._uids]

    def uid(self, name: str) -> str | None:
        """Return the UID of a Node, or None where the Node is not known."""
        return self._uids.get(name)

    def labels(self, name: str) -> Mapping[str, str]:
        """Return the labels that a Node had when it was looked at, or written, last."""
        return self._labels.get(name, {})

    def set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """Store the labels of a Node that was just written."""
        self._labels[name] = labels

    def owner_reference(self, name: str) -> dict[str, Any] | None:
        """Return the owner reference to a Node for a new object, or None where the Node is not known.

        It does not block the Node's deletion: that would need the right to change finalizers of Nodes.
        """
        if name not in self._uids:
            return None
        return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": self._uids[name], "controller": True}


def only(names: Collection[str]) -> str | None:
    """Return the one name that a list can be narrowed to."""
    return next(iter(names)) if len(names) == 1 else None
