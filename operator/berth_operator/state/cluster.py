"""The operator's picture of the cluster: API events folded into the Fleet, the queue and the heartbeats.

Everything happens in the scheduler's loop, one event at a time, so nothing here needs a lock. A pod's charge goes
through three states: *assumed* when it is decided, *confirmed* when the watch shows the pod bound, and released when
the pod leaves; an assumed charge whose bind failed is *forgotten*.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from berth_api import names
from berth_operator.core.cycle import Placement
from berth_operator.core.fleet import Charge, Fleet, NodeInfo
from berth_operator.core.heartbeats import Heartbeats
from berth_operator.core.queue import Queue
from berth_operator.core.request import PendingPod
from berth_operator.core.verdict import Change
from berth_operator.state import devices, nodes, pods
from berth_operator.state.devices import DeviceRecord

Object = Mapping[str, Any]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A Node as the operator read it."""

    uid: str
    info: NodeInfo
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    """Sums of devices that the Node shows; the rest is in `info`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """All that is known of one node's devices at one moment; safe to hand to another thread."""

    name: str
    node: NodeRecord | None
    device: DeviceRecord | None
    ours: bool
    """Whether this instance may write the Device: another one's Devices may have no Node that we see."""
    alive: bool
    charges: tuple[Charge, ...]


class Cluster:
    """The state that decisions read, and whom to tell when it changes."""

    def __init__(self, *, grace: float, confined: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.fleet = Fleet()
        self.queue = Queue()
        self.heartbeats = Heartbeats(grace=grace)
        self.nodes: dict[str, NodeRecord] = {}
        self.devices: dict[str, DeviceRecord] = {}
        self.pending: dict[str, PendingPod] = {}
        """UID -> pod, all that wait for a node by the API server's word."""
        self.clock = clock
        self._confined = confined
        """Whether a node selector leaves Nodes to other instances."""
        self.on_work: Callable[[], None] = lambda: None
        """Called when a pod may be decided."""
        self.on_dirty: Callable[[str], None] = lambda _node: None
        """Called with the name of a node whose status may have to be written."""
        self.on_unknown: Callable[[Charge], None] = lambda _charge: None
        """Called for a bound pod whose allocation is missing or cannot be read."""
        self.on_settled: Callable[[str], None] = lambda _uid: None
        """Called with the UID of a pod that waits no more."""
        self._unreported: dict[str, Charge] = {}
        """UID -> charge of unknown devices, until its Node and Device are known too."""
        self._assumed: dict[str, float | None] = {}
        """UID of pods not yet seen bound -> when their bind succeeded."""

    # --- pods that wait ---------------------------------------------------------------------------------------

    def put_pending(self, raw: Object) -> None:
        """A pod waits for a node, or changed while it waits."""
        uid = raw["metadata"]["uid"]
        if pods.is_gated(raw):
            self.remove_pending(uid)
            return
        pod = self.pending[uid] = pods.pending(raw)
        if uid not in self.fleet.charges:
            self.queue.put(pod)
            self.on_work()

    def remove_pending(self, uid: str) -> None:
        """A pod waits no more: it is bound, or gone."""
        if self.pending.pop(uid, None) is not None:
            self.queue.remove(uid)
            self.on_settled(uid)

    # --- pods that hold something -----------------------------------------------------------------------------

    def put_bound(self, raw: Object) -> None:
        """A pod is on a node, whoever put it there."""
        uid = raw["metadata"]["uid"]
        self.remove_pending(uid)
        charge, known = pods.charge(raw), self.fleet.charges.get(uid)
        if uid in self._assumed:
            # The watch may be faster than the bind's own answer, which then has nothing left to tell.
            del self._assumed[uid]
            self.on_dirty(charge.node)
        if known is not None and _same(known, charge):
            if known.chosen:
                # The API server itself now says what was promised.
                self.fleet.charge(charge)
            return
        self._unreported.pop(uid, None)
        self.fleet.charge(charge)
        self.on_dirty(charge.node)
        if known is not None:
            self.on_dirty(known.node)
            self.changed(Change.RELEASED | Change.POD_LABELS)
        self._placed(charge)
        if charge.unknown:
            self._unreported[uid] = charge

    def remove_bound(self, uid: str) -> None:
        """A pod has left its node: deleted, succeeded or failed."""
        self._assumed.pop(uid, None)
        self._unreported.pop(uid, None)
        charge = self.fleet.release(uid)
        if charge is not None:
            self.on_dirty(charge.node)
            # Volumes that it was promised are free again.
            self.changed(Change.RELEASED | Change.VOLUME if charge.chosen else Change.RELEASED)

    def assume(self, placement: Placement) -> None:
        """Charge a decision at once, so that the next one sees it."""
        self._assumed[placement.pod.uid] = None
        self.fleet.charge(placement.charge)
        self._placed(placement.charge)

    def bound(self, uid: str) -> None:
        """The bind of an assumed pod succeeded."""
        if uid in self._assumed:
            self._assumed[uid] = self.clock()
            self.on_dirty(self.fleet.charges[uid].node)

    def forget(self, uid: str) -> None:
        """The bind of an assumed pod failed; one that the watch has shown bound stays."""
        if uid not in self._assumed:
            return
        self.remove_bound(uid)
        if (pod := self.pending.get(uid)) is not None:
            self.queue.back_off(pod, self.clock())
            self.on_work()

    def forget_unseen(self, listed: set[str], requested_at: float) -> None:
        """Release pods bound before a full list was asked for that do not stand in it: they have come and gone."""
        for uid, bound_at in list(self._assumed.items()):
            if bound_at is not None and bound_at < requested_at and uid not in listed:
                self.remove_bound(uid)

    # --- nodes, Devices and Leases ----------------------------------------------------------------------------

    def put_node(self, raw: Object) -> None:
        """A Node exists or changed."""
        info = nodes.info(raw)
        known = self.nodes.get(info.name)
        self.nodes[info.name] = NodeRecord(
            uid=raw["metadata"]["uid"],
            info=info,
            capacity=nodes.device_sums(raw, "capacity"),
            allocatable=nodes.device_sums(raw, "allocatable"),
        )
        if known is None or known.info != info:
            self.fleet.put_node(info)
        if change := nodes.change(known.info if known else None, info):
            self.changed(change)
        self.on_dirty(info.name)

    def remove_node(self, name: str) -> None:
        """A Node is gone, or no longer ours."""
        self.nodes.pop(name, None)
        self.fleet.remove_node(name)
        self.changed(Change.NODE_REMOVED)
        self.on_dirty(name)

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """A namespace has these labels; none if it is gone."""
        if self.fleet.neighbours.put_namespace(name, labels):
            self.changed(Change.NAMESPACE_LABELS)

    def put_device(self, raw: Object) -> None:
        """A Device exists or changed."""
        known = self.devices.get(raw["metadata"]["name"])
        record = devices.record(raw, known)
        self.devices[record.name] = record
        if known is None:
            self.heartbeats.expect(record.name, self.clock(), doubted=_is_unknown(record))
        if known is None or known.inventory != record.inventory:
            self.fleet.put_device(record.name, record.inventory)
            self.fleet.set_fresh(record.name, fresh=self.heartbeats.alive(record.name, self.clock()))
            self.changed(Change.DEVICE)
        self.on_dirty(record.name)

    def remove_device(self, name: str) -> None:
        """A Device is gone; what its pods hold stays charged."""
        self.devices.pop(name, None)
        self.heartbeats.dismiss(name)
        self.fleet.remove_device(name)
        self.on_dirty(name)

    def put_lease(self, raw: Object) -> None:
        """An agent's Lease was seen."""
        spec = raw.get("spec") or {}
        renew_time, duration = spec.get("renewTime") or "", spec.get("leaseDurationSeconds")
        self.heartbeats.observe(raw["metadata"]["name"], renew_time, duration, self.clock())
        self.check_alive(raw["metadata"]["name"])

    def remove_lease(self, name: str) -> None:
        """An agent's Lease is gone."""
        self.heartbeats.lost(name)

    def check_alive(self, name: str) -> None:
        """Bring a node's freshness up to date."""
        row, alive = self.fleet.rows.get(name), self.heartbeats.alive(name, self.clock())
        if row is None or name not in self.devices or bool(self.fleet.fresh[row]) == alive:
            return
        self.fleet.set_fresh(name, fresh=alive)
        if name in self.nodes:
            log.info("agent heard" if alive else "agent not heard", node=name)
        self.on_dirty(name)
        if alive:
            self.changed(Change.DEVICE)

    def unseen(self, seconds: float) -> list[Charge]:
        """Give what was bound at least so long ago and has not been seen bound."""
        before = self.clock() - seconds
        return [
            self.fleet.charges[uid]
            for uid, bound_at in self._assumed.items()
            if bound_at is not None and bound_at <= before
        ]

    def report_unknown(self) -> None:
        """Report bound pods that block devices of ours; lists come in any order, so this waits for all of them."""
        for uid, charge in list(self._unreported.items()):
            if charge.node in self.nodes and charge.node in self.devices:
                del self._unreported[uid]
                self.on_unknown(charge)

    # --- what others ask --------------------------------------------------------------------------------------

    def changed(self, change: Change) -> None:
        """Wake the pods that a change may help."""
        self.queue.wake(change)
        self.on_work()

    def _placed(self, charge: Charge) -> None:
        """Wake the pods that wait for such a pod."""
        neighbours = self.fleet.neighbours
        if self.queue.wake(Change.PLACED, lambda waiting: neighbours.awaits(waiting, charge.identity)):
            self.on_work()

    def view(self, name: str) -> NodeView:
        """Give what is known of a node, as values that do not change."""
        return NodeView(
            name=name,
            node=self.nodes.get(name),
            device=self.devices.get(name),
            ours=name in self.nodes or not self._confined,
            alive=self.heartbeats.alive(name, self.clock()),
            charges=tuple(self.fleet.on_node(name)),
        )


def _same(known: Charge, charge: Charge) -> bool:
    """Tell whether two charges take the same; what the Fleet filled in by itself does not count."""
    if known == charge:
        return True
    if replace(known, grants=()) != replace(charge, grants=(), chosen=known.chosen):
        return False
    # The annotation has the types in another order than the decision.
    kept, told = _by_card(known), _by_card(charge)
    return len(kept) == len(told) and all(
        k[:2] == t[:2] and t[2].items() <= k[2].items() for k, t in zip(kept, told, strict=True)
    )


def _by_card(charge: Charge) -> list[tuple[str, int, dict[str, int]]]:
    grants = sorted(charge.grants, key=lambda each: (each.type, each.minor))
    return [(each.type, each.minor, dict(each.amounts)) for each in grants]


def _is_unknown(record: DeviceRecord) -> bool:
    return any(each.type == names.READY and each.status == "Unknown" for each in record.status.conditions)
