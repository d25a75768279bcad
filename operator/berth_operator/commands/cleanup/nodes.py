"""What a cleanup removes from each Node, and what must stay because of the Node's pods.

When kubelet restarts, it admits the running pods of its node again. It ends pods whose requests of `kubernetes.io/*`
exceed the Node's allocatable. (It ignores a missing name of any other domain.) So a Node keeps exactly what its live
pods request of these names. If more stayed, another scheduler could place pods for which no scheduler allocates
devices.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from berth_api import names, resources
from berth_api.allocation import text
from berth_api.resources import quantity
from berth_client.objects import Object
from berth_operator.commands.cleanup import ownership
from berth_operator.controllers.reconcile.sums import OURS

NATIVE: Final = names.PREFIX
"""kubelet counts a resource whose name contains this, and treats all others as extended resources."""

_TAINTS: Final = frozenset({names.PREEMPTING, *names.AGENT_NOT_READY})
"""A startup taint would keep all pods off the node for good, because only the operator removes it."""

Sums = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A bound pod that has not ended, and requests resources that kubelet counts."""

    namespace: str
    name: str
    uid: str
    node: str
    requests: Mapping[str, int]
    is_bound_by_berth: bool

    @property
    def path(self) -> str:
        """Return its path on the API server."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What Berth wrote to a Node, and nothing else of it."""

    name: str
    version: str
    labels: frozenset[str]
    annotations: frozenset[str]
    other_taints: tuple[Object, ...] | None
    """The taints of others, if Berth's is among the Node's; else None."""
    capacity: Sums
    allocatable: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The two merge patches of a Node, and why it keeps capacity."""

    node: str
    version: str
    """The `resourceVersion` that was read: the patches hold for no other."""
    metadata: Object | None
    """Patch of the Node; None if there is nothing to remove."""
    status: Object | None
    """Patch of its status."""
    kept: Sums
    """The capacity that stays."""
    pods: tuple[Pod, ...]
    """The pods that need it."""

    @property
    def is_done(self) -> bool:
        """Return whether nothing has to be written."""
        return self.metadata is None and self.status is None


def read_pod(raw: Object) -> Pod | None:
    """Return a pod that needs capacity; None for any other pod.

    Raises:
        ResourceError: a quantity in it cannot be parsed.
    """
    metadata, spec = raw["metadata"], raw["spec"]
    if not spec.get("nodeName") or raw.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return None
    requests = {name: amount for name, amount in resources.total(spec).items() if NATIVE in name}
    if not requests:
        return None
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node=spec["nodeName"],
        requests=requests,
        is_bound_by_berth=names.EPOCH in (metadata.get("annotations") or {}),
    )


def read_node(raw: Object) -> Node:
    """Return what Berth wrote to a Node."""
    metadata = raw["metadata"]
    labels: Iterable[str] = metadata.get("labels") or ()
    only_ours = {label for label in labels if label == names.MANAGED or label.startswith(names.MODEL_PREFIX)}
    taints = raw.get("spec", {}).get("taints") or []
    other_taints = tuple(taint for taint in taints if taint["key"] not in _TAINTS)
    return Node(
        name=metadata["name"],
        version=metadata["resourceVersion"],
        labels=(ownership.owned(raw, "metadata", "labels") | only_ours) & frozenset(labels),
        annotations=ownership.owned(raw, "metadata", "annotations") & set(metadata.get("annotations") or ()),
        other_taints=other_taints if len(other_taints) < len(taints) else None,
        capacity=_sums(raw, "capacity"),
        allocatable=_sums(raw, "allocatable"),
    )


def _sums(raw: Object, field: str) -> Sums:
    """Return the amounts that Berth wrote.

    On a Node with Berth's label, amounts under Berth's names that have no manager are included.
    """
    shown: Sums = raw.get("status", {}).get(field) or {}
    ours = ownership.owned(raw, "status", field)
    if names.MANAGED in (raw["metadata"].get("labels") or ()):
        ours |= ownership.unowned(raw, "status", field) & frozenset(OURS)
    return {name: shown[name] for name in sorted(ours) if name in shown}


def plan(node: Node, pods: Sequence[Pod]) -> Plan:
    """Return what has to be written to a Node with these pods."""
    # What the pods request of the names that Berth wrote; a pod of Berth may be newer than the sums.
    ours = {*node.capacity, *node.allocatable}
    needed: Counter[str] = Counter()
    for pod in pods:
        counted = ours | set(OURS) if pod.is_bound_by_berth else ours
        needed.update({name: amount for name, amount in pod.requests.items() if name in counted})
    kept = {name: text(name.removeprefix(NATIVE), amount) for name, amount in sorted(needed.items())}
    capacity, allocatable = _changes(node.capacity, kept), _changes(node.allocatable, kept)
    status = {"capacity": capacity, "allocatable": allocatable} if capacity or allocatable else None
    keys: dict[str, Object] = {"labels": dict.fromkeys(sorted(node.labels))} if node.labels else {}
    if node.annotations:
        keys["annotations"] = dict.fromkeys(sorted(node.annotations))
    patch: dict[str, Any] = {"metadata": keys} if keys else {}
    if node.other_taints is not None:
        patch["spec"] = {"taints": list(node.other_taints)}
    return Plan(
        node=node.name,
        version=node.version,
        metadata=patch or None,
        status={"status": status} if status else None,
        kept=kept,
        pods=tuple(pod for pod in pods if kept.keys() & pod.requests.keys()),
    )


def _changes(shown: Sums, kept: Sums) -> dict[str, Any]:
    """Return the merge patch from one list of resources to another."""
    changes: dict[str, Any] = {name: None for name in shown if name not in kept}
    return changes | {
        name: amount
        for name, amount in kept.items()
        if name not in shown or quantity.parse(shown[name]) != quantity.parse(amount)
    }


def by_node(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Return the pods of each node."""
    grouped: dict[str, list[Pod]] = {}
    for pod in pods:
        grouped.setdefault(pod.node, []).append(pod)
    return grouped
