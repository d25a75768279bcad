"""The cluster at one revision of its history: pods, gangs, and what each node has left.

This module shares no code with the programs that it describes, and reads objects as plain JSON.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos import fitting
from tests.chaos.auditor import DISRUPTED, GANG, GANG_SIZE, PREEMPTED, has_ended
from tests.chaos.fitting import Request, Room
from tests.chaos.history import Kind, Revision

RESERVED: Final = re.compile(r" reserved on (?P<node>[a-z0-9.-]+): (?P<rest>.*)$")

Object = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Pod:
    """A pod as of its last revision."""

    key: str
    raw: Object
    uid: str
    created: float
    request: Request
    is_ours: bool
    priority: int
    gang: str
    size: int
    controller: str
    """UID of its controller, or of itself; the name of its gang."""
    node: str = ""
    bound_at: float = 0.0
    is_leaving: bool = False
    has_ended: bool = False
    reason: str = ""
    message: str = ""
    nominated: str = ""
    nominated_at: float = 0.0
    nominations: list[tuple[str, float]] = field(default_factory=list)
    """All nodes that were nominated, each with when."""
    reserved: str = ""
    """The node that is reserved for it."""
    reserved_at: float = 0.0
    """When something last became free there."""
    waited_until: float = float("-inf")
    disrupted_at: float | None = None
    gone_at: float | None = None

    @property
    def waits(self) -> bool:
        """Return whether it waits for Berth."""
        return self.is_ours and not (self.node or self.is_leaving or self.has_ended)

    @property
    def runs(self) -> bool:
        """Return whether it runs."""
        return bool(self.node) and not (self.is_leaving or self.has_ended)


@dataclass(slots=True)
class Gang:
    """The members of a gang that exist."""

    size: int
    members: dict[str, Pod] = field(default_factory=dict)
    has_formed: bool = False

    def update(self) -> None:
        """Follow its members: it has formed once enough are bound, until none of these runs."""
        bound = [pod for pod in self.members.values() if pod.node]
        running = any(pod.runs for pod in bound)
        self.has_formed = running and (self.has_formed or len(bound) >= self.size)


class ClusterState:
    """The state after the revisions that were taken."""

    def __init__(self, scheduler: str) -> None:
        """Create the state; `scheduler` is Berth's `schedulerName`."""
        self.pods: dict[str, Pod] = {}
        """`namespace/name` -> pod that exists."""
        self.ever: dict[str, Pod] = {}
        """UID -> pod, also those that have gone."""
        self.gangs: dict[str, Gang] = {}
        self.nodes: dict[str, Object] = {}
        self.born: dict[str, float] = {}
        """Node -> when it was created."""
        self.node_changed: dict[str, float] = {}
        """Node -> when something other than its pods changed."""
        self.proved: set[str] = set()
        """UIDs of Nodes on which a pod has held a card."""
        self.devices: dict[str, Object] = {}
        self.now = self.changed_at = 0.0
        self._scheduler = scheduler
        self._heard: dict[str, tuple[float, float]] = {}
        """Node -> when its agent was last heard, and for how long that holds."""
        self._term: object = None

    def take(self, revision: Revision) -> None:
        """Take one more revision."""
        self.now = revision.time
        takes: Mapping[Kind, Callable[[Revision], None]] = {
            Kind.POD: self._pod,
            Kind.NODE: self._node,
            Kind.DEVICE: self._device,
            Kind.HEARTBEAT: self._heartbeat,
            Kind.LEASE: self._lease,
        }
        if revision.kind in takes:
            takes[revision.kind](revision)

    def rooms(self, *, without: Callable[[Pod], bool] = lambda _: False, grace: float = 0.0) -> dict[str, Room]:
        """Return what each node has left, without some of its pods; `grace` is how long agents may have been silent."""
        rooms = {
            name: fitting.room_of(raw, self.devices.get(name), is_heard=self._is_heard(name, grace))
            for name, raw in self.nodes.items()
        }
        fitting.charge(rooms, [pod.raw for pod in self.pods.values() if pod.node and not without(pod)])
        return rooms

    def has_formed(self, pod: Pod) -> bool:
        """Return whether a pod's gang has formed."""
        gang = self.gangs.get(pod.gang)
        return gang is not None and gang.has_formed

    def _lease(self, revision: Revision) -> None:
        term = (revision.object or {}).get("spec", {}).get("term")
        if term != self._term:
            self._term, self.changed_at = term, self.now

    # --- nodes ------------------------------------------------------------------------------------------------

    def _node(self, revision: Revision) -> None:
        name, raw = revision.name, revision.object
        known = self.nodes.get(name)
        if raw is None:
            self.nodes.pop(name, None)
            self._node_has_changed(name)
            return
        if known is None or known["metadata"]["uid"] != raw["metadata"]["uid"]:
            self.born[name] = self.now
        if known is None or _of_node(known) != _of_node(raw):
            self._node_has_changed(name)
        self.nodes[name] = raw

    def _node_has_changed(self, name: str) -> None:
        self.node_changed[name] = self.changed_at = self.now

    def _device(self, revision: Revision) -> None:
        known, raw = self.devices.get(revision.name), revision.object
        if raw is None:
            self.devices.pop(revision.name, None)
        else:
            self.devices[revision.name] = raw
        if raw is None or known is None or known["spec"].get("devices") != raw["spec"].get("devices"):
            self._node_has_changed(revision.name)

    def _heartbeat(self, revision: Revision) -> None:
        name = revision.name.partition("/")[2]
        if revision.object is None:
            self._heard.pop(name, None)
            return
        if not self._is_heard(name):
            self._node_has_changed(name)
        self._heard[name] = (self.now, float(revision.object["spec"].get("leaseDurationSeconds") or 0))

    def _is_heard(self, node: str, grace: float = 0.0) -> bool:
        at, seconds = self._heard.get(node, (float("-inf"), 0.0))
        return self.now <= at + seconds + grace

    # --- pods -------------------------------------------------------------------------------------------------

    def _pod(self, revision: Revision) -> None:
        known, raw = self.pods.get(revision.name), revision.object
        if raw is None:
            if known is not None:
                self._remove(known)
            return
        if known is None or known.uid != raw["metadata"]["uid"]:
            known = self._add(revision.name, raw)
        self._update(known, raw)

    def _add(self, key: str, raw: Object) -> Pod:
        metadata, spec = raw["metadata"], raw["spec"]
        annotations = metadata.get("annotations") or {}
        owners = [each["uid"] for each in metadata.get("ownerReferences") or () if each.get("controller")]
        pod = Pod(
            key=key,
            raw=raw,
            uid=metadata["uid"],
            created=self.now,
            request=fitting.request_of(raw),
            is_ours=spec.get("schedulerName") == self._scheduler,
            priority=int(spec.get("priority") or 0),
            gang=annotations.get(GANG, ""),
            size=int(annotations.get(GANG_SIZE, 0)),
            controller=annotations.get(GANG) or next(iter(owners), metadata["uid"]),
        )
        self.pods[key] = self.ever[pod.uid] = pod
        self.changed_at = self.now
        if pod.gang:
            self.gangs.setdefault(pod.gang, Gang(pod.size)).members[pod.uid] = pod
        return pod

    def _remove(self, pod: Pod) -> None:
        del self.pods[pod.key]
        pod.gone_at = self.now
        self.changed_at = self.now
        if not pod.node:
            pod.waited_until, pod.is_leaving = self.now, True
        if (gang := self.gangs.get(pod.gang)) is not None:
            gang.members.pop(pod.uid, None)
            gang.update()
            if not gang.members:
                del self.gangs[pod.gang]

    def _update(self, pod: Pod, raw: Object) -> None:
        before = (pod.node, pod.is_leaving, pod.has_ended)
        status = raw.get("status") or {}
        if is_disrupted(raw) and pod.disrupted_at is None:
            pod.disrupted_at = self.now
        pod.raw = raw
        pod.is_leaving = "deletionTimestamp" in raw["metadata"]
        pod.has_ended = has_ended(raw)
        self._bind(pod, raw["spec"].get("nodeName") or "")
        self._condition(pod, status)
        if (nominated := status.get("nominatedNodeName") or "") != pod.nominated:
            pod.nominated, pod.nominated_at = nominated, self.now
            pod.nominations.append((nominated, self.now))
        if before != (pod.node, pod.is_leaving, pod.has_ended):
            self.changed_at = self.now
            if (gang := self.gangs.get(pod.gang)) is not None:
                gang.update()

    def _bind(self, pod: Pod, node: str) -> None:
        if not node or pod.node:
            return
        pod.node, pod.bound_at, pod.waited_until = node, self.now, self.now
        if fitting.holds(pod.raw) and node in self.nodes:
            self.proved.add(self.nodes[node]["metadata"]["uid"])

    def _condition(self, pod: Pod, status: Object) -> None:
        scheduled: Object = next(
            (each for each in status.get("conditions") or () if each["type"] == "PodScheduled"), {}
        )
        pod.reason = scheduled.get("reason", "") if scheduled.get("status") == "False" else ""
        message = scheduled.get("message", "")
        match, before = RESERVED.search(message), RESERVED.search(pod.message)
        if match is None:
            pod.reserved = ""
        elif before is None or before.group() != match.group():
            pod.reserved, pod.reserved_at = match["node"], self.now
        pod.message = message


def _of_node(raw: Object) -> object:
    """Return what decides whether a pod fits on a node."""
    status, spec = raw.get("status") or {}, raw.get("spec") or {}
    ready = [each["status"] for each in status.get("conditions") or () if each["type"] == "Ready"]
    taints = [(each["key"], each.get("value"), each["effect"]) for each in spec.get("taints") or ()]
    return raw["metadata"].get("labels"), taints, spec.get("unschedulable"), status.get("allocatable"), ready


def is_disrupted(raw: Object) -> bool:
    """Return whether a pod has the condition of pods that are preempted."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return any(
        each["type"] == DISRUPTED and each["status"] == "True" and each.get("reason") == PREEMPTED
        for each in conditions
    )
