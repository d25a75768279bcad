"""The devices that claims may be given on each node: devices in slices, without devices that claims hold.

Slices, rules, cards and claims change much less often than pods are decided. So everything derived from them is cached
for each node until one of them changes.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Self

from berth_operator.core.claims.allocation.results import Allocation
from berth_operator.core.claims.bounds.errors import AllocationError, NoWorkError
from berth_operator.core.claims.matching.selected import SelectorPair
from berth_operator.core.claims.objects.allocated import NOTHING_ALLOCATED, Allocated
from berth_operator.core.claims.objects.nodes import TargetNode
from berth_operator.core.claims.objects.slices import DeviceID, PoolID, Slice
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.claims.objects.taint_rules import TaintRule
from berth_operator.core.claims.pools.pools import SliceIndex
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.claims import node_devices
from berth_operator.core.fleet.claims.answers import Answers, DeviceCounts, DeviceKind, SearchRefusals
from berth_operator.core.fleet.claims.holdings import Holdings
from berth_operator.core.fleet.claims.matching import CardIndex
from berth_operator.core.fleet.claims.node_devices import NodeDevices
from berth_operator.core.values.inventory import CardInfo

MAX_MATCHING: Final = 64
"""Classes for which the nodes with their devices are kept."""


class Supply:
    """The devices for claims."""

    def __init__(self, is_own: Callable[[PoolID], bool]) -> None:
        """Create an empty supply; `is_own`: whether Berth may give the devices of a pool."""
        self._is_own = is_own
        self.index = SliceIndex()
        self.holdings = Holdings()
        self.work = self.index.selected.work
        self._indexed: dict[str, Slice] = {}
        """Name -> slice in the index, whose devices have the taints of rules as well."""
        self._cards: dict[str, Collection[CardInfo]] = {}
        """Node -> the cards of its Device."""
        self._card_indices: dict[str, CardIndex] = {}
        """Node -> the same cards by their identifiers. It is computed on demand, so never where nothing has claims."""
        self._card_ids: dict[str, frozenset[str]] = {}
        """Node -> ids of its cards and their parts, in lower case. It is computed on demand."""
        self._nodes: dict[str, NodeDevices] = {}
        self._changed: set[PoolID] = set()
        """Pools whose nodes have to be computed again."""
        self._shown: dict[str, ClaimState] = {}
        """Key -> claim, for allocated claims."""
        self._assumed: dict[str, tuple[Allocation, int]] = {}
        """Key of a claim -> the allocation that charges record for it, and the number of these charges."""
        self._added: dict[str, Allocated] = {}
        """Key -> what of the claim is in the holdings."""
        self._answers = Answers()
        self._matching: dict[tuple[str | None, ...], tuple[int, frozenset[str] | None]] = {}
        """Selectors of a class -> the changes of devices that were known, and the nodes with such devices."""

    # --- what the API server shows ----------------------------------------------------------------------------

    def put_slice(self, slice_: Slice, rules: Iterable[TaintRule]) -> None:
        """Add or replace a slice."""
        self.remove_slice(slice_.name)
        tainted = _tainted(slice_, rules)
        self._indexed[slice_.name] = tainted
        self.index.put(tainted)
        self._changed.add(slice_.pool)

    def remove_slice(self, name: str) -> None:
        """Remove a slice, if it is there."""
        if (slice_ := self._indexed.pop(name, None)) is not None:
            self._settle({slice_.pool})
            self.index.remove(slice_)
            if slice_.pool in self.index.by_pool:
                self._changed.add(slice_.pool)
            else:
                self._changed.discard(slice_.pool)

    def put_cards(self, node: str, cards: Collection[CardInfo] | None) -> None:
        """Set the cards of a node's Device; None if there is none."""
        self._cards.pop(node, None)
        self._card_indices.pop(node, None)
        self._card_ids.pop(node, None)
        if cards is not None:
            self._cards[node] = cards
        self._nodes.pop(node, None)
        self._answers.drop(node)

    def nodes_with(self, ids: Collection[str]) -> set[str]:
        """Return the nodes with cards of these ids, which are in lower case."""
        return {node for node in self._cards if not self._ids_on(node).isdisjoint(ids)} if ids else set()

    def _ids_on(self, node: str) -> frozenset[str]:
        if node not in self._card_ids:
            names = (name.lower() for card in self._cards[node] for name in (card.id, *card.parts))
            self._card_ids[node] = frozenset(names)
        return self._card_ids[node]

    def put_claim(self, claim: ClaimState) -> None:
        """Add or replace a claim."""
        if claim.allocation:
            self._shown[claim.key] = claim
            self._update(claim.key, claim.nodes)
        else:
            self.remove_claim(claim.key)

    def remove_claim(self, key: str) -> None:
        """Remove a claim, if it is allocated."""
        if (claim := self._shown.pop(key, None)) is not None:
            self._update(key, claim.nodes)

    def set_own(self, is_own: Callable[[PoolID], bool]) -> None:
        """Set which pools' devices Berth may give."""
        self._is_own = is_own
        self.changed()

    def changed(self) -> None:
        """Compute everything again after own pools or classes changed."""
        self._nodes.clear()
        self._answers.drop_all()

    # --- charges ----------------------------------------------------------------------------------------------

    def assume(self, allocations: Iterable[Allocation], sign: int) -> None:
        """Add (sign 1) or remove (sign -1) the allocations that a charge records for claims."""
        for allocation in allocations:
            key = str(allocation.claim)
            count = self._assumed.pop(key, (allocation, 0))[1] + sign
            if count:
                self._assumed[key] = allocation, count
            self._update(key, (allocation.node,))

    def is_assumed(self, key: str) -> bool:
        """Return whether a claim (namespace/name) gets an allocation that the API server does not show yet."""
        return key in self._assumed and key not in self._shown

    def node_changed(self, node: str) -> None:
        """Recompute how many devices a node may give, after its labels or the charges there changed."""
        self._answers.drop(node)

    def forget_node(self, node: str) -> None:
        """Forget what was computed for a node that does not exist any more."""
        self._nodes.pop(node, None)
        self._answers.drop(node)

    def _update(self, key: str, nodes: Iterable[str]) -> None:
        """Bring the holdings of a claim up to date."""
        before, after = self._added.pop(key, NOTHING_ALLOCATED), NOTHING_ALLOCATED
        # What the API server shows, or else what is assumed.
        if (shown := self._shown.get(key)) is not None:
            after = shown.held
        elif key in self._assumed:
            after = self._assumed[key][0].held()
        self.holdings.add(before, -1)
        self.holdings.add(after, 1)
        if after is not NOTHING_ALLOCATED:
            self._added[key] = after
        for node in nodes:
            self._answers.drop(node)
        if self.is_wide([*before.devices, *before.shared, *after.devices, *after.shared]):
            self._answers.drop_refusals()

    # --- queries ----------------------------------------------------------------------------------------------

    def cards(self, node: str) -> CardIndex | None:
        """Return the cards of a node's Device; None if there is none."""
        if node in self._cards and node not in self._card_indices:
            self._card_indices[node] = CardIndex.of(self._cards[node])
        return self._card_indices.get(node)

    def is_wide(self, devices: Iterable[DeviceID]) -> bool:
        """Return whether one of the devices belongs to a pool in which other nodes have devices or counters."""
        pools = [self.index.by_pool.get(pool, []) for pool in {PoolID(*device[:2]) for device in devices}]
        return any(
            not slice_.nodes.name or slice_.nodes.name != of_pool[0].nodes.name
            for of_pool in pools
            for slice_ in of_pool
        )

    def on(self, node: str, labels: Mapping[str, str]) -> NodeDevices:
        """Return the devices of a node."""
        self._settle(self._changed)
        known = self._nodes.get(node)
        # Slices with the node's name do not read its labels.
        target = TargetNode(name=node, labels=labels if self.index.of_many else {})
        if known is None or known.pools.node != target:
            self.work.spend(1)
            known = node_devices.of_node(self.index, target, self._is_own, self.cards(node))
            self._nodes[node] = known
        return known

    def counts(self, kind: DeviceKind, rows: int) -> DeviceCounts:
        """Return the counts of a kind of device, to be updated. If there is no memory, the counts are not kept."""
        self._settle(self._changed)
        counts = self._answers.counts(kind, rows)
        if counts is None:
            self.work.put_off()
            return DeviceCounts(rows)
        return counts

    def nodes_matching(self, selectors: tuple[str | None, ...]) -> frozenset[str] | None:
        """Return the nodes for which slices list a device that a class selects, in Berth's pools or in others.

        None if such a device is for many nodes, or if there is no work left to compare all devices.
        """
        selected = self.index.selected
        known = self._matching.get(selectors)
        if known is not None and known[0] == selected.devices.changes.now:
            return known[1]
        matched, nodes = selected.of((selectors, ())), set[str]()
        try:
            is_wide = any(_selects(matched, slice_) for slice_ in self.index.of_many)
            for node, slices in self.index.by_node.items() if not is_wide else ():
                if any(_selects(matched, slice_) for slice_ in slices):
                    nodes.add(node)
        except NoWorkError:
            return None
        if len(self._matching) >= MAX_MATCHING:
            self._matching.clear()
        self._matching[selectors] = selected.devices.changes.now, None if is_wide else frozenset(nodes)
        return self._matching[selectors][1]

    def search_ended(self, request: Hashable) -> None:
        """Note that a search for a request ended at its bound: `go_on` finds it."""
        self._answers.search_ended(request)

    def go_on(self, most: int) -> Hashable | None:
        """Return a request with searches that ended at their bound and continue now; None if there is none."""
        return self._answers.go_on(most)

    def refusals(self, request: Hashable) -> SearchRefusals:
        """Return why a request was refused on nodes, to look up and to add to."""
        self._settle(self._changed)
        return self._answers.refusals(request, len(self._nodes))

    def _settle(self, pools: set[PoolID]) -> None:
        """Drop the results for the nodes of changed pools."""
        while pools:
            for slice_ in self.index.by_pool.get(pools.pop(), ()):
                if not slice_.nodes.name:
                    self.changed()
                    continue
                self._nodes.pop(slice_.nodes.name, None)
                self._answers.drop(slice_.nodes.name)

    # --- what-ifs ---------------------------------------------------------------------------------------------

    def copy(self) -> Self:
        """Return an independent copy. Its slices must not change."""
        parts = {name: value.copy() for name, value in vars(self).items() if isinstance(value, dict | set)}
        return with_own(self, holdings=self.holdings.copy(), _answers=self._answers.copy(), **parts)

    def what_if(self) -> Self:
        """Return a copy in which claims may hold other devices. It ends before any object changes."""
        parts = {name: vars(self)[name].copy() for name in ("_shown", "_assumed", "_added", "_answers")}
        return with_own(self, holdings=self.holdings.copy(), **parts)

    def emptied(self, kept: Iterable[ClaimState]) -> Self:
        """Return a copy in which only these claims hold devices. It ends before any object changes."""
        new = with_own(self, holdings=Holdings(), _shown={}, _assumed={}, _added={}, _answers=Answers())
        for claim in kept:
            new.put_claim(claim)
        return new


def _selects(matched: SelectorPair, slice_: Slice) -> bool:
    """Return whether a class selects a device of a slice; raise NoWorkError."""
    for device in slice_.devices:
        try:
            if matched.matches(device, "class", "class"):
                return True
        except NoWorkError:
            raise
        except AllocationError:
            continue
    return False


def _tainted(slice_: Slice, rules: Iterable[TaintRule]) -> Slice:
    """Return a slice whose devices also have the taints of rules; the same slice if no rule applies to its pool."""
    own = [rule for rule in rules if rule.is_for(slice_.pool)]
    if not own:
        return slice_
    devices = []
    for device in slice_.devices:
        taints = tuple(rule.taint for rule in own if rule.device in ("", device.id.device))
        devices.append(replace(device, taints=(*device.taints, *taints)) if taints else device)
    return replace(slice_, devices=tuple(devices))
