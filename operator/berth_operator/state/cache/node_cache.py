"""Nodes, their Devices, and the Leases of their agents."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from berth_api import names
from berth_api.request import Kinds
from berth_client import times
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_pod
from berth_operator.core.fleet.two_holders import CardOnNode
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import DeviceInventory
from berth_operator.core.values.starting import will_have_devices
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.allocation_tracker import AllocationTracker
from berth_operator.state.cache.claim_tracker import ClaimTracker
from berth_operator.state.cache.heartbeats import Heartbeats
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.new_nodes import NewNodes
from berth_operator.state.cache.raised_sums import RaisedSums
from berth_operator.state.cache.views import NodeView, StatusKind
from berth_operator.state.cache.waker import Waker
from berth_operator.state.objects import devices, nodes
from berth_operator.state.objects.devices import DeviceRecord
from berth_operator.state.objects.nodes import NodeRecord

Object = Mapping[str, Any]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NodeCache:
    """Puts nodes and devices into the Fleet; a Node, its Device and its Lease share a name and arrive in any order."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        kinds: Kinds,
        allocations: AllocationTracker,
        claim_tracker: ClaimTracker,
        waker: Waker,
        listener: Listener,
        clock: Callable[[], float],
        wall: Callable[[], float],
        grace: float,
        startup_timeout: float,
        confined: bool,
    ) -> None:
        """Create a cache; `confined`: whether a node selector leaves Nodes to other instances."""
        self._fleet, self._kinds, self._allocations, self._claim_tracker = fleet, kinds, allocations, claim_tracker
        self._waker, self._listener, self._clock, self._confined = waker, listener, clock, confined
        self._heartbeats = Heartbeats(grace=grace)
        self._new = NewNodes(seconds=startup_timeout, clock=clock, wall=wall)
        self.raised_sums = RaisedSums(kinds=kinds, clock=clock)
        self._used: set[str] = set()
        """New Nodes whose devices pods hold or have held."""
        self._agents: dict[str, str] = {}
        """UID of an agent's pod -> its node."""
        self._agents_on: Counter[str] = Counter()
        """Node -> number of agents' pods; two while the agent is upgraded."""
        self._doubled: dict[str, tuple[tuple[str, int, tuple[str, ...]], ...]] = {}
        """Node -> (type, minor, holders) of each card that two pods hold though only one may."""
        self.nodes: dict[str, NodeRecord] = {}
        self.devices: dict[str, DeviceRecord] = {}
        """Each with an inventory without what must not be given by name."""
        self._read: dict[str, DeviceRecord] = {}
        """The Devices with their full inventory."""

    # --- Nodes ------------------------------------------------------------------------------------------------

    def put_node(self, raw: Object) -> None:
        """Add or update a Node."""
        record = nodes.record(raw, self._kinds)
        info, known = record.info, self.nodes.get(record.info.name)
        self.nodes[info.name] = record
        before = known.info if known else None
        if before != info:
            self._fleet.put_node(info)
        if known is None or known.uid != record.uid:
            self._forget_start(info.name)
            self._new.put(info.name, raw["metadata"].get("creationTimestamp") or "")
        else:
            self.raised_sums.put(info.name, known.allocatable, record.allocatable)
        self._set_starting(info.name)
        self._set_agent(info.name)
        self._allocations.put_boot(info.name, nodes.boot_id(raw))
        self._claim_tracker.update_node(info.name)
        if change := nodes.change(before, info):
            labels = nodes.changed_labels(before, info)
            self._waker.happened(ClusterEvent(change=change, node=info.name, labels=labels))
        self._changed(info.name)

    def remove_node(self, name: str) -> None:
        """Remove a Node that was deleted, or that our node selector no longer matches."""
        known = self.nodes.pop(name, None)
        self._fleet.remove_node(name)
        self._forget_start(name)
        self._forget_if_gone(name)
        labels = nodes.changed_labels(known.info if known else None, None)
        self._waker.happened(ClusterEvent(change=Change.NODE_REMOVED, node=name, labels=labels))
        self._changed(name)

    # --- Devices ----------------------------------------------------------------------------------------------

    def put_device(self, raw: Object) -> None:
        """Add or update a Device."""
        name = raw["metadata"]["name"]
        before = self._read.get(name)
        read = devices.record(raw, before)
        # Mostly the status changed alone.
        is_same = before is not None and before.inventory is read.inventory
        inventory = (
            self.devices[name].inventory if is_same else self._claim_tracker.without_barred(name, read.inventory)
        )
        self._put_read(read, inventory)

    def claims_changed(self, name: str) -> None:
        """Update a node's Device after what decides which cards are given by name has changed."""
        if (read := self._read.get(name)) is not None:
            self._put_read(read, self._claim_tracker.without_barred(name, read.inventory))
            self._claim_tracker.update_node(name)

    def _put_read(self, read: DeviceRecord, inventory: DeviceInventory) -> None:
        """Put a Device with its full inventory. `inventory` leaves out devices that must not be allocated by name."""
        known, before = self.devices.get(read.name), self._read.get(read.name)
        record = read if inventory is read.inventory else replace(read, inventory=inventory)
        self._read[read.name], self.devices[read.name] = read, record
        if known is None:
            conditions = [(condition.type, condition.status) for condition in record.conditions]
            self._heartbeats.expect(record.name, self._clock(), doubted=(names.READY, "Unknown") in conditions)
        is_new = known is None or known.inventory != record.inventory
        if is_new:
            self._fleet.put_device(record.name, record.inventory)
            self._set_starting(record.name)
            self._set_fresh(record.name)
            self._fleet.set_heard(record.name, self._heard(record.name))
        if before is None or before.inventory != read.inventory:
            self._claim_tracker.put_inventory(read.name, read.inventory)
        if is_new or (known is not None and known.agent_report is not record.agent_report):
            self._allocations.apply_report(record, known)
            self._claim_tracker.update_node(record.name)
        if is_new:
            self._waker.happened(ClusterEvent(change=Change.DEVICE, node=record.name))
        elif known is not None and known.foreign != record.foreign:
            self.check_alive(record.name)
        if record.faults != (known.faults if known else ()):
            self._listener.faults_changed(known, record)
        if known is None or known.refused != record.refused:
            self._fleet.set_refused(record.name, record.refused)
            self._waker.record_change()
        self._changed(record.name)

    def remove_device(self, name: str) -> None:
        """Remove a Device. Its pods' devices stay charged."""
        self.devices.pop(name, None)
        self._read.pop(name, None)
        self._claim_tracker.remove_inventory(name)
        self._heartbeats.dismiss(name)
        self._fleet.remove_device(name)
        self._fleet.set_refused(name, ())
        self._set_starting(name)
        # What it listed by name, DeviceClasses and claims may give now.
        self._waker.happened(ClusterEvent(change=Change.DEVICE, node=name))
        self._forget_if_gone(name)
        self._changed(name)

    # --- Leases -----------------------------------------------------------------------------------------------

    def put_lease(self, raw: Object) -> None:
        """Add or update an agent's Lease."""
        spec = raw.get("spec") or {}
        renew_time, duration = spec.get("renewTime") or "", spec.get("leaseDurationSeconds")
        self._heartbeats.observe(raw["metadata"]["name"], renew_time, duration, self._clock())
        self.check_alive(raw["metadata"]["name"])
        self._set_agent(raw["metadata"]["name"])

    def remove_lease(self, name: str) -> None:
        """Remove an agent's Lease."""
        self._heartbeats.lost(name)
        self.check_alive(name)
        self._set_agent(name)
        self._forget_if_gone(name)

    # --- agents' pods -----------------------------------------------------------------------------------------

    def put_agent(self, uid: str, node: str) -> None:
        """Record an agent's pod on a node."""
        if uid not in self._agents:
            self._agents[uid] = node
            self._agents_on[node] += 1
            self._set_agent(node)

    def remove_agent(self, uid: str) -> None:
        """Record that an agent's pod, if it was one, has left its node."""
        if (node := self._agents.pop(uid, None)) is not None:
            self._agents_on -= Counter((node,))
            self._set_agent(node)

    def _set_agent(self, name: str) -> None:
        """Set whether a node shows that an agent works there, even if there is no Device yet."""
        has_agent = self._heartbeats.has_lease(name) or name in self._agents_on
        if self._fleet.set_agent(name, has_agent=has_agent):
            self._waker.happened(ClusterEvent(change=Change.DEVICE, node=name))

    # --- life of agents ---------------------------------------------------------------------------------------

    def check_all_alive(self) -> None:
        """Update the nodes whose agents have fallen silent, by the clock. All other nodes change on reports."""
        rows, fresh = self._fleet.rows, self._fleet.fresh
        for name in self._heartbeats.silent(self._clock()):
            if (row := rows.get(name)) is not None and fresh[row]:
                self.check_alive(name)

    def check_alive(self, name: str) -> None:
        """Update a node's freshness by the clock and its Device."""
        row, alive = self._fleet.rows.get(name), self.is_alive(name)
        if row is None or name not in self.devices:
            return
        # Only of silent agents: the others renew their Leases all the time.
        is_news = not alive and self._fleet.set_heard(name, self._heard(name))
        is_foreign = bool(self.devices[name].foreign)
        fresh, foreign = alive and not is_foreign, alive and is_foreign
        if (bool(self._fleet.fresh[row]), bool(self._fleet.foreign[row])) == (fresh, foreign):
            if is_news:
                self._waker.record_change()
                self._changed(name)
            return
        self._waker.record_change()
        self._set_fresh(name)
        if name in self.nodes:
            log.info("agent heard" if alive else "agent not heard", node=name, allocated=fresh)
        self._changed(name)
        if fresh:
            self._waker.happened(ClusterEvent(change=Change.DEVICE, node=name))

    def _set_fresh(self, name: str) -> None:
        self._fleet.set_fresh(name, fresh=self.is_alive(name), foreign=bool(self.devices[name].foreign))

    def end_startups(self) -> None:
        """Stop counting on nodes that have been starting for too long, by the clock, or whose devices pods hold."""
        expired = self._new.expire()
        self._used.difference_update(expired)
        used = [
            name
            for name in self._new
            if name not in self._used and any(map(self._holds_devices, self._fleet.on_node(name)))
        ]
        self._used.update(used)
        for name in (*expired, *used):
            if bool(self._fleet.starting[self._fleet.rows[name]]):
                self._set_starting(name)
                self._waker.record_change()

    def _holds_devices(self, charge: Charge) -> bool:
        """Return whether a charge is of a pod that holds devices, by name or by claim; it may not be known which."""
        if not is_pod(charge):
            return False
        if charge.grants or charge.unknown:
            return True
        # Most pods have no claims.
        return bool(self._fleet.claims.of_pod(charge.uid)) and any(True for _ in self._fleet.grants_held(charge))

    def _forget_start(self, name: str) -> None:
        self.raised_sums.remove(name)
        self._new.remove(name)
        self._used.discard(name)

    def _set_starting(self, name: str) -> None:
        """Set whether a node is starting: it is new, and it has devices or shows that it will have them."""
        # Most nodes are not new, which is the cheapest question.
        node = self.nodes.get(name) if name in self._new else None
        device = self.devices.get(name)
        has_devices = device is not None and bool(device.inventory.cards)
        starting = node is not None and (has_devices or will_have_devices(node.info, self._kinds))
        self._fleet.set_starting(name, starting=starting, used=name in self._used)

    # --- queries ----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all nodes that have a Node or a Device, sorted."""
        return sorted({*self.nodes, *self.devices})

    def is_complete(self, name: str) -> bool:
        """Return whether both a Node and a Device of this name are known."""
        return name in self.nodes and name in self.devices

    def is_ours(self, name: str) -> bool:
        """Return whether this instance may write the status of a node's devices."""
        return name in self.nodes or not self._confined

    def is_alive(self, name: str) -> bool:
        """Return whether a node's agent is alive now."""
        return self._heartbeats.alive(name, self._clock())

    def is_confirmed(self, name: str) -> bool:
        """Return whether a node's agent is alive and has been heard since this process watches its Lease."""
        return self._heartbeats.is_confirmed(name, self._clock())

    def view(self, name: str) -> NodeView:
        """Return the view of a node, even if it has neither Node nor Device."""
        return NodeView(
            name=name,
            node=self.nodes.get(name),
            device=self.devices.get(name),
            ours=self.is_ours(name),
            alive=self.is_alive(name),
            last_renewal=self._heartbeats.last_renewal(name),
            charges=tuple(self._fleet.on_node(name)),
            doubled=self._doubled.get(name, ()),
            surplus_drivers=tuple(self._fleet.claims.surplus_drivers(name)),
            kinds=self._kinds,
        )

    def set_doubled(self, cards: Mapping[CardOnNode, Sequence[str]]) -> None:
        """Set the cards that two pods hold though only one may, with their holders as namespace/name."""
        before, self._doubled = self._doubled, {}
        for card in sorted(cards):
            shown = (card.type, card.minor, tuple(cards[card]))
            self._doubled[card.node] = (*self._doubled.get(card.node, ()), shown)
        for name in before.keys() | self._doubled.keys():
            if before.get(name) != self._doubled.get(name):
                self._listener.status_changed(StatusKind.DEVICE, name)

    def _heard(self, name: str) -> int:
        """Return when a node's agent renewed its Lease last, in seconds since 1970; 0 if that is not known."""
        return times.seconds(self._heartbeats.last_renewal(name), 0)

    def _changed(self, name: str) -> None:
        self._listener.status_changed(StatusKind.NODE, name)

    def _forget_if_gone(self, name: str) -> None:
        if name not in self.nodes and name not in self.devices:
            self._allocations.forget_node(name)
            self._heartbeats.forget(name)
