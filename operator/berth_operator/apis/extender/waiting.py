"""The pods of kube-scheduler that have no node. Only their UIDs are kept, to learn which pods are gone.

A pod leaves this watch when it is deleted, has ended or is bound.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from berth_client.reflector import Source
from berth_operator.state.watches.pod_watches import ALIVE
from berth_operator.state.watches.sinks import Table

Object = dict[str, Any]


class ForeignWaitingPods:
    """Remembers the UIDs of the pods that wait."""

    def __init__(self) -> None:
        self.on_gone: Callable[[str], None] = lambda _: None
        """Is called with the UID of a pod that no longer waits."""
        self._uids: set[str] = set()

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def put(self, pod: Mapping[str, Any]) -> None:
        """Add a pod. A terminating pod no longer waits, even if finalizers keep it."""
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            self.remove(metadata["uid"])
        else:
            self._uids.add(metadata["uid"])

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        self._uids.discard(uid)
        self.on_gone(uid)

    def sources(self, schedulers: Iterable[str]) -> dict[str, tuple[Source, Table]]:
        """Return {title: (source, table)} of the watches for these scheduler names."""
        watches = {}
        for name in sorted(schedulers):
            params = {"fieldSelector": f"spec.schedulerName={name},spec.nodeName=,{ALIVE}"}
            source = Source(path="/api/v1/pods", params=params, transform=_transform)
            table = Table(kind="pods", key=lambda pod: str(pod["metadata"]["uid"]), put=self.put, remove=self.remove)
            watches[f"waiting pods of {name}"] = source, table
        return watches


def _transform(pod: Object) -> Object:
    kept = ("uid", "name", "namespace", "resourceVersion", "deletionTimestamp")
    return {"metadata": {key: value for key, value in pod["metadata"].items() if key in kept}}
