"""Placed pods that defragmentation may move, and who allows it.

A pod is moved by evicting it, so its owner must have allowed this. The annotation `berth.dev/movable` on the pod allows
it, or else the same annotation on its namespace. A PodDisruptionBudget only limits evictions and allows none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from berth_api import names
from berth_api.request import BUILT_IN, Kinds
from berth_client import times
from berth_operator.core.advice.defragmentation import Tenant
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pods

Object = Mapping[str, Any]

KUBELET: Final = "Node"
"""Kind of the owner of mirror pods, which kubelet runs from files."""
ALLOWS: Final = "true"
REFUSES: Final = f'neither it nor its namespace has the annotation {names.MOVABLE}: "{ALLOWS}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A placed pod with a controller."""

    pod: PendingPod
    movable: str | None
    """Its annotation; None if it has none."""
    controller: str
    """UID of the controller."""


class Tenants(Mapping[str, Tenant]):
    """The placed pods that have a controller, by UID.

    Reading is safe from another thread: each answer is computed from values that are replaced, never modified.
    """

    def __init__(self, *, kinds: Kinds = BUILT_IN, min_age: float = 0.0) -> None:
        """Create an empty collection; pods are not moved before they are `min_age` seconds old."""
        self._kinds, self._min_age = kinds, min_age
        self._records: dict[str, _Record] = {}
        self._movable: dict[str, str] = {}
        """Namespace -> its annotation."""
        self._controllers: dict[str, str] = {}
        """UID of a pod, placed or waiting -> UID of its controller."""
        self._replicas: Counter[str] = Counter()
        """UID of a controller -> number of its pods."""

    def put_namespace(self, name: str, annotations: Mapping[str, str]) -> None:
        """Set the annotations of a namespace; empty if it was deleted."""
        self._movable.pop(name, None)
        if names.MOVABLE in annotations:
            self._movable[name] = annotations[names.MOVABLE]

    def put(self, raw: Object) -> None:
        """Add or update a pod, placed or waiting."""
        uid = raw["metadata"]["uid"]
        controller = controller_of(raw["metadata"])
        if not controller:
            return
        if uid not in self._controllers:
            self._controllers[uid] = controller
            self._replicas[controller] += 1
        if raw["spec"].get("nodeName"):
            annotations = raw["metadata"].get("annotations") or {}
            # What a user allows for the pod counts more than the gang that its controller defines.
            pod = pods.pending(raw, self._kinds).without_controllers_gang
            self._records[uid] = _Record(
                pod=replace(pod, nominated_node=""),
                movable=annotations.get(names.MOVABLE),
                controller=controller,
            )

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        self._records.pop(uid, None)
        if (controller := self._controllers.pop(uid, None)) is not None:
            self._replicas[controller] -= 1
            if not self._replicas[controller]:
                del self._replicas[controller]

    def controller(self, uid: str) -> str:
        """Return the UID of a pod's controller; empty if the pod has none or is gone."""
        return self._controllers.get(uid, "")

    def replicas(self, controller: str) -> int:
        """Return the number of pods of a controller, placed and waiting."""
        return self._replicas[controller]

    def __getitem__(self, uid: str) -> Tenant:
        """Return a placed pod with the reason why it must not be moved now, if there is one."""
        record = self._records[uid]
        return Tenant(pod=record.pod, refuses=self._why_not(record))

    def __iter__(self) -> Iterator[str]:
        """Yield the UIDs."""
        return iter(self._records)

    def __len__(self) -> int:
        """Return the number of placed pods with a controller."""
        return len(self._records)

    def _why_not(self, record: _Record) -> str:
        own = self._movable.get(record.pod.namespace) if record.movable is None else record.movable
        if own != ALLOWS:
            return REFUSES if record.movable is None else f'its annotation {names.MOVABLE} is "{record.movable}"'
        try:
            age = max(0.0, (times.now() - times.parse(record.pod.created)).total_seconds())
        except ValueError:
            age = 0.0
        return "" if age >= self._min_age else f"it is only {age:.0f} s old, and may be moved after {self._min_age:g} s"


def controller_of(metadata: Object) -> str:
    """Return the UID of the controller that would create a pod again; kubelet, which owns mirror pods, does not."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") != KUBELET:
            return str(owner.get("uid") or "")
    return ""
